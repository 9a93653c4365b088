// Runs one point of an experiment on its executors and gives the result as JSON: what `plumb run --json`
// prints, and what its tables are made of. Fields: docs/json.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/experiment.h"
#include "model/trace.h"

namespace plumb {

using Json = nlohmann::ordered_json;

struct PointOptions {
  std::string trace_folder;  // traces, tables and pages are written there, "" = nowhere
  std::string dump_folder;   // rows of the host run are written there, "" = nowhere
  std::string prefix;        // of file names, tells points apart
};

/// The point of that index, or the only one when `point` is negative. Throws Error(usage) naming the number
/// of points.
const Experiment& chosen_point(const std::vector<Experiment>& experiments, int32_t point);

/// The experiment with the service level that its traffic really gets: PLUMB_SL overrides the program's, with
/// a warning on stderr. `report`: value and origin, may be null. Throws Error(usage) for a level out of
/// range.
Experiment effective(Experiment experiment, Json* report);

/// NAME.csv of an executor in the trace folder, if there is one.
void write_trace(const PointOptions& options, const Trace& trace);

/// Throws Error(environment) for an executor that this build does not have, and what the executors throw.
Json run_point(const Experiment& experiment, const PointOptions& options);

/// Wait matrix and findings of each executor whose traces hold waits.
Json waits_json(std::span<const Trace> traces);

/// The plan as JSON: digest, program, phases, totals, ledger and, up to `max_ops` ops, the ops with their
/// edges.
Json plan_json(const Plan& plan, int64_t max_ops);

}  // namespace plumb

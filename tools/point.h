// Runs one point of an experiment on its executors and gives the result as JSON: what `plumb run --json`
// prints, and what its tables are made of. Fields: docs/json.md.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/experiment.h"

namespace plumb {

using Json = nlohmann::ordered_json;

struct PointOptions {
  std::string trace_folder;  // traces are written there, "" = nowhere
  std::string dump_folder;   // rows of the host run are written there, "" = nowhere
  std::string prefix;        // of file names, tells points apart
};

/// Throws Error(environment) for an executor that this build does not have, and what the executors throw.
Json run_point(const Experiment& experiment, const PointOptions& options);

/// The plan as JSON: digest, program, phases, totals, ledger and, up to `max_ops` ops, the ops with their
/// edges.
Json plan_json(const Plan& plan, int64_t max_ops);

}  // namespace plumb

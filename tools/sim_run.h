// The sim executor as `plumb run` uses it: progress, tables and the page of a run.
#pragma once

#include "tools/point.h"

namespace plumb {

struct SimulatedRun {
  Trace trace;
  Json json;  // docs/json.md, object `sim`
};

/// Plays the plan. Writes links.csv, lanes.csv, waits.csv and report.html to the folder of the options, also
/// of a run that does not end: then its trace too, before the executor's error is thrown.
SimulatedRun run_simulated(const Experiment& experiment, const Fabric& fabric, const Plan& plan,
                           const PointOptions& options);

}  // namespace plumb

// Plays a plan in SimGrid's clock: the driver that SimExecutor takes.
#pragma once

#include "sim/network.h"

namespace plumb::sim {

/// Runs the network until it has no event left, or until `limit`, as a model of a SimGrid engine of this
/// process (which must have none yet; run_in_child() gives more). Same dates as without SimGrid.
void drive_under_simgrid(Network& network, Ps limit);

}  // namespace plumb::sim

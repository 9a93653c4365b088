// What a run as packets will cost, before it starts.
#pragma once

#include "model/fabric.h"
#include "model/machine.h"
#include "model/plan.h"
#include "model/sim_options.h"
#include "sim/packet_settings.h"

namespace plumb::sim {

/// Expected numbers. Hops are the mean minimal path of up to 4096 ops, detours not counted; two events per
/// hop (docs/simulator.md, "Speed").
struct RunCost {
  double packets = 0;
  double events = 0;
  Seconds cpu{};  // at 5 M events per second
};

RunCost run_cost(const Machine& machine, const Fabric& fabric, const Plan& plan,
                 const PacketSettings& settings, const SimOptions& options);

/// Throws Error(usage) with the estimate when it is above SimOptions::max_events.
void check_run_cost(const RunCost& cost, const SimOptions& options);

/// "about 3.2e+10 events (4.1e+09 packets), 1.8 h of CPU time"
std::string to_string(const RunCost& cost);

}  // namespace plumb::sim

// The sim executor: plays a plan on the simulated network of a machine. Method: docs/simulator.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/compare.h"
#include "model/costs.h"
#include "model/executor.h"
#include "model/fabric.h"
#include "model/machine.h"
#include "model/sim_options.h"
#include "sim/network.h"
#include "sim/packet_settings.h"
#include "sim/run_cost.h"
#include "sim/statistics.h"
#include "sim/utilisation.h"

namespace plumb::sim {

/// What a run saw beside its trace.
struct SimReport {
  Ps end = 0;                       // of the last op
  PacketCounts counts;              // zero with the flow fidelity
  std::vector<LinkUse> links;       // utilisation until `end`
  std::vector<LaneUse> lanes;       // packet fidelity
  LinkTimeline timeline;            // links over time
  std::optional<WaitMatrix> waits;  // up to 1024 ranks
  int64_t memory_bytes = 0;         // of network and player, at the end
};

class SimExecutor : public Executor {
 public:
  /// `done`: part of the chunks that have landed; `now`: simulated time. Called about once a second.
  using Progress = std::function<void(double done, Seconds now)>;

  /// `machine` and `fabric` must outlive it.
  SimExecutor(const Machine& machine, const Fabric& fabric, Costs costs, SimOptions options);

  std::string_view name() const override { return "sim"; }
  /// Throws Error(usage) for what PlanPlayer and PacketNetwork refuse, for events that name no link, node or
  /// rank of the machine, lanes whose buffer holds no packet, and, with the estimate, for a run that would be
  /// too costly (SimOptions::max_events); Error(mismatch), naming what waits for what, when the plan does not
  /// end: then report() and partial() hold what happened until there.
  Trace run(const Plan& plan) override;

  /// Runs the network of a run to its last event or the limit (kNever: none), e.g. under another clock.
  using Driver = std::function<void(Network& network, Ps limit)>;
  /// Instead of the own clock; then there is no progress and no timeline.
  void set_driver(Driver driver) { driver_ = std::move(driver); }
  /// What run() will cost as packets.
  RunCost cost(const Plan& plan) const;
  void set_progress(Progress progress) { progress_ = std::move(progress); }
  const SimReport& report() const { return report_; }
  /// The trace of a run that did not end, marked as incomplete.
  const Trace& partial() const { return partial_; }

 private:
  const Machine& machine_;
  const Fabric& fabric_;
  const Costs costs_;
  const SimOptions options_;
  Progress progress_;
  Driver driver_;
  SimReport report_;
  Trace partial_;
};

/// Throws Error(usage) for what run() would refuse of a machine's options whatever the plan of `ranks` ranks
/// is: events that name nothing, lanes whose buffer holds no packet.
void check_sim_options(const Machine& machine, const Fabric& fabric, const SimOptions& options,
                       int32_t ranks);

/// The packet network that options ask for on a machine. `plan`: which traffic classes and packets it has.
PacketSettings packet_settings(const Machine& machine, const SimOptions& options, const Plan& plan);

}  // namespace plumb::sim

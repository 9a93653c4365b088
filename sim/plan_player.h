// Plays a plan over a network: ops become messages, edges wake what follows, and SMs, memory, copy engines
// and NICs of every rank take their time. Internal to SimExecutor. plan_player.cc: edges and progress;
// plan_engines.cc: what a rank does beside the network; plan_results.cc: what came out.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "model/analytic_work.h"
#include "model/compare.h"
#include "model/sim_options.h"
#include "sim/network.h"
#include "sim/path_latency.h"
#include "sim/plan_records.h"
#include "sim/pool.h"

namespace plumb::sim {

class PlanPlayer final : public Traffic {
 public:
  /// All must outlive it. Throws Error(usage) for a coarse plan, one with more ranks than the fabric, a pair
  /// without a path, or an event of a rank that does not exist.
  PlanPlayer(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs,
             const SimOptions& options);

  /// Starts what waits for nothing. `network` must outlive the run.
  void start(Network& network);
  bool is_done() const { return unfinished_ == 0; }
  int64_t chunks_left() const { return chunks_left_; }
  /// Up to ten ops that did not end and what they wait for, one line each; empty when all ended.
  std::string unfinished_report() const;

  const PhaseUse& use(PhaseId phase, Rank rank) const { return uses_[phase * ranks_ + size_t(rank)]; }
  Ps last_end() const;
  /// Time that an engine of a rank worked.
  Ps busy(EngineKind kind, Rank rank) const { return engines_[index(rank, kind)].worked; }
  Ps computed(Rank rank) const { return computed_[size_t(rank)]; }
  /// What ended, as the destinations counted it.
  Ledger ledger() const;
  /// How long each destination waited for each source after it began the phase itself; nothing above 1024
  /// ranks.
  std::optional<WaitMatrix> waits() const;

  bool next(Rank src, Link network, uint8_t traffic_class, Message& message) override;
  void on_sent(const Message& message, Ps at) override;
  void on_arrived(const Message& message, Ps at) override;
  void on_timer(uint32_t id, Ps at) override;

 private:
  size_t index(Rank rank, EngineKind kind) const { return size_t(rank) * kEngines + size_t(kind); }
  const Op& op(OpId id) const { return plan_.ops()[size_t(id)]; }
  OpState& state(OpId id) { return states_[size_t(id)]; }
  const Phase& phase(const Op& o) const { return plan_.phases()[o.phase]; }
  int64_t bytes_before(const Op& o, const OpState& s, int32_t chunk) const;
  int64_t bytes_of(const Op& o, const OpState& s, int32_t chunk, int32_t count) const;
  PhaseUse& use_of(PhaseId phase, Rank rank) { return uses_[phase * ranks_ + size_t(rank)]; }

  // plan_player.cc
  void prepare_ops();
  bool is_free_signal(OpId id, OpId before) const;
  void link_dependents();
  void stagger(std::span<uint32_t> edges) const;
  void mark_signals();
  bool is_network(const Op& o) const { return o.link != Link::local && o.src != o.dst; }
  void schedule(Ps at, Action action, int32_t a, int32_t b = 0);
  void release(OpId id);
  void feed_streams(OpId id, int64_t weight);
  int32_t released_by(const Op& o, const OpState& s, OpId id) const;
  void fire(OpId id, On event);
  void finish_chunks(OpId id, int32_t count);
  void end_op(OpId id);
  void to_network(OpId id, int32_t count);
  void push(Ring& ring, OpId id, OpId OpState::*next);
  OpId pop(Ring& ring, OpId OpState::*next);
  Ring& nic_ring(Rank rank, Link network, uint8_t traffic_class);

  // plan_engines.cc
  void prepare_engines();
  void leave_out_hidden_latency(const detail::PlanWork& work);
  double chunk_seconds(EngineKind kind, const Op& o, const OpState& s, int32_t chunk) const;
  bool uses(EngineKind kind, const Op& o) const;
  std::optional<EngineKind> first_engine(const Op& o) const;
  bool pass_gate(OpId id);
  void run(OpId id);
  void run_free(OpId id);
  void measure_depths(const detail::PlanWork& work);
  void measure_feeds(const detail::PlanWork& work);
  OpId take_next(size_t engine);
  void step(Rank rank, EngineKind kind);
  void engine_done(Rank rank, EngineKind kind);
  void second_stage(OpId id, EngineKind first, int32_t chunk);
  void issue(OpId id, int32_t count);
  void join_barrier(OpId id);
  void start_compute(OpId id);
  void share_sms(Rank rank);
  void end_compute(Rank rank, OpId id);
  void hold_sms(const Op& o, int32_t change);
  void on_rank_event(size_t event);
  Ps scaled(Rank rank, double seconds) const;

  const Plan& plan_;
  const Machine& machine_;
  const Fabric& fabric_;
  PathLatencies latencies_;
  const Costs& costs_;
  const SimOptions& options_;
  const size_t ranks_;
  Network* network_ = nullptr;
  Ps now_ = 0;

  std::vector<OpState> states_;
  std::vector<Stream> streams_;
  std::vector<uint32_t> dependent_begin_;  // [ops + 1]
  std::vector<uint32_t> dependents_;       // op, event in the two upper bits
  std::vector<Order> orders_;              // [ops], empty when no signal follows data
  std::vector<uint8_t> reports_sent_;      // [ops]
  std::vector<std::vector<PhaseId>> pipelines_;
  std::vector<detail::PipelineStart> starts_;
  std::vector<uint16_t> pipeline_of_;  // [phases]
  std::vector<detail::PhaseRates> rates_;
  std::vector<double> feed_per_byte_;     // [phases][ranks] of scale-up puts and gets; empty without feeds
  std::array<Ps, 3> software_latency_{};  // by link class
  std::vector<Gate> gates_;               // [pipelines][ranks]
  std::vector<Ring> at_gates_;            // [pipelines][ranks]
  std::vector<EngineState> engines_;      // [ranks][kinds]
  std::vector<Ring> rings_;               // [ranks][kinds][phases]
  std::vector<uint32_t> served_;          // [ranks][kinds][phases] of the engine's count, when last
  std::vector<int32_t> depths_;           // [phases] streams before it
  std::vector<Ring> nic_rings_;           // [ranks][networks][classes]
  int32_t classes_ = 1;
  std::vector<BarrierState> barriers_;
  std::vector<Ps> barrier_costs_;
  bool has_compute_ = false;
  std::vector<std::vector<Running>> running_;  // [ranks]
  std::vector<int32_t> active_ops_;            // [phases][ranks] on SMs, when the plan computes
  std::vector<double> speeds_;                 // [ranks]
  std::vector<Ps> dead_since_;                 // [ranks], kNever
  std::vector<Ps> computed_;                   // [ranks]
  Pool<Entry> agenda_;                         // by number of the network's timer

  std::vector<PhaseUse> uses_;  // [phases][ranks]
  std::vector<Ps> last_from_;   // [destinations][sources], up to 1024 ranks
  int64_t unfinished_ = 0;
  int64_t chunks_left_ = 0;
};

}  // namespace plumb::sim

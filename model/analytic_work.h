// What a plan asks of each rank, how its phases depend on each other, and what costs files charge for them;
// internal to the executors that predict.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/analytic.h"

namespace plumb::detail {

/// Index into arrays of the two networks.
inline constexpr size_t kUp = 0, kOut = 1;
constexpr size_t network_index(Link link) { return link == Link::scale_out ? kOut : kUp; }

/// Work of one rank in one phase.
struct RankWork {
  std::array<int64_t, 2> sent{};  // bytes per network
  std::array<int64_t, 2> received{};
  int64_t memory = 0;       // bytes read and written by copies and sums
  int64_t copy_engine = 0;  // bytes moved by a copy engine
  int64_t messages = 0;     // scale-out messages issued
  double sm_seconds = 0;
  double feed_seconds = 0;  // of scale-up links, as SMs can use them
  int64_t fed_bytes = 0;    // of the puts and gets among them
  double compute_seconds = 0;
  int64_t issued_messages = 0;  // as the ledger counts, for the trace
  int64_t issued_bytes = 0;
  bool issues = false;
  bool takes_part = false;

  void add(const RankWork& other);
};

/// How one phase depends on another; flags.
enum Relation : uint8_t { kNoRelation = 0, kArrived = 1, kStream = 2, kSent = 4 };

struct PlanWork {
  explicit PlanWork(const Plan& plan)
      : ranks(static_cast<size_t>(plan.grouping().ranks)),
        num_phases(plan.phases().size()),
        work(num_phases * ranks),
        relations(num_phases * num_phases),
        chain(num_phases),
        longest_latency(num_phases),
        has_network(num_phases),
        barriers(num_phases) {}

  size_t ranks;
  size_t num_phases;
  std::vector<RankWork> work;      // [phases][ranks]
  std::vector<uint8_t> relations;  // [phases][phases]: of the second to the first
  std::vector<int32_t> chain;      // [phases]: most edges of a phase on itself in a row (rings)
  std::vector<std::array<double, 2>> longest_latency;  // [phases][network] of a sample of its ops, seconds
  std::vector<std::array<bool, 2>> has_network;
  struct Member {
    Rank rank = 0;
    int32_t barrier = 0;
  };
  std::vector<std::vector<Member>> barriers;  // [phases]

  bool has_ops(PhaseId phase) const;
  const RankWork& at(size_t phase, size_t rank) const { return work[phase * ranks + rank]; }
  RankWork& at(size_t phase, size_t rank) { return work[phase * ranks + rank]; }
  uint8_t relation(size_t from, size_t to) const { return relations[from * num_phases + to]; }
};

/// Costs of a phase that are the same for all of its ops.
struct PhaseRates {
  bool is_copy_engine = false;
  std::array<double, 3> sm_per_row{};  // seconds, by link class; 0 where SMs cost nothing
  std::array<double, 3> sm_per_byte{};
  std::array<double, 3> feed_per_byte{};  // of a scale-up link, by SMs that also move own rows; 0: no limit
};
std::vector<PhaseRates> phase_rates(const Plan& plan, const Machine& machine, const Costs& costs);

/// Bytes that an op reads and writes in the memory of its rank; 0 for puts and gets.
int64_t memory_bytes(const Plan& plan, const Op& op);

PlanWork measure(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs);

/// Groups of phases that run at the same time, in topological order: phases joined by stream edges, and those
/// that depend on each other in a circle.
std::vector<std::vector<PhaseId>> find_pipelines(const PlanWork& work);

/// The largest sum of `times` [phases.size()] along a chain of streams.
double longest_chain(const PlanWork& work, const std::vector<PhaseId>& phases,
                     const std::vector<double>& times);

/// What a pipeline pays on a rank before it moves anything there.
struct PipelineStart {
  bool is_free = false;  // a fixed time covers all of its phases, which then cost nothing
  double wait = 0;       // seconds: fixed times, host synchronisation, the gap before a new kernel
};
std::vector<PipelineStart> pipeline_starts(const Plan& plan, const PlanWork& work,
                                           const std::vector<std::vector<PhaseId>>& pipelines,
                                           const Costs& costs);

/// The hottest link that several ranks share, when the puts and gets of some phases spread over the fabric.
/// Links of one rank alone are left out: RankWork holds their bytes.
struct HotLink {
  LinkId link = kNone;
  double seconds = 0;          // at the usable rate
  double nominal_seconds = 0;  // at nominal rates, of what must leave or enter a switch
};
HotLink hottest_shared_link(const Plan& plan, const std::vector<PhaseId>& phases, const Fabric& fabric,
                            const Costs& costs);

/// Times of hardware alone.
struct LowerBound {
  double total = 0;            // seconds
  std::vector<double> phases;  // [phases], each alone
  std::vector<double> begin;   // [phases], earliest start of an op that moves data
};
LowerBound lower_bound(const Plan& plan, const PlanWork& work, const Machine& machine, const Fabric& fabric);

/// Smallest latency of a path between any two ranks, by network, seconds; 0 when it has none.
std::array<double, 2> least_latencies(const Fabric& fabric);

}  // namespace plumb::detail

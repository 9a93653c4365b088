// Weighted max-min fair rates of flows over shared resources: exact when solved anew, near enough between two
// solutions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace plumb::sim {

/// A resource that a flow takes, and the share of its rate that it takes there: 1 for a path, less for one of
/// the links that it is split over.
struct ResourceUse {
  double share = 1;
  uint32_t resource = 0;
};

struct FlowDemand {
  double weight = 1;
  double bound = std::numeric_limits<double>::infinity();  // of its rate
};

/// Rates r_f >= 0 are max-min fair when none can grow without making a smaller r_f / weight_f shrink, with
/// sum of share x r_f <= capacity on each resource. Progressive filling (Bertsekas and Gallager, Data
/// Networks, section 6.5.2): all flows grow in step, those of the resource that fills up first stop. Cost of
/// solve(): uses of live flows, plus resources x log.
class MaxMin {
 public:
  /// Rate units per time, 0 = nothing passes. Forgets all flows.
  void set_capacities(std::vector<double> capacities);

  /// A flow comes; until solve() it has what its resources have left over, or an equal share when that is
  /// more. `flow`: any small number that is not in use.
  void add(uint32_t flow, std::span<const ResourceUse> uses, FlowDemand demand);
  /// A flow goes. What it had is free for flows to come, others keep their rates until solve().
  void remove(uint32_t flow);
  /// Fair rates for all.
  void solve();

  double rate(uint32_t flow) const { return flows_[flow].rate; }
  std::span<const ResourceUse> uses(uint32_t flow) const {
    return {&uses_[size_t{flow} * stride_], flows_[flow].num_uses};
  }
  /// Some resource gives half as much again as it has: solve() should not wait.
  bool is_overfull() const { return is_overfull_; }
  int64_t memory_bytes() const;

 private:
  struct Resource {
    double capacity = 0;
    double left = 0;    // not given to flows
    double demand = 0;  // sum of weight x share of all flows
    double open = 0;    // of those whose rate is not yet fixed
    uint32_t num_open = 0;
    uint32_t begin = 0;  // in members_
  };
  struct Flow {
    double rate = 0;
    FlowDemand demand;
    uint32_t num_uses = 0;
    uint32_t position = 0;  // in live_
    bool is_fixed = false;
  };

  void widen(size_t num_uses);
  void gather();
  void fix(Flow& flow, uint32_t index, double rate);
  double level(const Resource& r) const { return r.left > 0 ? r.left / r.open : 0; }

  std::vector<Resource> resources_;
  std::vector<Flow> flows_;
  std::vector<ResourceUse> uses_;  // [flows][stride]
  size_t stride_ = 2;
  std::vector<uint32_t> live_;
  std::vector<uint32_t> members_;                   // flows of each resource
  std::vector<std::pair<double, uint32_t>> heap_;   // level, resource
  std::vector<std::pair<double, uint32_t>> bounds_;  // level, flow
  int64_t num_bounded_ = 0;
  bool is_overfull_ = false;
};

}  // namespace plumb::sim

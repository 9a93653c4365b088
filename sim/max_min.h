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

  /// A flow comes, at the end of all: its index is the number of those before it. Until solve() it has what
  /// its resources have left over, or an equal share when that is more. Without uses its rate is the bound.
  void add(std::span<const ResourceUse> uses, FlowDemand demand);
  /// A flow goes, and the last one takes its index. What it had is free for flows to come; others keep their
  /// rates until solve().
  void remove(uint32_t flow);
  /// Fair rates for all.
  void solve();

  double rate(uint32_t flow) const { return levels_[flow] * weights_[flow]; }
  /// Shares in these are multiplied by the weight.
  std::span<const ResourceUse> weighted_uses(uint32_t flow) const {
    return {&uses_[flow * stride_], num_uses_[flow]};
  }
  double weight(uint32_t flow) const { return weights_[flow]; }
  /// Some resource gives half as much again as it has: solve() should not wait.
  bool is_overfull() const { return is_overfull_; }
  int64_t memory_bytes() const;

 private:
  // What solve() touches again and again stands apart: it should stay in cache.
  struct Resource {
    double left = 0;  // not given to flows
    double open = 0;  // sum of weight x share of the flows whose rate is not yet fixed
    uint32_t num_open = 0;
    uint32_t begin = 0;  // in members_
  };

  uint32_t num_flows() const { return static_cast<uint32_t>(levels_.size()); }
  void widen(size_t num_uses);
  void gather();
  void fix(uint32_t flow, double level);
  static double level(const Resource& r) { return r.left > 0 ? r.left / r.open : 0; }

  std::vector<Resource> resources_;
  std::vector<double> capacities_;  // [resources]
  std::vector<double> demands_;     // [resources] sum of weight x share of all flows
  std::vector<double> levels_;      // [flows] rate / weight
  std::vector<double> weights_;     // [flows]
  std::vector<double> limits_;      // [flows] of the level
  std::vector<uint32_t> num_uses_;  // [flows]
  std::vector<uint8_t> is_fixed_;   // [flows]
  std::vector<ResourceUse> uses_;   // [flows][stride]
  size_t stride_ = 2;
  std::vector<uint32_t> members_;                    // flows of each resource
  std::vector<std::pair<double, uint32_t>> heap_;    // level, resource
  std::vector<std::pair<double, uint32_t>> bounds_;  // level, flow
  int64_t num_bounded_ = 0;
  bool is_overfull_ = false;
};

}  // namespace plumb::sim

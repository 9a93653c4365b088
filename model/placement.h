// Where experts live: logical experts (what the gate chooses) on physical experts (slots of ranks), with
// replicas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routing.h"

namespace plumb {

/// Physical expert p lives on rank p / (physical / ranks).
struct Placement {
  int32_t ranks = 1;
  int32_t logical_experts = 0;
  std::vector<int32_t> logical_of;  // [physical]: which logical expert each slot holds

  int32_t physical_experts() const { return static_cast<int32_t>(logical_of.size()); }
  int32_t slots_per_rank() const { return physical_experts() / ranks; }
  /// Physical experts of each logical one, ascending: [logical][replicas].
  std::vector<std::vector<int32_t>> replicas() const;
  /// Largest expected slots of a rank under `load` [logical], replicas sharing evenly, over the mean of the
  /// ranks; zero load: 1. Throws Error(usage) for a wrong number of loads, or one that is negative or not
  /// finite.
  double imbalance(std::span<const double> load) const;
};

/// Expert e on slot e. Throws Error(usage) when experts % ranks != 0, naming the nearest legal numbers.
Placement default_placement(int32_t experts, int32_t ranks);
/// A map given by the user, in the order of physical experts. Throws Error(usage) unless every logical expert
/// has a replica and none is twice on one rank while it is missing on another, naming expert, rank and slots.
Placement given_placement(int32_t experts, int32_t ranks, std::vector<int32_t> logical_of);

/// How the balancer packs: over the whole cluster, or first groups onto nodes, then experts inside a node
/// (policies of deepseek-ai/EPLB README: "global" and "hierarchical").
enum class BalancePolicy : uint8_t { global, hierarchical };

struct BalanceSpec {
  BalancePolicy policy = BalancePolicy::global;
  int32_t ranks = 1;
  int32_t nodes = 1;
  int32_t groups = 1;            // gate groups; hierarchical needs groups % nodes == 0
  int32_t physical_experts = 0;  // logical + redundant, a multiple of ranks
};

/// Greedy balancer. Replicates the expert with the largest load per replica until all slots are used (none
/// beyond one replica a rank as long as another has fewer), then packs replicas by descending load onto the
/// least loaded rank that has room and does not hold that expert yet. Ties: fewer replicas, then smaller
/// index. No expert is twice on a rank while it is missing on another one (of its node). hierarchical: groups
/// are packed onto nodes first, equally many on each; the rest happens inside each node.
///
/// The result is never less balanced than the uniform map, which it returns for a load of zeros: groups on
/// nodes in their order, the experts of a node round robin over its slots. Same bytes on every machine.
/// `load`: double [logical], each finite and >= 0. Throws Error(usage) that names a bad load or field.
Placement balance(std::span<const double> load, const BalanceSpec& spec);

/// Rewrites a routing over logical experts into one over physical experts: token t of source rank r uses
/// replica (r + t) mod replicas of each of its experts, so that replicas share evenly and rows keep distinct
/// experts. Throws Error(usage) when the shape has other ranks or experts than the placement.
Routing place(const Routing& logical, const Shape& logical_shape, const Placement& placement);

}  // namespace plumb

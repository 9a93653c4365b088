// Where experts live: logical experts (what the gate chooses) on physical experts (slots of ranks), with
// replicas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/routing.h"

namespace plumb {

/// physical expert p lives on rank p / (physical / ranks).
struct Placement {
  int32_t ranks = 1;
  int32_t logical_experts = 0;
  std::vector<int32_t> logical_of;  // [physical]: which logical expert each slot holds

  int32_t physical_experts() const { return static_cast<int32_t>(logical_of.size()); }
  int32_t slots_per_rank() const { return physical_experts() / ranks; }
  /// Physical experts of each logical one, ascending: [logical][replicas].
  std::vector<std::vector<int32_t>> replicas() const;
  /// Expected slots per rank under `load` [logical] with replicas sharing evenly, divided by the mean; zero
  /// load: 1.
  double imbalance(std::span<const double> load) const;
};

/// Expert e on slot e. Throws Error(usage) when experts % ranks != 0, naming the nearest legal numbers.
Placement default_placement(int32_t experts, int32_t ranks);
/// A map given by the user: every logical expert at least once, none twice on one rank while another has
/// room.
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

/// Greedy balancer: replicates the expert with the largest load per replica until all slots are used, then
/// packs replicas by descending load onto the least loaded rank that has room and does not hold that expert
/// yet (allowed only when no other rank has room). Ties: smaller index first. Load of zeros: uniform map.
/// Deterministic on every machine. load: double [logical], each finite and >= 0, else Error(usage) that names
/// the expert.
Placement balance(std::span<const double> load, const BalanceSpec& spec);

/// Rewrites a routing over logical experts into one over physical experts; a token of source rank r uses
/// replica (r + token) mod replicas, moved on to the next replica when that rank-local choice is already
/// taken by the row.
Routing place(const Routing& logical, const Shape& logical_shape, const Placement& placement);

}  // namespace plumb

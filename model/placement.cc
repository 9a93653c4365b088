// Expert placements: maps given or by default, the greedy balancer, and routings rewritten to physical
// experts.
#include "model/placement.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "model/error.h"

namespace plumb {
namespace {

void require_ranks(int32_t experts, int32_t ranks, std::string_view what) {
  if (ranks < 1 || ranks > kMaxRanks)
    fail_usage("placement: ranks is {}; allowed: 1 .. {}", ranks, kMaxRanks);
  if (experts < 1 || experts > kMaxExperts)
    fail_usage("placement: {} is {}; allowed: 1 .. {}", what, experts, kMaxExperts);
  if (experts % ranks != 0)
    fail_usage("placement: {} is {}, not a multiple of ranks {}; nearest allowed: {}", what, experts, ranks,
               nearest_multiples(experts, ranks));
}

void require_loads(std::span<const double> load) {
  for (size_t e = 0; e < load.size(); ++e)
    if (!(load[e] >= 0) || !std::isfinite(load[e]))
      fail_usage("placement: the load of expert {} is {}; allowed: finite and 0 or more", e, load[e]);
  if (!std::isfinite(std::accumulate(load.begin(), load.end(), 0.0)))
    fail_usage("placement: the sum of the loads is not finite; scale them down");
}

void require_spec(int32_t experts, const BalanceSpec& spec) {
  if (experts < 1) fail_usage("placement: no loads; there must be one for each logical expert");
  if (spec.ranks < 1 || spec.ranks > kMaxRanks)
    fail_usage("placement: ranks is {}; allowed: 1 .. {}", spec.ranks, kMaxRanks);
  const int64_t least = round_up(experts, spec.ranks);
  if (spec.physical_experts < least || spec.physical_experts > kMaxExperts ||
      spec.physical_experts % spec.ranks != 0)
    fail_usage("placement: physical_experts is {}; allowed: multiples of ranks {} from {} to {}",
               spec.physical_experts, spec.ranks, least, kMaxExperts);
  if (spec.policy == BalancePolicy::global) return;
  if (spec.nodes < 1 || spec.ranks % spec.nodes != 0)
    fail_usage("placement: nodes is {}; allowed: divisors of ranks {}", spec.nodes, spec.ranks);
  if (spec.groups < 1 || experts % spec.groups != 0)
    fail_usage("placement: groups is {}; allowed: divisors of the {} logical experts", spec.groups, experts);
  if (spec.groups % spec.nodes != 0)
    fail_usage("placement: groups is {}, not a multiple of nodes {}; nearest allowed: {}", spec.groups,
               spec.nodes, nearest_multiples(spec.groups, spec.nodes));
}

/// One replica: an expert and its share of the load.
struct Replica {
  int32_t expert = 0;
  double load = 0;
};

/// Replicas on the ranks of one node, [rank][slot].
using Packing = std::vector<std::vector<Replica>>;

bool holds(const std::vector<Replica>& rank, int32_t expert) {
  return std::any_of(rank.begin(), rank.end(), [&](const Replica& r) { return r.expert == expert; });
}

int64_t copies(const std::vector<Replica>& rank, int32_t expert) {
  return std::count_if(rank.begin(), rank.end(), [&](const Replica& r) { return r.expert == expert; });
}

/// Replicas [slots] of `experts` (ascending), heaviest first; equal ones by expert.
std::vector<Replica> replicate(std::span<const double> load, std::span<const int32_t> experts, size_t slots,
                               int32_t ranks) {
  struct Count {
    double share;
    int32_t replicas;
    int32_t expert;
    bool is_full;  // on every rank
  };
  // Heap order: an expert that is not on every rank, the largest share, the fewest replicas, the smallest
  // index.
  const auto later = [](const Count& a, const Count& b) {
    if (a.is_full != b.is_full) return a.is_full;
    if (a.share != b.share) return a.share < b.share;
    if (a.replicas != b.replicas) return a.replicas > b.replicas;
    return a.expert > b.expert;
  };
  std::vector<Count> heap;
  for (const int32_t e : experts) heap.push_back({load[static_cast<size_t>(e)], 1, e, ranks == 1});
  std::make_heap(heap.begin(), heap.end(), later);
  for (size_t used = experts.size(); used < slots; ++used) {
    std::pop_heap(heap.begin(), heap.end(), later);
    Count& top = heap.back();
    ++top.replicas;
    top.share = load[static_cast<size_t>(top.expert)] / top.replicas;
    top.is_full = top.replicas >= ranks;
    std::push_heap(heap.begin(), heap.end(), later);
  }
  std::vector<Replica> result;
  for (const Count& count : heap)
    result.insert(result.end(), static_cast<size_t>(count.replicas),
                  {.expert = count.expert, .load = count.share});
  std::sort(result.begin(), result.end(), [](const Replica& a, const Replica& b) {
    return a.load != b.load ? a.load > b.load : a.expert < b.expert;
  });
  return result;
}

/// Puts each replica on the least loaded rank with room that lacks the expert, or else the least loaded with
/// room.
Packing pack(std::span<const Replica> replicas, size_t ranks) {
  const size_t slots = replicas.size() / ranks;
  Packing packing(ranks);
  std::vector<double> sum(ranks, 0.0);
  for (const Replica& replica : replicas) {
    size_t best = ranks;
    bool is_repeat = true;
    for (size_t r = 0; r < ranks; ++r) {
      if (packing[r].size() == slots) continue;
      const bool repeats = holds(packing[r], replica.expert);
      if (best == ranks || repeats < is_repeat || (repeats == is_repeat && sum[r] < sum[best])) {
        best = r;
        is_repeat = repeats;
      }
    }
    packing[best].push_back(replica);
    sum[best] += replica.load;
  }
  return packing;
}

/// Swaps one of two equal experts of rank `from` for a replica of rank `to`, which lacks the expert: for the
/// one nearest in load among those that `from` lacks, else for one that `to` has twice. If `to` has only
/// experts that `from` has, it has some twice, as `from` has a slot less for them. So each swap lowers the
/// number of repeats.
void swap_repeat(std::vector<Replica>& from, std::vector<Replica>& to, int32_t expert) {
  const auto repeat =
      std::find_if(from.begin(), from.end(), [&](const Replica& r) { return r.expert == expert; });
  auto best = to.end();
  for (auto it = to.begin(); it != to.end(); ++it) {
    if (holds(from, it->expert)) continue;
    if (best == to.end() || std::abs(it->load - repeat->load) < std::abs(best->load - repeat->load))
      best = it;
  }
  if (best == to.end())
    best = std::find_if(to.begin(), to.end(), [&](const Replica& r) { return copies(to, r.expert) > 1; });
  PLUMB_CHECK(best != to.end(), "no partner to swap expert {} with", expert);
  std::swap(*repeat, *best);
}

/// Removes repeats that pack() could not avoid because the last free slots were on one rank.
void spread_repeats(Packing& packing) {
  for (size_t r = 0; r < packing.size(); ++r) {
    for (size_t i = 0; i < packing[r].size();) {
      const int32_t expert = packing[r][i].expert;
      const auto lacking =
          copies(packing[r], expert) < 2
              ? packing.end()
              : std::find_if(packing.begin(), packing.end(),
                             [&](const std::vector<Replica>& rank) { return !holds(rank, expert); });
      if (lacking == packing.end()) {
        ++i;
        continue;
      }
      swap_repeat(packing[r], *lacking, expert);
      r = 0;  // a swap may leave a repeat on the other rank
      i = 0;
    }
  }
}

/// Experts [logical / nodes] of each node, ascending: groups by descending load onto the least loaded node
/// with room.
std::vector<std::vector<int32_t>> pack_groups(std::span<const double> load, int32_t nodes, int32_t groups) {
  const auto group_experts = static_cast<int32_t>(load.size() / static_cast<size_t>(groups));
  std::vector<Replica> items;
  for (int32_t g = 0; g < groups; ++g) {
    const auto part = load.subspan(static_cast<size_t>(g) * static_cast<size_t>(group_experts),
                                   static_cast<size_t>(group_experts));
    items.push_back({.expert = g, .load = std::accumulate(part.begin(), part.end(), 0.0)});
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Replica& a, const Replica& b) { return a.load > b.load; });
  std::vector<std::vector<int32_t>> result;
  for (const std::vector<Replica>& node : pack(items, static_cast<size_t>(nodes))) {
    std::vector<int32_t>& experts = result.emplace_back();
    for (const Replica& group : node)
      for (int32_t e = 0; e < group_experts; ++e) experts.push_back(group.expert * group_experts + e);
    std::sort(experts.begin(), experts.end());
  }
  return result;
}

Placement uniform_map(int32_t experts, const BalanceSpec& spec) {
  Placement result{.ranks = spec.ranks, .logical_experts = experts, .logical_of = {}};
  const int32_t node_experts = experts / spec.nodes;
  const int32_t node_slots = spec.physical_experts / spec.nodes;
  for (int32_t node = 0; node < spec.nodes; ++node)
    for (int32_t slot = 0; slot < node_slots; ++slot)
      result.logical_of.push_back(node * node_experts + slot % node_experts);
  return result;
}

Placement greedy_map(std::span<const double> load, const BalanceSpec& spec) {
  Placement result{
      .ranks = spec.ranks, .logical_experts = static_cast<int32_t>(load.size()), .logical_of = {}};
  const int32_t node_ranks = spec.ranks / spec.nodes;
  const auto node_slots = static_cast<size_t>(spec.physical_experts / spec.nodes);
  for (const std::vector<int32_t>& experts : pack_groups(load, spec.nodes, spec.groups)) {
    Packing packing = pack(replicate(load, experts, node_slots, node_ranks), static_cast<size_t>(node_ranks));
    spread_repeats(packing);
    for (std::vector<Replica>& rank : packing) {
      std::sort(rank.begin(), rank.end(),
                [](const Replica& a, const Replica& b) { return a.expert < b.expert; });
      for (const Replica& replica : rank) result.logical_of.push_back(replica.expert);
    }
  }
  return result;
}

}  // namespace

std::vector<std::vector<int32_t>> Placement::replicas() const {
  std::vector<std::vector<int32_t>> result(static_cast<size_t>(logical_experts));
  for (int32_t p = 0; p < physical_experts(); ++p)
    result[static_cast<size_t>(logical_of[static_cast<size_t>(p)])].push_back(p);
  return result;
}

double Placement::imbalance(std::span<const double> load) const {
  if (load.size() != static_cast<size_t>(logical_experts))
    fail_usage("placement: {} loads; allowed: one for each of the {} logical experts", load.size(),
               logical_experts);
  require_loads(load);
  std::vector<int64_t> count(load.size(), 0);
  for (const int32_t e : logical_of) ++count[static_cast<size_t>(e)];
  double total = 0;
  double largest = 0;
  const auto slots = static_cast<size_t>(slots_per_rank());
  for (size_t begin = 0; begin < logical_of.size(); begin += slots) {
    double sum = 0;
    for (size_t p = begin; p < begin + slots; ++p) {
      const auto e = static_cast<size_t>(logical_of[p]);
      sum += load[e] / static_cast<double>(count[e]);
    }
    total += sum;
    largest = std::max(largest, sum);
  }
  return total > 0 ? largest / (total / ranks) : 1;
}

Placement default_placement(int32_t experts, int32_t ranks) {
  require_ranks(experts, ranks, "experts");
  return uniform_map(experts, {.ranks = ranks, .physical_experts = experts});
}

Placement given_placement(int32_t experts, int32_t ranks, std::vector<int32_t> logical_of) {
  if (logical_of.size() > static_cast<size_t>(kMaxExperts))
    fail_usage("placement: {} slots; allowed: at most {}", logical_of.size(), kMaxExperts);
  require_ranks(static_cast<int32_t>(logical_of.size()), ranks, "the number of slots");
  if (experts < 1) fail_usage("placement: experts is {}; allowed: 1 or more", experts);
  for (size_t p = 0; p < logical_of.size(); ++p)
    if (logical_of[p] < 0 || logical_of[p] >= experts)
      fail_usage("placement: slot {} holds expert {}; allowed: 0 .. {}", p, logical_of[p], experts - 1);
  Placement result{.ranks = ranks, .logical_experts = experts, .logical_of = std::move(logical_of)};
  const int32_t slots = result.slots_per_rank();
  const std::vector<std::vector<int32_t>> replicas = result.replicas();
  for (int32_t e = 0; e < experts; ++e) {
    const std::vector<int32_t>& own = replicas[static_cast<size_t>(e)];
    if (own.empty()) fail_usage("placement: expert {} is on no slot; each needs at least one", e);
    // Slots are ascending, so replicas of one rank are neighbours.
    int32_t held = 1;
    size_t repeat = 0;
    for (size_t i = 1; i < own.size(); ++i) {
      if (own[i] / slots != own[i - 1] / slots)
        ++held;
      else if (repeat == 0)
        repeat = i;
    }
    if (repeat != 0 && held < ranks)
      fail_usage(
          "placement: rank {} holds expert {} twice, on slots {} and {}, while {} ranks do not hold it; "
          "spread its replicas over the ranks",
          own[repeat] / slots, e, own[repeat - 1], own[repeat], ranks - held);
  }
  return result;
}

Placement balance(std::span<const double> load, const BalanceSpec& spec) {
  const auto experts = static_cast<int32_t>(load.size());
  require_spec(experts, spec);
  require_loads(load);
  BalanceSpec local = spec;
  if (spec.policy == BalancePolicy::global) local.nodes = local.groups = 1;
  Placement uniform = uniform_map(experts, local);
  if (std::all_of(load.begin(), load.end(), [](double value) { return value == 0; })) return uniform;
  Placement greedy = greedy_map(load, local);
  return uniform.imbalance(load) < greedy.imbalance(load) ? uniform : greedy;
}

Routing place(const Routing& logical, const Shape& logical_shape, const Placement& placement) {
  if (logical_shape.ranks != placement.ranks || logical_shape.experts != placement.logical_experts)
    fail_usage("placement: made for {} ranks and {} experts; the shape has {} and {}", placement.ranks,
               placement.logical_experts, logical_shape.ranks, logical_shape.experts);
  const auto replicas = std::make_shared<const std::vector<std::vector<int32_t>>>(placement.replicas());
  return Routing::from_function(logical.topk(), [logical, replicas](Rank r, std::vector<int32_t>& out) {
    logical.rows(r, out);
    const auto topk = static_cast<size_t>(logical.topk());
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] == kNone) continue;
      const std::vector<int32_t>& own = (*replicas)[static_cast<size_t>(out[i])];
      out[i] = own[(static_cast<size_t>(r) + i / topk) % own.size()];
    }
  });
}

}  // namespace plumb

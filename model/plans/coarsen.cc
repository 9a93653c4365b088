// coarsen(): one op for the traffic between two groups of ranks.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "model/error.h"
#include "model/plans/derive.h"

namespace plumb {
namespace {

/// What ops merge under; phases come first, so that merged ops keep the order of phases.
auto key_of(const Op& op) { return std::tuple(op.phase, op.kind, op.link, op.traffic_class, op.src, op.dst); }

}  // namespace

Plan coarsen(const Plan& plan, int32_t ranks_per_group) {
  const int32_t ranks = plan.grouping().ranks;
  if (ranks_per_group < 1 || ranks % ranks_per_group != 0)
    fail_usage("groups of {} ranks do not divide {} ranks", ranks_per_group, ranks);
  const auto first_of = [&](Rank r) { return r / ranks_per_group * ranks_per_group; };

  // Merge ops that agree in everything but their ranks' places inside their groups.
  std::vector<Op> merged;
  std::vector<OpId> merged_of(plan.ops().size());
  std::map<decltype(key_of(Op{})), OpId> index;
  for (size_t id = 0; id < plan.ops().size(); ++id) {
    Op op = plan.ops()[id];
    op.src = first_of(op.src);
    op.dst = first_of(op.dst);
    op.first_item = kNone;
    const auto [it, is_new] = index.try_emplace(key_of(op), static_cast<OpId>(merged.size()));
    merged_of[id] = it->second;
    if (is_new) {
      merged.push_back(op);
      continue;
    }
    Op& sum = merged[static_cast<size_t>(it->second)];
    PLUMB_CHECK(int64_t{sum.rows} + op.rows <= INT32_MAX && int64_t{sum.messages} + op.messages <= INT32_MAX,
                "a merged op of phase {} has too many rows", int{op.phase});
    if (op.kind != OpKind::barrier) sum.rows += op.rows;
    sum.messages += op.messages;
    sum.bytes += op.bytes;
  }

  // An edge inside one merged op is progress within the group, which the merged op hides.
  std::vector<std::vector<Dep>> deps(merged.size());
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id)
    for (const Dep& dep : plan.deps(id)) {
      const OpId to = merged_of[static_cast<size_t>(id)];
      const OpId from = merged_of[static_cast<size_t>(dep.op)];
      if (to != from) deps[static_cast<size_t>(to)].push_back({from, dep.on});
    }

  Plan out(plan.program(), plan.grouping());
  out.set_ranks_per_op(ranks_per_group);
  for (const Phase& phase : plan.phases()) out.add_phase(phase);
  for (const Barrier& barrier : plan.barriers())
    out.add_barrier({.link = barrier.link, .members = std::max(1, barrier.members / ranks_per_group)});

  // Phases stand in topological order in every builder's plan, so sorting by phase keeps edges pointing back.
  std::vector<OpId> order(merged.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return merged[static_cast<size_t>(a)].phase < merged[static_cast<size_t>(b)].phase;
  });
  std::vector<OpId> placed(merged.size());
  for (const OpId id : order) {
    auto& edges = deps[static_cast<size_t>(id)];
    std::sort(edges.begin(), edges.end(),
              [](const Dep& a, const Dep& b) { return std::tie(a.op, a.on) < std::tie(b.op, b.on); });
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    for (Dep& dep : edges) dep.op = placed[static_cast<size_t>(dep.op)];
    placed[static_cast<size_t>(id)] = out.add(merged[static_cast<size_t>(id)], edges);
  }
  return out;
}

}  // namespace plumb

// Plans made of plans: without a phase, one after the other, both at once.
#include "model/plans/derive.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {
namespace {

/// Copies one plan into another, with phases, regions, barriers, ops and rows moved up behind what is there.
class PlanCopy {
 public:
  PlanCopy(const Plan& from, Plan& to, std::string_view prefix = "")
      : from_(from),
        to_(to),
        region_base_(to.regions().size()),
        barrier_base_(static_cast<int32_t>(to.barriers().size())) {
    for (Region region : from.regions()) {
      region.name.insert(0, prefix);
      to.add_region(std::move(region));
    }
    for (Phase phase : from.phases()) {
      phase.name.insert(0, prefix);
      phase.from = moved(phase.from);
      phase.also_from = moved(phase.also_from);
      phase.to = moved(phase.to);
      phase_.push_back(to.add_phase(std::move(phase)));
    }
    for (const Barrier& barrier : from.barriers()) to.add_barrier(barrier);
  }

  /// Adds op `id` of the source with `deps`, which name ops of the target.
  OpId add(OpId id, std::span<const Dep> deps) {
    const auto source = static_cast<size_t>(id);
    Op op = from_.ops()[source];
    const auto items = from_.items(op);
    const auto lanes = from_.lanes(op);
    for (size_t i = 0; i < items.size(); ++i) {
      const int32_t item = to_.add_item(items[i], lanes[i]);
      if (i == 0) op.first_item = item;
    }
    op.phase = phase_[op.phase];
    if (op.kind == OpKind::barrier) op.rows += barrier_base_;
    return to_.add(op, deps);
  }

 private:
  RegionId moved(RegionId region) const {
    return region == kNoRegion ? kNoRegion : static_cast<RegionId>(region + region_base_);
  }

  const Plan& from_;
  Plan& to_;
  const size_t region_base_;
  const int32_t barrier_base_;
  std::vector<PhaseId> phase_;
};

/// Adds all ops of `from`; their edges shift by `base`. Ops without edges get those of `roots[issuer]`.
void add_all(const Plan& from, PlanCopy& copy, OpId base, const std::vector<std::vector<Dep>>& roots) {
  std::vector<Dep> deps;
  for (OpId id = 0; id < static_cast<OpId>(from.ops().size()); ++id) {
    deps.clear();
    for (const Dep& dep : from.deps(id)) deps.push_back({dep.op + base, dep.on});
    if (deps.empty() && !roots.empty())
      deps = roots[static_cast<size_t>(issuer(from.ops()[static_cast<size_t>(id)]))];
    copy.add(id, deps);
  }
}

/// Ops that nothing waits for, by the rank at which they end.
std::vector<std::vector<Dep>> last_ops(const Plan& plan) {
  std::vector<bool> has_follower(plan.ops().size());
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id)
    for (const Dep& dep : plan.deps(id)) has_follower[static_cast<size_t>(dep.op)] = true;
  std::vector<std::vector<Dep>> result(static_cast<size_t>(plan.grouping().ranks));
  for (size_t id = 0; id < plan.ops().size(); ++id)
    if (!has_follower[id])
      result[static_cast<size_t>(target(plan.ops()[id]))].push_back({static_cast<OpId>(id), On::arrived});
  return result;
}

}  // namespace

Plan without(const Plan& plan, std::string_view phase) {
  const auto removed = plan.find_phase(phase);
  if (!removed) fail_usage("the plan has no phase '{}' to leave out", phase);
  Plan out(plan.program(), plan.grouping());
  PlanCopy copy(plan, out);
  std::vector<OpId> kept(plan.ops().size(), kNone);
  std::vector<std::vector<Dep>> inherited(plan.ops().size());  // of removed ops: their edges, in ops of `out`
  std::vector<Dep> deps;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<size_t>(id)];
    deps.clear();
    for (const Dep& dep : plan.deps(id)) {
      const auto from = static_cast<size_t>(dep.op);
      if (kept[from] != kNone) {
        deps.push_back({kept[from], dep.on});
        continue;
      }
      // Only events that the follower can see pass through; the others belonged to the removed op's own rank.
      for (const Dep& old : inherited[from])
        if (target(out.ops()[static_cast<size_t>(old.op)]) == issuer(op)) deps.push_back(old);
    }
    if (op.phase == *removed)
      inherited[static_cast<size_t>(id)] = deps;
    else
      kept[static_cast<size_t>(id)] = copy.add(id, deps);
  }
  return out;
}

Plan append(const Plan& first, const Plan& second, Phase between) {
  PLUMB_CHECK(first.grouping().ranks == second.grouping().ranks, "{} and {} ranks", first.grouping().ranks,
              second.grouping().ranks);
  Plan out(second.program(), second.grouping());
  PlanCopy copy_first(first, out);
  // Phases stay in topological order, so the compute phase stands before those of `second`, whose regions
  // follow.
  if (const auto region = second.find_region("expert_out"))
    between.to = static_cast<RegionId>(first.regions().size() + *region);
  const PhaseId compute = out.add_phase(std::move(between));
  PlanCopy copy_second(second, out);
  add_all(first, copy_first, 0, {});

  const auto last = last_ops(first);
  std::vector<std::vector<Dep>> roots;
  for (Rank r = 0; r < first.grouping().ranks; ++r) {
    const OpId id = out.add({.kind = OpKind::compute, .phase = compute, .src = r, .dst = r},
                            last[static_cast<size_t>(r)]);
    roots.push_back({{id, On::arrived}});
  }
  add_all(second, copy_second, static_cast<OpId>(out.ops().size()), roots);
  return out;
}

Plan overlay(const Plan& first, const Plan& second, std::string_view prefix) {
  PLUMB_CHECK(first.grouping().ranks == second.grouping().ranks, "{} and {} ranks", first.grouping().ranks,
              second.grouping().ranks);
  Plan out(first.program(), first.grouping());
  PlanCopy copy_first(first, out);
  add_all(first, copy_first, 0, {});
  PlanCopy copy_second(second, out, prefix);
  add_all(second, copy_second, static_cast<OpId>(first.ops().size()), {});
  return out;
}

}  // namespace plumb

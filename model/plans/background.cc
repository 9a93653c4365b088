// Traffic of others on the same network: incast, permutation or all-to-all in a class of its own. Phases:
// docs/plan.md.
#include <numeric>

#include "model/plans/dispatch_rows.h"
#include "model/random.h"

namespace plumb {
namespace {

/// A permutation without fixed points (where more than one rank exists): a random cycle through all ranks.
std::vector<Rank> random_cycle(int32_t ranks, uint64_t seed) {
  std::vector<Rank> order(static_cast<size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, RandomStream::workload);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<Rank> next(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    next[static_cast<size_t>(order[i])] = order[(i + 1) % order.size()];
  return next;
}

}  // namespace

Plan build_background(const BuildInput& input) {
  const int32_t ranks = input.grouping.ranks;
  Plan plan(input.program, input.grouping);
  const PhaseId phase = plan.add_phase({.name = "background",
                                        .engine = Engine::nic,
                                        .qps = input.program.num_qps,
                                        .row_bytes = input.program.message.count,
                                        .from = 0,
                                        .to = 1});
  const auto send = [&](Rank src, Rank dst) {
    if (src == dst) return;
    Op op = row_op(plan, phase, src, dst, 1);
    if (input.items) op.first_item = plan.add_item({.src_slot = 0, .dst_slot = src});
    plan.add(op);
  };
  switch (input.program.pattern) {
    case Pattern::incast:
      for (Rank r = 1; r < ranks; ++r) send(r, 0);
      break;
    case Pattern::permutation: {
      const auto next = random_cycle(ranks, input.program.seed);
      for (Rank r = 0; r < ranks; ++r) send(r, next[static_cast<size_t>(r)]);
      break;
    }
    case Pattern::all_to_all:
      for (Rank s = 0; s < ranks; ++s)
        for (Rank d = 0; d < ranks; ++d) send(s, d);
  }
  const auto count = static_cast<size_t>(input.items ? ranks : 0);
  const int64_t bytes = input.program.message.count;
  plan.add_region(
      {.name = "input", .row_bytes = bytes, .layout = {}, .rows = std::vector<int64_t>(count, 1)});
  plan.add_region(
      {.name = "received", .row_bytes = bytes, .layout = {}, .rows = std::vector<int64_t>(count, ranks)});
  return plan;
}

}  // namespace plumb

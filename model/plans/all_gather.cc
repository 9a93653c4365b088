// All-gather (every rank's shard to every rank, by copy engines) and reduce-scatter (every rank sums its
// shard of all ranks' tensors, in rank order, fp32, rounded once to bf16). Phases: docs/plan.md.
#include "model/plans/dispatch_rows.h"

namespace plumb {
namespace {

enum class Direction { gather, scatter };

/// Adds one op of one shard for every pair; returns what each rank waits for.
std::vector<std::vector<Dep>> add_shards(Plan& plan, PhaseId phase, Direction direction, bool items) {
  const int32_t ranks = plan.grouping().ranks;
  std::vector<std::vector<Dep>> arrivals(static_cast<size_t>(ranks));
  for (Rank s = 0; s < ranks; ++s)
    for (Rank d = 0; d < ranks; ++d) {
      Op op = row_op(plan, phase, s, d, 1);
      if (items)
        op.first_item = plan.add_item({.src_slot = direction == Direction::gather ? 0 : d, .dst_slot = s});
      arrivals[static_cast<size_t>(d)].push_back({plan.add(op), On::arrived});
    }
  return arrivals;
}

void add_region(Plan& plan, const BuildInput& input, std::string name, int64_t rows) {
  const auto ranks = static_cast<size_t>(input.items ? input.grouping.ranks : 0);
  plan.add_region({.name = std::move(name),
                   .row_bytes = input.program.message.count,
                   .layout = {},
                   .rows = std::vector<int64_t>(ranks, rows)});
}

}  // namespace

Plan build_all_gather(const BuildInput& input) {
  Plan plan(input.program, input.grouping);
  const PhaseId gather = plan.add_phase({.name = "gather",
                                         .engine = Engine::copy_engine,
                                         .row_bytes = input.program.message.count,
                                         .from = 0,
                                         .to = 1});
  const PhaseId gathered = plan.add_phase({.name = "gathered"});
  auto arrivals = add_shards(plan, gather, Direction::gather, input.items);
  add_wait_ops(plan, gathered,
               [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[static_cast<size_t>(r)]); });
  add_region(plan, input, "input", 1);
  add_region(plan, input, "received", input.grouping.ranks);
  return plan;
}

Plan build_reduce_scatter(const BuildInput& input) {
  Plan plan(input.program, input.grouping);
  const int64_t shard = input.program.message.count;
  const PhaseId scatter = plan.add_phase({.name = "scatter",
                                          .engine = Engine::sm,
                                          .sms = input.program.num_sms,
                                          .qps = input.program.num_qps,
                                          .row_bytes = shard,
                                          .from = 0,
                                          .to = 1});
  const PhaseId reduce =
      plan.add_phase({.name = "reduce", .engine = Engine::sm, .row_bytes = shard, .from = 1, .to = 2});
  const auto arrivals = add_shards(plan, scatter, Direction::scatter, input.items);
  for (Rank r = 0; r < input.grouping.ranks; ++r) {
    Op op = row_op(plan, reduce, r, r, input.grouping.ranks);
    op.kind = OpKind::reduce;
    op.messages = 1;
    for (Rank s = 0; input.items && s < input.grouping.ranks; ++s) {
      const int32_t item = plan.add_item({.src_slot = s, .dst_slot = 0});
      if (s == 0) op.first_item = item;
    }
    plan.add(op, arrivals[static_cast<size_t>(r)]);
  }
  add_region(plan, input, "input", input.grouping.ranks);
  add_region(plan, input, "receive", input.grouping.ranks);
  add_region(plan, input, "combined", 1);
  return plan;
}

}  // namespace plumb

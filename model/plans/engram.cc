// Engram: rows of a table spread evenly over the ranks, fetched by id with gets. Phases: docs/plan.md.
#include "model/error.h"
#include "model/plans/dispatch_rows.h"
#include "model/random.h"

namespace plumb {

Plan build_engram(const BuildInput& input) {
  const Program& program = input.program;
  const int32_t ranks = input.grouping.ranks;
  const int64_t rows_per_rank = ceil_div(program.table_rows, ranks);
  if (rows_per_rank > INT32_MAX)
    fail_usage("engram: {} table rows on a rank, at most {}", rows_per_rank, INT32_MAX);
  const int32_t element_bytes = input.shape.dispatch_type == DType::bf16 ? 2 : 1;
  const int64_t row_bytes = engram_row_bytes(input.shape.hidden, element_bytes);

  Plan plan(program, input.grouping);
  const PhaseId fetch = plan.add_phase({.name = "fetch",
                                        .engine = Engine::sm,
                                        .sms = program.num_sms,
                                        .qps = program.num_qps,
                                        .row_bytes = row_bytes,
                                        .from = 0,
                                        .to = 1});
  const PhaseId fetched = plan.add_phase({.name = "fetched"});
  std::vector<std::vector<Dep>> arrivals(static_cast<size_t>(ranks));
  std::vector<std::vector<Item>> items(static_cast<size_t>(ranks));
  std::vector<int32_t> counts(static_cast<size_t>(ranks));
  for (Rank r = 0; r < ranks; ++r) {
    std::fill(counts.begin(), counts.end(), 0);
    for (auto& list : items) list.clear();
    Random random(program.seed, RandomStream::workload, static_cast<uint64_t>(r));
    const int64_t fetches = int64_t{input.shape.tokens[static_cast<size_t>(r)]} * program.fetches;
    if (fetches > INT32_MAX) fail_usage("engram: rank {} fetches {} rows, at most {}", r, fetches, INT32_MAX);
    for (int32_t i = 0; i < fetches; ++i) {
      const auto id = static_cast<int64_t>(random.below(static_cast<uint64_t>(program.table_rows)));
      const auto owner = static_cast<size_t>(id / rows_per_rank);
      ++counts[owner];
      if (input.items)
        items[owner].push_back({.src_slot = static_cast<int32_t>(id % rows_per_rank), .dst_slot = i});
    }
    for (Rank owner = 0; owner < ranks; ++owner) {
      const auto index = static_cast<size_t>(owner);
      if (counts[index] == 0) continue;
      Op op = row_op(plan, fetch, owner, r, counts[index]);
      if (owner != r) op.kind = OpKind::get;
      for (const Item& item : items[index]) {
        const int32_t i = plan.add_item(item);
        if (op.first_item == kNone) op.first_item = i;
      }
      arrivals[static_cast<size_t>(r)].push_back({plan.add(op), On::arrived});
    }
  }
  add_wait_ops(plan, fetched,
               [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[static_cast<size_t>(r)]); });

  Region table{.name = "table", .row_bytes = row_bytes, .layout = {}, .rows = {}};
  Region received{.name = "received", .row_bytes = row_bytes, .layout = {}, .rows = {}};
  for (Rank r = 0; input.items && r < ranks; ++r) {
    table.rows.push_back(rows_per_rank);
    received.rows.push_back(int64_t{input.shape.tokens[static_cast<size_t>(r)]} * program.fetches);
  }
  plan.add_region(std::move(table));
  plan.add_region(std::move(received));
  return plan;
}

}  // namespace plumb

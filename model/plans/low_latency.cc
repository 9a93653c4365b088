// DeepEP V1's low-latency dispatch: one message per selection straight into the worst-case slots of its
// expert, no count exchange, no barrier; signals follow the data. Phases: docs/plan.md.
#include <algorithm>

#include "model/plans/dispatch_rows.h"

namespace plumb {
namespace {

constexpr RegionId kInput = 0, kReceived = 1;

/// Selections of one source by destination: token, row of the final tensor, top-k position.
using Selections = std::vector<std::vector<LanedItem>>;

void add_rows_of(Plan& plan, PhaseId phase, const BuildInput& input, Rank s, const Selections& selections,
                 const std::vector<int32_t>& counts) {
  for (Rank d = 0; d < input.shape.ranks; ++d) {
    const auto index = static_cast<size_t>(d);
    if (counts[index] == 0) continue;
    Op op = row_op(plan, phase, s, d, counts[index]);
    if (input.program.rdma_only && s != d) op.link = Link::scale_out;
    for (const auto& [item, lane] : selections[index]) {
      const int32_t i = plan.add_item(item, lane);
      if (op.first_item == kNone) op.first_item = i;
    }
    plan.add(op);
  }
}

}  // namespace

Plan build_low_latency_dispatch(const BuildInput& input) {
  const Shape& shape = input.shape;
  const auto ranks = static_cast<size_t>(shape.ranks);
  const auto topk = static_cast<size_t>(shape.topk);
  const TokenLayout record =
      low_latency_dispatch_layout(shape.hidden, shape.dispatch_type == DType::fp8_e4m3);
  Plan plan(input.program, input.grouping);
  const PhaseId data = plan.add_phase({.name = "dispatch",
                                       .engine = Engine::sm,
                                       .sms = input.program.num_sms,
                                       .qps = input.program.num_qps,
                                       .chunk_rows = 1,
                                       .row_bytes = record.record_bytes,
                                       .from = kInput,
                                       .to = kReceived});
  const PhaseId signal = plan.add_phase(
      {.name = "signal", .engine = Engine::sm, .sms = input.program.num_sms, .row_bytes = kSignalBytes});
  const PhaseId arrived = plan.add_phase({.name = "arrived"});

  FinalRows rows(input, /*expand=*/true, /*alignment=*/1);
  std::vector<int32_t> table;
  std::vector<Copy> copies;
  Selections selections(ranks);
  std::vector<int32_t> counts(ranks);
  for (Rank s = 0; s < shape.ranks; ++s) {
    input.routing.rows(s, table);
    list_copies(shape, table, copies);
    std::fill(counts.begin(), counts.end(), 0);
    for (auto& list : selections) list.clear();
    for (const Copy& copy : copies) {
      const int32_t before = rows.selections(copy.dst);
      const auto final_rows =
          rows.next(copy, std::span(table).subspan(static_cast<size_t>(copy.token) * topk, topk));
      counts[static_cast<size_t>(copy.dst)] += rows.selections(copy.dst) - before;
      for (const FinalRow& row : final_rows)
        selections[static_cast<size_t>(copy.dst)].push_back(
            {{.src_slot = copy.token, .dst_slot = row.row}, row.lane});
    }
    add_rows_of(plan, data, input, s, selections, counts);
  }
  auto arrivals = add_signals(plan, signal, data, shape.local_experts());
  add_wait_ops(plan, arrived,
               [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[static_cast<size_t>(r)]); });

  Region in{.name = "input", .row_bytes = record.record_bytes, .layout = record, .rows = {}};
  Region out{.name = "received", .row_bytes = record.record_bytes, .layout = record, .rows = {}};
  if (input.items)
    for (Rank r = 0; r < shape.ranks; ++r) {
      in.rows.push_back(shape.tokens[static_cast<size_t>(r)]);
      out.rows.push_back(rows.selections(r));
    }
  plan.add_region(std::move(in));
  plan.add_region(std::move(out));
  return plan;
}

}  // namespace plumb

// Pipeline parallel: every rank sends one tensor to the next of a ring. Phases: docs/plan.md.
#include "model/plans/dispatch_rows.h"

namespace plumb {

Plan build_send_recv(const BuildInput& input) {
  const int64_t bytes = input.program.message.count;
  Plan plan(input.program, input.grouping);
  const PhaseId send = plan.add_phase({.name = "send",
                                       .engine = Engine::sm,
                                       .sms = input.program.num_sms,
                                       .qps = input.program.num_qps,
                                       .row_bytes = bytes,
                                       .from = 0,
                                       .to = 1});
  const PhaseId received = plan.add_phase({.name = "received"});
  std::vector<std::vector<Dep>> arrivals(static_cast<size_t>(input.grouping.ranks));
  for (Rank r = 0; r < input.grouping.ranks; ++r) {
    const Rank next = (r + 1) % input.grouping.ranks;
    if (next == r) break;  // one rank has no neighbour
    Op op = row_op(plan, send, r, next, 1);
    if (input.items) op.first_item = plan.add_item({.src_slot = 0, .dst_slot = 0});
    arrivals[static_cast<size_t>(next)].push_back({plan.add(op), On::arrived});
  }
  if (input.grouping.ranks > 1)
    add_wait_ops(plan, received,
                 [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[static_cast<size_t>(r)]); });
  const std::vector<int64_t> rows(static_cast<size_t>(input.items ? input.grouping.ranks : 0), 1);
  plan.add_region({.name = "input", .row_bytes = bytes, .layout = {}, .rows = rows});
  plan.add_region({.name = "received", .row_bytes = bytes, .layout = {}, .rows = rows});
  return plan;
}

}  // namespace plumb

// The naive exchange delivers the same tensors as a dispatch, with one message per pair.
#include "model/error.h"
#include "tests/model/host_expect.h"

namespace plumb::test {
namespace {

TEST(AllToAllPlan, RandomCasesDeliverTheDefinition) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::all_to_all, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_received(c, host.result());
    if (HasFailure()) return;
  }
}

TEST(AllToAllPlan, SendsOneMessagePerPairThatHasRows) {
  // 3 ranks, one expert each; rank 0 has two tokens for rank 1 and one for itself, the others have none.
  HostCase c;
  c.shape = uniform_shape(3, 3, 1, 3, 16);
  c.shape.tokens = {3, 0, 0};
  c.scaleup = 3;
  c.table = {1, 0, 1};
  c.program.kind = ProgramKind::all_to_all;
  HostExecutor host = c.executor();
  const Plan plan = c.plan();
  const Trace trace = host.run(plan);
  const LedgerEntry exchange = trace.ledger.total(*plan.find_phase("exchange"));
  EXPECT_EQ(exchange.messages, 1);
  EXPECT_EQ(exchange.bytes, 3 * c.shape.dispatch_layout().record_bytes);
  EXPECT_EQ(trace.ledger.total(*plan.find_phase("notify")).messages, 3 * 2);
}

TEST(AllToAllPlan, RefusesDirectPlacement) {
  HostCase c = random_case(ProgramKind::all_to_all, 1);
  c.program.placement = RowPlacement::direct;
  EXPECT_THROW(c.plan(), Error);
}

}  // namespace
}  // namespace plumb::test

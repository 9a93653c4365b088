// DeepEP V1's normal kernels deliver and sum as defined.
#include "tests/model/host_expect.h"

namespace plumb::test {
namespace {

TEST(V1NormalPlan, RandomDispatchesDeliverTheDefinition) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    HostCase c = random_case(ProgramKind::v1_dispatch, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    c.program.mode = Mode::hybrid;  // V1 forwards between nodes whatever the mode says
    expect_received(c, host.result());
    if (HasFailure()) return;
  }
}

TEST(V1NormalPlan, RandomCombinesSumAsDefined) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::v1_combine, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_combined(c, host.result(), record_elements(c, host.batch()));
    if (HasFailure()) return;
  }
}

TEST(V1NormalPlan, RowsLeaveAfterTheCountsAndNoBarrierEndsTheDispatch) {
  HostCase c = random_case(ProgramKind::v1_dispatch, 3);
  const Plan plan = c.plan();
  EXPECT_TRUE(plan.find_phase("notify"));
  EXPECT_FALSE(plan.find_phase("flush"));
}

}  // namespace
}  // namespace plumb::test

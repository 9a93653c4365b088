// The NVLink world: one process per GPU. The parent touches no CUDA, so that its children may.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "hw/nvlink_world.h"
#include "hw/processes.h"
#include "model/error.h"
#include "tests/hw/semantics.h"

namespace plumb::hw::test {
namespace {

using namespace std::chrono_literals;

constexpr int kSkipped = 77, kDiffers = 2;

/// Random cases of two ranks, each process with its own rank. Returns the exit code of the process.
int run_cases(Meeting& meeting, Rank rank) {
  check(cudaSetDevice(rank), "device of the rank");
  const std::shared_ptr<World> world = make_nvlink_world(meet(meeting, rank, make_nvlink_id), rank, 2);
  const char* asked = std::getenv("PLUMB_GPU_CASES");
  const uint64_t cases = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 40;
  int differences = 0;  // both ranks go through all cases, as calls are collective
  for (uint64_t seed = 1; seed <= cases; ++seed) {
    Case c = random_case(seed, 2);
    c.together = false;
    c.host_sync = seed % 2 == 0;
    differences += run_case(c, world);
  }
  return differences == 0 ? 0 : kDiffers;
}

TEST(GpuNvlink, RandomShapesOfTwoProcessesEqualTheReferenceBitForBit) {
  const auto outcomes = run_ranks(2, 120s, [](Rank rank, Meeting& meeting) {
    return device_count() < 2 ? kSkipped : run_cases(meeting, rank);
  });
  EXPECT_EQ(failures(outcomes, kSkipped), "");
  if (outcomes[0].code == kSkipped) GTEST_SKIP() << "fewer than 2 CUDA devices";
}

}  // namespace
}  // namespace plumb::hw::test

// Random shapes on virtual ranks of one GPU.
#include "tests/hw/semantics.h"

#include <cstdlib>

namespace plumb::hw::test {
namespace {

TEST(GpuSemantics, RandomShapesEqualTheReferenceBitForBit) {
  PLUMB_NEED_DEVICE();
  const char* asked = std::getenv("PLUMB_GPU_CASES");
  const char* first = std::getenv("PLUMB_GPU_FIRST");
  const uint64_t begin = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  const uint64_t cases = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 60;
  int failures = 0;
  for (uint64_t seed = begin; seed < begin + cases && failures < 20; ++seed) {
    const Case c = random_case(seed);
    failures += run_case(c, make_local_world(c.ranks));
  }
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace plumb::hw::test

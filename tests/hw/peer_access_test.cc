// Hosts whose GPUs do not all reach each other's memory.
#include "hw/peer_access.h"

#include <gtest/gtest.h>

namespace plumb::hw::test {
namespace {

using Islands = std::vector<std::vector<int32_t>>;

/// All pairs inside each island reach each other.
PeerAccess with_islands(const Islands& islands) {
  int32_t gpus = 0;
  for (const auto& island : islands) gpus += static_cast<int32_t>(island.size());
  PeerAccess peers(gpus);
  for (const auto& island : islands)
    for (const int32_t a : island)
      for (const int32_t b : island) peers.join(a, b);
  return peers;
}

TEST(FieldCases, B43_AMissingPairIsListedAndTheGpusBeforeItServe) {
  PeerAccess peers = with_islands({{0, 1, 2, 3}});
  EXPECT_EQ(peers.together(), 4);
  EXPECT_EQ(peers.missing_pairs(), "");
  EXPECT_EQ(why_not_together(peers, 4), "");

  peers = PeerAccess(4);
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 2}, {1, 2}, {1, 3}, {2, 3}}) peers.join(a, b);
  EXPECT_FALSE(peers.joins(3, 0));
  EXPECT_TRUE(peers.joins(3, 1) && peers.joins(1, 3));
  EXPECT_EQ(peers.together(), 3);
  EXPECT_EQ(peers.missing_pairs(), "0-3");
  EXPECT_EQ(peers.islands(), (Islands{{0, 1, 2}, {3}}));
  EXPECT_EQ(why_not_together(peers, 3), "");
  EXPECT_EQ(why_not_together(peers, 4),
            "4 ranks, 3 GPUs that reach each other's memory, of 4: not 0-3; GPUs 0, 1, 2 do; "
            "CUDA_VISIBLE_DEVICES chooses");
  EXPECT_EQ(why_not_together(peers, 5), "5 ranks, 3 GPUs that reach each other's memory");
}

TEST(FieldCases, B43_WithoutAnyPairEachGpuIsAlone) {
  const PeerAccess peers(4);
  EXPECT_EQ(peers.together(), 1);
  EXPECT_EQ(peers.islands(), (Islands{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(why_not_together(peers, 2),
            "2 ranks, 1 GPU that reaches each other's memory, of 4: not 0-1, 0-2, 0-3, 1-2, 1-3, 2-3; no two "
            "GPUs do");
  EXPECT_EQ(PeerAccess(6).missing_pairs(), "0-1, 0-2, 0-3, 0-4, 0-5, 1-2, 1-3, 1-4 and 7 more");
}

TEST(FieldCases, B43_OfTwoIslandsTheLargerIsAdvised) {
  const PeerAccess halves = with_islands({{0, 1, 2, 3}, {4, 5, 6, 7}});
  EXPECT_EQ(halves.together(), 4);
  EXPECT_EQ(halves.islands(), (Islands{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(halves.advice(), "GPUs 0, 1, 2, 3 do; CUDA_VISIBLE_DEVICES chooses");
  const PeerAccess uneven = with_islands({{0}, {1, 2, 3}});
  EXPECT_EQ(uneven.together(), 1);
  EXPECT_NE(why_not_together(uneven, 3).find("; GPUs 1, 2, 3 do;"), std::string::npos);
}

TEST(PeerAccess, NoGpuIsNoIsland) {
  EXPECT_EQ(PeerAccess().together(), 0);
  EXPECT_TRUE(PeerAccess(0).islands().empty());
  EXPECT_EQ(why_not_together(PeerAccess(0), 1), "1 ranks, 0 GPUs that reach each other's memory");
}

}  // namespace
}  // namespace plumb::hw::test

// Placements: default, given and balanced maps, and routings over physical experts.
#include "model/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "model/error.h"
#include "model/random.h"

namespace plumb {
namespace {

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

#define EXPECT_TEXT(whole, part) EXPECT_NE((whole).find(part), std::string::npos) << (whole)

int32_t copies_on(const Placement& placement, Rank rank, int32_t expert) {
  const auto begin = placement.logical_of.begin() + rank * placement.slots_per_rank();
  return static_cast<int32_t>(std::count(begin, begin + placement.slots_per_rank(), expert));
}

/// Every expert has a replica; none is twice on a rank while another rank of the node at the same place lacks
/// it.
void expect_sound(const Placement& placement, int32_t nodes = 1) {
  const int32_t node_ranks = placement.ranks / nodes;
  const auto replicas = placement.replicas();
  for (int32_t e = 0; e < placement.logical_experts; ++e) {
    ASSERT_FALSE(replicas[static_cast<size_t>(e)].empty()) << "expert " << e;
    for (int32_t node = 0; node < nodes; ++node) {
      int32_t least = std::numeric_limits<int32_t>::max();
      int32_t most = 0;
      for (Rank r = node * node_ranks; r < (node + 1) * node_ranks; ++r) {
        least = std::min(least, copies_on(placement, r, e));
        most = std::max(most, copies_on(placement, r, e));
      }
      EXPECT_FALSE(most > 1 && least == 0) << "expert " << e << " node " << node;
    }
  }
}

std::vector<int32_t> round_robin(int32_t experts, int32_t slots) {
  std::vector<int32_t> map;
  for (int32_t p = 0; p < slots; ++p) map.push_back(p % experts);
  return map;
}

TEST(Placement, DefaultPutsExpertOnItsOwnSlot) {
  const Placement placement = default_placement(8, 4);
  EXPECT_EQ(placement.logical_of, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(placement.slots_per_rank(), 2);
  EXPECT_EQ(placement.replicas()[5], std::vector<int32_t>{5});
  EXPECT_TEXT(error_of([] { default_placement(10, 4); }),
              "experts is 10, not a multiple of ranks 4; nearest allowed: 8 or 12");
}

TEST(Placement, ImbalanceIsTheLargestRankOverTheMean) {
  const Placement placement = given_placement(3, 2, {0, 1, 0, 2});
  // Loads 4, 1, 3: rank 0 holds 4/2 + 1 = 3, rank 1 holds 4/2 + 3 = 5; mean 4.
  EXPECT_DOUBLE_EQ(placement.imbalance(std::vector<double>{4, 1, 3}), 5.0 / 4.0);
  EXPECT_EQ(placement.imbalance(std::vector<double>{0, 0, 0}), 1.0);
  EXPECT_TEXT(error_of([&] {
                placement.imbalance(std::vector<double>{1, 2});
              }),
              "2 loads; allowed: one for each of the 3");
}

TEST(Placement, GivenMapMustHoldEveryExpert) {
  EXPECT_TEXT(error_of([] { given_placement(3, 2, {0, 1, 0, 1}); }), "expert 2 is on no slot");
  EXPECT_TEXT(error_of([] {
                given_placement(3, 2, {0, 1, 2, 3});
              }),
              "slot 3 holds expert 3; allowed: 0 .. 2");
  EXPECT_TEXT(error_of([] { given_placement(3, 2, {0, 1, 2, -1}); }), "slot 3 holds expert -1");
  EXPECT_TEXT(error_of([] { given_placement(3, 2, {0, 1, 2}); }), "not a multiple of ranks 2");
  EXPECT_TEXT(error_of([] { given_placement(3, 0, {0, 1, 2}); }), "ranks is 0");
}

TEST(Placement, GivenMapMayRepeatAnExpertOnlyWhenAllRanksHoldIt) {
  EXPECT_TEXT(error_of([] {
                given_placement(3, 2, {0, 0, 1, 2});
              }),
              "rank 0 holds expert 0 twice, on slots 0 and 1, while 1 ranks do not hold it");
  EXPECT_EQ(error_of([] { given_placement(2, 2, {0, 0, 0, 1}); }), "");
}

TEST(Placement, HeaviestExpertsAreReplicatedFirst) {
  // Shares: 8 -> 4 -> 8/3, 6 -> 3. Two extra slots: expert 1 gets one (4 + 4 < 6 is next), then expert 3 (6).
  const std::vector<double> load{1, 8, 2, 6};
  const Placement placement = balance(load, {.ranks = 2, .physical_experts = 6});
  const auto replicas = placement.replicas();
  EXPECT_EQ(replicas[1].size(), 2u);
  EXPECT_EQ(replicas[3].size(), 2u);
  // Both heavy ones on both ranks: 4 + 3 each, then 2 and 1: 9 and 8, mean 8.5.
  EXPECT_DOUBLE_EQ(placement.imbalance(load), 9.0 / 8.5);
}

TEST(Placement, EqualLoadsGoToSmallerIndicesFirst) {
  // 4 equal experts, 6 slots on 2 ranks: experts 0 and 1 get the second replica. Order: 2, 3 (load 1), then
  // 0, 0, 1, 1 (load 1/2): 2 on rank 0, 3 on rank 1, then 0 on both, 1 on both.
  const Placement placement = balance(std::vector<double>(4, 1.0), {.ranks = 2, .physical_experts = 6});
  EXPECT_EQ(placement.logical_of, (std::vector<int32_t>{0, 1, 2, 0, 1, 3}));
}

TEST(Placement, UniformMapIsTakenWhenGreedyIsWorse) {
  // Greedy: 3 3 2 2 2 on two ranks of three slots (with a zero): 3+2+2 = 7 to 3+2+0 = 5. Round robin in the
  // order below: 3+3+0 = 6 to 2+2+2 = 6.
  const std::vector<double> load{3, 3, 0, 2, 2, 2};
  const Placement placement = balance(load, {.ranks = 2, .physical_experts = 6});
  EXPECT_EQ(placement.imbalance(load), 1.0);
  EXPECT_EQ(placement.logical_of, round_robin(6, 6));
}

TEST(Placement, HierarchicalKeepsGroupsOnOneNode) {
  // Group loads 10, 1, 6, 5 on two nodes of two groups each: 10 + 1 and 6 + 5.
  const std::vector<double> load{5, 5, 0.5, 0.5, 3, 3, 2.5, 2.5};
  const Placement placement = balance(
      load,
      {.policy = BalancePolicy::hierarchical, .ranks = 4, .nodes = 2, .groups = 4, .physical_experts = 12});
  const int32_t node_slots = 6;
  for (int32_t p = 0; p < 12; ++p) {
    const int32_t group = placement.logical_of[static_cast<size_t>(p)] / 2;
    EXPECT_EQ(p / node_slots, group < 2 ? 0 : 1) << "slot " << p;
  }
  expect_sound(placement, 2);
  // Node 0: experts 0 and 1 twice, 2.5 each: 2.5 + 2.5 + 0.5 on both ranks; node 1 likewise 1.5 + 1.5 + 2.5.
  EXPECT_DOUBLE_EQ(placement.imbalance(load), 1.0);
}

TEST(Placement, SpecsThatDoNotFitAreRefused) {
  const std::vector<double> load(10, 1.0);
  const auto text = [&](BalanceSpec spec) { return error_of([&] { balance(load, spec); }); };
  EXPECT_TEXT(text({.ranks = 4, .physical_experts = 10}),
              "physical_experts is 10; allowed: multiples of ranks 4 from 12 to ");
  EXPECT_TEXT(text({.ranks = 4, .physical_experts = 8}), "physical_experts is 8");
  EXPECT_TEXT(text({.ranks = 0, .physical_experts = 12}), "ranks is 0");
  BalanceSpec spec{
      .policy = BalancePolicy::hierarchical, .ranks = 4, .nodes = 3, .groups = 2, .physical_experts = 12};
  EXPECT_TEXT(text(spec), "nodes is 3; allowed: divisors of ranks 4");
  spec.nodes = 4;
  EXPECT_TEXT(text(spec), "groups is 2, not a multiple of nodes 4");
  spec.groups = 4;
  EXPECT_TEXT(text(spec), "groups is 4; allowed: divisors of the 10 logical experts");
  EXPECT_TEXT(error_of([] { balance({}, {.ranks = 1, .physical_experts = 1}); }), "no loads");
}

TEST(Placement, BadLoadsNameTheExpert) {
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::vector<double> load{1, 1, bad, 1};
    EXPECT_TEXT(error_of([&] { balance(load, {.ranks = 2, .physical_experts = 4}); }),
                "the load of expert 2 is");
  }
  const std::vector<double> huge(4, 1e308);
  EXPECT_TEXT(error_of([&] { balance(huge, {.ranks = 2, .physical_experts = 4}); }),
              "the sum of the loads is not finite");
}

TEST(Placement, BalanceIsSoundAndNeverWorseThanRoundRobin) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed, RandomStream::test);
    const auto ranks = static_cast<int32_t>(1 + random.below(9));
    const auto experts = static_cast<int32_t>(1 + random.below(40));
    const int32_t slots =
        static_cast<int32_t>(round_up(experts, ranks)) + ranks * static_cast<int32_t>(random.below(4));
    std::vector<double> load(static_cast<size_t>(experts));
    for (double& value : load) value = random.below(4) == 0 ? 0 : 1 / (0.02 + random.uniform());
    const Placement placement = balance(load, {.ranks = ranks, .physical_experts = slots});
    ASSERT_EQ(placement.physical_experts(), slots);
    EXPECT_EQ(placement.slots_per_rank() * ranks, slots);
    expect_sound(placement);
    const Placement plain = given_placement(experts, ranks, round_robin(experts, slots));
    EXPECT_LE(placement.imbalance(load), plain.imbalance(load)) << "seed " << seed;
  }
}

TEST(Placement, HierarchicalBalanceIsSoundForRandomLoads) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed, RandomStream::test, 1);
    const auto nodes = static_cast<int32_t>(1 + random.below(4));
    const int32_t ranks = nodes * static_cast<int32_t>(1 + random.below(4));
    const int32_t groups = nodes * static_cast<int32_t>(1 + random.below(3));
    const int32_t group_experts = static_cast<int32_t>(1 + random.below(6));
    const int32_t experts = groups * group_experts;
    const int32_t slots =
        static_cast<int32_t>(round_up(experts, ranks)) + ranks * static_cast<int32_t>(random.below(3));
    std::vector<double> load(static_cast<size_t>(experts));
    for (double& value : load) value = random.uniform();
    const Placement placement = balance(load, {.policy = BalancePolicy::hierarchical,
                                               .ranks = ranks,
                                               .nodes = nodes,
                                               .groups = groups,
                                               .physical_experts = slots});
    ASSERT_EQ(placement.physical_experts(), slots);
    expect_sound(placement, nodes);
    // A group is on one node, and each node has equally many.
    std::vector<std::set<int32_t>> groups_of(static_cast<size_t>(nodes));
    for (int32_t p = 0; p < slots; ++p)
      groups_of[static_cast<size_t>(p / (slots / nodes))].insert(
          placement.logical_of[static_cast<size_t>(p)] / group_experts);
    size_t sum = 0;
    for (const auto& own : groups_of) {
      EXPECT_EQ(own.size(), static_cast<size_t>(groups / nodes)) << "seed " << seed;
      sum += own.size();
    }
    EXPECT_EQ(sum, static_cast<size_t>(groups));
  }
}

TEST(Placement, PlaceRotatesOverReplicasByRankAndToken) {
  const Placement placement =
      given_placement(3, 2, {0, 1, 0, 2});  // expert 0 on slots 0 and 2, 1 on 1, 2 on 3
  Shape shape = uniform_shape(2, 3, 2, 3, 256);
  const Routing logical = Routing::from_table(shape, {0, 1, 2, 0, -1, 0, 0, 2, 0, 1, 2, 1});
  const Routing physical = place(logical, shape, placement);
  // Replica (rank + token) mod 2 of expert 0: rank 0 uses slots 0, 2, 0, rank 1 slots 2, 0.
  EXPECT_EQ(physical.rows(0), (std::vector<int32_t>{0, 1, 3, 2, -1, 0}));
  EXPECT_EQ(physical.rows(1), (std::vector<int32_t>{2, 3, 0, 1, 3, 1}));
}

TEST(Placement, PlacedRowsAreAValidTableWithEvenReplicas) {
  const int32_t slots = 16;
  Shape shape = uniform_shape(4, 10, 3, 32, 256);  // 10 logical experts on 4 ranks
  std::vector<double> load(10, 1.0);
  load[7] = 5;
  const Placement placement = balance(load, {.ranks = 4, .physical_experts = slots});
  const Routing logical = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = 3});
  const Routing physical = place(logical, shape, placement);
  std::vector<int32_t> table;
  for (Rank r = 0; r < 4; ++r) {
    const std::vector<int32_t> rows = physical.rows(r);
    const std::vector<int32_t> before = logical.rows(r);
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(placement.logical_of[static_cast<size_t>(rows[i])], before[i]);
    table.insert(table.end(), rows.begin(), rows.end());
  }
  Shape physical_shape = shape;
  physical_shape.experts = slots;
  EXPECT_NO_THROW(Routing::from_table(physical_shape, table));
  EXPECT_TEXT(error_of([&] { place(logical, physical_shape, placement); }),
              "made for 4 ranks and 10 experts; the shape has 4 and 16");
}

TEST(FieldCases, B18_NoExpertTwiceOnAGpu) {
  std::vector<double> load(256, 1.0);
  load[17] = 3;
  const Placement placement = balance(load, {.ranks = 32, .physical_experts = 288});
  for (Rank r = 0; r < 32; ++r)
    for (int32_t e = 0; e < 256; ++e) ASSERT_LE(copies_on(placement, r, e), 1);
  // 32 extra replicas: two for the hot expert (three shares of 1), thirty for the experts 0 .. 30 but 17. So
  // 225 + 3 replicas of load 1 and 60 of load 1/2. 228 ones over 32 ranks: 8 on four ranks, 7 on the others;
  // nine slots a rank leave room for one half (8.5) or two (8). Mean 258 / 32.
  EXPECT_EQ(placement.replicas()[17].size(), 3u);
  EXPECT_DOUBLE_EQ(placement.imbalance(load), 8.5 / (258.0 / 32));
}

TEST(FieldCases, B18_EqualLoadsAreBalancedExactly) {
  const std::vector<double> load(256, 1.0);
  const Placement placement = balance(load, {.ranks = 32, .physical_experts = 288});
  // 224 replicas of 1, seven a rank, and 64 of 1/2, two a rank: 8 everywhere.
  EXPECT_EQ(placement.imbalance(load), 1.0);
  expect_sound(placement);
}

TEST(FieldCases, B18_ZeroLoadGivesTheUniformMap) {
  const std::vector<double> load(256, 0.0);
  for (const BalancePolicy policy : {BalancePolicy::global, BalancePolicy::hierarchical}) {
    const Placement placement =
        balance(load, {.policy = policy, .ranks = 32, .nodes = 1, .groups = 8, .physical_experts = 288});
    EXPECT_EQ(placement.logical_of, round_robin(256, 288));
    EXPECT_EQ(placement.imbalance(load), 1.0);
  }
}

TEST(FieldCases, B18_IndivisibleExpertsGetReplicas) {
  const std::vector<double> load(10, 1.0);
  const Placement placement = balance(load, {.ranks = 4, .physical_experts = 12});
  expect_sound(placement);
  EXPECT_EQ(placement.slots_per_rank(), 3);
  for (Rank r = 0; r < 4; ++r)
    for (int32_t e = 0; e < 10; ++e) EXPECT_LE(copies_on(placement, r, e), 1);
}

TEST(FieldCases, B18_RepeatsAreSpreadWhenTheLastSlotsAreOnOneRank) {
  // Expert 0 has all the load and a replica on each of 3 ranks; the zero loads fill the rest. Whatever the
  // order, no rank may hold an expert twice: 4 experts, 3 ranks, 3 slots each.
  const std::vector<double> load{5, 0, 0, 0};
  const Placement placement = balance(load, {.ranks = 3, .physical_experts = 9});
  for (Rank r = 0; r < 3; ++r)
    for (int32_t e = 0; e < 4; ++e) EXPECT_LE(copies_on(placement, r, e), 1);
  EXPECT_EQ(placement.imbalance(load), 1.0);
}

}  // namespace
}  // namespace plumb

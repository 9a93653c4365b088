// Routing generators and their guarantees, and tables given by the user.
#include "model/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "model/error.h"
#include "model/routing_draw.h"

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

std::string spec_error(const Shape& shape, const RoutingSpec& spec) {
  return error_of([&] { Routing::generate(shape, spec); });
}

std::vector<int32_t> table_of(const Shape& shape, const Routing& routing) {
  std::vector<int32_t> table;
  for (Rank r = 0; r < shape.ranks; ++r) {
    const std::vector<int32_t> rows = routing.rows(r);
    EXPECT_EQ(rows.size(), static_cast<size_t>(int64_t{shape.tokens[static_cast<size_t>(r)]} * shape.topk));
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

/// The table of a generator, checked by from_table: ids in range, distinct in each row.
std::vector<int32_t> generated(const Shape& shape, const RoutingSpec& spec) {
  std::vector<int32_t> table = table_of(shape, Routing::generate(shape, spec));
  EXPECT_EQ(error_of([&] { Routing::from_table(shape, table); }), "");
  return table;
}

std::vector<int64_t> slots_per_rank(const Shape& shape, const std::vector<int32_t>& table) {
  std::vector<int64_t> slots(static_cast<size_t>(shape.ranks), 0);
  for (const int32_t e : table)
    if (e != kNone) ++slots[static_cast<size_t>(shape.rank_of(e))];
  return slots;
}

int64_t spread(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end()) - *std::min_element(values.begin(), values.end());
}

Shape ragged_shape(int32_t ranks, int32_t experts, int32_t topk) {
  Shape shape = uniform_shape(ranks, experts, topk, 0, 256);
  for (Rank r = 0; r < ranks; ++r) shape.tokens[static_cast<size_t>(r)] = r * 7 % 13;
  shape.max_tokens = 12;
  return shape;
}

const std::vector<RoutingKind> kGenerators = {
    RoutingKind::uniform,    RoutingKind::balanced, RoutingKind::group_limited, RoutingKind::zipf,
    RoutingKind::hot_expert, RoutingKind::hot_rank, RoutingKind::unbalanced};

TEST(Routing, EveryGeneratorYieldsValidRowsOnRaggedRanks) {
  for (const RoutingKind kind : kGenerators)
    for (const int32_t topk : {1, 2, 5, 8}) {
      const Shape shape = ragged_shape(8, 32, topk);
      generated(shape, {.kind = kind, .groups = 8, .group_topk = 4, .hot_ratio = 1.0});
    }
}

TEST(Routing, RowsOfARankDoNotDependOnOtherCalls) {
  const Shape shape = ragged_shape(8, 32, 4);
  for (const RoutingKind kind : kGenerators) {
    const RoutingSpec spec{.kind = kind, .seed = 9, .hot_ratio = 1.5, .masked_ratio = 0.2};
    const Routing one = Routing::generate(shape, spec);
    const Routing two = Routing::generate(shape, spec);
    const std::vector<int32_t> last_first = two.rows(5);
    for (Rank r = 0; r < 8; ++r) EXPECT_EQ(one.rows(r), two.rows(r)) << to_string(kind);
    EXPECT_EQ(one.rows(5), last_first);
  }
}

TEST(Routing, SeedsAndRanksHaveStreamsOfTheirOwn) {
  const Shape shape = uniform_shape(2, 64, 8, 16, 256);
  const Routing one = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = 1});
  const Routing two = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = 2});
  EXPECT_NE(one.rows(0), two.rows(0));
  EXPECT_NE(one.rows(0), one.rows(1));
}

TEST(Routing, IdleRanksHaveNoRows) {
  Shape shape = uniform_shape(4, 8, 2, 0, 256);
  for (const RoutingKind kind : kGenerators)
    EXPECT_TRUE(generated(shape, {.kind = kind, .hot_ratio = 1.0, .masked_ratio = 0.5}).empty())
        << to_string(kind);
  shape.tokens = {3, 0, 5, 0};
  shape.max_tokens = 5;
  const Routing routing = Routing::generate(shape, {.kind = RoutingKind::unbalanced, .hot_ratio = 1.5});
  EXPECT_TRUE(routing.rows(1).empty());
  EXPECT_EQ(routing.rows(2).size(), 10u);
}

// Each expert is chosen with probability k/E by each token, independently: mean n k/E, variance n (k/E)(1 -
// k/E). Both ways to draw: again on a collision (k <= E/4), and by shuffling.
TEST(Routing, UniformChoosesEveryExpertEquallyOften) {
  for (const int32_t experts : {64, 12}) {
    const Shape shape = uniform_shape(4, experts, 8, 4000, 256);
    std::vector<double> count(static_cast<size_t>(experts), 0);
    for (const int32_t e : generated(shape, {})) ++count[static_cast<size_t>(e)];
    const double p = 8.0 / experts;
    const double error = std::sqrt(16000 * p * (1 - p));
    for (const double c : count) EXPECT_NEAR(c, 16000 * p, 4 * error);  // 4: the worst of 64 experts
  }
}

TEST(Routing, UniformMayChooseAllExperts) {
  const Shape shape = uniform_shape(2, 32, 32, 4, 256);
  for (Rank r = 0; r < 2; ++r) {
    const std::vector<int32_t> rows = Routing::generate(shape, {}).rows(r);
    for (size_t t = 0; t < 4; ++t) {
      const std::set<int32_t> row(rows.begin() + static_cast<int>(t) * 32,
                                  rows.begin() + static_cast<int>(t + 1) * 32);
      EXPECT_EQ(row.size(), 32u);
    }
  }
}

TEST(Routing, GroupLimitedStaysInsideItsGroups) {
  const Shape shape = uniform_shape(4, 64, 8, 200, 256);
  const std::vector<int32_t> table =
      generated(shape, {.kind = RoutingKind::group_limited, .groups = 8, .group_topk = 3});
  for (size_t i = 0; i < table.size(); i += 8) {
    std::set<int32_t> groups;
    for (size_t j = i; j < i + 8; ++j) groups.insert(table[j] / 8);
    EXPECT_LE(groups.size(), 3u);
  }
}

TEST(Routing, GroupLimitedRefusesWhatDoesNotFit) {
  const Shape shape = uniform_shape(4, 64, 8, 2, 256);
  RoutingSpec spec{.kind = RoutingKind::group_limited, .groups = 7, .group_topk = 2};
  EXPECT_TEXT(spec_error(shape, spec), "groups is 7; allowed: divisors of experts 64");
  spec.groups = 16;  // 4 experts each: 2 groups are needed for 8 choices
  spec.group_topk = 1;
  EXPECT_TEXT(spec_error(shape, spec),
              "group_topk is 1; allowed: 2 .. 16 (topk is 8, a group has 4 experts)");
  spec.group_topk = 17;
  EXPECT_TEXT(spec_error(shape, spec), "group_topk is 17");
  spec.group_topk = 2;
  EXPECT_EQ(spec_error(shape, spec), "");
}

TEST(Routing, ZipfWeightsAreExactToTheirGrid) {
  // Weight i is 2^39 (1 + i)^-s cut to an integer. Relative error before the cut: s is rounded to 2^-33, so
  // ln(2000) 2^-33 = 8.8e-10; log2 to 2^-40, so 3 ln(2) 2^-40 = 2e-12.
  for (const double exponent : {0.0, 0.5, 1.0, 1.2345, 3.0}) {
    const detail::ZipfTable table(2000, exponent, 1);
    for (int32_t i = 0; i < 2000; ++i) {
      const double exact = std::max(1.0, std::ldexp(std::pow(1.0 + i, -exponent), 39));
      EXPECT_NEAR(static_cast<double>(table.weight(i)), exact, 1 + exact * 1e-9) << i << " " << exponent;
    }
  }
  // Powers of two are exact: 2^39 / 8.
  EXPECT_EQ(detail::ZipfTable(8, 1.0, 1).weight(7), uint64_t{1} << 36);
  // A tail below the grid keeps weight 1, so that all experts can be drawn: 1000^-16 = 1e-48.
  EXPECT_EQ(detail::ZipfTable(1000, 16, 1).weight(999), 1u);
  generated(uniform_shape(1, 32, 32, 3, 256), {.kind = RoutingKind::zipf, .exponent = 16});
}

TEST(Routing, ZipfPermutationIsAPermutationFixedByTheSeed) {
  const detail::ZipfTable one(256, 1, 1);
  const detail::ZipfTable two(256, 1, 2);
  std::set<int32_t> seen;
  int32_t moved = 0;
  for (int32_t i = 0; i < 256; ++i) {
    seen.insert(one.expert_at(i));
    moved += one.expert_at(i) != two.expert_at(i) ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_GT(moved, 200);
}

// First draw: place i with probability w_i / W. Second draw: sum over the first place j of w_j / W w_i / (W -
// w_j).
TEST(Routing, ZipfDrawsByWeightWithoutReplacement) {
  const int32_t experts = 16;
  const Shape shape = uniform_shape(4, experts, 2, 10000, 256);
  const std::vector<int32_t> rows = generated(shape, {.kind = RoutingKind::zipf, .seed = 5, .exponent = 1.0});
  const detail::ZipfTable table(experts, 1.0, 5);
  double total = 0;
  for (int32_t i = 0; i < experts; ++i) total += 1.0 / (1 + i);
  for (int32_t i = 0; i < experts; ++i) {
    const double w = 1.0 / (1 + i);
    double second = 0;
    for (int32_t j = 0; j < experts; ++j)
      if (j != i) second += 1.0 / (1 + j) / total * w / (total - 1.0 / (1 + j));
    double count[2] = {0, 0};
    for (size_t at = 0; at < rows.size(); ++at) count[at % 2] += rows[at] == table.expert_at(i) ? 1 : 0;
    const double n = 40000;
    const double first = w / total;
    EXPECT_NEAR(count[0] / n, first, 4 * std::sqrt(first * (1 - first) / n));  // 4: the worst of 32 numbers
    EXPECT_NEAR(count[1] / n, second, 4 * std::sqrt(second * (1 - second) / n));
  }
}

TEST(Routing, ZipfRefusesExponentsOutOfRange) {
  const Shape shape = uniform_shape(1, 8, 2, 1, 256);
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::zipf, .exponent = -0.5}),
              "exponent is -0.5; allowed: 0 .. 16");
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::zipf, .exponent = std::nan("")}), "exponent is nan");
}

TEST(Routing, HotExpertIsChosenByExactlyItsFraction) {
  Shape shape = ragged_shape(8, 32, 4);
  for (const double fraction : {0.0, 0.3, 1.0}) {
    const Routing routing = Routing::generate(
        shape, {.kind = RoutingKind::hot_expert, .hot_index = 17, .hot_fraction = fraction});
    for (Rank r = 0; r < 8; ++r) {
      const std::vector<int32_t> rows = routing.rows(r);
      EXPECT_EQ(std::count(rows.begin(), rows.end(), 17),
                std::llround(fraction * shape.tokens[static_cast<size_t>(r)]));
    }
  }
}

TEST(Routing, HotExpertStandsAtEveryPosition) {
  const Shape shape = uniform_shape(1, 32, 4, 4000, 256);
  const std::vector<int32_t> rows =
      generated(shape, {.kind = RoutingKind::hot_expert, .hot_index = 3, .hot_fraction = 1.0});
  double at[4] = {0, 0, 0, 0};
  for (size_t i = 0; i < rows.size(); ++i) at[i % 4] += rows[i] == 3 ? 1 : 0;
  for (const double count : at) EXPECT_NEAR(count, 1000, 4 * std::sqrt(4000 * 0.25 * 0.75));
}

TEST(Routing, HotExpertRefusesWhatDoesNotFit) {
  const Shape shape = uniform_shape(1, 8, 8, 4, 256);
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::hot_expert, .hot_index = 8}),
              "hot_index is 8; allowed: 0 .. 7");
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::hot_expert, .hot_fraction = 1.5}),
              "hot_fraction is 1.5; allowed: 0 .. 1");
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::hot_expert, .hot_fraction = 0.5}),
              "hot_fraction is 0.5; allowed: 1, as each token chooses all 8 experts");
}

TEST(Routing, HotRankRatioIsExact) {
  struct Case {
    int32_t ranks, experts, topk, tokens;
    double ratio;
  };
  for (const Case& c :
       {Case{16, 256, 8, 64, 3.0}, Case{16, 256, 8, 3, 2.5}, Case{8, 8, 2, 50, 4.0}, Case{8, 16, 8, 40, 2.0},
        Case{4, 16, 3, 7, 0.0}, Case{2, 4, 3, 11, 0.9}, Case{1, 8, 3, 5, 1.0}, Case{64, 64, 1, 2, 17.3}}) {
    const Shape shape = uniform_shape(c.ranks, c.experts, c.topk, c.tokens, 256);
    const Rank hot = c.ranks / 2;
    std::vector<int64_t> slots = slots_per_rank(
        shape, generated(shape, {.kind = RoutingKind::hot_rank, .hot_index = hot, .hot_ratio = c.ratio}));
    const double mean = static_cast<double>(c.tokens) * c.topk;  // tokens * ranks * topk / ranks
    EXPECT_NEAR(static_cast<double>(slots[static_cast<size_t>(hot)]), c.ratio * mean, 0.5 + 1e-9);
    slots.erase(slots.begin() + hot);
    if (!slots.empty()) {
      EXPECT_LE(spread(slots), 1);
    }
  }
}

TEST(Routing, HotRankNamesTheReachableMaximum) {
  // 4 experts a rank, topk 8: at most 4 of 8 slots of a token, 16 ranks: 4 / 8 * 16 = 8 times the mean.
  const Shape shape = uniform_shape(16, 64, 8, 10, 256);
  RoutingSpec spec{.kind = RoutingKind::hot_rank, .hot_ratio = 8.0};
  EXPECT_EQ(spec_error(shape, spec), "");
  spec.hot_ratio = 8.1;
  EXPECT_TEXT(spec_error(shape, spec),
              "routing hot_rank: hot_ratio is 8.1; reachable: 0 .. 8 (a token has 8 slots, at most 4 on one "
              "of 16 ranks with "
              "4 experts each)");
  spec.hot_ratio = std::nan("");
  EXPECT_TEXT(spec_error(shape, spec), "hot_ratio is nan");
  spec.hot_index = 16;
  EXPECT_TEXT(spec_error(shape, spec), "hot_index is 16; allowed: 0 .. 15");
  // Two ranks of 2 experts, topk 3: one slot at least on each, 1 / 3 * 2 of the mean.
  EXPECT_TEXT(spec_error(uniform_shape(2, 4, 3, 10, 256), {.kind = RoutingKind::hot_rank, .hot_ratio = 0.5}),
              "reachable: 0.66");
}

TEST(Routing, UnbalancedRatioIsExactAndFallsAlongALine) {
  struct Case {
    int32_t ranks, experts, topk, tokens;
    double ratio;
  };
  for (const Case& c :
       {Case{8, 256, 8, 100, 1.5}, Case{8, 256, 8, 100, 2.0}, Case{16, 64, 4, 33, 4.0},
        Case{8, 8, 2, 50, 4.0}, Case{72, 288, 8, 5, 1.0}, Case{1, 4, 2, 9, 1.0}, Case{5, 10, 4, 1, 1.3}}) {
    const Shape shape = uniform_shape(c.ranks, c.experts, c.topk, c.tokens, 256);
    const Rank hot = c.ranks - 1;
    const std::vector<int64_t> slots = slots_per_rank(
        shape, generated(shape, {.kind = RoutingKind::unbalanced, .hot_index = hot, .hot_ratio = c.ratio}));
    const int64_t mean = int64_t{c.tokens} * c.topk;
    const int64_t peak = slots[static_cast<size_t>(hot)];
    EXPECT_EQ(peak, *std::max_element(slots.begin(), slots.end()));
    EXPECT_NEAR(static_cast<double>(peak), c.ratio * static_cast<double>(mean), 1.0);
    // The line: from the peak at 0 with the slope that makes the sum right; zero after 2 R / ratio ranks if
    // above 2. Rounding of the peak, of each value and of the continuous triangle's area cost a slot or slope
    // each.
    const double p = static_cast<double>(peak);
    const double m = static_cast<double>(mean);
    const double slope = c.ratio <= 2 ? 2 * (p - m) / std::max(c.ranks - 1, 1) : p / (2 * c.ranks * m / p);
    for (int32_t i = 0; i < c.ranks; ++i) {
      const auto at = static_cast<size_t>((hot + i) % c.ranks);
      EXPECT_NEAR(static_cast<double>(slots[at]), std::max(0.0, p - slope * i), 2 + (c.ratio > 2 ? slope : 0))
          << i;
    }
  }
}

TEST(Routing, UnbalancedRefusesRatiosOutOfReach) {
  const Shape shape = uniform_shape(16, 64, 8, 10, 256);
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::unbalanced, .hot_ratio = 0.9}), "reachable: 1 .. 8");
  EXPECT_TEXT(spec_error(shape, {.kind = RoutingKind::unbalanced, .hot_ratio = 9}), "reachable: 1 .. 8");
}

// The hot quota is 3/16 of 8 places per token, 1.5 a token: one from each token and one more from every
// other, spread over the batch by the golden section. 64 tokens in a row then hold 64 + 32 of them, up to a
// few.
TEST(Routing, QuotasAreSpreadOverSourceRanks) {
  const Shape shape = uniform_shape(16, 256, 8, 64, 256);
  for (const RoutingKind kind : {RoutingKind::hot_rank, RoutingKind::unbalanced}) {
    const Routing routing = Routing::generate(shape, {.kind = kind, .hot_index = 2, .hot_ratio = 3});
    for (Rank r = 0; r < 16; ++r) {
      const std::vector<int32_t> rows = routing.rows(r);
      const int64_t hot =
          std::count_if(rows.begin(), rows.end(), [&](int32_t e) { return shape.rank_of(e) == 2; });
      EXPECT_NEAR(static_cast<double>(hot), 96, 4) << "rank " << r;
    }
  }
}

TEST(Routing, TightQuotasStillYieldDistinctExperts) {
  // One expert a rank and the largest ratio: every token must choose the hot rank exactly once.
  const Shape shape = ragged_shape(8, 8, 4);
  for (const RoutingKind kind : {RoutingKind::hot_rank, RoutingKind::unbalanced}) {
    const std::vector<int32_t> table = generated(shape, {.kind = kind, .hot_index = 3, .hot_ratio = 2.0});
    EXPECT_EQ(slots_per_rank(shape, table)[3], shape.total_tokens()) << to_string(kind);
  }
}

TEST(Routing, MaskedCountIsExactOnEachRank) {
  const Shape shape = ragged_shape(8, 32, 4);
  for (const RoutingKind kind : kGenerators) {
    const RoutingSpec plain{.kind = kind, .hot_ratio = 1.5};
    RoutingSpec spec = plain;
    for (const double ratio : {0.1, 0.5, 1.0}) {
      spec.masked_ratio = ratio;
      for (Rank r = 0; r < 8; ++r) {
        const std::vector<int32_t> rows = Routing::generate(shape, spec).rows(r);
        const std::vector<int32_t> whole = Routing::generate(shape, plain).rows(r);
        EXPECT_EQ(std::count(rows.begin(), rows.end(), kNone),
                  std::llround(ratio * shape.tokens[static_cast<size_t>(r)] * 4));
        for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(rows[i] == kNone || rows[i] == whole[i]);
      }
    }
  }
  EXPECT_TEXT(spec_error(shape, {.masked_ratio = 1.1}), "masked_ratio is 1.1; allowed: 0 .. 1");
}

TEST(Routing, KindsThatLookAtRanksNeedWholeRanks) {
  const Shape shape = uniform_shape(4, 10, 2, 3, 256);
  for (const RoutingKind kind : {RoutingKind::balanced, RoutingKind::hot_rank, RoutingKind::unbalanced})
    EXPECT_TEXT(spec_error(shape, {.kind = kind}),
                "experts is 10, not a multiple of ranks 4; nearest allowed: 8 or 12");
  generated(shape, {.kind = RoutingKind::uniform});
}

TEST(Routing, TableMustHaveTheSizeOfTheShape) {
  Shape shape = uniform_shape(2, 4, 2, 2, 256);
  EXPECT_TEXT(error_of([&] {
                Routing::from_table(shape, {0, 1});
              }),
              "2 entries; allowed: tokens 4 * topk 2 = 8");
  shape.tokens = {1, 0};
  EXPECT_EQ(Routing::from_table(shape, {3, 1}).rows(0), (std::vector<int32_t>{3, 1}));
  EXPECT_TRUE(Routing::from_table(shape, {3, 1}).rows(1).empty());
  EXPECT_THROW(Routing::from_table(shape, {3, 1}).rows(2), LogicError);
}

TEST(FieldCases, B02_MaskedChoicesAreAllowedOtherNegativesNot) {
  const Shape shape = uniform_shape(1, 4, 2, 3, 256);
  const std::vector<int32_t> table{-1, -1, -1, 3, 2, 3};
  const Routing routing = Routing::from_table(shape, table);
  EXPECT_EQ(routing.rows(0), table);
  Shape two_ranks = shape;
  two_ranks.ranks = 2;
  std::vector<Rank> ranks;
  destinations(two_ranks, std::span<const int32_t>(table).first(2), ranks);
  EXPECT_TRUE(ranks.empty());  // token 0 sends no copy
  destinations(two_ranks, std::span<const int32_t>(table).subspan(4, 2), ranks);
  EXPECT_EQ(ranks, std::vector<Rank>{1});
  EXPECT_TEXT(error_of([&] {
                Routing::from_table(shape, {-1, -1, -2, 3, 2, 3});
              }),
              "rank 0, token 1, position 0: expert -2; allowed: 0 .. 3, or -1 for no choice");
  EXPECT_TEXT(error_of([&] {
                Routing::from_table(shape, {-1, -1, -1, 4, 2, 3});
              }),
              "rank 0, token 1, position 1: expert 4");
}

TEST(FieldCases, B03_RepeatedExpertIsRefusedSharedRankIsNot) {
  Shape shape = uniform_shape(4, 8, 2, 1, 256);
  shape.tokens = {0, 2, 0, 0};
  shape.max_tokens = 2;
  std::vector<Rank> ranks;
  const std::vector<int32_t> good{0, 1, 4, 5};  // 4 and 5 are both on rank 2: one copy
  EXPECT_EQ(Routing::from_table(shape, good).rows(1), good);
  destinations(shape, std::span<const int32_t>(good).last(2), ranks);
  EXPECT_EQ(ranks, std::vector<Rank>{2});
  EXPECT_TEXT(error_of([&] {
                Routing::from_table(shape, {0, 1, 5, 5});
              }),
              "rank 1, token 1, position 1: expert 5 stands at position 0 already");
}

TEST(FieldCases, B19_SmallBalancedBatchReachesEveryRank) {
  Shape shape = uniform_shape(16, 256, 8, 0, 256);
  for (size_t r = 0; r < 8; ++r) shape.tokens[r] = 1;  // 8 tokens in all, 64 slots, 4 for each of 16 ranks
  EXPECT_EQ(slots_per_rank(shape, generated(shape, {.kind = RoutingKind::balanced})),
            std::vector<int64_t>(16, 4));
  shape.tokens.assign(16, 0);
  shape.tokens[11] = 8;
  EXPECT_EQ(slots_per_rank(shape, generated(shape, {.kind = RoutingKind::balanced})),
            std::vector<int64_t>(16, 4));
}

TEST(FieldCases, B19_BalancedDiffersByAtMostOneSlot) {
  for (const int32_t ranks : {2, 3, 4, 8, 16, 24, 64, 72}) {
    const int32_t experts = (256 + ranks / 2) / ranks * ranks;  // the multiple of R nearest to 256
    for (int32_t topk = 1; topk <= 10; ++topk) {
      for (const int32_t tokens : {1, 2, 5}) {
        Shape shape = uniform_shape(ranks, experts, topk, tokens, 256);
        shape.tokens[0] = 0;  // ragged, and a total that is no multiple of R
        const std::vector<int32_t> table = generated(shape, {.kind = RoutingKind::balanced});
        EXPECT_LE(spread(slots_per_rank(shape, table)), 1) << ranks << " " << topk;
        std::vector<int64_t> uses(static_cast<size_t>(experts), 0);
        for (const int32_t e : table) ++uses[static_cast<size_t>(e)];
        EXPECT_LE(spread(uses), 1) << ranks << " " << topk;
      }
    }
  }
}

TEST(FieldCases, B19_HotRankHitsTheRatioAskedFor) {
  for (const int32_t ranks : {2, 3, 4, 8, 16, 24, 64, 72}) {
    const Shape shape = uniform_shape(ranks, (256 + ranks / 2) / ranks * ranks, 8, 16, 256);
    for (const double ratio : {1.0, 1.5, 2.0}) {
      const std::vector<int32_t> table =
          generated(shape, {.kind = RoutingKind::hot_rank, .hot_index = 1, .hot_ratio = ratio});
      EXPECT_EQ(slots_per_rank(shape, table)[1], std::llround(ratio * 128)) << ranks;  // mean: 16 * 8 slots
    }
  }
}

}  // namespace
}  // namespace plumb

// Destinations of a token and their expected number, against golden data, exact cases and the generators.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/error.h"
#include "model/routing.h"

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

/// Mean and its standard error over samples.
struct Estimate {
  double mean = 0;
  double error = 0;
};

Estimate estimate(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double x : samples) squares += (x - mean) * (x - mean);
  return {.mean = mean, .error = std::sqrt(squares / (n - 1) / n)};
}

/// Distinct groups (of `groups`) of each token of a generated batch.
Estimate fan_out(const Shape& shape, const RoutingSpec& spec, int32_t groups) {
  Shape grouped = shape;
  grouped.ranks = groups;
  std::vector<double> samples;
  std::vector<Rank> ranks;
  const Routing routing = Routing::generate(shape, spec);
  const auto topk = static_cast<size_t>(shape.topk);
  for (Rank r = 0; r < shape.ranks; ++r) {
    const std::vector<int32_t> rows = routing.rows(r);
    for (size_t i = 0; i < rows.size(); i += topk) {
      destinations(grouped, std::span<const int32_t>(rows).subspan(i, topk), ranks);
      samples.push_back(static_cast<double>(ranks.size()));
    }
  }
  return estimate(samples);
}

TEST(Routing, DestinationsAreDistinctAndAscending) {
  const Shape shape = uniform_shape(4, 8, 4, 1, 256);
  std::vector<Rank> ranks{9};
  destinations(shape, std::vector<int32_t>{7, 0, -1, 6}, ranks);
  EXPECT_EQ(ranks, (std::vector<Rank>{0, 3}));
  destinations(shape, std::vector<int32_t>{-1, -1, -1, -1}, ranks);
  EXPECT_TRUE(ranks.empty());
}

TEST(Routing, ExpectedDistinctEqualsTheGoldenCases) {
  std::ifstream in(PLUMB_SOURCE_DIR "/tests/model/deepep_golden.json");
  const nlohmann::json cases = nlohmann::json::parse(in)["expected_distinct"]["cases"];
  ASSERT_GT(cases.size(), 20u);
  for (const auto& c : cases) {
    const double expected = c["expected"];
    const double limit = c["infinite_experts_limit"];
    // The file has 12 significant digits.
    EXPECT_NEAR(expected_distinct(c["E"], c["G"], c["K"]), expected, 1e-9 * expected) << c;
    EXPECT_NEAR(expected_distinct_limit(c["G"], c["K"]), limit, 1e-9 * limit) << c;
  }
}

TEST(Routing, ExpectedDistinctHasItsExactCases) {
  EXPECT_DOUBLE_EQ(expected_distinct(256, 1, 8), 1);    // one group is always hit
  EXPECT_DOUBLE_EQ(expected_distinct(256, 256, 8), 8);  // each expert its own group
  EXPECT_DOUBLE_EQ(expected_distinct(64, 8, 1), 1);
  EXPECT_DOUBLE_EQ(expected_distinct(64, 8, 64), 8);
  EXPECT_EQ(expected_distinct(64, 8, 0), 0);
  // A small probability in a large pool: 1 expert of 2^24 per group, so topk groups.
  EXPECT_NEAR(expected_distinct(1 << 24, 1 << 24, 1), 1, 1e-12);
  EXPECT_TEXT(error_of([] { expected_distinct(10, 4, 2); }), "groups is 4; allowed: divisors of experts 10");
  EXPECT_TEXT(error_of([] { expected_distinct(8, 4, 9); }), "topk is 9; allowed: 0 .. 8");
}

/// C(n, m), exact in double for the sizes below.
double choose(int32_t n, int32_t m) {
  double result = m < 0 || m > n ? 0 : 1;
  for (int32_t i = 0; i < m && result > 0; ++i) result = result * (n - i) / (i + 1);
  return result;
}

TEST(Routing, ExpectedDistinctGroupLimitedHasItsExactCases) {
  // All groups chosen: the plain gate.
  EXPECT_NEAR(expected_distinct_group_limited(256, 8, 8, 8, 8), expected_distinct(256, 8, 8), 1e-12);
  EXPECT_NEAR(expected_distinct_group_limited(256, 4, 8, 8, 8), expected_distinct(256, 4, 8), 1e-12);
  EXPECT_NEAR(expected_distinct_group_limited(256, 64, 8, 8, 8), expected_distinct(256, 64, 8), 1e-12);
  // One group chosen: one node.
  EXPECT_NEAR(expected_distinct_group_limited(256, 2, 8, 8, 1), 1, 1e-12);
  // 4 groups of 2 experts, at most 2 of them open. The second of two choices falls on one of 7 experts, of
  // which 6 are in another group: 1 + 6 / 7. A third one finds the first group full, or both open: 2.
  EXPECT_NEAR(expected_distinct_group_limited(8, 4, 2, 4, 2), 13.0 / 7, 1e-12);
  EXPECT_NEAR(expected_distinct_group_limited(8, 4, 3, 4, 2), 2, 1e-12);
  // Groups = gate groups: the limit only cuts off what a plain draw would hit, so E min(D, 4), with
  // P(D = d) = C(8, d) sum_i (-1)^i C(d, i) C(32 (d - i), 8) / C(256, 8) by inclusion and exclusion.
  double expected = 0;
  for (int32_t d = 1; d <= 8; ++d) {
    double ways = 0;
    for (int32_t i = 0; i < d; ++i) ways += (i % 2 == 0 ? 1 : -1) * choose(d, i) * choose(32 * (d - i), 8);
    expected += std::min(d, 4) * choose(8, d) * ways / choose(256, 8);
  }
  EXPECT_NEAR(expected_distinct_group_limited(256, 8, 8, 8, 4), expected, 1e-9);
  // Worked numbers of the header.
  EXPECT_NEAR(expected_distinct_group_limited(256, 8, 8, 8, 4), 3.98308, 5e-6);
  EXPECT_NEAR(expected_distinct_group_limited(256, 64, 8, 8, 4), 7.47109, 5e-6);
  EXPECT_NEAR(expected_distinct_group_limited(256, 2, 8, 8, 4), 1.96944, 5e-6);
  EXPECT_TEXT(error_of([] { expected_distinct_group_limited(240, 6, 8, 8, 4); }),
              "groups is 6; allowed: divisors and multiples of gate_groups 8");
  EXPECT_TEXT(error_of([] { expected_distinct_group_limited(256, 8, 8, 8, 9); }),
              "group_topk is 9; allowed: 1 .. 8");
  EXPECT_TEXT(error_of([] { expected_distinct_group_limited(256, 8, 40, 8, 1); }),
              "topk is 40; allowed: 0 .. 32");
}

// Within 3 standard errors of the mean; a true generator fails with probability 0.3 % a line, and the seed is
// fixed.
TEST(Routing, FanOutOfGeneratorsIsTheExpectedOne) {
  const Shape shape = uniform_shape(8, 256, 8, 2000, 256);
  for (const int32_t groups : {2, 8, 64}) {
    const Estimate found = fan_out(shape, {}, groups);
    EXPECT_NEAR(found.mean, expected_distinct(256, groups, 8), 3 * found.error) << groups;
  }
  const RoutingSpec gate{.kind = RoutingKind::group_limited, .groups = 8, .group_topk = 4};
  for (const int32_t groups : {2, 4, 8, 32}) {
    const Estimate found = fan_out(shape, gate, groups);
    EXPECT_NEAR(found.mean, expected_distinct_group_limited(256, groups, 8, 8, 4), 3 * found.error) << groups;
  }
}

}  // namespace
}  // namespace plumb

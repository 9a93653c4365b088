// Bounded least squares: problems with answers in closed form.
#include "model/least_squares.h"

#include <cmath>

#include <gtest/gtest.h>

namespace plumb {
namespace {

constexpr Range<double> kFree{.min = -1e9, .max = 1e9};

/// Line a + b t through (0, 1), (1, 3), (2, 4), (3, 6): means 1.5 and 3.5, b = (-1.5 -2.5 -0.5 -0.5 + 0.5 0.5
/// + 1.5 2.5) / 5 = 1.6, a = 3.5 - 1.5 1.6 = 1.1.
LeastSquaresProblem line() {
  return {
      .residuals =
          [](std::span<const double> x) {
            return std::vector<double>{x[0] - 1, x[0] + x[1] - 3, x[0] + 2 * x[1] - 4, x[0] + 3 * x[1] - 6};
          },
      .bounds = {kFree, kFree},
      .start = {0, 0}};
}

TEST(LeastSquares, SolvesALine) {
  const LeastSquaresSolution solution = solve(line());
  EXPECT_NEAR(solution.x[0], 1.1, 1e-6);
  EXPECT_NEAR(solution.x[1], 1.6, 1e-6);
  EXPECT_FALSE(solution.is_at_bound[0] || solution.is_at_bound[1]);
}

TEST(LeastSquares, StaysAtABoundAndSolvesTheRest) {
  LeastSquaresProblem problem = line();
  problem.bounds[0].min = 2;
  problem.start = {2.5, 0};
  const LeastSquaresSolution solution = solve(problem);
  // With a = 2: b = (1 (3 - 2) + 2 (4 - 2) + 3 (6 - 2)) / 14 = 17 / 14.
  EXPECT_EQ(solution.x[0], 2);
  EXPECT_NEAR(solution.x[1], 17.0 / 14, 1e-6);
  EXPECT_TRUE(solution.is_at_bound[0]);
  EXPECT_FALSE(solution.is_at_bound[1]);
}

TEST(LeastSquares, FollowsACurvedValley) {
  // Rosenbrock's function: minimum 0 at (1, 1).
  const LeastSquaresProblem problem{.residuals =
                                        [](std::span<const double> x) {
                                          return std::vector<double>{10 * (x[1] - x[0] * x[0]), 1 - x[0]};
                                        },
                                    .bounds = {kFree, kFree},
                                    .start = {-1.2, 1}};
  const LeastSquaresSolution solution = solve(problem);
  EXPECT_NEAR(solution.x[0], 1, 1e-6);
  EXPECT_NEAR(solution.x[1], 1, 1e-6);
}

TEST(LeastSquares, StandardErrorOfAMeanIsThatOfStatistics) {
  // Values 1, 2, 3, 6 about their mean 3: sum of squares 4 + 1 + 0 + 9 = 14; s = sqrt(14 / 3), error s /
  // sqrt(4).
  const std::vector<double> residuals = {-2, -1, 0, 3};
  const auto errors = standard_errors({{1, 1, 1, 1}}, residuals);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NEAR(errors[0], std::sqrt(14.0 / 3) / 2, 1e-12);
  EXPECT_TRUE(std::isnan(standard_errors({{1}}, std::vector<double>{0})[0]));  // nothing left to judge by
}

TEST(LeastSquares, IndependenceIsThePartThatOthersDoNotSpan) {
  // (3, 4, 0) against (1, 0, 0): 4 of its length 5 remain.
  const Independence part = independence(std::vector<double>{3, 4, 0}, {{1, 0, 0}});
  EXPECT_NEAR(part.size, 5 / std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(part.share, 0.8, 1e-12);
  EXPECT_EQ(part.explained, std::vector<size_t>{0});
  const Independence none = independence(std::vector<double>{2, 2, 0}, {{0, 0, 1}, {1, 1, 0}});
  EXPECT_NEAR(none.share, 0, 1e-12);
  EXPECT_EQ(none.explained, std::vector<size_t>{1});
  EXPECT_EQ(independence(std::vector<double>{0, 0}, {}).size, 0);
}

}  // namespace
}  // namespace plumb

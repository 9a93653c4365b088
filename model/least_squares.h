// Least squares of few unknowns within bounds, and whether the residuals determine them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/config.h"

namespace plumb {

/// Find x within bounds, from start, that makes the sum of squared residuals small. Unknowns should be scaled
/// so that a change by 1 is large and one by 1e-4 still moves the residuals smoothly: that is the step of the
/// derivatives.
struct LeastSquaresProblem {
  std::function<std::vector<double>(std::span<const double>)> residuals;
  std::vector<Range<double>> bounds;
  std::vector<double> start;  // within the bounds
};

struct LeastSquaresSolution {
  std::vector<double> x;
  std::vector<bool> is_at_bound;           // and the residuals push against it
  std::vector<std::vector<double>> slope;  // [unknowns][residuals] at x
  int32_t iterations = 0;                  // steps taken
};

/// Derivatives of the residuals: one column per unknown, by central differences (one-sided at a bound).
std::vector<std::vector<double>> slope_of(const LeastSquaresProblem& problem, std::span<const double> x);

/// Levenberg-Marquardt with Marquardt's scaling; a step that leaves the bounds is cut, and an unknown that is
/// pushed against its bound stays there. Finds a local minimum. Deterministic. Source: Marquardt, J. SIAM 11
/// (1963) 431.
LeastSquaresSolution solve(const LeastSquaresProblem& problem);

/// Standard errors of unknowns: s sqrt(diag((J^T J)^-1)), s^2 = sum r^2 / (residuals - unknowns); valid when
/// residuals scatter alike and independently. NaN without more residuals than unknowns. `columns`:
/// independent ones.
std::vector<double> standard_errors(const std::vector<std::vector<double>>& columns,
                                    std::span<const double> residuals);

/// How a column relates to others.
struct Independence {
  double size = 0;                // root of its mean square
  double share = 0;               // of its length that the others do not span, 0 .. 1
  std::vector<size_t> explained;  // indices of the others that make up more than a tenth of it
};
Independence independence(std::span<const double> column, const std::vector<std::vector<double>>& others);

}  // namespace plumb

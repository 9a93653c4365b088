// Levenberg-Marquardt on dense matrices of Eigen.
#include "model/least_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Dense>

namespace plumb {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kStep = 1e-4;
constexpr int32_t kMaxSteps = 200;
constexpr double kSmallestGain = 1e-12;  // relative decrease of the sum of squares that is still progress
constexpr double kLargestDamping = 1e7;

VectorXd as_vector(std::span<const double> values) {
  return Eigen::Map<const VectorXd>(values.data(), static_cast<Eigen::Index>(values.size()));
}

MatrixXd as_matrix(const std::vector<std::vector<double>>& columns, size_t rows) {
  MatrixXd matrix(static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns.size()));
  for (size_t k = 0; k < columns.size(); ++k)
    matrix.col(static_cast<Eigen::Index>(k)) = as_vector(columns[k]);
  return matrix;
}

/// Unknowns at a bound from which the slope leads outward.
std::vector<bool> pinned(const LeastSquaresProblem& problem, const std::vector<double>& x,
                         const VectorXd& gradient) {
  std::vector<bool> out(x.size());
  for (size_t k = 0; k < x.size(); ++k) {
    const double g = gradient(static_cast<Eigen::Index>(k));
    out[k] = (x[k] <= problem.bounds[k].min && g > 0) || (x[k] >= problem.bounds[k].max && g < 0);
  }
  return out;
}

/// The damped Gauss-Newton step, from a QR decomposition of [J; sqrt(damping) D].
VectorXd damped_step(MatrixXd slope, const VectorXd& residuals, const std::vector<bool>& is_pinned,
                     double damping) {
  const Eigen::Index rows = slope.rows(), unknowns = slope.cols();
  MatrixXd stacked = MatrixXd::Zero(rows + unknowns, unknowns);
  VectorXd right = VectorXd::Zero(rows + unknowns);
  right.head(rows) = -residuals;
  for (Eigen::Index k = 0; k < unknowns; ++k) {
    if (is_pinned[static_cast<size_t>(k)]) slope.col(k).setZero();
    const double length = slope.col(k).norm();
    stacked(rows + k, k) = length > 0 ? std::sqrt(damping) * length : 1;
  }
  stacked.topRows(rows) = slope;
  return stacked.colPivHouseholderQr().solve(right);
}

}  // namespace

std::vector<std::vector<double>> slope_of(const LeastSquaresProblem& problem, std::span<const double> x) {
  std::vector<std::vector<double>> columns;
  for (size_t k = 0; k < x.size(); ++k) {
    std::vector<double> above(x.begin(), x.end()), below = above;
    above[k] = std::min(x[k] + kStep, problem.bounds[k].max);
    below[k] = std::max(x[k] - kStep, problem.bounds[k].min);
    const VectorXd difference = as_vector(problem.residuals(above)) - as_vector(problem.residuals(below));
    const VectorXd column = difference / (above[k] - below[k]);
    columns.emplace_back(column.begin(), column.end());
  }
  return columns;
}

LeastSquaresSolution solve(const LeastSquaresProblem& problem) {
  LeastSquaresSolution out{.x = problem.start, .is_at_bound = {}, .slope = {}, .iterations = 0};
  std::vector<double> residuals = problem.residuals(out.x);
  double damping = 1e-3;
  bool is_done = false;
  while (true) {
    out.slope = slope_of(problem, out.x);
    const MatrixXd slope = as_matrix(out.slope, residuals.size());
    const VectorXd r = as_vector(residuals);
    out.is_at_bound = pinned(problem, out.x, slope.transpose() * r);
    if (is_done || out.iterations == kMaxSteps) return out;
    bool is_better = false;
    for (; !is_better && damping <= kLargestDamping; damping *= is_better ? 0.1 : 10) {
      const VectorXd step = damped_step(slope, r, out.is_at_bound, damping);
      std::vector<double> next = out.x;
      for (size_t k = 0; k < next.size(); ++k)
        next[k] = std::clamp(next[k] + step(static_cast<Eigen::Index>(k)), problem.bounds[k].min,
                             problem.bounds[k].max);
      std::vector<double> tried = problem.residuals(next);
      const double gain = r.squaredNorm() - as_vector(tried).squaredNorm();
      is_better = gain > 0;
      if (!is_better) continue;
      is_done = gain < kSmallestGain * r.squaredNorm();
      out.x = std::move(next);
      residuals = std::move(tried);
      ++out.iterations;
    }
    if (!is_better) return out;
    damping = std::max(damping, 1e-12);
  }
}

std::vector<double> standard_errors(const std::vector<std::vector<double>>& columns,
                                    std::span<const double> residuals) {
  std::vector<double> out(columns.size(), std::numeric_limits<double>::quiet_NaN());
  if (residuals.size() <= columns.size() || columns.empty()) return out;
  const MatrixXd slope = as_matrix(columns, residuals.size());
  const double variance =
      as_vector(residuals).squaredNorm() / static_cast<double>(residuals.size() - columns.size());
  const MatrixXd normal = slope.transpose() * slope;
  const MatrixXd inverse = normal.ldlt().solve(MatrixXd::Identity(normal.rows(), normal.cols()));
  for (size_t k = 0; k < out.size(); ++k) {
    const auto i = static_cast<Eigen::Index>(k);
    out[k] = std::sqrt(std::max(0.0, variance * inverse(i, i)));
  }
  return out;
}

Independence independence(std::span<const double> column, const std::vector<std::vector<double>>& others) {
  const VectorXd c = as_vector(column);
  Independence out{.size = c.norm() / std::sqrt(std::max(1.0, static_cast<double>(column.size()))),
                   .share = 1,
                   .explained = {}};
  if (c.norm() == 0 || others.empty()) return out;
  const MatrixXd rest = as_matrix(others, column.size());
  const VectorXd weights = rest.colPivHouseholderQr().solve(c);
  out.share = (c - rest * weights).norm() / c.norm();
  for (size_t k = 0; k < others.size(); ++k) {
    const auto i = static_cast<Eigen::Index>(k);
    if (std::abs(weights(i)) * rest.col(i).norm() > 0.1 * c.norm()) out.explained.push_back(k);
  }
  return out;
}

}  // namespace plumb

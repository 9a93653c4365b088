// Calibration: matches traces to points, chooses what to fit, fits, and judges the result on points kept out.
#include "model/calibrate.h"

#include <algorithm>
#include <cmath>

#include "model/analytic.h"
#include "model/calibrate_parameters.h"
#include "model/calibrate_points.h"
#include "model/error.h"
#include "model/least_squares.h"

namespace plumb {
namespace {

using detail::CostKind;
using detail::CostParameter;
using detail::kTotal;
using detail::measured_time;

/// Below it an error of measurement of 1 % moves a parameter by half of its effect.
constexpr double kLeastIndependence = 0.02;
/// Smallest relative change of times (root of the mean square) per doubling, or per typical time of a point.
constexpr double kLeastEffect = 1e-4;
constexpr size_t kTimesPerParameter = 2;  // of a choice that nobody made
constexpr double kShortestTime = 1e-12;   // seconds; keeps the logarithm finite

/// A measured time: of a phase, or the total.
struct Observation {
  size_t point = 0;
  int32_t phase = kTotal;
  double seconds = 0;
};

double predicted(const Estimate& estimate, int32_t phase) {
  const double time =
      phase == kTotal ? estimate.total.value : estimate.phases[static_cast<size_t>(phase)].time.value;
  return std::max(time, kShortestTime);
}

Estimate estimate(const CalibrationPoint& point, const Costs& costs) {
  return AnalyticExecutor(point.machine, point.fabric, costs).estimate(point.plan);
}

/// The fit of some parameters to the observed times.
class Fit {
 public:
  Fit(const std::vector<CalibrationPoint>& points, std::vector<Observation> observed, Costs start)
      : points_(points), observed_(std::move(observed)), start_(std::move(start)) {
    double logs = 0;
    for (const Observation& o : observed_) logs += std::log(o.seconds);
    typical_ = std::exp(logs / static_cast<double>(observed_.size()));
  }

  size_t num_times() const { return observed_.size(); }

  LeastSquaresProblem problem(const std::vector<CostParameter>& parameters) {
    LeastSquaresProblem out{
        .residuals = [this,
                      parameters](std::span<const double> x) { return residuals(costs_at(parameters, x)); },
        .bounds = {},
        .start = {}};
    for (const CostParameter& p : parameters) {
      const Range<double> allowed = detail::bounds(p.kind);
      const double at = std::clamp(p.value(start_), allowed.min, allowed.max);
      out.bounds.push_back({.min = unknown(p.kind, allowed.min), .max = unknown(p.kind, allowed.max)});
      out.start.push_back(unknown(p.kind, at));
    }
    return out;
  }

  Costs costs_at(const std::vector<CostParameter>& parameters, std::span<const double> x) const {
    Costs costs = start_;
    for (size_t k = 0; k < parameters.size(); ++k) {
      const Range<double> allowed = detail::bounds(parameters[k].kind);
      parameters[k].value(costs) = std::clamp(value(parameters[k].kind, x[k]), allowed.min, allowed.max);
    }
    return costs;
  }

  /// log(predicted / measured) of each time.
  std::vector<double> residuals(const Costs& costs) const {
    std::vector<double> out;
    std::optional<Estimate> now;
    for (size_t i = 0; i < observed_.size(); ++i) {
      if (i == 0 || observed_[i].point != observed_[i - 1].point)
        now = estimate(points_[observed_[i].point], costs);
      out.push_back(std::log(predicted(*now, observed_[i].phase) / observed_[i].seconds));
    }
    return out;
  }

  /// Change of a parameter's value per change of its unknown.
  double value_slope(CostKind kind, double value) const { return kind == CostKind::time ? typical_ : value; }

 private:
  /// Unknowns: the logarithm of a share, rate or factor, and times in typical times of a point.
  double unknown(CostKind kind, double value) const {
    return kind == CostKind::time ? value / typical_ : std::log(value);
  }
  double value(CostKind kind, double unknown) const {
    return kind == CostKind::time ? unknown * typical_ : std::exp(unknown);
  }

  const std::vector<CalibrationPoint>& points_;
  const std::vector<Observation> observed_;
  Costs start_;
  double typical_ = 0;
};

/// Which parameters the times determine, in order of preference, and why not the others.
struct Choice {
  std::vector<size_t> chosen;
  std::vector<LeftOutParameter> left_out;
};

Choice determined(const std::vector<CostParameter>& parameters, const std::vector<std::vector<double>>& slope,
                  size_t most) {
  Choice out;
  std::vector<std::vector<double>> accepted;
  for (size_t k = 0; k < parameters.size(); ++k) {
    const Independence of = independence(slope[k], accepted);
    std::string reason;
    if (of.size < kLeastEffect) {
      reason = "no time that was measured depends on it";
    } else if (of.share < kLeastIndependence) {
      std::vector<std::string> names;
      for (const size_t i : of.explained) names.push_back(parameters[out.chosen[i]].name);
      reason = fmt::format("changes the times as {} would", fmt::join(names, " with "));
    } else if (out.chosen.size() >= most) {
      reason = fmt::format("{} measured times are enough for {} of them", slope[k].size(), most);
    }
    if (reason.empty()) {
      out.chosen.push_back(k);
      accepted.push_back(slope[k]);
    } else {
      out.left_out.push_back({parameters[k].name, reason});
    }
  }
  return out;
}

[[noreturn]] void fail_undetermined(const std::vector<LeftOutParameter>& parameters, std::string_view where) {
  std::string list;
  for (const LeftOutParameter& p : parameters) list += fmt::format("\n  {}: {}", p.name, p.reason);
  fail_usage(
      "the points do not determine these parameters {}:{}\nfit fewer, or measure points that tell them apart",
      where, list);
}

template <class T>
std::vector<T> picked(const std::vector<T>& all, const std::vector<size_t>& indices) {
  std::vector<T> out;
  for (const size_t i : indices) out.push_back(all[i]);
  return out;
}

/// One calibration, step by step.
class Calibrator {
 public:
  Calibrator(std::span<const CalibrationPoint> points, const Costs& start, const CalibrationOptions& options)
      : points_(detail::measured_points(points)),
        is_held_out_(detail::choose_held_out(points_, options.held_out)),
        start_(start),
        is_named_(!options.fit.empty()) {
    collect_candidates(options.fit);
    collect_observations(options.use_phases);
  }

  Calibration run() {
    Fit fit(points_, observed_, with_own_rate_);
    choose(fit);
    while (true) {
      const LeastSquaresProblem problem = fit.problem(chosen_);
      const LeastSquaresSolution solution = solve(problem);
      if (!is_stable(solution)) continue;
      return report(fit, solution);
    }
  }

 private:
  void collect_candidates(const std::vector<std::string>& names) {
    with_own_rate_ = start_;
    const std::string& gpu = points_.front().machine.gpu.name;
    std::string no_rate;
    for (const CalibrationPoint& p : points_)
      if (p.machine.gpu.name != gpu) no_rate = "the points are of several GPUs";
    if (no_rate.empty() &&
        !detail::own_sm_rate(with_own_rate_, gpu, points_.front().machine.gpu.sm_write_rate.value))
      no_rate = "neither costs nor machine give an SM rate to start from";
    std::vector<CostParameter> all = detail::cost_parameters(start_, gpu);
    if (names.empty()) {
      for (CostParameter& p : all)
        if (p.name == "sm.rates" && !no_rate.empty())
          left_out_.push_back({p.name, no_rate});
        else
          chosen_.push_back(std::move(p));
      return;
    }
    for (const std::string& name : names) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == name; });
      if (found == all.end()) fail_unknown(name);
      if (std::count(names.begin(), names.end(), name) > 1) fail_usage("parameter '{}' is named twice", name);
      if (name == "sm.rates" && !no_rate.empty()) fail_usage("cannot fit sm.rates: {}", no_rate);
      chosen_.push_back(*found);
    }
  }

  [[noreturn]] void fail_unknown(const std::string& name) const {
    const std::vector<std::string> known = calibration_parameters(start_);
    const std::string near = nearest_name(name, {known.begin(), known.end()});
    fail_usage("'{}' is no parameter of costs '{}'{}; allowed: {}", name, start_.name,
               near.empty() ? "" : fmt::format(", did you mean '{}'?", near), fmt::join(known, ", "));
  }

  void collect_observations(bool use_phases) {
    for (size_t i = 0; i < points_.size(); ++i) {
      if (is_held_out_[i]) continue;
      observed_.push_back({.point = i, .phase = kTotal, .seconds = measured_time(points_[i], kTotal)});
      if (!use_phases) continue;
      const Estimate at_start = estimate(points_[i], start_);
      for (size_t p = 0; p < at_start.phases.size(); ++p) {
        const auto phase = static_cast<int32_t>(p);
        const double seconds = measured_time(points_[i], phase);
        // A phase that another one covers has no time of its own in the model.
        if (seconds > 0 && at_start.phases[p].time.value > 0)
          observed_.push_back({.point = i, .phase = phase, .seconds = seconds});
      }
    }
  }

  void choose(Fit& fit) {
    if (is_named_ && fit.num_times() < chosen_.size())
      fail_usage("{} parameters cannot be fitted to {} measured times ({} points are held out): {}",
                 chosen_.size(), fit.num_times(), std::count(is_held_out_.begin(), is_held_out_.end(), true),
                 names_of_chosen());
    const LeastSquaresProblem problem = fit.problem(chosen_);
    const size_t most =
        is_named_ ? chosen_.size() : std::max<size_t>(1, fit.num_times() / kTimesPerParameter);
    keep(determined(chosen_, slope_of(problem, problem.start), most), "at the start");
    if (chosen_.empty()) fail_undetermined(left_out_, "at the start");
  }

  /// Whether the parameters are determined where the fit ended; drops those that are not when nobody named
  /// them.
  bool is_stable(const LeastSquaresSolution& solution) {
    std::vector<size_t> free, kept;
    for (size_t k = 0; k < chosen_.size(); ++k)
      if (!solution.is_at_bound[k]) free.push_back(k);
    Choice choice = determined(picked(chosen_, free), picked(solution.slope, free), free.size());
    if (choice.left_out.empty()) return true;
    const auto is_dropped = [&](const CostParameter& p) {
      return std::any_of(choice.left_out.begin(), choice.left_out.end(),
                         [&](const auto& l) { return l.name == p.name; });
    };
    for (size_t k = 0; k < chosen_.size(); ++k)
      if (!is_dropped(chosen_[k])) kept.push_back(k);
    choice.chosen = kept;
    keep(choice, "where the fit ended");
    if (chosen_.empty()) fail_undetermined(left_out_, "where the fit ended");
    return false;
  }

  void keep(const Choice& choice, std::string_view where) {
    if (is_named_ && !choice.left_out.empty()) fail_undetermined(choice.left_out, where);
    for (const LeftOutParameter& p : choice.left_out)
      left_out_.push_back({p.name, fmt::format("{} ({})", p.reason, where)});
    chosen_ = picked(chosen_, choice.chosen);
  }

  std::string names_of_chosen() const {
    std::vector<std::string> names;
    for (const CostParameter& p : chosen_) names.push_back(p.name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  Calibration report(const Fit& fit, const LeastSquaresSolution& solution) {
    Calibration out;
    out.executor = points_.front().traces.front().header.executor;
    out.left_out = left_out_;
    out.iterations = solution.iterations;
    const bool fits_rate =
        std::any_of(chosen_.begin(), chosen_.end(), [](const auto& p) { return p.name == "sm.rates"; });
    out.costs = fits_rate ? with_own_rate_ : start_;
    Costs solved = fit.costs_at(chosen_, solution.x);
    std::vector<size_t> free;
    for (size_t k = 0; k < chosen_.size(); ++k)
      if (!solution.is_at_bound[k]) free.push_back(k);
    const auto errors = standard_errors(picked(solution.slope, free), fit.residuals(solved));
    for (size_t k = 0; k < chosen_.size(); ++k) {
      const CostParameter& p = chosen_[k];
      const double after = detail::rounded(p.kind, p.value(solved));
      out.parameters.push_back({.name = p.name,
                                .before = p.value(with_own_rate_),
                                .after = after,
                                .is_at_bound = solution.is_at_bound[k]});
      p.value(out.costs) = after;
    }
    for (size_t i = 0; i < free.size(); ++i) {
      FittedParameter& p = out.parameters[free[i]];
      p.standard_error = errors[i] * fit.value_slope(chosen_[free[i]].kind, p.after);
    }
    judge(out);
    name_sources(out);
    return out;
  }

  void judge(Calibration& out) const {
    DigestBuilder all;
    for (size_t i = 0; i < points_.size(); ++i) {
      const CalibrationPoint& point = points_[i];
      CalibratedPoint p{.label = point.label,
                        .plan = point.plan.digest(),
                        .traces = detail::content_of(point),
                        .repeats = static_cast<int32_t>(point.traces.size()),
                        .is_held_out = is_held_out_[i],
                        .measured = {measured_time(point, kTotal)},
                        .before = estimate(point, start_).total,
                        .after = estimate(point, out.costs).total};
      p.error = p.after / p.measured - 1;
      all.add(std::string_view(to_string(p.traces)));
      out.points.push_back(std::move(p));
    }
    out.traces = all.finish();
    const auto after = [](const CalibratedPoint& p) { return p.error; };
    out.fit = errors_of(out.points, after, [](const auto& p) { return !p.is_held_out; });
    out.held_out = errors_of(out.points, after, [](const auto& p) { return p.is_held_out; });
    out.before = errors_of(
        out.points, [](const auto& p) { return p.before / p.measured - 1; },
        [](const auto&) { return true; });
  }

  template <class ErrorOf, class Belongs>
  static CalibrationErrors errors_of(const std::vector<CalibratedPoint>& points, ErrorOf error_of,
                                     Belongs belongs) {
    CalibrationErrors out;
    std::vector<double> sizes;
    for (const CalibratedPoint& p : points) {
      if (!belongs(p)) continue;
      const double error = error_of(p);
      sizes.push_back(std::abs(error));
      out.rms += error * error;
      if (out.count++ > 0 && std::abs(error) <= std::abs(out.worst)) continue;
      out.worst = error;
      out.worst_label = p.label;
    }
    if (out.count == 0) return out;
    out.rms = std::sqrt(out.rms / static_cast<double>(out.count));
    out.median = detail::lower_median(std::move(sizes));
    return out;
  }

  void name_sources(Calibration& out) const {
    const std::string held =
        out.held_out.count == 0
            ? ""
            : fmt::format(", held out {} points {:.2f} %", out.held_out.count, out.held_out.rms * 100);
    for (size_t k = 0; k < chosen_.size(); ++k) {
      const FittedParameter& p = out.parameters[k];
      const std::string how_well =
          p.is_at_bound ? "at its bound"
          : std::isfinite(p.standard_error)
              ? fmt::format(
                    "standard error {}",
                    detail::text_of(chosen_[k].kind, detail::rounded(chosen_[k].kind, p.standard_error, 2)))
              : "standard error not known";
      chosen_[k].source(out.costs) =
          fmt::format("fitted on {} points of {} traces (digest {}), residual {:.2f} % rms{}, {}",
                      out.fit.count, out.executor, to_string(out.traces), out.fit.rms * 100, held, how_well);
    }
  }

  const std::vector<CalibrationPoint> points_;
  const std::vector<bool> is_held_out_;
  const Costs start_;
  Costs with_own_rate_;  // start_, with a rate of this GPU's SMs alone
  const bool is_named_;
  std::vector<CostParameter> chosen_;
  std::vector<LeftOutParameter> left_out_;
  std::vector<Observation> observed_;
};

}  // namespace

std::vector<std::string> calibration_parameters(const Costs& costs) {
  std::vector<std::string> names;
  for (const CostParameter& p : detail::cost_parameters(costs, "")) names.push_back(p.name);
  return names;
}

Calibration calibrate(std::span<const CalibrationPoint> points, const Costs& start,
                      const CalibrationOptions& options) {
  return Calibrator(points, start, options).run();
}

}  // namespace plumb

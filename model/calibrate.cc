// Calibration: matches traces to points, chooses what to fit, fits, and judges the result on points kept out.
#include "model/calibrate.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
constexpr double kSmallestGain = 1e-6;    // of the sum of squares, that makes another round worth while
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
  const Costs& start() const { return start_; }
  void move_to(Costs start) { start_ = std::move(start); }

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
  double value_slope(CostKind kind, double value) const {
    return kind == CostKind::time ? typical_ : kind == CostKind::count ? 1 : value;
  }

 private:
  /// Unknowns: the logarithm of a share, rate or factor, a count, and times in typical times of a point.
  double unknown(CostKind kind, double value) const {
    return kind == CostKind::time ? value / typical_ : kind == CostKind::count ? value : std::log(value);
  }
  double value(CostKind kind, double unknown) const {
    return kind == CostKind::time    ? unknown * typical_
           : kind == CostKind::count ? unknown
                                     : std::exp(unknown);
  }

  const std::vector<CalibrationPoint>& points_;
  const std::vector<Observation> observed_;
  Costs start_;
  double typical_ = 0;
};

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return sum;
}

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
    double squares = std::numeric_limits<double>::infinity();
    // Where another resource becomes the limit, one parameter stops to matter and another one begins to. Each
    // round makes the residuals smaller or rules a parameter out, so there is a last one.
    while (true) {
      choose(fit);
      const LeastSquaresSolution solution =
          chosen_.empty() ? LeastSquaresSolution{} : solve(fit.problem(chosen_));
      iterations_ += solution.iterations;
      fit.move_to(fit.costs_at(chosen_, solution.x));
      std::vector<size_t> free;
      for (size_t k = 0; k < chosen_.size(); ++k)
        if (!solution.is_at_bound[k]) free.push_back(k);
      const Choice still =
          determined(picked(chosen_, free), picked(solution.slope, free), std::numeric_limits<size_t>::max());
      if (still.left_out.empty()) return report(fit, solution, free);
      if (is_named_) fail_undetermined(still.left_out, "where the fit ended");
      const double now = sum_of_squares(fit.residuals(fit.start()));
      if (now > squares * (1 - kSmallestGain)) rule_out(still.left_out);
      squares = std::min(squares, now);
    }
  }

 private:
  void collect_candidates(const std::vector<std::string>& names) {
    with_own_rate_ = start_;
    const std::string& gpu = points_.front().machine.gpu.name;
    for (const CalibrationPoint& p : points_)
      if (p.machine.gpu.name != gpu) no_rate_ = "the points are of several GPUs";
    if (no_rate_.empty() &&
        !detail::own_sm_rate(with_own_rate_, gpu, points_.front().machine.gpu.sm_write_rate.value))
      no_rate_ = "neither costs nor machine give an SM rate to start from";
    std::vector<CostParameter> all = detail::cost_parameters(start_, gpu);
    if (names.empty()) {
      for (CostParameter& p : all)
        if (p.is_default && (p.name != "sm.rates" || no_rate_.empty())) candidates_.push_back(std::move(p));
      return;
    }
    for (const std::string& name : names) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == name; });
      if (found == all.end()) fail_unknown(name);
      if (std::count(names.begin(), names.end(), name) > 1) fail_usage("parameter '{}' is named twice", name);
      if (name == "sm.rates" && !no_rate_.empty()) fail_usage("cannot fit sm.rates: {}", no_rate_);
      candidates_.push_back(*found);
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

  /// Picks from the candidates what the times determine at the costs where the fit stands.
  void choose(Fit& fit) {
    if (is_named_ && fit.num_times() < candidates_.size())
      fail_usage("{} parameters cannot be fitted to {} measured times ({} points are held out): {}",
                 candidates_.size(), fit.num_times(),
                 std::count(is_held_out_.begin(), is_held_out_.end(), true), names_of(candidates_));
    const LeastSquaresProblem problem = fit.problem(candidates_);
    const size_t most =
        is_named_ ? candidates_.size() : (fit.num_times() + kTimesPerParameter - 1) / kTimesPerParameter;
    Choice choice = determined(candidates_, slope_of(problem, problem.start), most);
    left_out_ = std::move(choice.left_out);
    chosen_ = picked(candidates_, choice.chosen);
    if (is_named_ ? !left_out_.empty() : chosen_.empty() && moved_.empty())
      fail_undetermined(left_out_, "at the start");
    for (const CostParameter& p : chosen_)
      if (!is_among(moved_, p.name)) moved_.push_back(p);
  }

  void rule_out(const std::vector<LeftOutParameter>& parameters) {
    std::erase_if(candidates_, [&](const CostParameter& c) {
      return std::any_of(parameters.begin(), parameters.end(),
                         [&](const auto& p) { return p.name == c.name; });
    });
  }

  static bool is_among(const std::vector<CostParameter>& parameters, std::string_view name) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == name; });
  }

  static std::string names_of(const std::vector<CostParameter>& parameters) {
    std::vector<std::string> names;
    for (const CostParameter& p : parameters) names.push_back(p.name);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  Calibration report(const Fit& fit, const LeastSquaresSolution& solution, const std::vector<size_t>& free) {
    Calibration out;
    out.executor = points_.front().traces.front().header.executor;
    reported_ = chosen_;
    for (const CostParameter& p : moved_)
      if (!is_among(chosen_, p.name)) reported_.push_back(p);
    for (const LeftOutParameter& p : left_out_)
      if (!is_among(moved_, p.name)) out.left_out.push_back(p);
    if (!no_rate_.empty() && !is_named_) out.left_out.push_back({"sm.rates", no_rate_});
    out.iterations = iterations_;
    out.costs = is_among(reported_, "sm.rates") ? with_own_rate_ : start_;
    Costs solved = fit.start();
    for (size_t k = 0; k < reported_.size(); ++k) {
      const CostParameter& p = reported_[k];
      const double after = detail::rounded(p.kind, p.value(solved));
      out.parameters.push_back({.name = p.name,
                                .before = p.value(with_own_rate_),
                                .after = after,
                                .is_at_bound = k < chosen_.size() && solution.is_at_bound[k],
                                .is_determined = k < chosen_.size()});
      p.value(out.costs) = after;
    }
    const auto errors = standard_errors(picked(solution.slope, free), fit.residuals(solved));
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
    std::string common = fmt::format("fitted on {} points of {} traces (digest {}), residual {:.2f} % rms",
                                     out.fit.count, out.executor, to_string(out.traces), out.fit.rms * 100);
    if (out.held_out.count > 0)
      common += fmt::format(", held out {} points {:.2f} %", out.held_out.count, out.held_out.rms * 100);
    for (size_t k = 0; k < reported_.size(); ++k) {
      const FittedParameter& p = out.parameters[k];
      const CostKind kind = reported_[k].kind;
      std::string how_well = "standard error not known";
      if (!p.is_determined)
        how_well = "not determined: moved until the times said no more about it";
      else if (p.is_at_bound)
        how_well = "at its bound";
      else if (std::isfinite(p.standard_error))
        how_well = "standard error " + detail::text_of(kind, detail::rounded(kind, p.standard_error, 2));
      reported_[k].source(out.costs) = common + ", " + how_well;
    }
  }

  const std::vector<CalibrationPoint> points_;
  const std::vector<bool> is_held_out_;
  const Costs start_;
  Costs with_own_rate_;  // start_, with a rate of this GPU's SMs alone
  const bool is_named_;
  std::string no_rate_;  // why sm.rates cannot be fitted
  std::vector<CostParameter> candidates_;
  std::vector<CostParameter> chosen_;    // of the candidates, in this round
  std::vector<CostParameter> moved_;     // chosen in any round
  std::vector<CostParameter> reported_;  // chosen_, then the others of moved_
  std::vector<LeftOutParameter> left_out_;
  int32_t iterations_ = 0;
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

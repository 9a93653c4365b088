// Sweeps by what their points have in common.
#include "model/sm_knee.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "model/error.h"

namespace plumb {
namespace {

constexpr size_t kFewest = 3;  // two points have no bend

/// All of a point but its SMs.
std::string key_of(const Experiment& e) {
  Program program = e.program;
  program.num_sms = 0;
  const Shape& s = e.shape;
  std::string key = fmt::format("{} {} {} {} {} {} {} {} {} {}", to_string(program), e.machine.name, s.ranks,
                                s.experts, s.topk, s.hidden, static_cast<int>(s.dispatch_type),
                                static_cast<int>(s.scale_format), s.alignment, e.routing.seed);
  for (const int32_t tokens : s.tokens) key += fmt::format(" {}", tokens);
  return key;
}

/// What both begin with, up to a whole word; the first when they have no such begin.
std::string common_begin(const std::string& a, const std::string& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  if (end == a.end()) return a;
  const std::string begin(a.begin(), end);
  const size_t blank = begin.find_last_of(' ');
  return blank == std::string::npos ? a : begin.substr(0, blank);
}

/// T(n) = fixed + slope / n.
struct Branch {
  double fixed = 0;
  double slope = 0;
};

/// Least squares of relative errors; no negative fixed time. SMs must ascend.
Branch branch_of(std::span<const SweepTime> points) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;  // normal equations of the columns 1 / T and 1 / (n T)
  for (size_t i = 0; i < points.size(); ++i) {
    PLUMB_CHECK(i == 0 || points[i - 1].sms < points[i].sms, "SMs {} after {}", points[i].sms,
                points[i == 0 ? 0 : i - 1].sms);
    const double x = 1 / points[i].time.value, y = x / points[i].sms;
    aa += x * x, ab += x * y, bb += y * y, a += x, b += y;
  }
  const double determinant = aa * bb - ab * ab;
  const double fixed = (a * bb - b * ab) / determinant;
  if (fixed < 0) return {.fixed = 0, .slope = b / bb};
  return {.fixed = fixed, .slope = (b * aa - a * ab) / determinant};
}

double plateau_of(std::span<const SweepTime> points) {
  double sum = 0, squares = 0;
  for (const SweepTime& point : points) {
    const double x = 1 / point.time.value;
    sum += x, squares += x * x;
  }
  return sum / squares;
}

}  // namespace

double knee_of(std::span<const SweepTime> sweep, double share) {
  PLUMB_CHECK(!sweep.empty(), "a sweep of {} points", sweep.size());
  double best = sweep.front().time.value;
  for (size_t i = 0; i < sweep.size(); ++i) {
    PLUMB_CHECK(i == 0 || sweep[i - 1].sms < sweep[i].sms, "SMs {} after {}", sweep[i].sms,
                sweep[i == 0 ? 0 : i - 1].sms);
    best = std::min(best, sweep[i].time.value);
  }
  const double limit = (1 + share) * best;
  size_t i = 0;
  while (sweep[i].time.value > limit) ++i;
  if (i == 0) return sweep[0].sms;
  const SweepTime& slow = sweep[i - 1];
  const double part = (slow.time.value - limit) / (slow.time.value - sweep[i].time.value);
  return slow.sms + part * (sweep[i].sms - slow.sms);
}

Bend bend_of(std::span<const SweepTime> sweep) {
  PLUMB_CHECK(sweep.size() >= kFewest, "a sweep of {} points", sweep.size());
  Bend best{.sms = static_cast<double>(sweep.back().sms), .misfit = std::numeric_limits<double>::infinity()};
  for (size_t split = 2; split < sweep.size(); ++split) {
    const Branch branch = branch_of(sweep.first(split));
    const double plateau = plateau_of(sweep.subspan(split));
    if (plateau <= branch.fixed) continue;
    double squares = 0;
    for (const SweepTime& point : sweep) {
      const double there = std::max(branch.fixed + branch.slope / point.sms, plateau);
      const double error = there / point.time.value - 1;
      squares += error * error;
    }
    const double misfit = std::sqrt(squares / static_cast<double>(sweep.size()));
    if (misfit < best.misfit) best = {.sms = branch.slope / (plateau - branch.fixed), .misfit = misfit};
  }
  return best;
}

std::vector<SmSweep> sm_sweeps(std::span<const Experiment> experiments,
                               std::span<const CalibratedPoint> points) {
  std::vector<SmSweep> sweeps;
  std::map<std::string, size_t> index;
  for (const CalibratedPoint& point : points) {
    const auto e = std::ranges::find(experiments, point.label, &Experiment::label);
    if (e == experiments.end() || e->program.num_sms == 0) continue;
    const auto [at, is_new] = index.try_emplace(key_of(*e), sweeps.size());
    if (is_new) sweeps.push_back({.label = point.label, .measured = {}, .predicted = {}});
    SmSweep& sweep = sweeps[at->second];
    sweep.label = common_begin(sweep.label, point.label);
    sweep.measured.push_back({e->program.num_sms, point.measured});
    sweep.predicted.push_back({e->program.num_sms, point.after});
  }
  std::erase_if(sweeps, [](const SmSweep& sweep) { return sweep.measured.size() < kFewest; });
  for (SmSweep& sweep : sweeps)
    for (auto* times : {&sweep.measured, &sweep.predicted}) {
      std::ranges::stable_sort(*times, {}, &SweepTime::sms);
      const auto twice = std::ranges::unique(*times, {}, &SweepTime::sms);
      times->erase(twice.begin(), twice.end());
    }
  return sweeps;
}

}  // namespace plumb

// Sweeps by what their points have in common.
#include "model/sm_knee.h"

#include <algorithm>
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

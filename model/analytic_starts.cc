// What pipelines pay before they start: fixed times of an implementation, host synchronisation, kernel gaps.
#include <algorithm>
#include <cmath>

#include "model/analytic_work.h"

namespace plumb::detail {
namespace {

class Starts {
 public:
  Starts(const Plan& plan, const PlanWork& work, const Costs& costs)
      : plan_(plan), work_(work), costs_(costs), paid_(costs.fixed.size()) {}

  PipelineStart next(const std::vector<PhaseId>& phases) {
    PipelineStart out;
    out.is_free = std::all_of(phases.begin(), phases.end(), [&](PhaseId p) { return is_covered(p); });
    const int32_t sms = kernel_sms(phases);
    if (!out.is_free) {
      if (has_host(phases)) out.wait += costs_.host_sync.value.value;
      // A kernel's size is fixed when it is launched, so work on another number of SMs is another kernel.
      if (sms >= 0 && last_sms_ >= 0 && sms != last_sms_) out.wait += costs_.kernel_gap.value.value;
      out.wait += fixed_time(phases);
    }
    if (sms >= 0) last_sms_ = sms;
    return out;
  }

 private:
  const std::string& name(PhaseId p) const { return plan_.phases()[p].name; }

  bool is_covered(PhaseId p) const {
    return std::any_of(costs_.fixed.begin(), costs_.fixed.end(), [&](const FixedCost& fixed) {
      return is_listed(fixed.covers, name(p)) && applies(fixed);
    });
  }

  /// A fixed time covers phases only of a plan that pays it.
  bool applies(const FixedCost& fixed) const {
    for (size_t p = 0; p < work_.num_phases; ++p)
      if (is_listed(fixed.phases, name(static_cast<PhaseId>(p))) && work_.has_ops(static_cast<PhaseId>(p)))
        return true;
    return false;
  }

  bool has_host(const std::vector<PhaseId>& phases) const {
    return std::any_of(phases.begin(), phases.end(), [&](PhaseId p) {
      return plan_.phases()[p].engine == Engine::host && work_.has_ops(p);
    });
  }

  /// SMs of the kernel that a pipeline is part of, -1 when no SM drives it.
  int32_t kernel_sms(const std::vector<PhaseId>& phases) const {
    int32_t sms = -1;
    for (const PhaseId p : phases)
      if (plan_.phases()[p].engine == Engine::sm && work_.has_ops(p))
        sms = std::max(sms, plan_.phases()[p].sms);
    return sms;
  }

  double fixed_time(const std::vector<PhaseId>& phases) {
    double time = 0;
    for (size_t i = 0; i < costs_.fixed.size(); ++i) {
      const FixedCost& fixed = costs_.fixed[i];
      const bool is_here = std::any_of(phases.begin(), phases.end(), [&](PhaseId p) {
        return is_listed(fixed.phases, name(p)) && work_.has_ops(p);
      });
      if (!is_here || paid_[i]) continue;
      paid_[i] = true;
      const double ranks = plan_.grouping().ranks;
      const double doublings = std::max(0.0, std::log2(ranks / static_cast<double>(fixed.base_ranks)));
      time += fixed.time.value.value + fixed.per_doubling.value.value * doublings +
              fixed.per_sm.value.value * sms_of(phases, fixed);
    }
    return time;
  }

  int32_t sms_of(const std::vector<PhaseId>& phases, const FixedCost& fixed) const {
    for (const PhaseId p : phases)
      if (is_listed(fixed.phases, name(p)) && plan_.phases()[p].sms > 0) return plan_.phases()[p].sms;
    return 0;
  }

  const Plan& plan_;
  const PlanWork& work_;
  const Costs& costs_;
  std::vector<bool> paid_;  // [costs_.fixed]
  int32_t last_sms_ = -1;   // of the latest kernel
};

}  // namespace

double longest_chain(const PlanWork& work, const std::vector<PhaseId>& phases,
                     const std::vector<double>& times) {
  std::vector<double> chain = times;
  bool changed = true;
  for (size_t round = 0; changed && round < phases.size(); ++round) {
    changed = false;
    for (size_t a = 0; a < phases.size(); ++a)
      for (size_t b = 0; b < phases.size(); ++b) {
        if (a == b || !(work.relation(phases[a], phases[b]) & kStream)) continue;
        if (chain[a] + times[b] <= chain[b]) continue;
        chain[b] = chain[a] + times[b];
        changed = true;
      }
  }
  return chain.empty() ? 0 : *std::max_element(chain.begin(), chain.end());
}

std::vector<PipelineStart> pipeline_starts(const Plan& plan, const PlanWork& work,
                                           const std::vector<std::vector<PhaseId>>& pipelines,
                                           const Costs& costs) {
  Starts starts(plan, work, costs);
  std::vector<PipelineStart> out;
  for (const auto& phases : pipelines) out.push_back(starts.next(phases));
  return out;
}

}  // namespace plumb::detail

// Steps of the kernels as spans of the plan's phases (docs/hw.md, CUDA executor).
#include "hw/rank_record.h"

#include <algorithm>

#include "hw/ledger.h"

namespace plumb::hw {
namespace {

using kernels::Step;

/// One rank's stamps of one call as spans. What the first block stamps ends when the rank's last block says
/// so: the begin of `last`.
struct Stamped {
  const kernels::Counters& counters;
  Rank rank;
  int32_t ranks;
  int64_t begin(Step step) const {
    return static_cast<int64_t>(counters.begin_ns[static_cast<size_t>(step)]);
  }
  int64_t end(Step step) const { return static_cast<int64_t>(counters.end_ns[static_cast<size_t>(step)]); }
  bool has(Step step) const { return begin(step) != 0 && end(step) >= begin(step); }
  Span span(Step step, PhaseId phase, int64_t from, int64_t to) const {
    Span span{.rank = rank, .phase = phase, .begin_ns = from, .end_ns = std::max(from, to)};
    for (int32_t peer = 0; peer < ranks; ++peer) {
      span.messages += static_cast<int64_t>(counters.messages[static_cast<size_t>(step)][peer]);
      span.bytes += static_cast<int64_t>(counters.bytes[static_cast<size_t>(step)][peer]);
    }
    return span;
  }
};

constexpr std::array kDispatchSteps = {Step::enter, Step::notify, Step::counts, Step::dispatch,
                                       Step::flush, Step::copy,   Step::pad};
constexpr std::array kCombineSteps = {Step::combine_local, Step::combine_enter, Step::combine_up,
                                      Step::combine_reduce, Step::combine_flush};

/// Spans of one rank in one call, as stamped.
std::vector<Span> spans_of_rank(const Plan& plan, const Stamped& stamped, std::span<const Step> steps) {
  std::vector<Span> found;
  for (const Step step : steps) {
    // The reads of combine_up are one with the sums of combine_reduce.
    const Step timed = step == Step::combine_up ? Step::combine_reduce : step;
    const auto phase = plan.find_phase(kernels::kStepNames[static_cast<size_t>(step)]);
    if (!phase || !stamped.has(timed)) continue;
    int64_t end = stamped.end(timed);
    if (timed == Step::dispatch && stamped.has(Step::flush)) end = std::max(end, stamped.begin(Step::flush));
    if (timed == Step::combine_reduce && stamped.has(Step::combine_flush))
      end = std::max(end, stamped.begin(Step::combine_flush));
    found.push_back(stamped.span(step, *phase, stamped.begin(timed), end));
  }
  return found;
}

int64_t first_begin(std::span<const Span> spans) {
  return std::ranges::min_element(spans, {}, &Span::begin_ns)->begin_ns;
}

/// What all ranks counted in one call, or one dispatch and one combine.
struct Sample {
  std::vector<kernels::Counters> by_rank;
  std::vector<Span> spans;
  int64_t end_ns = 0;
};

/// Adds spans of one call over all ranks, times from the sample's end on.
void add_call(const Plan& plan, std::span<const Step> steps, StampClock clock, Sample& sample) {
  const auto ranks = static_cast<int32_t>(sample.by_rank.size());
  std::vector<Span>& spans = sample.spans;
  const size_t first = spans.size();
  for (Rank r = 0; r < ranks; ++r) {
    std::vector<Span> found = spans_of_rank(plan, {sample.by_rank[static_cast<size_t>(r)], r, ranks}, steps);
    if (clock == StampClock::per_rank && !found.empty()) {
      const int64_t start = first_begin(found);
      for (Span& span : found) span.begin_ns -= start, span.end_ns -= start;
    }
    spans.insert(spans.end(), found.begin(), found.end());
  }
  const auto added = std::span(spans).subspan(first);
  if (added.empty()) return;
  const int64_t shift = sample.end_ns - first_begin(added);
  for (Span& span : added) {
    span.begin_ns += shift;
    span.end_ns += shift;
    sample.end_ns = std::max(sample.end_ns, span.end_ns);
  }
}

/// The sample of lower median length.
Sample median_sample(const Plan& plan, std::span<const RankRecord> by_rank, StampClock clock) {
  std::vector<Sample> samples(kCountedCalls);
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const RankRecord& record : by_rank) samples[i].by_rank.push_back(record.counters[i]);
    add_call(plan, kDispatchSteps, clock, samples[i]);
    add_call(plan, kCombineSteps, clock, samples[i]);
  }
  const auto middle = samples.begin() + (kCountedCalls - 1) / 2;
  std::ranges::nth_element(samples, middle, {}, &Sample::end_ns);
  return std::move(*middle);
}

}  // namespace

KernelRunResult join_records(const Plan& plan, std::span<const RankRecord> by_rank, StampClock clock) {
  KernelRunResult result;
  for (size_t call = 0; call < kCalls; ++call) {
    double total = 0;
    double counted = 0;
    for (const RankRecord& record : by_rank) {
      total = std::max(total, record.total_s[call]);
      counted = std::max(counted, record.counted_s[call]);
    }
    result.total = result.total + Seconds{total};
    result.counted = result.counted + Seconds{counted};
  }
  const Sample sample = median_sample(plan, by_rank, clock);
  result.spans = sample.spans;
  result.ledger = measured_ledger(plan, sample.by_rank);
  result.waits = measured_waits(sample.by_rank);
  result.sms = by_rank.front().sms;
  result.has_fewer_sms = by_rank.front().has_fewer_sms != 0;
  return result;
}

}  // namespace plumb::hw

// Spans and waits from the times of ops: unions and differences of intervals.
#include "hw/op_times.h"

#include <algorithm>

namespace plumb::hw {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Sorted, without overlaps and without empty ones.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::vector<Interval> result;
  for (const Interval& next : intervals) {
    if (next.begin >= next.end) continue;
    if (!result.empty() && next.begin <= result.back().end)
      result.back().end = std::max(result.back().end, next.end);
    else
      result.push_back(next);
  }
  return result;
}

/// Length of what of `whole` is not in `hidden`; both merged.
int64_t length_outside(const std::vector<Interval>& whole, const std::vector<Interval>& hidden) {
  int64_t length = 0;
  size_t first = 0;
  for (const Interval& piece : whole) {
    length += piece.end - piece.begin;
    while (first < hidden.size() && hidden[first].end <= piece.begin) ++first;
    for (size_t i = first; i < hidden.size() && hidden[i].begin < piece.end; ++i)
      length -= std::min(piece.end, hidden[i].end) - std::max(piece.begin, hidden[i].begin);
  }
  return length;
}

}  // namespace

std::vector<Span> spans_of(const Plan& plan, const InterpreterResult& result) {
  const size_t phases = plan.phases().size();
  std::vector<Span> spans(at(plan.grouping().ranks) * phases);
  std::vector<bool> is_used(spans.size());
  for (size_t i = 0; i < result.times.size(); ++i) {
    const Op& op = plan.ops()[i];
    const Rank rank = issuer(op);
    const size_t index = at(rank) * phases + op.phase;
    const OpTimes& times = result.times[i];
    Span& span = spans[index];
    span.begin_ns = is_used[index] ? std::min(span.begin_ns, times.begin_ns) : times.begin_ns;
    span.end_ns = is_used[index] ? std::max(span.end_ns, times.end_ns) : times.end_ns;
    span.rank = rank;
    span.phase = op.phase;
    span.messages += result.moved[i].messages;
    span.bytes += result.moved[i].bytes;
    is_used[index] = true;
  }
  std::vector<Span> used;
  for (size_t i = 0; i < spans.size(); ++i)
    if (is_used[i]) used.push_back(spans[i]);
  return used;
}

std::vector<Wait> waits_of(const Plan& plan, const InterpreterResult& result) {
  const int32_t ranks = plan.grouping().ranks;
  std::vector<std::vector<Interval>> waits(at(int64_t{ranks} * ranks));  // [source][destination]
  std::vector<std::vector<Interval>> work(at(ranks));
  std::vector<std::vector<OpId>> members(plan.barriers().size());
  const auto add = [&](OpId dep, Rank waiter, int64_t since) {
    const Rank source = issuer(plan.ops()[at(dep)]);
    waits[at(int64_t{source} * ranks + waiter)].push_back({since, result.times[at(dep)].end_ns});
  };
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[at(id)];
    const OpTimes& times = result.times[at(id)];
    work[at(issuer(op))].push_back({times.begin_ns, times.end_ns});
    if (op.kind == OpKind::barrier) members[at(op.rows)].push_back(id);
    for (const Dep& dep : plan.deps(id)) {
      const Op& earlier = plan.ops()[at(dep.op)];
      if (earlier.kind != OpKind::barrier)
        add(dep.op, issuer(op), times.taken_ns);
      else
        for (const OpId member : members[at(earlier.rows)]) add(member, issuer(op), times.taken_ns);
    }
  }
  for (auto& intervals : work) intervals = merged(std::move(intervals));
  std::vector<Wait> result_waits;
  for (Rank s = 0; s < ranks; ++s)
    for (Rank d = 0; d < ranks; ++d)
      if (s != d)
        result_waits.push_back(
            {s, d, length_outside(merged(std::move(waits[at(int64_t{s} * ranks + d)])), work[at(d)])});
  return result_waits;
}

}  // namespace plumb::hw

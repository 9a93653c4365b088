// Summaries of traces: totals of phases, times from spans, the ledger of spans.
#include <algorithm>
#include <limits>

#include "model/error.h"
#include "model/trace.h"

namespace plumb {

std::vector<LedgerEntry> phase_totals(const Trace& trace) {
  std::vector<LedgerEntry> totals(trace.header.phases.size());
  for (size_t p = 0; p < totals.size(); ++p) totals[p].phase = static_cast<PhaseId>(p);
  const auto add = [&](size_t phase, int64_t messages, int64_t bytes) {
    PLUMB_CHECK(phase < totals.size(), "phase {} of {}", phase, totals.size());
    totals[phase].messages += messages;
    totals[phase].bytes += bytes;
  };
  for (const LedgerEntry& entry : trace.ledger.entries()) add(entry.phase, entry.messages, entry.bytes);
  if (!trace.ledger.entries().empty()) return totals;
  bool is_empty = true;
  for (size_t p = 0; p < trace.phase_times.size(); ++p) {
    add(p, trace.phase_times[p].messages, trace.phase_times[p].bytes);
    is_empty &= trace.phase_times[p].messages == 0 && trace.phase_times[p].bytes == 0;
  }
  if (!is_empty) return totals;
  for (const Span& span : trace.spans) add(static_cast<size_t>(span.phase), span.messages, span.bytes);
  return totals;
}

void summarise(Trace& trace) {
  struct Extent {
    int64_t begin = std::numeric_limits<int64_t>::max();
    int64_t end = std::numeric_limits<int64_t>::min();
    void include(const Span& span) {
      begin = std::min(begin, span.begin_ns);
      end = std::max(end, span.end_ns);
    }
    Seconds length() const { return {begin <= end ? static_cast<double>(end - begin) / 1e9 : 0.0}; }
  };
  Extent whole;
  std::vector<Extent> extents(trace.header.phases.size());
  trace.phase_times.resize(extents.size());
  for (PhaseTime& phase : trace.phase_times) phase.messages = phase.bytes = 0;
  for (const Span& span : trace.spans) {
    PLUMB_CHECK(span.phase >= 0 && static_cast<size_t>(span.phase) < extents.size(), "span of phase {} of {}",
                span.phase, extents.size());
    const size_t p = static_cast<size_t>(span.phase);
    extents[p].include(span);
    trace.phase_times[p].messages += span.messages;
    trace.phase_times[p].bytes += span.bytes;
    whole.include(span);
  }
  for (size_t p = 0; p < extents.size(); ++p) trace.phase_times[p].time = extents[p].length();
  trace.total = whole.length();
}

Ledger span_ledger(const Plan& plan, const Trace& trace) {
  std::vector<LedgerEntry> entries;
  for (const Span& span : trace.spans) {
    if (span.op < 0) continue;
    PLUMB_CHECK(static_cast<size_t>(span.op) < plan.ops().size(), "span of op {} of {}", span.op,
                plan.ops().size());
    const Op& op = plan.ops()[static_cast<size_t>(span.op)];
    entries.push_back(
        {.phase = op.phase, .src = op.src, .dst = op.dst, .messages = span.messages, .bytes = span.bytes});
  }
  return Ledger(std::move(entries));
}

}  // namespace plumb

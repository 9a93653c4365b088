// Comparison of traces and diagnosis of waiting times; definitions in docs/trace.md.
#include "model/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "model/error.h"

namespace plumb {
namespace {

constexpr std::array<std::string_view, 3> kReferences = {"cuda", "sim", "analytic"};
constexpr Seconds kClockStep = {1e-9};  // resolution of the times of spans

template <class... Args>
[[noreturn]] void fail_mismatch(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::mismatch, fmt::format(format, std::forward<Args>(args)...));
}

std::string label(const Trace& trace) {
  return fmt::format("{} repeat {}", trace.header.executor, trace.header.repeat);
}

// --- what may be joined ---

void check_same_plan(std::span<const Trace> traces, const CompareInput& input) {
  const Trace& first = traces.front();
  for (const Trace& trace : traces) {
    PLUMB_CHECK(std::find(kExecutors.begin(), kExecutors.end(), trace.header.executor) != kExecutors.end(),
                "executor '{}'", trace.header.executor);
    if (trace.header.plan != first.header.plan)
      fail_mismatch(
          "traces of different plans: {} has plan {}, {} has plan {}; compare takes runs of one plan (same "
          "program, shape, routing and grouping)",
          label(first), to_string(first.header.plan), label(trace), to_string(trace.header.plan));
    if (trace.header.phases != first.header.phases)
      fail_mismatch("traces of one plan with different phases: {} has '{}', {} has '{}'", label(first),
                    fmt::join(first.header.phases, ", "), label(trace), fmt::join(trace.header.phases, ", "));
    if (!trace.header.complete && !input.allow_incomplete)
      fail_mismatch(
          "{}: the run ended early, its results are partial; compare takes complete runs unless incomplete "
          "ones are allowed",
          label(trace));
    for (const Trace& other : traces)
      if (other.header.executor == trace.header.executor && other.header.machine != trace.header.machine)
        fail_mismatch("{} on machine '{}' and {} on machine '{}' are no repeats of each other", label(trace),
                      trace.header.machine, label(other), other.header.machine);
  }
  if (input.plan && input.plan->digest() != first.header.plan)
    fail_mismatch("{} has plan {}, the plan given has digest {}", label(first), to_string(first.header.plan),
                  to_string(input.plan->digest()));
}

/// Messages and bytes per phase on which all complete traces (and the plan) agree.
std::vector<LedgerEntry> agreed_totals(std::span<const Trace> traces, const CompareInput& input) {
  const std::vector<std::string>& phases = traces.front().header.phases;
  std::vector<LedgerEntry> totals(phases.size());
  std::string source;
  if (input.plan) {
    PLUMB_CHECK(input.plan->phases().size() == phases.size(), "plan of {} phases, traces of {}",
                input.plan->phases().size(), phases.size());
    const Ledger expected = account(*input.plan);
    for (size_t p = 0; p < totals.size(); ++p) totals[p] = expected.total(static_cast<PhaseId>(p));
    source = "the plan";
    for (const Trace& trace : traces)
      if (trace.header.complete && !trace.ledger.entries().empty() && trace.ledger != expected)
        fail_mismatch("{}: the ledger is not the plan's\n{}", label(trace),
                      difference(*input.plan, expected, trace.ledger));
  }
  for (const Trace& trace : traces) {
    const std::vector<LedgerEntry> own = phase_totals(trace);
    const bool is_empty = std::all_of(own.begin(), own.end(), [](const LedgerEntry& total) {
      return total.messages == 0 && total.bytes == 0;
    });
    if (!trace.header.complete || is_empty) continue;
    for (size_t p = 0; p < totals.size() && !source.empty(); ++p)
      if (own[p].messages != totals[p].messages || own[p].bytes != totals[p].bytes)
        fail_mismatch("phase {} '{}': {} has {} messages, {} bytes, {} has {} messages, {} bytes", p,
                      phases[p], source, totals[p].messages, totals[p].bytes, label(trace), own[p].messages,
                      own[p].bytes);
    if (source.empty()) {
      totals = own;
      source = label(trace);
    }
  }
  return totals;
}

int32_t count_ranks(std::span<const Trace> traces, const CompareInput& input) {
  if (input.plan) return input.plan->grouping().ranks;
  int32_t ranks = 0;
  for (const Trace& trace : traces) {
    for (const Span& span : trace.spans) ranks = std::max(ranks, span.rank + 1);
    for (const LedgerEntry& pair : trace.ledger.entries())
      ranks = std::max({ranks, pair.src + 1, pair.dst + 1});
  }
  return ranks;
}

// --- bytes by class of path ---

/// What the busiest rank sends or receives in a phase over one class of path.
struct Peak {
  Rank rank = 0;
  bool is_sender = true;
  int64_t bytes = 0;
};

/// Loads of a plan per phase; the last entry is that of all phases.
struct PathLoads {
  std::vector<WireBytes> wire;
  std::vector<Peak> scale_up;
  std::vector<Peak> scale_out;
};

bool leaves_rank(const Op& op) {
  return (op.kind == OpKind::put || op.kind == OpKind::get) && op.link != Link::local;
}

std::vector<Peak> peaks(const Plan& plan, Link link) {
  const size_t phases = plan.phases().size();
  const size_t ranks = static_cast<size_t>(plan.grouping().ranks);
  std::vector<int64_t> sent((phases + 1) * ranks);
  std::vector<int64_t> received((phases + 1) * ranks);
  for (const Op& op : plan.ops()) {
    if (!leaves_rank(op) || op.link != link) continue;
    for (size_t phase : {size_t{op.phase}, phases}) {
      sent[phase * ranks + static_cast<size_t>(op.src)] += op.bytes;
      received[phase * ranks + static_cast<size_t>(op.dst)] += op.bytes;
    }
  }
  std::vector<Peak> result(phases + 1);
  for (size_t i = 0; i < sent.size(); ++i) {
    Peak& peak = result[i / ranks];
    const Rank rank = static_cast<Rank>(i % ranks);
    if (sent[i] > peak.bytes) peak = {rank, true, sent[i]};
    if (received[i] > peak.bytes) peak = {rank, false, received[i]};
  }
  return result;
}

PathLoads path_loads(const Plan& plan) {
  PathLoads loads;
  loads.wire.resize(plan.phases().size() + 1);
  for (const Op& op : plan.ops()) {
    if (!leaves_rank(op)) continue;
    for (WireBytes* wire : {&loads.wire[op.phase], &loads.wire.back()})
      (op.link == Link::scale_up ? wire->scale_up : wire->scale_out) += op.bytes;
  }
  loads.scale_up = peaks(plan, Link::scale_up);
  loads.scale_out = peaks(plan, Link::scale_out);
  return loads;
}

// --- times ---

/// Phase p of a trace, or the whole for p == number of phases.
PhaseTime time_of(const Trace& trace, size_t p) {
  PhaseTime result;
  if (p < trace.phase_times.size()) result = trace.phase_times[p];
  if (p == trace.header.phases.size()) result = {trace.total, trace.lower, trace.bottleneck};
  PLUMB_CHECK(std::isfinite(result.time.value) && std::isfinite(result.lower.value),
              "{} phase {}: {} s, lower {} s", label(trace), p, result.time.value, result.lower.value);
  return result;
}

std::string phase_name(const Trace& trace, size_t p) {
  return p < trace.header.phases.size() ? "phase '" + trace.header.phases[p] + "'" : "whole run";
}

void check_rate(std::span<const Trace> traces, std::span<const Peak> peaks, Link link, BytesPerSecond rate) {
  if (rate.value <= 0) return;
  for (const Trace& trace : traces) {
    if (trace.header.executor == "host") continue;
    for (size_t p = 0; p < peaks.size(); ++p) {
      const Seconds time = time_of(trace, p).time;
      const double bytes = static_cast<double>(peaks[p].bytes);
      // One clock step and rounding errors of doubles are no excess.
      if (time.value <= 0 || bytes <= rate.value * (time.value + kClockStep.value) * (1 + 1e-9)) continue;
      fail_mismatch(
          "{}, {}: rank {} {} {} bytes over {} in {:.3f} us, {:.2f} GB/s, above the link's {:.2f} GB/s; a "
          "time, "
          "a byte count or the link rate is wrong",
          label(trace), phase_name(trace, p), peaks[p].rank, peaks[p].is_sender ? "sends" : "receives",
          peaks[p].bytes, to_string(link), microseconds(time), bytes / time.value * 1e-9,
          gigabytes_per_second(rate));
    }
  }
}

/// Reduces the repeats of one executor.
ComparedTime reduce(std::span<const Trace* const> repeats, size_t p) {
  std::vector<PhaseTime> times;
  for (const Trace* trace : repeats) times.push_back(time_of(*trace, p));
  std::stable_sort(times.begin(), times.end(),
                   [](const PhaseTime& a, const PhaseTime& b) { return a.time < b.time; });
  const PhaseTime& middle = times[(times.size() - 1) / 2];
  ComparedTime result;
  result.p50 = middle.time;
  result.max = times.back().time;
  result.bottleneck = middle.bottleneck;
  for (const PhaseTime& time : times) result.lower = std::max(result.lower, time.lower);
  return result;
}

void fill_errors(Comparison& comparison) {
  for (std::string_view name : kReferences)
    for (size_t e = 0; e < comparison.executors.size() && comparison.reference == kNone; ++e)
      if (comparison.executors[e].name == name) comparison.reference = static_cast<int32_t>(e);
  if (comparison.reference == kNone) return;
  const size_t reference = static_cast<size_t>(comparison.reference);
  for (ComparisonRow& row : comparison.rows) {
    const double expected = row.times[reference].p50.value;
    for (size_t e = 0; e < row.times.size(); ++e)
      if (e != reference && comparison.executors[e].name != "host" && expected > 0 &&
          row.times[e].p50.value > 0)
        row.times[e].error = (row.times[e].p50.value - expected) / expected;
  }
}

// --- table ---

std::string number_or_dash(double value, int decimals) {
  return value > 0 ? fmt::format("{:.{}f}", value, decimals) : "-";
}

constexpr std::array<std::string_view, 18> kTableColumns = {
    "phase",        "executor",  "repeats",       "p50_us",         "max_us",     "lower_us",
    "error_%",      "messages",  "logical_B",     "wire_B",         "scale_up_B", "scale_out_B",
    "logical_GB/s", "wire_GB/s", "scale_up_GB/s", "scale_out_GB/s", "sms",        "bottleneck"};
using TableLine = std::array<std::string, kTableColumns.size()>;

bool is_text_column(size_t c) { return c < 2 || c + 1 == kTableColumns.size(); }

TableLine table_line(const Comparison& comparison, const ComparisonRow& row, size_t e) {
  const ComparedTime& time = row.times[e];
  const bool is_total = &row == &comparison.rows.back();
  const auto rate = [&](std::optional<int64_t> bytes) -> std::string {
    if (!bytes || comparison.ranks == 0 || time.p50.value <= 0) return "-";
    return fmt::format("{:.2f}", static_cast<double>(*bytes) / comparison.ranks / time.p50.value * 1e-9);
  };
  const auto count = [](std::optional<int64_t> bytes) {
    return bytes ? fmt::format("{}", *bytes) : std::string("-");
  };
  const std::optional<WireBytes>& wire = row.wire;
  const std::optional<int64_t> total = wire ? std::optional(wire->total()) : std::nullopt;
  const std::optional<int64_t> up = wire ? std::optional(wire->scale_up) : std::nullopt;
  const std::optional<int64_t> out = wire ? std::optional(wire->scale_out) : std::nullopt;
  return {row.phase, comparison.executors[e].name, fmt::format("{}", comparison.executors[e].repeats),
          number_or_dash(microseconds(time.p50), 3), number_or_dash(microseconds(time.max), 3),
          number_or_dash(microseconds(time.lower), 3),
          time.error ? fmt::format("{:+.1f}", *time.error * 100) : "-", fmt::format("{}", row.messages),
          fmt::format("{}", row.logical), count(total), count(up), count(out),
          // A token that makes two hops counts twice in the logical bytes of the whole.
          is_total ? "-" : rate(row.logical), rate(total), rate(up), rate(out),
          row.sms == kNone ? "-"
          : row.sms == 0   ? "all"
                           : fmt::format("{}", row.sms),
          time.bottleneck.empty() ? "-" : time.bottleneck};
}

// --- waits ---

/// The lower median; reorders its argument. 0 of nothing.
double take_median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Median over the other ranks of a row (of a source) or a column.
double line_median(const WaitMatrix& waits, Rank rank, bool is_row) {
  std::vector<double> values;
  for (Rank other = 0; other < waits.ranks(); ++other)
    if (other != rank) values.push_back((is_row ? waits.at(rank, other) : waits.at(other, rank)).value);
  return take_median(values);
}

}  // namespace

Comparison compare(std::span<const Trace> traces, const CompareInput& input) {
  if (traces.empty()) fail_usage("nothing to compare: no traces given");
  if (!input.plan && (input.scale_up_rate.value > 0 || input.scale_out_rate.value > 0))
    fail_usage("a link rate can be checked only with the plan, which tells the bytes of each link");
  check_same_plan(traces, input);
  const std::vector<LedgerEntry> totals = agreed_totals(traces, input);
  const TraceHeader& header = traces.front().header;
  const size_t phases = header.phases.size();

  Comparison result{.plan = header.plan,
                    .program = header.program,
                    .ranks = count_ranks(traces, input),
                    .executors = {},
                    .rows = {}};
  result.rows.resize(phases + 1);
  ComparisonRow& whole = result.rows.back();
  whole.phase = "total";
  for (size_t p = 0; p < phases; ++p) {
    ComparisonRow& row = result.rows[p];
    row.phase = header.phases[p];
    row.messages = totals[p].messages;
    row.logical = totals[p].bytes;
    whole.messages += row.messages;
    whole.logical += row.logical;
  }
  if (input.plan) {
    const PathLoads loads = path_loads(*input.plan);
    check_rate(traces, loads.scale_up, Link::scale_up, input.scale_up_rate);
    check_rate(traces, loads.scale_out, Link::scale_out, input.scale_out_rate);
    for (size_t p = 0; p <= phases; ++p) {
      result.rows[p].wire = loads.wire[p];
      if (p < phases) result.rows[p].sms = input.plan->phases()[p].sms;
    }
  }
  for (std::string_view name : kExecutors) {
    std::vector<const Trace*> repeats;
    for (const Trace& trace : traces)
      if (trace.header.executor == name) repeats.push_back(&trace);
    if (repeats.empty()) continue;
    result.executors.push_back({.name = std::string(name),
                                .machine = repeats.front()->header.machine,
                                .repeats = static_cast<int32_t>(repeats.size())});
    for (size_t p = 0; p <= phases; ++p) result.rows[p].times.push_back(reduce(repeats, p));
  }
  fill_errors(result);
  return result;
}

std::string to_table(const Comparison& comparison) {
  std::vector<TableLine> lines(1);
  std::copy(kTableColumns.begin(), kTableColumns.end(), lines[0].begin());
  for (const ComparisonRow& row : comparison.rows)
    for (size_t e = 0; e < comparison.executors.size(); ++e) lines.push_back(table_line(comparison, row, e));

  std::string text = fmt::format("plan {} ({}), {} ranks", to_string(comparison.plan), comparison.program,
                                 comparison.ranks == 0 ? "?" : fmt::format("{}", comparison.ranks));
  if (comparison.reference != kNone)
    text += fmt::format(", errors against {}",
                        comparison.executors[static_cast<size_t>(comparison.reference)].name);
  text += "\n";
  std::array<size_t, kTableColumns.size()> widths{};
  for (const TableLine& line : lines)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  for (const TableLine& line : lines) {
    std::string out;
    for (size_t c = 0; c < line.size(); ++c)
      out += is_text_column(c) ? fmt::format("{:<{}}  ", line[c], widths[c])
                               : fmt::format("{:>{}}  ", line[c], widths[c]);
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

WaitMatrix::WaitMatrix(int32_t ranks)
    : ranks_(ranks), waits_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {}

size_t WaitMatrix::index(Rank source, Rank destination) const {
  PLUMB_CHECK(source >= 0 && source < ranks_ && destination >= 0 && destination < ranks_,
              "{} -> {} of {} ranks", source, destination, ranks_);
  return static_cast<size_t>(source) * static_cast<size_t>(ranks_) + static_cast<size_t>(destination);
}

std::optional<WaitMatrix> wait_matrix(std::span<const Trace> traces, std::string_view executor) {
  size_t measured = 0;
  Rank last = 0;
  std::map<std::pair<Rank, Rank>, std::vector<double>> values;
  for (const Trace& trace : traces) {
    if (trace.header.executor != executor || trace.waits.empty()) continue;
    ++measured;
    for (const Wait& wait : trace.waits) {
      last = std::max({last, wait.source, wait.destination});
      values[{wait.source, wait.destination}].push_back(static_cast<double>(wait.ns) / 1e9);
    }
  }
  if (measured == 0) return std::nullopt;
  WaitMatrix waits(last + 1);
  for (auto& [pair, times] : values) {
    times.resize(measured);  // repeats that leave the pair out did not wait for it: 0
    waits.at(pair.first, pair.second) = {take_median(times)};
  }
  return waits;
}

std::string_view to_string(WaitCause cause) {
  switch (cause) {
    case WaitCause::slow_sender:
      return "slow sender";
    case WaitCause::slow_receiver:
      return "slow receiver";
    case WaitCause::bad_path:
      return "bad path";
  }
  return "?";
}

std::vector<WaitFinding> diagnose(const WaitMatrix& waits, double factor) {
  const int32_t ranks = waits.ranks();
  std::vector<double> values;
  for (Rank s = 0; s < ranks; ++s)
    for (Rank d = 0; d < ranks; ++d)
      if (s != d) {
        PLUMB_CHECK(std::isfinite(waits.at(s, d).value), "wait {} -> {}: {} s", s, d, waits.at(s, d).value);
        values.push_back(waits.at(s, d).value);
      }
  const double typical = take_median(values);
  for (double& value : values) value = std::fabs(value - typical);
  const double deviation = 1.4826 * take_median(values);
  const double limit = std::max({factor * typical, typical + 5 * deviation, typical + 1e-6});

  std::vector<WaitFinding> findings;
  std::vector<bool> is_slow_row(static_cast<size_t>(ranks));
  std::vector<bool> is_slow_column(static_cast<size_t>(ranks));
  for (bool is_row : {true, false}) {
    for (Rank r = 0; r < ranks && ranks >= 3; ++r) {
      const double median = line_median(waits, r, is_row);
      if (median <= limit) continue;
      (is_row ? is_slow_row : is_slow_column)[static_cast<size_t>(r)] = true;
      findings.push_back({.cause = is_row ? WaitCause::slow_sender : WaitCause::slow_receiver,
                          .source = is_row ? r : kNone,
                          .destination = is_row ? kNone : r,
                          .wait = {median},
                          .typical = {typical}});
    }
  }
  for (Rank s = 0; s < ranks; ++s)
    for (Rank d = 0; d < ranks; ++d)
      if (s != d && waits.at(s, d).value > limit && !is_slow_row[static_cast<size_t>(s)] &&
          !is_slow_column[static_cast<size_t>(d)])
        findings.push_back({WaitCause::bad_path, s, d, waits.at(s, d), {typical}});
  return findings;
}

std::string to_text(const WaitFinding& finding) {
  const std::string who = finding.cause == WaitCause::slow_sender ? fmt::format("rank {}", finding.source)
                          : finding.cause == WaitCause::slow_receiver
                              ? fmt::format("rank {}", finding.destination)
                              : fmt::format("{} -> {}", finding.source, finding.destination);
  return fmt::format("{} {}: wait {:.3f} us, typical {:.3f} us", to_string(finding.cause), who,
                     microseconds(finding.wait), microseconds(finding.typical));
}

std::string to_text(const WaitMatrix& waits, std::span<const WaitFinding> findings) {
  constexpr int32_t kMaxPrinted = 32;
  const int32_t ranks = waits.ranks();
  std::string text;
  if (ranks <= kMaxPrinted) {
    text = "wait_us: row = source, column = destination\n      ";
    for (Rank d = 0; d < ranks; ++d) text += fmt::format("{:>10}", d);
    text += "\n";
    for (Rank s = 0; s < ranks; ++s) {
      text += fmt::format("{:>6}", s);
      for (Rank d = 0; d < ranks; ++d)
        text += s == d ? fmt::format("{:>10}", "-") : fmt::format("{:>10.3f}", microseconds(waits.at(s, d)));
      text += "\n";
    }
  }
  for (const WaitFinding& finding : findings) text += to_text(finding) + "\n";
  if (findings.empty()) text += "no outliers\n";
  return text;
}

std::string waits_text(std::span<const Trace> traces) {
  std::string text;
  for (std::string_view name : kExecutors)
    if (const auto waits = wait_matrix(traces, name))
      text += fmt::format("{} {}", name, to_text(*waits, diagnose(*waits)));
  return text;
}

}  // namespace plumb

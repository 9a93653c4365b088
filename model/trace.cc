// Traces as CSV, written and read back byte by byte (docs/trace.md).
#include "model/trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <istream>
#include <iterator>
#include <limits>
#include <ostream>
#include <span>
#include <string_view>
#include <tuple>

#include "model/error.h"

namespace plumb {
namespace {

constexpr std::string_view kMagic = "#plumb.trace/1";
constexpr std::string_view kColumns = "rank,phase,lane,op,begin_ns,end_ns,messages,bytes";
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxRank = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxPhases = 255;
constexpr int64_t kMaxSpanNs = 1'000'000'000'000'000;  // of begin and end, 11.6 days
constexpr int64_t kMaxPicosecondNs =
    1'000'000'000'000;  // 1000 s; from here a double may not hold picoseconds
constexpr size_t kMaxProblems = 100;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// Text as it can stand in one line; in a list, without the separator.
std::string one_line(std::string_view text, bool in_list) {
  std::string result(text);
  for (char& c : result)
    if (is_control(c) || (in_list && c == ',')) c = ' ';
  const size_t first = result.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return result.substr(first, result.find_last_not_of(' ') - first + 1);
}

/// Nanoseconds with at most three decimals and no trailing zero.
std::string ns_text(Seconds time) {
  PLUMB_CHECK(std::isfinite(time.value) && time.value >= 0 && time.value <= 1e6, "a time of {} s",
              time.value);
  if (time.value >= 1000) return fmt::format("{}", std::llround(time.value * 1e9));
  const int64_t ps = std::llround(time.value * 1e12);
  std::string text = fmt::format("{}.{:03}", ps / 1000, ps % 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

void flush(std::ostream& out, fmt::memory_buffer& buffer) {
  out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  buffer.clear();
}

void write_header(fmt::memory_buffer& buffer, const Trace& trace) {
  const TraceHeader& header = trace.header;
  const auto put = [&](std::string_view key, std::string_view text) {
    const std::string value = one_line(text, false);
    fmt::format_to(std::back_inserter(buffer), "#{}:{}{}\n", key, value.empty() ? "" : " ", value);
  };
  fmt::format_to(std::back_inserter(buffer), "{}\n", kMagic);
  put("executor", header.executor);
  put("version", header.version);
  put("plan", to_string(header.plan));
  put("program", header.program);
  put("machine", header.machine);
  put("clock", header.clock);
  put("seed", fmt::format("{}", header.seed));
  put("repeat", fmt::format("{}", header.repeat));
  put("complete", header.complete ? "yes" : "no");
  put("note", header.note);
  put("total_ns", ns_text(trace.total));
  put("lower_ns", ns_text(trace.lower));
  put("bottleneck", trace.bottleneck);
  put("phases", fmt::format("{}", header.phases.size()));
}

void write_phases(fmt::memory_buffer& buffer, const Trace& trace) {
  const std::vector<LedgerEntry> totals = phase_totals(trace);
  for (size_t p = 0; p < trace.header.phases.size(); ++p) {
    const PhaseTime phase = p < trace.phase_times.size() ? trace.phase_times[p] : PhaseTime{};
    fmt::format_to(std::back_inserter(buffer), "#phase: {},{},{},{},{},{},{}\n", p,
                   one_line(trace.header.phases[p], true), ns_text(phase.time), ns_text(phase.lower),
                   totals[p].messages, totals[p].bytes, one_line(phase.bottleneck, true));
  }
}

void check_writable(const Span& span, size_t phases) {
  PLUMB_CHECK(span.rank >= 0 && span.phase >= 0 && static_cast<size_t>(span.phase) < phases &&
                  span.lane >= -1 && span.op >= -1,
              "span of rank {}, phase {} of {}, lane {}, op {}", span.rank, span.phase, phases, span.lane,
              span.op);
  PLUMB_CHECK(span.begin_ns >= -kMaxSpanNs && span.begin_ns <= span.end_ns && span.end_ns <= kMaxSpanNs &&
                  span.messages >= 0 && span.bytes >= 0,
              "span of rank {}: {} to {} ns, {} messages, {} bytes", span.rank, span.begin_ns, span.end_ns,
              span.messages, span.bytes);
}

/// Whether `next` may follow `last` in the list of waits.
bool is_in_order(const Wait& last, const Wait& next) {
  return std::tie(last.source, last.destination) < std::tie(next.source, next.destination);
}

void check_writable(std::span<const Wait> waits) {
  for (size_t i = 0; i < waits.size(); ++i) {
    const Wait& wait = waits[i];
    PLUMB_CHECK(wait.source >= 0 && wait.destination >= 0 && wait.source != wait.destination &&
                    wait.ns >= 0 && wait.ns <= kMaxSpanNs && (i == 0 || is_in_order(waits[i - 1], wait)),
                "wait {} of {}: {} -> {}, {} ns", i, waits.size(), wait.source, wait.destination, wait.ns);
  }
}

void write_waits(fmt::memory_buffer& buffer, std::span<const Wait> waits) {
  if (waits.empty() || static_cast<int64_t>(waits.size()) > kMaxStoredWaits) return;
  fmt::format_to(std::back_inserter(buffer), "#waits: {}\n", waits.size());
  for (const Wait& wait : waits)
    fmt::format_to(std::back_inserter(buffer), "#wait: {},{},{}\n", wait.source, wait.destination, wait.ns);
}

void check_writable(const Trace& trace) {
  const TraceHeader& header = trace.header;
  PLUMB_CHECK(std::find(kExecutors.begin(), kExecutors.end(), header.executor) != kExecutors.end(),
              "executor '{}'", header.executor);
  PLUMB_CHECK(header.repeat >= 0, "repeat {}", header.repeat);
  PLUMB_CHECK(header.phases.size() <= kMaxPhases, "{} phases", header.phases.size());
  check_writable(trace.waits);
  PLUMB_CHECK(trace.phase_times.size() <= header.phases.size(), "{} phase times of {} phases",
              trace.phase_times.size(), header.phases.size());
}

/// A piece of the current line and the column (from 1) where it begins.
struct Field {
  std::string_view text;
  int column = 1;
};

struct IntegerRange {
  int64_t min = 0;
  int64_t max = kMaxInt;
};

class Reader {
 public:
  Reader(std::istream& in, const std::string& name) : in_(in), name_(name) {}

  Trace read() {
    read_header();
    read_phases();
    read_ledger();
    read_waits();
    read_spans();
    return std::move(trace_);
  }

 private:
  bool next_line() {
    if (is_ahead_) {
      is_ahead_ = false;
      return true;
    }
    ++line_number_;
    line_.clear();
    if (!std::getline(in_, line_)) {
      if (in_.bad()) throw Error(ErrorKind::environment, fmt::format("{}: cannot read", name_));
      return false;
    }
    const size_t control =
        static_cast<size_t>(std::find_if(line_.begin(), line_.end(), is_control) - line_.begin());
    if (control < line_.size())
      fail({std::string_view(line_).substr(control, 1), static_cast<int>(control) + 1},
           fmt::format("found control character 0x{:02x}, lines end with a single 0x0a",
                       static_cast<unsigned char>(line_[control])));
    if (in_.eof()) fail({"", static_cast<int>(line_.size()) + 1}, "the file ends inside a line");
    return true;
  }

  void report(const Field& field, std::string message) {
    problems_.push_back({.where = {name_, line_number_, field.column},
                         .message = std::move(message),
                         .source_line = line_,
                         .length = std::max(1, static_cast<int>(field.text.size()))});
    if (problems_.size() >= kMaxProblems) throw ConfigError(std::move(problems_));
  }

  [[noreturn]] void fail(const Field& field, std::string message) {
    report(field, std::move(message));
    throw ConfigError(std::move(problems_));
  }

  /// The value of the next line, which must be "#key: value", or "#key:" for an empty one.
  Field value(std::string_view key) {
    if (!next_line()) fail({}, fmt::format("found the end of the file, expected '#{}:'", key));
    const std::string_view line = line_;
    const size_t colon = line.find(':');
    const std::string_view found = line.substr(0, colon == std::string_view::npos ? line.size() : colon);
    if (colon == std::string_view::npos || found.empty() || found[0] != '#' || found.substr(1) != key)
      fail({found, 1},
           fmt::format("found '{}', expected '#{}:' (the order of header lines is fixed)", found, key));
    if (colon + 1 == line.size()) return {"", static_cast<int>(colon) + 2};
    const Field field{line.substr(std::min(colon + 2, line.size())), static_cast<int>(colon) + 3};
    if (line[colon + 1] != ' ' || field.text.empty() || field.text.front() == ' ' || field.text.back() == ' ')
      fail({line.substr(colon + 1), static_cast<int>(colon) + 2},
           fmt::format("'#{}:' takes one blank and a text without blanks around it, or nothing", key));
    return field;
  }

  /// Whether the next line is "#key: ...": for parts that may be left out.
  bool is_next(std::string_view key) {
    if (!next_line()) return false;
    is_ahead_ = true;
    return line_.starts_with(fmt::format("#{}:", key));
  }

  std::string text(std::string_view key) { return std::string(value(key).text); }

  template <class T>
  T number(const Field& field, std::string_view what, T min, T max) {
    T result = min;
    const std::string_view s = field.text;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), result);
    const bool has_extra_zero = (s.size() > 1 && s[0] == '0') || s.starts_with("-0");
    if (error == std::errc() && end == s.data() + s.size() && !has_extra_zero && result >= min &&
        result <= max)
      return result;
    report(field, fmt::format("{}: found '{}', allowed an integer {} to {} without leading zeros", what, s,
                              min, max));
    return min;
  }

  int64_t integer(const Field& field, std::string_view what, IntegerRange range) {
    return number<int64_t>(field, what, range.min, range.max);
  }

  /// Inverse of ns_text().
  Seconds time(const Field& field, std::string_view what) {
    const size_t point = field.text.find('.');
    const std::string_view decimals = point == std::string_view::npos ? "" : field.text.substr(point + 1);
    const int64_t ns = integer({field.text.substr(0, point), field.column}, what, {0, kMaxSpanNs});
    const bool has_bad_point = point != std::string_view::npos &&
                               (decimals.empty() || decimals.size() > 3 || decimals.back() == '0' ||
                                decimals.find_first_not_of("0123456789") != std::string_view::npos);
    if (has_bad_point || (!decimals.empty() && ns >= kMaxPicosecondNs)) {
      report(
          field,
          fmt::format("{}: found '{}', allowed nanoseconds with at most 3 decimals, the last not 0, and none "
                      "from 1000 s on",
                      what, field.text));
      return {};
    }
    if (ns >= kMaxPicosecondNs) return {static_cast<double>(ns) / 1e9};
    int64_t ps = 0;
    for (size_t i = 0; i < 3; ++i) ps = ps * 10 + (i < decimals.size() ? decimals[i] - '0' : 0);
    return {static_cast<double>(ns * 1000 + ps) / 1e12};
  }

  /// Cuts a list at its commas into exactly N fields.
  template <size_t N>
  bool split(const Field& list, std::array<Field, N>& fields, std::string_view names) {
    size_t count = 0;
    for (size_t begin = 0;; ++count) {
      const size_t comma = list.text.find(',', begin);
      if (count < N)
        fields[count] = {list.text.substr(begin, comma - begin), list.column + static_cast<int>(begin)};
      if (comma == std::string_view::npos) break;
      begin = comma + 1;
    }
    if (++count == N) return true;
    report(list, fmt::format("found {} fields, expected {}: {}", count, N, names));
    return false;
  }

  std::string list_text(const Field& field, std::string_view what) {
    if (!field.text.empty() && (field.text.front() == ' ' || field.text.back() == ' '))
      report(field, fmt::format("{}: found '{}', allowed no blanks around it", what, field.text));
    return std::string(field.text);
  }

  void add(const Field& field, PhaseTime& sum, int64_t messages, int64_t bytes) {
    if (__builtin_add_overflow(sum.messages, messages, &sum.messages) ||
        __builtin_add_overflow(sum.bytes, bytes, &sum.bytes))
      fail(field, "the sum of messages or bytes up to this line exceeds 2^63 - 1");
  }

  void stop_at_problems() {
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
  }

  void read_header();
  void read_phases();
  void read_ledger();
  void read_waits();
  void read_spans();
  void read_span();

  std::istream& in_;
  const std::string& name_;
  std::string line_;
  int line_number_ = 0;
  bool is_ahead_ = false;  // the current line was only looked at
  std::vector<Problem> problems_;
  PhaseTime phase_sum_;
  PhaseTime span_sum_;
  Trace trace_;
};

void Reader::read_header() {
  if (!next_line() || line_ != kMagic)
    fail({line_, 1}, fmt::format("found '{}', expected '{}'", line_, kMagic));
  TraceHeader& header = trace_.header;
  const Field executor = value("executor");
  header.executor = executor.text;
  if (std::find(kExecutors.begin(), kExecutors.end(), executor.text) == kExecutors.end())
    fail(executor,
         fmt::format("executor: found '{}', allowed {}", executor.text, fmt::join(kExecutors, ", ")));
  header.version = text("version");
  const Field plan = value("plan");
  if (plan.text.size() != 32 || plan.text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    fail(plan, fmt::format("plan: found '{}', allowed 32 digits 0-9 a-f", plan.text));
  header.plan = parse_digest(plan.text);
  header.program = text("program");
  header.machine = text("machine");
  header.clock = text("clock");
  header.seed = number<uint64_t>(value("seed"), "seed", 0, std::numeric_limits<uint64_t>::max());
  header.repeat = static_cast<int32_t>(integer(value("repeat"), "repeat", {0, kMaxRank}));
  const Field complete = value("complete");
  if (complete.text != "yes" && complete.text != "no")
    fail(complete, fmt::format("complete: found '{}', allowed yes, no", complete.text));
  header.complete = complete.text == "yes";
  header.note = text("note");
  trace_.total = time(value("total_ns"), "total_ns");
  trace_.lower = time(value("lower_ns"), "lower_ns");
  trace_.bottleneck = text("bottleneck");
  stop_at_problems();
}

void Reader::read_phases() {
  const int64_t count = integer(value("phases"), "phases", {0, kMaxPhases});
  stop_at_problems();
  for (int64_t p = 0; p < count; ++p) {
    std::array<Field, 7> f;
    if (split(value("phase"), f, "index,name,time_ns,lower_ns,messages,bytes,bottleneck")) {
      integer(f[0], "index", {p, p});
      trace_.header.phases.push_back(list_text(f[1], "name"));
      PhaseTime phase;
      phase.time = time(f[2], "time_ns");
      phase.lower = time(f[3], "lower_ns");
      phase.messages = integer(f[4], "messages", {});
      phase.bytes = integer(f[5], "bytes", {});
      phase.bottleneck = list_text(f[6], "bottleneck");
      add(f[5], phase_sum_, phase.messages, phase.bytes);
      trace_.phase_times.push_back(std::move(phase));
    }
    stop_at_problems();
  }
}

void Reader::read_ledger() {
  const Field field = value("pairs");
  const int64_t count = integer(field, "pairs", {0, kMaxStoredPairs});
  stop_at_problems();
  std::vector<LedgerEntry> pairs;
  std::vector<PhaseTime> sums(trace_.phase_times.size());
  for (int64_t i = 0; i < count; ++i) {
    std::array<Field, 5> f;
    const Field list = value("pair");
    if (!split(list, f, "phase,src,dst,messages,bytes")) stop_at_problems();
    const auto phase = integer(f[0], "phase", {0, static_cast<int64_t>(sums.size()) - 1});
    const LedgerEntry pair = {.phase = static_cast<PhaseId>(phase),
                              .src = static_cast<Rank>(integer(f[1], "src", {0, kMaxRank})),
                              .dst = static_cast<Rank>(integer(f[2], "dst", {0, kMaxRank})),
                              .messages = integer(f[3], "messages", {}),
                              .bytes = integer(f[4], "bytes", {})};
    stop_at_problems();
    const bool is_after = pairs.empty() || std::tie(pairs.back().phase, pairs.back().src, pairs.back().dst) <
                                               std::tie(pair.phase, pair.src, pair.dst);
    if (!is_after || (pair.messages == 0 && pair.bytes == 0))
      fail(list, "pairs stand in order of phase, src, dst, each once and not empty");
    add(list, sums[static_cast<size_t>(phase)], pair.messages, pair.bytes);
    pairs.push_back(pair);
  }
  for (size_t p = 0; p < sums.size() && count > 0; ++p) {
    const PhaseTime& phase = trace_.phase_times[p];
    if (phase.messages != sums[p].messages || phase.bytes != sums[p].bytes)
      fail({}, fmt::format(
                   "phase {}: '#phase:' says {} messages, {} bytes, but its '#pair:' lines add up to {}, {}",
                   p, phase.messages, phase.bytes, sums[p].messages, sums[p].bytes));
  }
  trace_.ledger = Ledger(std::move(pairs));
}

void Reader::read_waits() {
  if (!is_next("waits")) return;
  const int64_t count = integer(value("waits"), "waits", {1, kMaxStoredWaits});
  stop_at_problems();
  for (int64_t i = 0; i < count; ++i) {
    std::array<Field, 3> f;
    const Field list = value("wait");
    if (!split(list, f, "src,dst,ns")) stop_at_problems();
    const Wait wait = {.source = static_cast<Rank>(integer(f[0], "src", {0, kMaxRank})),
                       .destination = static_cast<Rank>(integer(f[1], "dst", {0, kMaxRank})),
                       .ns = integer(f[2], "ns", {0, kMaxSpanNs})};
    stop_at_problems();
    if (wait.source == wait.destination || (i > 0 && !is_in_order(trace_.waits.back(), wait)))
      fail(list, "waits stand in order of src, dst, each once, and none of a rank for itself");
    trace_.waits.push_back(wait);
  }
}

void Reader::read_spans() {
  const int64_t count = integer(value("spans"), "spans", {});
  stop_at_problems();
  if (!next_line() || line_ != kColumns)
    fail({line_, 1}, fmt::format("found '{}', expected '{}'", line_, kColumns));
  while (next_line()) read_span();
  if (static_cast<int64_t>(trace_.spans.size()) != count && problems_.empty())
    report({}, fmt::format("found {} spans, '#spans:' says {}", trace_.spans.size(), count));
  if (phase_sum_ == PhaseTime{} && span_sum_ != PhaseTime{})
    report({}, fmt::format("spans hold {} messages, {} bytes, but all '#phase:' lines say 0",
                           span_sum_.messages, span_sum_.bytes));
  stop_at_problems();
}

void Reader::read_span() {
  std::array<Field, 8> f;
  if (!split({line_, 1}, f, kColumns)) return;
  Span span;
  span.rank = static_cast<Rank>(integer(f[0], "rank", {0, kMaxRank}));
  const auto phases = static_cast<int64_t>(trace_.header.phases.size());
  span.phase = static_cast<int16_t>(integer(f[1], "phase", {0, phases - 1}));
  span.lane = static_cast<int16_t>(integer(f[2], "lane", {-1, std::numeric_limits<int16_t>::max()}));
  span.op = static_cast<OpId>(integer(f[3], "op", {-1, kMaxRank}));
  const size_t before = problems_.size();
  span.begin_ns = integer(f[4], "begin_ns", {-kMaxSpanNs, kMaxSpanNs});
  if (problems_.size() == before) span.end_ns = integer(f[5], "end_ns", {span.begin_ns, kMaxSpanNs});
  span.messages = integer(f[6], "messages", {});
  span.bytes = integer(f[7], "bytes", {});
  add(f[7], span_sum_, span.messages, span.bytes);
  trace_.spans.push_back(span);
}

}  // namespace

void write_csv(std::ostream& out, const Trace& trace) {
  check_writable(trace);
  constexpr size_t kFlushBytes = 1 << 16;
  fmt::memory_buffer buffer;
  write_header(buffer, trace);
  write_phases(buffer, trace);
  const std::vector<LedgerEntry>& pairs = trace.ledger.entries();
  const bool has_pairs = static_cast<int64_t>(pairs.size()) <= kMaxStoredPairs;
  fmt::format_to(std::back_inserter(buffer), "#pairs: {}\n", has_pairs ? pairs.size() : 0);
  for (size_t i = 0; has_pairs && i < pairs.size(); ++i)
    fmt::format_to(std::back_inserter(buffer), "#pair: {},{},{},{},{}\n", pairs[i].phase, pairs[i].src,
                   pairs[i].dst, pairs[i].messages, pairs[i].bytes);
  write_waits(buffer, trace.waits);
  fmt::format_to(std::back_inserter(buffer), "#spans: {}\n{}\n", trace.spans.size(), kColumns);
  for (const Span& span : trace.spans) {
    check_writable(span, trace.header.phases.size());
    fmt::format_to(std::back_inserter(buffer), "{},{},{},{},{},{},{},{}\n", span.rank, span.phase, span.lane,
                   span.op, span.begin_ns, span.end_ns, span.messages, span.bytes);
    if (buffer.size() >= kFlushBytes) flush(out, buffer);
  }
  flush(out, buffer);
  out.flush();
  if (!out) throw Error(ErrorKind::environment, "cannot write the trace: disk full or file closed");
}

Trace read_csv(std::istream& in, const std::string& name) { return Reader(in, name).read(); }

}  // namespace plumb

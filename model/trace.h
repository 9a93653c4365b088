// What happened when a plan ran: one schema for all executors. t = 0 is the rank's release from the entry
// barrier.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "model/digest.h"
#include "model/ledger.h"

namespace plumb {

/// A stretch of work of one rank in one phase. lane: SM, channel, QP or virtual lane, -1 = all. op: -1 =
/// aggregated. Every message and byte of a run stands on at most one span, so that spans may be summed.
struct Span {
  Rank rank = 0;
  int16_t phase = 0;
  int16_t lane = -1;
  OpId op = -1;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
  bool operator==(const Span&) const = default;
};

inline constexpr std::array<std::string_view, 4> kExecutors = {"host", "analytic", "sim", "cuda"};

struct TraceHeader {
  std::string executor;  // one of kExecutors
  std::string version;   // of the program that wrote it
  Digest plan;           // digest of the plan
  std::string program;   // to_string(Program)
  std::string machine;   // name of the machine file, "" for host
  std::string clock;     // "model", "simulated", "globaltimer", "steady_clock"
  uint64_t seed = 0;
  int32_t repeat = 0;               // which repetition, from 0
  bool complete = true;             // false: the run ended early; results are partial
  std::string note;                 // free text, one line: host name, driver, command
  std::vector<std::string> phases;  // names by index
};

/// Summary of one phase: how long, which resource sets it, and what it moved.
struct PhaseTime {
  Seconds time{};          // duration, from first begin to last end over ranks
  Seconds lower{};         // lower bound, 0 when the executor gives none
  std::string bottleneck;  // "scale_out nic", "sm", "hbm", "latency", ... or "" when not known
  int64_t messages = 0;    // of all ranks
  int64_t bytes = 0;
  bool operator==(const PhaseTime&) const = default;
};

/// How long a destination waited for the data of a source, in the whole run.
struct Wait {
  Rank source = 0;
  Rank destination = 0;  // never the source
  int64_t ns = 0;
  bool operator==(const Wait&) const = default;
};

struct Trace {
  TraceHeader header;
  std::vector<Span> spans;
  std::vector<PhaseTime> phase_times;  // by phase, may be empty
  Ledger ledger;
  std::vector<Wait> waits;  // ascending by source, then destination; pairs that are left out did not wait;
                            // empty: not measured
  Seconds total{};          // makespan
  Seconds lower{};          // lower bound of it, 0 when none
  std::string bottleneck;   // of the whole
};

/// Most entries of a ledger that a CSV file stores; of a larger one it keeps the totals of each phase.
inline constexpr int64_t kMaxStoredPairs = 4096;

/// Most waits that a CSV file stores (all pairs of 128 ranks); of more it keeps none, since a part of a
/// matrix would blame the wrong ranks.
inline constexpr int64_t kMaxStoredWaits = 128 * 127;

/// CSV form, docs/trace.md: '#' header lines, then "rank,phase,lane,op,begin_ns,end_ns,messages,bytes". Times
/// that are not of spans are rounded to 1 ps, 1 ns from 1000 s on. Text is stored in one line: control
/// characters, and commas of phase names and bottlenecks, become blanks. Throws LogicError for a trace that
/// read_csv() would refuse (unknown executor, span of an unknown phase, negative size, time that is not
/// finite, waits out of order), Error(environment) when writing fails.
void write_csv(std::ostream& out, const Trace& trace);

/// Reads what write_csv() wrote; `name` stands for the file in messages. Writing the result again gives the
/// same bytes. Throws ConfigError with file:line:column, found and allowed values: the header's first
/// problem, or up to 100 of rows.
Trace read_csv(std::istream& in, const std::string& name);

/// Chrome trace JSON (Perfetto, chrome://tracing), docs/trace.md: one process per rank, one track per (phase,
/// lane). Streams the events. Throws Error(environment) when writing fails.
void write_chrome(std::ostream& out, const Trace& trace);

/// Fills phase_times (time, messages, bytes; the rest stays) and total from the spans (first begin to last
/// end). Throws LogicError for a span of an unknown phase.
void summarise(Trace& trace);

/// Messages and bytes of each phase [phases]: of the ledger, else of phase_times, else of the spans,
/// whichever is the first that is not empty.
std::vector<LedgerEntry> phase_totals(const Trace& trace);

/// The ledger of the spans that name an op of `plan`. Throws LogicError for an op that the plan does not
/// have.
Ledger span_ledger(const Plan& plan, const Trace& trace);

}  // namespace plumb

// What happened when a plan ran: one schema for all executors. t = 0 is the rank's release from the entry
// barrier.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "model/digest.h"
#include "model/ledger.h"

namespace plumb {

/// A stretch of work of one rank in one phase. lane: SM, channel, QP or virtual lane, -1 = all. op: -1 =
/// aggregated.
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

struct TraceHeader {
  std::string executor;  // host | analytic | sim | cuda
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

/// Estimate of one phase: how long, and which resource sets it.
struct PhaseTime {
  Seconds time{};          // duration, from first begin to last end over ranks
  Seconds lower{};         // lower bound, 0 when the executor gives none
  std::string bottleneck;  // "scale_out nic", "sm", "hbm", "latency", ... or "" when not known
};

struct Trace {
  TraceHeader header;
  std::vector<Span> spans;
  std::vector<PhaseTime> phase_times;  // by phase, may be empty
  Ledger ledger;
  Seconds total{};         // makespan
  Seconds lower{};         // lower bound of it, 0 when none
  std::string bottleneck;  // of the whole
};

/// CSV form, docs/trace.md: '#' header lines, then "rank,phase,lane,op,begin_ns,end_ns,messages,bytes".
/// Reading throws ConfigError with file:line:column, found and allowed values. The ledger is not stored:
/// spans carry it when op >= 0.
void write_csv(std::ostream& out, const Trace& trace);
Trace read_csv(std::istream& in, const std::string& name);

/// Chrome trace JSON (Perfetto, chrome://tracing): one process per rank, one track per (phase, lane).
void write_chrome(std::ostream& out, const Trace& trace);

/// Fills phase_times and total from the spans (first begin to last end).
void summarise(Trace& trace);

}  // namespace plumb

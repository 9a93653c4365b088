// What an interpreter run measured, op by op, and what follows from it: spans and waits of a trace.
#pragma once

#include <cstdint>
#include <vector>

#include "model/ledger.h"
#include "model/plan.h"
#include "model/trace.h"

namespace plumb::hw {

/// One op by the global timer: taken by a block, last edge (of streams: all that the first chunk needs) seen,
/// end. Nanoseconds since the first op was taken.
struct OpTimes {
  int64_t taken_ns = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

struct InterpreterResult {
  int64_t total_ns = 0;            // from the first op taken to the last end
  std::vector<OpTimes> times;      // [ops]
  std::vector<LedgerEntry> moved;  // [ops], counted by the kernel
};

/// One span per (rank, phase) that did anything: first begin to last end, what the rank issued.
std::vector<Span> spans_of(const Plan& plan, const InterpreterResult& result);

/// How long each rank stood still for each other one: no block of it was at work, and one of them waited for
/// an op of the other (of a barrier: for the other's join). Time in which it waited for several peers counts
/// for each of them, once. What an op waits for between its chunks is part of its work. In order of source,
/// destination; all pairs.
std::vector<Wait> waits_of(const Plan& plan, const InterpreterResult& result);

}  // namespace plumb::hw

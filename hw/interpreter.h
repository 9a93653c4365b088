// Runs any plan with rows on one GPU, ranks as arenas of one device: for programs without kernels of their
// own, and as their check.
#pragma once

#include <cstdint>
#include <vector>

#include "model/host_memory.h"
#include "model/host_payload.h"
#include "model/ledger.h"
#include "model/plan.h"
#include "model/trace.h"

namespace plumb::hw {

struct InterpreterOptions {
  int32_t blocks = 0;                         // of each rank's queue; 0 = what fits the device, at most 16
  int32_t repeat = 1;                         // runs; the result is that of median time
  int64_t timeout_ns = 10'000'000'000;        // of the wait for one edge
  int64_t memory_limit = int64_t{100} << 30;  // bytes on the device
};

/// One op by the global timer: taken by a block, last edge seen, end. Nanoseconds since the first op was
/// taken.
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

/// Executes all ops in `memory`, whose initial rows are filled (fill_initial): it is uploaded, and holds what
/// the device holds afterwards; its notes of writers do not change. Synchronises and allocates. Throws
///   Error(usage) when the plan has no rows or does not fit shape or memory, a row's top-k exceeds 32, or an
///   item leaves its region;
///   Error(environment) when a wait timed out, naming op, rank, phase, what it waited for, expected and seen;
///   and for CUDA errors.
InterpreterResult interpret(const Plan& plan, const HostBatch& batch, ExpertFunction expert,
                            const InterpreterOptions& options, HostMemory& memory);

/// One span per (rank, phase) that did anything: first begin to last end, what the rank issued.
std::vector<Span> spans_of(const Plan& plan, const InterpreterResult& result);

/// How long each rank's blocks waited for ops of each other rank: from taking an op to the end of what it
/// depends on, summed over edges; of a barrier, to the join of each member. In order of source, destination.
std::vector<Wait> waits_of(const Plan& plan, const InterpreterResult& result);

}  // namespace plumb::hw

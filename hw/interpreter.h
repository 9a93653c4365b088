// Runs any plan with rows on one GPU, ranks as arenas of one device: for programs without kernels of their
// own, and as their check.
#pragma once

#include <cstdint>

#include "hw/op_times.h"
#include "model/host_memory.h"
#include "model/host_payload.h"
#include "model/plan.h"

namespace plumb::hw {

struct InterpreterOptions {
  int32_t blocks = 0;                         // of each rank's queue; 0 = what fits the device, at most 16
  int32_t repeat = 1;                         // runs; the result is that of median time
  int64_t timeout_ns = 10'000'000'000;        // of the wait for one edge
  int64_t memory_limit = int64_t{100} << 30;  // bytes on the device
};

/// Executes all ops in `memory`, whose initial rows are filled (fill_initial): it is uploaded, and holds what
/// the device holds afterwards; its notes of writers do not change. Synchronises and allocates. Throws
///   Error(usage) when the plan has no rows or does not fit shape or memory, a row's top-k exceeds 32, or an
///   item leaves its region;
///   Error(environment) when a wait timed out, naming op, rank, phase, what it waited for, expected and seen;
///   and for CUDA errors.
InterpreterResult interpret(const Plan& plan, const HostBatch& batch, ExpertFunction expert,
                            const InterpreterOptions& options, HostMemory& memory);

}  // namespace plumb::hw

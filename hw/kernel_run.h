// Runs and times a plan's program by the kernels of dispatch and combine, all ranks resident on one GPU.
// Internal to the CUDA executor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/host_result.h"
#include "model/plan.h"
#include "model/trace.h"

namespace plumb::hw {

/// Why the kernels do not run the plan's program, "" when they do: dispatch, combine and round trip of up to
/// 16 ranks of one scale-up domain, rows placed directly.
std::string why_interpreted(const Plan& plan, const Shape& shape);

struct KernelRunOptions {
  int32_t repeat = 1;  // timed calls; the median counts
  int64_t timeout_ns = 10'000'000'000;
};

struct KernelRunResult {
  Seconds total{};             // median event time; of a round trip the sum of both calls
  Seconds counted{};           // the same of counted calls: what ledger, stamps and waits cost
  std::vector<Span> spans;     // of one counted call, t = 0 at the first stamp of any rank
  Ledger ledger;               // of that call
  std::vector<Wait> waits;     // likewise
  int32_t sms = 0;             // of each rank
  bool has_fewer_sms = false;  // than the program asks for: the ranks share one GPU
};

/// `oracle`: the host's run of the same plan, whose expert outputs are combined and whose tensors must be
/// reached bit by bit; null: expert outputs are a constant and nothing is compared. Allocates; synchronises.
/// Throws Error(mismatch) naming rank, tensor and row when bytes differ, Error(environment) for CUDA errors
/// and faults of kernels.
KernelRunResult run_kernels(const Plan& plan, const HostBatch& batch, const HostResult* oracle,
                            const KernelRunOptions& options);

}  // namespace plumb::hw

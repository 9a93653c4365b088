// Runs and times a plan's program by the kernels of dispatch and combine, for the ranks that this process
// drives in a world. Internal to the CUDA executor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hw/rank_record.h"
#include "hw/world.h"
#include "model/host_result.h"
#include "model/plan.h"

namespace plumb::hw {

/// Why the kernels do not run the plan's program, "" when they do: dispatch, combine and round trip of up to
/// `most_ranks` ranks of one scale-up domain, rows placed directly.
std::string why_interpreted(const Plan& plan, const Shape& shape, int32_t most_ranks = kernels::kMaxBatch);

struct KernelRunOptions {
  int32_t repeat = 1;                  // timed calls; the median counts
  const HostResult* oracle = nullptr;  // the host's run of the same plan; null: bytes are not compared
  ExpertFunction expert = ExpertFunction::identity;
  int64_t timeout_ns = 10'000'000'000;
};

/// The records of the own ranks, in order. Collective over the world; allocates; synchronises. The experts'
/// function runs on the rows that dispatch delivered here, between the calls and outside of their times;
/// what combine reads and sums is therefore checked from the first row on. Throws Error(mismatch) naming
/// rank, tensor and row when bytes differ from the oracle's, Error(environment) for CUDA errors and faults of
/// kernels; after that a world of several processes is lost.
std::vector<RankRecord> run_kernels(World& world, const Plan& plan, const HostBatch& batch,
                                    const KernelRunOptions& options);

}  // namespace plumb::hw

// Runs the kernels of a plan with a process and a GPU for each rank, forked here. Internal to the CUDA
// executor.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hw/kernel_run.h"
#include "hw/nvlink_world.h"

namespace plumb::hw {

/// The NVLink world as a build with NCCL has it (hw/nvlink_world.h); empty functions in one without.
struct NvlinkMaker {
  std::function<NvlinkId()> make_id;
  std::function<std::unique_ptr<World>(const NvlinkId& id, Rank rank, int32_t ranks)> make_world;
};

struct ForkedRun {
  std::vector<RankRecord> by_rank;
  std::string device;  // of rank 0, as `describe` says
};

/// Rank r takes GPU r. This process must not have used CUDA. `describe` is called on rank 0. Throws the error
/// of the first rank that failed, as that rank threw it; Error(environment) naming ranks that died or did
/// not end within `limit`.
ForkedRun run_forked(const NvlinkMaker& maker, const Plan& plan, const HostBatch& batch,
                     const KernelRunOptions& options, const std::function<std::string()>& describe,
                     std::chrono::milliseconds limit = std::chrono::minutes(10));

}  // namespace plumb::hw

// The CUDA executor: runs a plan on GPUs, one for each rank or one that they share, and returns what was
// measured. docs/hw.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "hw/forked_run.h"
#include "hw/gpus.h"
#include "model/executor.h"
#include "model/host.h"
#include "model/world_choice.h"

namespace plumb::hw {

enum class CheckBytes : uint8_t {
  automatic,  // when the host moves the rows of the plan in a few seconds: up to kCheckedBytes
  always,
  never,
};
inline constexpr int64_t kCheckedBytes = int64_t{256} << 20;  // of all regions

struct CudaOptions {
  int32_t repeat = 1;  // timed repetitions; the trace has the median
  CheckBytes check = CheckBytes::automatic;
  int64_t timeout_ns = 10'000'000'000;  // of every wait on the device
  WorldChoice world = WorldChoice::local;
  NvlinkMaker nvlink{};  // empty in a build without NCCL
};

/// Programs that the kernels of dispatch and combine serve (direct, one scale-up domain, rows placed
/// directly) run by hw::Buffer: with a GPU for each rank in the NVLink world, whose processes are forked from
/// this one before it uses CUDA, or with up to 16 ranks on one GPU in the local world. All others run by the
/// interpreter, on one GPU. The trace's note says which, and why.
class CudaExecutor : public Executor {
 public:
  /// Copies shape and routing. Throws Error(environment) "no GPU: ..." when there is none. Unless the world
  /// is local, a process of its own looks for GPUs and this one stays free of CUDA.
  CudaExecutor(const HostInput& input, const CudaOptions& options);
  ~CudaExecutor() override;

  std::string_view name() const override { return "cuda"; }

  /// The trace has spans by the device's global timer, waits, the ledger that the kernels counted, and as
  /// total the median of `repeat` runs: event time of cold calls (kernels), or from the first op to the last
  /// (interpreter). Throws
  ///   Error(usage) when the plan has no rows, does not fit the shape, or its regions exceed the memory
  ///   limit; Error(mismatch) when the ledger is not the plan's, or a checked run leaves other bytes than the
  ///   host; Error(environment) when a wait timed out, naming who waited for what, and for CUDA errors;
  ///   Error(usage) when the NVLink world was asked for and the program has no kernels, Error(environment)
  ///   when there are too few GPUs for it or the build has no NCCL.
  Trace run(const Plan& plan) override;

 private:
  std::string why_not_nvlink(const Plan& plan) const;
  Trace run_kernels(const Plan& plan, const std::string& why_local);
  Trace run_interpreter(const Plan& plan, const std::string& reason);
  bool is_checked(const Plan& plan) const;

  Shape shape_;
  ExpertFunction expert_;
  HostOptions host_options_;
  CudaOptions options_;
  VisibleGpus gpus_;
  std::unique_ptr<HostExecutor> whole_;   // the oracle that moves whole rows: of the kernels
  std::unique_ptr<HostExecutor> window_;  // and the one that moves what host_options_ say: of the interpreter
};

}  // namespace plumb::hw

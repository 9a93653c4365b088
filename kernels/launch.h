// Launchers. All enqueue on the stream and return; a CUDA error is the return value.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/params.h"

namespace plumb::kernels {

struct Launch {
  int32_t sms = 1;       // blocks of each rank
  bool counted = false;  // fill Context::counters
  cudaStream_t stream = nullptr;
};

/// One launch for all ranks of `ranks` (1..kMaxBatch), which must fit the device together: ranks * sms blocks
/// of one SM each. All have equal sizes and options; tokens, pointers and rank differ.
cudaError_t launch_dispatch(std::span<const DispatchParams> ranks, const Launch& launch);
cudaError_t launch_combine(std::span<const CombineParams> ranks, const Launch& launch);
/// Whether ranks may push rows home in such a combine: two ranks on GPUs of their own, one row of a token
/// from each, and enough SMs and tokens at most. Alike on both.
bool may_push(const CombineParams& params, int32_t sms);
cudaError_t launch_barrier(std::span<const BarrierParams> ranks, const Launch& launch);

/// Copies `rows` rows (a device-side number, e.g. a word of HandleMemory::counts) from private memory into
/// the window; row_bytes a multiple of 4, pointers aligned to 16 when it is one of 16.
struct StageParams {
  const void* from = nullptr;
  void* to = nullptr;
  const int64_t* rows = nullptr;
  int64_t row_bytes = 0;
};
cudaError_t launch_stage(const StageParams& params, const Launch& launch);

/// Loads the code of all kernels above. Otherwise the driver loads a kernel at its first launch, which may
/// wait for kernels that run: of a rank that waits for this one, if they share the GPU.
cudaError_t load_kernels();

/// What the compiler and the driver say about a kernel.
struct KernelReport {
  const char* name = "";
  int32_t registers = 0;
  int64_t local_bytes = 0;  // per thread: spills and stack
  int32_t threads = 0;
};
cudaError_t report_kernels(KernelReport (&out)[5]);

}  // namespace plumb::kernels

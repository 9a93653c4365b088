// Barrier of a scale-up domain and the copy of rows into the window; both small enough for one file.
// Barrier: one block, a lane per peer: signal, then wait. Stage: copies a device-side number of rows.
#include "kernels/launch.h"
#include "kernels/policy.cuh"

namespace plumb::kernels {
namespace {

constexpr int32_t kBarrierThreads = 128;
constexpr int32_t kStageThreads = 512;
static_assert(kBarrierThreads >= kMaxRanks);

template <class Policy>
__global__ void __launch_bounds__(Policy::config.threads, 1)
    barrier(const __grid_constant__ Batch<BarrierParams> batch) {
  const Context& c = batch.ranks[blockIdx.y].context;
  ptx::grid_dependency_wait();
  const uint64_t call = c.state->barriers + 1;
  const int32_t peer = static_cast<int32_t>(threadIdx.x);
  __syncthreads();
  if (peer < c.ranks) {
    signal(c, peer, c.map.barrier, call);
    // A peer may be in the next barrier already.
    wait_until<Policy::config.counted>(c, {Step::barrier, peer, call, 0, 0},
                                       at_peer<uint64_t>(c, c.rank, c.map.barrier) + peer,
                                       [&](uint64_t seen) { return seen >= call; });
  }
  __syncthreads();
  if (threadIdx.x == 0) c.state->barriers = call;
}

/// Unit: what one thread moves at once.
template <class Unit>
__global__ void __launch_bounds__(kStageThreads) stage(StageParams p) {
  const int64_t pieces = *p.rows * (p.row_bytes / static_cast<int64_t>(sizeof(Unit)));
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  constexpr int32_t kAtOnce = 4;
  const Unit* from = static_cast<const Unit*>(p.from);
  Unit* to = static_cast<Unit*>(p.to);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pieces; i += kAtOnce * step) {
    Unit v[kAtOnce];
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j)
      if (i + j * step < pieces) v[j] = from[i + j * step];
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j)
      if (i + j * step < pieces) to[i + j * step] = v[j];
  }
}

}  // namespace

cudaError_t launch_barrier(std::span<const BarrierParams> ranks, const Launch& launch) {
  Launch one = launch;
  one.sms = 1;
  return launch_policy(launch.counted ? barrier<Counted<kBarrierThreads>> : barrier<Fast<kBarrierThreads>>,
                       ranks, one, kBarrierThreads, 0);
}

cudaError_t launch_stage(const StageParams& params, const Launch& launch) {
  const auto kernel = params.row_bytes % 16 == 0 ? stage<uint4> : stage<uint32_t>;
  kernel<<<static_cast<uint32_t>(launch.sms), kStageThreads, 0, launch.stream>>>(params);
  return cudaGetLastError();
}

cudaError_t load_dispatch();
cudaError_t load_combine();

cudaError_t load_kernels() {
  cudaFuncAttributes attributes;
  for (const cudaError_t error :
       {load_dispatch(), load_combine(), cudaFuncGetAttributes(&attributes, barrier<Fast<kBarrierThreads>>),
        cudaFuncGetAttributes(&attributes, barrier<Counted<kBarrierThreads>>),
        cudaFuncGetAttributes(&attributes, stage<uint4>),
        cudaFuncGetAttributes(&attributes, stage<uint32_t>)})
    if (error != cudaSuccess) return error;
  return cudaSuccess;
}

cudaError_t report_dispatch(KernelReport& fast, KernelReport& counted);
cudaError_t report_combine(KernelReport& fast, KernelReport& counted);

cudaError_t report_kernels(KernelReport (&out)[5]) {
  for (const cudaError_t error : {report_dispatch(out[0], out[1]), report_combine(out[2], out[3]),
                                  report_kernel(barrier<Fast<kBarrierThreads>>, "barrier", out[4])})
    if (error != cudaSuccess) return error;
  return cudaSuccess;
}

}  // namespace plumb::kernels

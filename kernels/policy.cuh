// What every kernel shares: the policies it is compiled for, ledger and stamps, entry of a call, launch.
#pragma once

#include <cuda_runtime.h>

#include "kernels/launch.h"
#include "kernels/transport.cuh"

namespace plumb::kernels {

struct Config {
  int32_t threads = 1024;
  bool counted = false;  // device ledger and phase stamps
};
template <int32_t kThreads>
struct Fast {
  static constexpr Config config{.threads = kThreads, .counted = false};
};
template <int32_t kThreads>
struct Counted {
  static constexpr Config config{.threads = kThreads, .counted = true};
};

/// Adds to the device ledger; any thread.
__device__ __forceinline__ void count(const Context& c, Step step, int32_t peer, int64_t messages,
                                      int64_t bytes) {
  const int32_t i = static_cast<int32_t>(step);
  atomicAdd(reinterpret_cast<unsigned long long*>(&c.counters->messages[i][peer]),
            static_cast<unsigned long long>(messages));
  atomicAdd(reinterpret_cast<unsigned long long*>(&c.counters->bytes[i][peer]),
            static_cast<unsigned long long>(bytes));
}

/// Phase borders of the rank, as its first block sees them.
__device__ __forceinline__ void stamp_begin(const Context& c, Step step) {
  if (blockIdx.x == 0 && threadIdx.x == 0)
    c.counters->begin_ns[static_cast<int32_t>(step)] = ptx::global_timer();
}
__device__ __forceinline__ void stamp_end(const Context& c, Step step) {
  if (blockIdx.x == 0 && threadIdx.x == 0)
    c.counters->end_ns[static_cast<int32_t>(step)] = ptx::global_timer();
}

/// Tells all peers that this rank is inside a call and waits until all are: their memory may then be written
/// or read. `number`: of the handle's dispatch, on which all must agree. False when a peer did not come or
/// disagrees. Block 0 signals when `signals`; every block waits.
template <bool kCounted>
__device__ bool enter(const Context& c, Step step, int64_t offset, const Call& call, uint32_t number,
                      bool signals = true) {
  bool agrees = true;
  if (threadIdx.x < 32) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = lane; signals && blockIdx.x == 0 && i < c.ranks; i += 32)
      signal(c, peer_at_step(c.rank, i, c.ranks), offset, call.word(number));
    for (int32_t peer = lane; peer < c.ranks; peer += 32) {
      const Awaited what{step, peer, call.number, call.options, 40};
      const uint64_t* word = at_peer<uint64_t>(c, c.rank, offset) + peer;
      const auto is_there = [&](uint64_t seen) { return is_of(seen, call); };
      const uint64_t seen = blockIdx.x == 0 ? wait_until<kCounted>(c, what, word, is_there)
                                            : wait_until<false>(c, what, word, is_there);
      if (seen == call.word(number)) continue;
      agrees = false;
      if (seen != 0)
        report(c, FaultKind::wrong_handle, step, peer, number, static_cast<uint32_t>(seen), kNone);
    }
  }
  return __syncthreads_or(agrees ? 0 : 1) == 0;
}

/// Launches one kernel for a batch of ranks. In: what the caller has; Params: what the kernel takes. Its
/// blocks may start while the kernel before in the stream ends; it calls grid_dependency_wait() before it
/// touches memory.
template <class Params, int32_t kCapacity, class In>
cudaError_t launch_policy(void (*kernel)(Batch<Params, kCapacity>), std::span<const In> ranks,
                          const Launch& launch, int32_t threads, int64_t shared_bytes) {
  Batch<Params, kCapacity> batch;
  if (ranks.empty() || ranks.size() > kCapacity) return cudaErrorInvalidValue;
  for (size_t i = 0; i < ranks.size(); ++i) batch.ranks[i] = Params{ranks[i]};
  const cudaError_t raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(shared_bytes));
  if (raised != cudaSuccess) return raised;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(launch.sms), static_cast<uint32_t>(ranks.size()));
  config.blockDim = dim3(static_cast<uint32_t>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, batch);
}

template <class Params, int32_t kCapacity>
cudaError_t report_kernel(void (*kernel)(Batch<Params, kCapacity>), const char* name, KernelReport& out) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess)
    out = {name, attributes.numRegs, static_cast<int64_t>(attributes.localSizeBytes),
           attributes.maxThreadsPerBlock};
  return error;
}

}  // namespace plumb::kernels

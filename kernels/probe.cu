// Kernels that measure a machine. Movers: one block per SM (its shared memory allows no second one), work
// dealt out in turn. Flags: release stores into the other GPU's words, acquire loads of the own ones; the
// matching side is the same kernel on the other GPU. Every wait ends after a time-out.
#include "kernels/probe.h"
#include "kernels/ptx.cuh"

namespace plumb::kernels {
namespace {

constexpr int32_t kMoveThreads = 1024;
constexpr int32_t kAtOnce = 8;            // 16-byte accesses in flight of a thread
constexpr int32_t kOnePerSm = 120 << 10;  // bytes of shared memory of which an SM has no two
constexpr int32_t kBulkShared = 222 << 10;
constexpr int32_t kBulkWarps = 30;
constexpr uint32_t kPollsPerClock = 64;
constexpr int32_t kWideBlocks = 1024, kWideThreads = 256;

__device__ __forceinline__ uint4 seeded(uint64_t piece, uint32_t seed) {
  const uint64_t i = piece * 4;
  return {probe_word(i, seed), probe_word(i + 1, seed), probe_word(i + 2, seed), probe_word(i + 3, seed)};
}

template <bool kReads, bool kWrites>
__global__ void __launch_bounds__(kMoveThreads, 1) move(MoveParams p) {
  const int64_t pieces = p.bytes / 16;
  constexpr int64_t kStep = int64_t{kMoveThreads} * kAtOnce;
  const uint4* from = static_cast<const uint4*>(p.from);
  uint4* to = static_cast<uint4*>(p.to);
  uint32_t sum = 0;
  for (int64_t base = blockIdx.x * kStep; base < pieces; base += gridDim.x * kStep) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j) {
      const int64_t i = base + j * kMoveThreads + threadIdx.x;
      v[j] = kReads ? ptx::load_once(from + i) : seeded(static_cast<uint64_t>(i), p.seed);
    }
#pragma unroll
    for (int32_t j = 0; j < kAtOnce; ++j) {
      if constexpr (kWrites)
        ptx::store_once(to + base + j * kMoveThreads + threadIdx.x, v[j]);
      else
        sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
  }
  if (!kWrites && sum == p.seed) *p.sink = sum;
}

/// A row per warp at a time; lane 0 issues. Stores alone send the row that fill wrote into shared memory.
template <bool kReads, bool kWrites>
__global__ void __launch_bounds__(kBulkWarps * 32, 1) move_bulk(MoveParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t loaded[kBulkWarps];
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), warps = static_cast<int32_t>(blockDim.x / 32);
  char* slot = shared + int64_t{warp} * p.row_bytes;
  if (threadIdx.x == 0) {
    for (int32_t w = 0; w < warps; ++w) ptx::mbarrier_init(&loaded[w], 1);
    ptx::fence_mbarrier_init();
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < p.row_bytes / 4; i += 32)
    reinterpret_cast<uint32_t*>(slot)[i] = probe_word(static_cast<uint64_t>(i), p.seed);
  ptx::fence_async_proxy();
  __syncthreads();
  if (threadIdx.x % 32 != 0) return;
  const int64_t rows = p.bytes / p.row_bytes;
  const auto size = static_cast<uint32_t>(p.row_bytes);
  uint32_t parity = 0;
  for (int64_t row = int64_t{blockIdx.x} * warps + warp; row < rows; row += int64_t{gridDim.x} * warps) {
    if constexpr (kReads) {
      ptx::mbarrier_expect(&loaded[warp], size);
      ptx::bulk_load(slot, static_cast<const char*>(p.from) + row * p.row_bytes, size, &loaded[warp]);
      while (!ptx::mbarrier_try_wait(&loaded[warp], parity)) {
      }
      parity ^= 1;
    }
    if constexpr (kWrites) {
      ptx::bulk_store(static_cast<char*>(p.to) + row * p.row_bytes, slot, size);
      ptx::bulk_commit();
      ptx::bulk_wait_read();
    }
  }
  ptx::bulk_wait();
}

__global__ void gate(const uint64_t* go, int64_t timeout_ns) {
  const uint64_t begin = ptx::global_timer();
  while (ptx::load_acquire_sys(go) == 0 && static_cast<int64_t>(ptx::global_timer() - begin) < timeout_ns) {
  }
}

__global__ void fill(uint32_t* words, int64_t count, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    words[i] = probe_word(static_cast<uint64_t>(i), seed);
}
__global__ void count_wrong(const uint32_t* words, int64_t count, uint32_t seed, uint64_t* wrong) {
  unsigned long long bad = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    bad += words[i] != probe_word(static_cast<uint64_t>(i), seed);
  if (bad != 0) atomicAdd(reinterpret_cast<unsigned long long*>(wrong), bad);
}

__global__ void chase(const uint32_t* words, int32_t hops, uint32_t* sink) {
  uint32_t at = 0;
  for (int32_t i = 0; i < hops; ++i) at = *static_cast<const volatile uint32_t*>(words + at);
  *sink = at;
}

/// Until an own word reaches `value`; false, and the record of who is missing, after the time-out.
__device__ bool wait_flag(const FlagParams& p, int32_t other, uint64_t value) {
  const uint64_t* word = p.flags[p.gpu] + other;
  const uint64_t begin = ptx::global_timer();
  for (uint32_t polls = 1; ptx::load_acquire_sys(word) < value; ++polls) {
    if (polls % kPollsPerClock != 0) continue;
    if (static_cast<int64_t>(ptx::global_timer() - begin) < p.timeout_ns) continue;
    *p.failed = static_cast<uint64_t>(other) + 1;
    return false;
  }
  return true;
}

__global__ void ping_pong(const __grid_constant__ FlagParams p) {
  const int32_t other = 1 - p.gpu;
  for (int32_t i = 1; i <= p.rounds; ++i) {
    const uint64_t value = p.done + static_cast<uint64_t>(i);
    if (p.gpu == 0) ptx::store_release_sys(p.flags[other] + p.gpu, value);
    if (!wait_flag(p, other, value)) return;
    if (p.gpu == 1) ptx::store_release_sys(p.flags[other] + p.gpu, value);
  }
}

__global__ void flag_barrier(const __grid_constant__ FlagParams p) {
  __shared__ bool is_late;
  const int32_t other = static_cast<int32_t>(threadIdx.x);
  if (threadIdx.x == 0) is_late = false;
  for (int32_t i = 1; i <= p.rounds; ++i) {
    __syncthreads();
    if (is_late) return;
    const uint64_t value = p.done + static_cast<uint64_t>(i);
    if (other < p.gpus && other != p.gpu) {
      ptx::store_release_sys(p.flags[other] + p.gpu, value);
      if (!wait_flag(p, other, value)) is_late = true;
    }
  }
}

__global__ void empty() {}

using MoveKernel = void (*)(MoveParams);
constexpr MoveKernel kKernels[kMovers] = {move<true, false>,      move<false, true>,
                                          move<true, true>,       move_bulk<true, false>,
                                          move_bulk<false, true>, move_bulk<true, true>};

int32_t bulk_warps(int32_t row_bytes) {
  return kBulkShared / row_bytes < kBulkWarps ? kBulkShared / row_bytes : kBulkWarps;
}

}  // namespace

int64_t move_grain(Mover mover, int32_t row_bytes) {
  return is_bulk(mover) ? row_bytes : int64_t{kMoveThreads} * kAtOnce * 16;
}

cudaError_t prepare_probe() {
  for (int32_t i = 0; i < kMovers; ++i)
    if (const cudaError_t error =
            cudaFuncSetAttribute(kKernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 is_bulk(static_cast<Mover>(i)) ? kBulkShared : kOnePerSm);
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

cudaError_t launch_move(Mover mover, const MoveParams& params, int32_t sms, cudaStream_t stream) {
  if (sms < 1 || params.bytes % move_grain(mover, params.row_bytes) != 0) return cudaErrorInvalidValue;
  if (is_bulk(mover) && (params.row_bytes % 16 != 0 || params.row_bytes > 48 << 10))
    return cudaErrorInvalidValue;
  const int32_t warps = is_bulk(mover) ? bulk_warps(params.row_bytes) : kMoveThreads / 32;
  // A bulk block also takes what lets no second one onto its SM.
  const int32_t shared =
      is_bulk(mover) && warps * params.row_bytes > kOnePerSm ? warps * params.row_bytes : kOnePerSm;
  kKernels[static_cast<int32_t>(mover)]<<<static_cast<uint32_t>(sms), static_cast<uint32_t>(warps * 32),
                                          static_cast<size_t>(shared), stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_gate(const uint64_t* go, int64_t timeout_ns, cudaStream_t stream) {
  gate<<<1, 1, 0, stream>>>(go, timeout_ns);
  return cudaGetLastError();
}
cudaError_t launch_fill(uint32_t* words, int64_t count, uint32_t seed, cudaStream_t stream) {
  fill<<<kWideBlocks, kWideThreads, 0, stream>>>(words, count, seed);
  return cudaGetLastError();
}
cudaError_t launch_count_wrong(const uint32_t* words, int64_t count, uint32_t seed, uint64_t* wrong,
                               cudaStream_t stream) {
  count_wrong<<<kWideBlocks, kWideThreads, 0, stream>>>(words, count, seed, wrong);
  return cudaGetLastError();
}
cudaError_t launch_chase(const uint32_t* words, int32_t hops, uint32_t* sink, cudaStream_t stream) {
  chase<<<1, 1, 0, stream>>>(words, hops, sink);
  return cudaGetLastError();
}
cudaError_t launch_ping_pong(const FlagParams& params, cudaStream_t stream) {
  ping_pong<<<1, 1, 0, stream>>>(params);
  return cudaGetLastError();
}
cudaError_t launch_flag_barrier(const FlagParams& params, cudaStream_t stream) {
  flag_barrier<<<1, kMaxProbeGpus, 0, stream>>>(params);
  return cudaGetLastError();
}
cudaError_t launch_empty(cudaStream_t stream) {
  empty<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace plumb::kernels

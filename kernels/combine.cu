// Combine inside one scale-up domain: each source reads the rows of its tokens from the peers' windows and sums
// them in registers, so there is no receive area and no pass after it.
//
// Phases:
//   local     expand with multiple reduction only: a rank sums its rows of one token into one bf16 row
//   enter     a signal to and from every peer: its rows (or partial sums) are there; carries the number of the
//             handle's dispatch, so that a peer with another handle is named
//   up+reduce one warp per (token, part of the row): 16-byte loads of all rows, fp32 sum of biases, then rows in
//             ascending top-k position of their last member, one rounding
//   flush     the last block signals every peer that its rows have been read, and waits for all
// Warps: all sum. Shared memory: first slots and rows of this source, for pointers.
// Must match on all ranks: everything in CombineParams but tokens and pointers.
// Versions: 1 pull with register sums.
#include <cuda_bf16.h>

#include "kernels/launch.h"
#include "kernels/policy.cuh"
#include "model/schedule.h"

namespace plumb::kernels {
namespace {

constexpr int32_t kCombineThreads = 512;
constexpr int32_t kColumns = 2;      // 512-byte pieces of a row that a warp sums at once
constexpr int32_t kRowsAtOnce = 8;   // rows whose loads are in flight together
constexpr int32_t kPieceBytes = 512;  // 32 lanes of 16 bytes

struct Sum {
  float value[8] = {};
};

__device__ __forceinline__ void add(Sum& sum, const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    sum.value[2 * i] += __uint_as_float(words[i] << 16);
    sum.value[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ uint4 rounded(const Sum& sum) {
  uint32_t words[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum.value[2 * i], sum.value[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Rows that one warp adds up: lane l holds the address of its row, `rows` says which lanes have one.
struct Addends {
  const char* row = nullptr;
  uint32_t rows = 0;
  const char* bias[2] = {nullptr, nullptr};
};

/// Sums bytes [begin, end) of the rows; begin a multiple of 16.
__device__ __forceinline__ void sum_rows(const Addends& in, char* out, int32_t begin, int32_t end) {
  for (int32_t at = begin + lane_index() * 16; at - lane_index() * 16 < end; at += kColumns * kPieceBytes) {
    Sum sum[kColumns];
    bool exists[kColumns];
#pragma unroll
    for (int32_t i = 0; i < kColumns; ++i) exists[i] = at + i * kPieceBytes < end;
#pragma unroll
    for (int32_t b = 0; b < 2; ++b)
#pragma unroll
      for (int32_t i = 0; i < kColumns; ++i)
        if (in.bias[b] != nullptr && exists[i]) add(sum[i], ptx::load_once(in.bias[b] + at + i * kPieceBytes));
    uint32_t rest = in.rows;
    while (rest != 0) {
      uint4 v[kRowsAtOnce][kColumns];
      const int32_t count = __popc(rest);
#pragma unroll
      for (int32_t j = 0; j < kRowsAtOnce; ++j) {
        if (j >= count) continue;
        const char* row = reinterpret_cast<const char*>(
            __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(in.row), __ffs(static_cast<int32_t>(rest)) - 1));
        rest &= rest - 1;
#pragma unroll
        for (int32_t i = 0; i < kColumns; ++i)
          if (exists[i]) v[j][i] = ptx::load_once(row + at + i * kPieceBytes);
      }
#pragma unroll
      for (int32_t j = 0; j < kRowsAtOnce; ++j)
#pragma unroll
        for (int32_t i = 0; i < kColumns; ++i)
          if (j < count && exists[i]) add(sum[i], v[j][i]);
    }
#pragma unroll
    for (int32_t i = 0; i < kColumns; ++i)
      if (exists[i]) ptx::store_once(out + at + i * kPieceBytes, rounded(sum[i]));
  }
}

/// Bytes of the pieces of a row: a multiple of 512, so that parts begin aligned.
__device__ __forceinline__ int32_t part_bytes(const CombineParams& p) {
  return static_cast<int32_t>(round_up(ceil_div(p.row_bytes, p.parts), kPieceBytes));
}

__device__ __forceinline__ int32_t grid_warp() {
  return static_cast<int32_t>(worker_of_warp({static_cast<int32_t>(blockIdx.x), warp_index()},
                                             static_cast<int32_t>(gridDim.x)));
}
__device__ __forceinline__ int32_t grid_warps() { return static_cast<int32_t>(gridDim.x * blockDim.x / 32); }

/// Expand: one row per received copy, the sum of its selections' rows.
template <bool kCounted>
__device__ void sum_locally(const CombineParams& p) {
  const Context& c = p.context;
  char* own = c.peers[c.rank];
  const int32_t lane = lane_index();
  const int64_t copies = p.handle.counts[kNumCopies];
  int64_t rows_read = 0;
  int64_t rows_written = 0;
  for (int64_t copy = grid_warp(); copy < copies; copy += grid_warps()) {
    const int32_t row = lane < c.topk ? p.handle.links[copy * c.topk + lane] : kNone;
    Addends in;
    in.rows = __ballot_sync(kAllLanes, row >= 0);
    in.row = own + c.map.expert_out + int64_t{row} * p.row_bytes;
    sum_rows(in, own + c.map.partial + copy * p.row_bytes, 0, p.row_bytes);
    rows_read += __popc(in.rows);
    ++rows_written;
  }
  if constexpr (kCounted)
    if (lane == 0) count(c, Step::combine_local, c.rank, rows_written, rows_read * p.record_bytes);
}

struct CombineShared {
  int32_t* slot_begin;  // [ranks]
  int32_t* row_begin;   // [experts], expand
};

/// Sums one part of one token, and carries its weights home with the first part.
template <bool kCounted>
__device__ __forceinline__ void sum_token(const CombineParams& p, const CombineShared& s, int32_t token,
                                          int32_t part) {
  const Context& c = p.context;
  const int32_t lane = lane_index();
  const int64_t index = int64_t{token} * c.topk + lane;
  const bool takes_all = p.expand && !p.multiple_reduction;
  int32_t id = kNone;
  if (lane < c.topk) id = p.handle.ids[index];
  const int32_t rank = id < 0 ? kNone : id / c.local_experts;
  const uint32_t same_rank = __match_any_sync(kAllLanes, rank);
  const bool has_row = rank >= 0 && (takes_all || lane == 31 - __clz(static_cast<int32_t>(same_rank)));
  int64_t slot = 0;
  int64_t row = 0;
  if (rank >= 0) {
    slot = p.handle.slots[index] + s.slot_begin[rank];
    if (p.expand) row = p.handle.rows[index] + s.row_begin[id];
  }
  Addends in;
  in.rows = __ballot_sync(kAllLanes, has_row);
  if (has_row) {
    const int64_t area = p.expand && p.multiple_reduction ? c.map.partial : c.map.expert_out;
    in.row = c.peers[rank] + area + (takes_all ? row : slot) * p.row_bytes;
  }
  const int64_t own_row = int64_t{token} * p.row_bytes;
#pragma unroll
  for (int32_t b = 0; b < 2; ++b)
    if (p.bias[b] != nullptr) in.bias[b] = static_cast<const char*>(p.bias[b]) + own_row;
  const int32_t bytes = part_bytes(p);
  const int32_t begin = part * bytes;
  const int32_t end = begin + bytes < p.row_bytes ? begin + bytes : p.row_bytes;
  sum_rows(in, static_cast<char*>(p.out) + own_row, begin, end);
  if (part != 0) return;
  if (p.out_weights != nullptr && lane < c.topk) {
    float weight = 0.0f;
    if (rank >= 0) {
      const float* weights = reinterpret_cast<const float*>(c.peers[rank] + c.map.expert_weights);
      weight = p.expand ? weights[row] : weights[slot * c.topk + lane];
    }
    p.out_weights[index] = weight;
  }
  if constexpr (kCounted) {
    const int32_t biases = (p.bias[0] != nullptr ? 1 : 0) + (p.bias[1] != nullptr ? 1 : 0);
    if (has_row) count(c, Step::combine_up, rank, rank == c.rank ? 0 : 1, p.record_bytes);
    if (lane == 0) count(c, Step::combine_reduce, c.rank, 1, (__popc(in.rows) + biases) * p.record_bytes);
  }
}

template <bool kCounted>
__device__ void sum_tokens(const CombineParams& p, const CombineShared& s) {
  const Context& c = p.context;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x))
    s.slot_begin[i] = p.handle.slot_begin[i];
  for (int32_t i = static_cast<int32_t>(threadIdx.x); p.expand && i < c.experts; i += static_cast<int32_t>(blockDim.x))
    s.row_begin[i] = p.handle.row_begin[i];
  __syncthreads();
  const int64_t items = int64_t{p.tokens} * p.parts;
  for (int64_t item = grid_warp(); item < items; item += grid_warps())
    sum_token<kCounted>(p, s, static_cast<int32_t>(item / p.parts), static_cast<int32_t>(item % p.parts));
}

/// The signal to the peers, after the local sums of all blocks, and the wait for theirs.
template <bool kCounted>
__device__ bool enter_combine(const CombineParams& p, uint64_t call) {
  const Context& c = p.context;
  const uint64_t value = tagged(call, static_cast<uint32_t>(p.handle.counts[kDispatchNumber]));
  if (!p.expand || !p.multiple_reduction)
    return enter<kCounted>(c, Step::combine_enter, c.map.combine_ready, value);
  if (is_last_block(&c.state->locals_done)) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x))
      signal(c, peer_at_step(c.rank, i, c.ranks), c.map.combine_ready, value);
    if (threadIdx.x == 0) c.state->locals_done = 0;
  }
  return enter<kCounted>(c, Step::combine_enter, c.map.combine_ready, value, false);
}

template <class Policy>
__global__ void __launch_bounds__(Policy::config.threads)
    combine(const __grid_constant__ Batch<CombineParams> batch) {
  constexpr bool kCounted = Policy::config.counted;
  extern __shared__ __align__(16) int32_t words[];
  const CombineParams& p = batch.ranks[blockIdx.y];
  const Context& c = p.context;
  const CombineShared s{words, words + c.ranks};
  const uint64_t call = c.state->combines + 1;

  if (p.expand && p.multiple_reduction) {
    if constexpr (kCounted) stamp_begin(c, Step::combine_local);
    sum_locally<kCounted>(p);
    if constexpr (kCounted) stamp_end(c, Step::combine_local);
  }
  if constexpr (kCounted) stamp_begin(c, Step::combine_enter);
  const bool may_read = enter_combine<kCounted>(p, call);
  if constexpr (kCounted) {
    stamp_end(c, Step::combine_enter);
    stamp_begin(c, Step::combine_reduce);
  }
  if (may_read) sum_tokens<kCounted>(p, s);
  if constexpr (kCounted) {
    __syncthreads();
    stamp_end(c, Step::combine_reduce);
  }
  if (!is_last_block(&c.state->blocks_done)) return;
  if constexpr (kCounted) stamp_begin(c, Step::combine_flush);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x)) {
    signal(c, peer_at_step(c.rank, i, c.ranks), c.map.combine_done, call);
    wait_for<kCounted>(c, Step::combine_flush, i, c.map.combine_done, call);
  }
  if (threadIdx.x == 0) {
    c.state->blocks_done = 0;
    c.state->combines = call;
  }
  if constexpr (kCounted) {
    __syncthreads();
    stamp_end(c, Step::combine_flush);
  }
}

}  // namespace

cudaError_t launch_combine(std::span<const CombineParams> ranks, const Launch& launch) {
  const Context& c = ranks.front().context;
  const int64_t shared_bytes = 4 * (int64_t{c.ranks} + (ranks.front().expand ? c.experts : 0));
  return launch_policy(launch.counted ? combine<Counted<kCombineThreads>> : combine<Fast<kCombineThreads>>, ranks,
                       launch, kCombineThreads, shared_bytes);
}

cudaError_t report_combine(KernelReport& fast, KernelReport& counted) {
  const cudaError_t first = report_kernel(combine<Fast<kCombineThreads>>, "combine", fast);
  return first != cudaSuccess ? first
                              : report_kernel(combine<Counted<kCombineThreads>>, "combine counted", counted);
}

}  // namespace plumb::kernels

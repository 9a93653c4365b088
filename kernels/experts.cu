// The experts' function on received rows: a warp takes a row. For checks, not for speed: it is never timed.
// Host counterpart: run_expert (model/host_payload.cc); bytes must be equal.
#include "kernels/experts.h"
#include "kernels/numbers.cuh"
#include "kernels/params.h"
#include "kernels/transport.cuh"

namespace plumb::kernels {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kBlocks = 256;  // of any number, since rows are strided

__device__ __forceinline__ float decoded(const ExpertParams& p, int64_t row, int32_t element) {
  const int64_t index = row * p.hidden + element;
  if (!p.is_fp8) return bf16_value(reinterpret_cast<const uint16_t*>(p.x)[index]);
  const float code = e4m3_value(reinterpret_cast<const unsigned char*>(p.x)[index]);
  const uint32_t* packs = p.scales + row * p.scale_packs;
  const int32_t block = element / p.scale_block;
  const float scale = p.has_ue8m0_scales ? ue8m0_value(reinterpret_cast<const unsigned char*>(packs)[block])
                                         : __uint_as_float(packs[block]);
  return __fmul_rn(code, scale);
}

/// The local expert of an expanded row, kNone for a row of a gap. Words behind the prefix of ranks: rows,
/// aligned rows, and place behind the last real row of each group.
__device__ __forceinline__ int32_t expert_of(const ExpertParams& p, int64_t row) {
  const int64_t* rows = p.counts + kFirstCount + p.ranks;
  const int64_t* end = rows + 2 * p.local_experts;
  for (int32_t e = 0; e < p.local_experts; ++e)
    if (row >= end[e] - rows[e] && row < end[e]) return e;
  return kNone;
}

__global__ void __launch_bounds__(kThreads) run_experts(const __grid_constant__ ExpertParams p) {
  const int32_t warps = static_cast<int32_t>(gridDim.x * (kThreads / 32));
  const int64_t rows = p.counts[kNumRows];
  const int32_t k = lane_index();
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + warp_index(); row < rows;
       row += warps) {
    int32_t id = kNone;
    float weight = 0.0f;
    if (p.ids == nullptr) {
      const int32_t expert = expert_of(p, row);
      if (expert == kNone) continue;  // the whole warp
      if (k == 0) id = expert, weight = p.weights[row];
    } else if (k < p.topk) {
      id = p.ids[row * p.topk + k];
      if (id >= 0) weight = p.weights[row * p.topk + k];
    }
    const float factor =
        p.kind == ExpertKind::scaled ? static_cast<float>(p.rank * p.local_experts + id + 1) : weight;
    const bool is_identity = p.kind == ExpertKind::identity;
    const uint32_t chosen = is_identity ? 0u : __ballot_sync(kAllLanes, id >= 0);
    uint16_t* out = static_cast<uint16_t*>(p.out) + row * p.hidden;
    for (int32_t first = 0; first < p.hidden; first += 32) {
      const int32_t e = first + k;
      const float x = e < p.hidden ? decoded(p, row, e) : 0.0f;
      float y = is_identity ? x : 0.0f;
      for (uint32_t rest = chosen; rest != 0; rest &= rest - 1) {
        const float one = __shfl_sync(kAllLanes, factor, __ffs(static_cast<int32_t>(rest)) - 1);
        y = __fadd_rn(y, __fmul_rn(one, x));
      }
      if (e < p.hidden) out[e] = bf16_code(y);
    }
  }
}

}  // namespace

cudaError_t launch_experts(const ExpertParams& params, cudaStream_t stream) {
  run_experts<<<kBlocks, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace plumb::kernels

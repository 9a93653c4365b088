// Counts with one hop instead of two (plain layout, few ranks and blocks): every block writes how many rows
// it has for each rank into all windows, so that any block can sum up where its rows go. Counts of experts,
// which only the handle needs, follow from the block that is counted last. Device only.
#pragma once

#include "kernels/dispatch_plan.cuh"

namespace plumb::kernels {

constexpr int32_t kTotalsAtOnce = 5;  // loads of a lane under way

/// Adds the block's counts to those of the rank. The block that comes last sends these to all ranks and
/// clears them. One warp, after a barrier of the block.
static __device__ void send_totals(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  const int32_t bins = c.ranks + c.experts;
  for (int32_t bin = lane_index(); bin < bins; bin += 32)
    if (s.own[bin] != 0) atomicAdd(&c.totals[bin], static_cast<uint32_t>(s.own[bin]));
  __syncwarp();
  const uint32_t before = lane_index() == 0 ? ptx::add_release_gpu(&c.totals[bins], 1) : 0;
  if (__shfl_sync(kAllLanes, before, 0) + 1 != gridDim.x) return;
  ptx::fence_gpu();  // acquires what the other blocks added
  const int32_t words_per_rank = 1 + c.local_experts;
  const int32_t words = c.ranks * words_per_rank;
  for (int32_t first = lane_index(); first < words; first += 32 * kTotalsAtOnce) {
    uint32_t counts[kTotalsAtOnce];
#pragma unroll
    for (int32_t k = 0; k < kTotalsAtOnce; ++k) {
      const int32_t dst = (first + 32 * k) / words_per_rank;
      const int32_t local = first + 32 * k - dst * words_per_rank - 1;
      const int32_t bin = local < 0 ? dst : c.ranks + dst * c.local_experts + local;
      counts[k] = first + 32 * k < words ? atomicExch(&c.totals[bin], 0) : 0;
    }
#pragma unroll
    for (int32_t k = 0; k < kTotalsAtOnce; ++k)
      for (int32_t step = 0; step < c.ranks && first + 32 * k < words; ++step)
        ptx::store_relaxed_sys(
            count_words(c, peer_at_step(c.rank, step, c.ranks), call, c.rank) + first + 32 * k,
            call.word(counts[k]));
  }
  if (lane_index() == 0) c.totals[bins] = 0;
}

constexpr int32_t kDirectAtOnce = 2;  // polls of a thread under way

/// Waits for the counts of all blocks of all ranks; first slots of this block everywhere. False as place().
static __device__ bool place_directly(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  const int32_t words = c.ranks * c.ranks * blocks;
  bool is_known = true;
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < words; first += kDirectAtOnce * threads) {
    const auto worker_at = [&](int32_t k) {
      return (first + k * threads) / c.ranks;
    };  // src * blocks + block
    uint32_t counts[kDirectAtOnce];
    const auto word_at = [&](int32_t k) -> const uint64_t* {
      const int32_t src = worker_at(k) / blocks;
      const int32_t dst = first + k * threads - worker_at(k) * c.ranks;
      return first + k * threads < words
                 ? direct_words(c, c.rank, call, src, worker_at(k) - src * blocks) + dst
                 : nullptr;
    };
    is_known &= wait_counts(
        c, word_at, [&](int32_t k) { return worker_at(k) / blocks; }, Step::counts, call, counts);
#pragma unroll
    for (int32_t k = 0; k < kDirectAtOnce; ++k) {
      if (first + k * threads >= words || counts[k] == 0) continue;
      const int32_t dst = first + k * threads - worker_at(k) * c.ranks;
      const int32_t block = worker_at(k) - c.rank * blocks;  // of this rank: 0 .. blocks - 1
      const auto count = static_cast<int32_t>(counts[k]);
      atomicAdd(&s.copies[dst], count);
      if (block < 0) atomicAdd(&s.base[dst], count);
      if (block >= 0 && block < static_cast<int32_t>(blockIdx.x)) atomicAdd(&s.before[dst], count);
    }
  }
  if (__syncthreads_or(is_known ? 0 : 1) != 0) return false;
  return fits_everywhere(p, s, s.copies);
}

}  // namespace plumb::kernels

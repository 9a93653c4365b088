// Counts of a dispatch, from the words that all ranks sent, into the handle, to the host and to the running
// totals. Device only.
#pragma once

#include "kernels/dispatch_plan.cuh"

namespace plumb::kernels {

/// Inclusive sum over the lanes.
__device__ __forceinline__ int64_t warp_sum_up(int64_t value) {
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const int64_t below = __shfl_up_sync(kAllLanes, value, step);
    if (lane_index() >= step) value += below;
  }
  return value;
}

constexpr int32_t kExpertsAtOnce = 4;  // of a lane

/// Rows of experts local, local + 32, ... of this rank from all sources. The loads are all under way at once;
/// they are repeated until all words are of this call.
static __device__ void load_expert_counts(const auto& p, const Call& call, int32_t local,
                                          int64_t (&counts)[kExpertsAtOnce]) {
  const Context& c = p.context;
  const uint64_t begin_ns = ptx::global_timer();
  for (uint32_t polls = 1;; ++polls) {
    int32_t missing = kNone;
#pragma unroll
    for (int64_t& count : counts) count = 0;
#pragma unroll 2
    for (int32_t src = 0; src < c.ranks; ++src) {
      const uint64_t* words = count_words(c, c.rank, call, src) + c.rank * (1 + c.local_experts) + 1 + local;
#pragma unroll
      for (int32_t i = 0; i < kExpertsAtOnce; ++i) {
        if (local + 32 * i >= c.local_experts) continue;
        const uint64_t word = ptx::load_relaxed_sys(words + 32 * i);
        counts[i] += static_cast<uint32_t>(word);
        if (!is_of(word, call)) missing = src;
      }
    }
    if (missing == kNone) return;
    if (polls % kPollsPerClock == 0 &&
        gives_up(c, Step::counts, missing, begin_ns, call.number, call.options, 0))
      return;
  }
}

/// One warp writes the counts into the handle and, if asked, to the host and the running totals. Requires
/// that place() succeeded; waits for the words that it did not need.
static __device__ void publish_counts(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  const int32_t lane = lane_index();
  const int32_t words_per_rank = 1 + c.local_experts;
  int64_t* out = p.handle.counts;
  const auto put = [&](int32_t i, int64_t value) {
    out[i] = value;
    if (p.host_counts != nullptr) p.host_counts[i] = value;
  };
  int64_t copies = 0;
  for (int32_t first = 0; first < c.ranks; first += 32) {
    const int32_t src = first + lane;
    const int64_t count = src < c.ranks
                              ? wait_count(c, count_words(c, c.rank, call, src) + c.rank * words_per_rank,
                                           Step::counts, src, call)
                              : 0;
    const int64_t sum = copies + warp_sum_up(count);
    if (src < c.ranks) {
      put(kFirstCount + src, sum);
      p.handle.slot_begin[src] = s.base[src];
      p.handle.sent[src] = static_cast<int32_t>(wait_count(
          c, count_words(c, c.rank, call, c.rank) + src * words_per_rank, Step::counts, c.rank, call));
    }
    copies = __shfl_sync(kAllLanes, sum, 31);
  }
  int64_t rows = 0;
  int64_t counts[kExpertsAtOnce] = {};
  for (int32_t first = 0; first < c.local_experts; first += 32) {
    const int32_t local = first + lane;
    const int32_t turn = first / 32 % kExpertsAtOnce;
    if (turn == 0) load_expert_counts(p, call, local, counts);
    int64_t count = counts[0];
#pragma unroll
    for (int32_t i = 1; i < kExpertsAtOnce; ++i)
      if (i == turn) count = counts[i];
    const int64_t aligned = round_up(count, p.alignment);
    const int64_t sum = rows + warp_sum_up(aligned);
    if (local < c.local_experts) {
      const int32_t at = kFirstCount + c.ranks + local;
      put(at, count);
      put(at + c.local_experts, aligned);
      put(at + 2 * c.local_experts, p.expand ? sum - aligned + count : sum);
      if (p.expert_totals != nullptr) p.expert_totals[local] += static_cast<int32_t>(count);
    }
    rows = __shfl_sync(kAllLanes, sum, 31);
  }
  for (int32_t e = lane; p.expand && e < c.experts; e += 32) p.handle.row_begin[e] = s.group_base[e];
  if (lane == 0) {
    put(kNumCopies, copies);
    put(kNumRows, p.expand ? rows : copies);
    out[kDispatchNumber] = static_cast<int64_t>(call.number);
  }
  if (p.host_counts == nullptr) return;
  __threadfence_system();
  __syncwarp();
  // Matching side: read_counts() on the host.
  if (lane == 0)
    ptx::store_release_sys(reinterpret_cast<uint64_t*>(p.host_counts + kDispatchNumber), call.number);
}

}  // namespace plumb::kernels

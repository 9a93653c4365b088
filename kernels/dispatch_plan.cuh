// First half of dispatch: who gets how many rows, and where each row goes. Counting, exchange of counts,
// numbering of slots, first rows. All loops run over the whole block unless a function says otherwise.
// Device only.
#pragma once

#include "kernels/shared_map.h"
#include "kernels/transport.cuh"
#include "model/schedule.h"

namespace plumb::kernels {

/// Pointers into a block's shared memory and what its threads agree on.
struct DispatchShared {
  char* stages;
  uint64_t* barriers;
  int32_t* running;
  int32_t* histogram;
  int32_t* base;
  int32_t* copies;
  int32_t* group_base;
  int32_t* group_total;
  uint32_t* sent;
  int32_t stage_bytes;
  int32_t bins;
};

__device__ __forceinline__ DispatchShared dispatch_shared(const DispatchParams& p, char* memory) {
  const DispatchBlock block{p.context.ranks, p.context.experts, p.row_bytes, p.stages, p.plan_warps, p.expand};
  const DispatchMap map = dispatch_map(block);
  const auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(memory + offset); };
  return {memory,
          reinterpret_cast<uint64_t*>(memory + map.barriers),
          ints(map.running),
          ints(map.histogram),
          ints(map.base),
          ints(map.copies),
          ints(map.group_base),
          ints(map.group_total),
          reinterpret_cast<uint32_t*>(memory + map.sent),
          static_cast<int32_t>(map.stage_bytes),
          block.bins()};
}

/// The global expert id of a selection; kNone for any negative number and for one out of range.
__device__ __forceinline__ int32_t expert_id(const DispatchParams& p, int64_t index) {
  const int64_t id = p.id_bytes == 8 ? static_cast<const int64_t*>(p.ids)[index]
                                     : static_cast<const int32_t*>(p.ids)[index];
  return id >= 0 && id < p.context.experts ? static_cast<int32_t>(id) : kNone;
}

__device__ __forceinline__ uint64_t* count_words(const Context& c, int32_t at, uint64_t call, int32_t src) {
  const int64_t row = int64_t{c.ranks} * (1 + c.local_experts);
  return at_peer<uint64_t>(c, at, c.map.counts) + (static_cast<int64_t>(call % 2) * c.ranks + src) * row;
}

/// Adds the rows that tokens [first, last) send to each rank, and, if asked, to each expert.
static __device__ void count_tokens(const DispatchParams& p, int32_t first, int32_t last, int32_t* to_rank,
                             int32_t* to_expert) {
  const Context& c = p.context;
  constexpr int32_t kWords = kMaxRanks / 32;
  uint32_t sum[kWords] = {};  // lane l: rows to ranks l, 32 + l, ...
  for (int32_t chunk = first + warp_index() * 32; chunk < last; chunk += static_cast<int32_t>(blockDim.x)) {
    const int32_t token = chunk + lane_index();
    uint32_t mask[kWords] = {};
    for (int32_t k = 0; token < last && k < c.topk; ++k) {
      const int32_t id = expert_id(p, int64_t{token} * c.topk + k);
      if (id < 0) continue;
      if (to_expert != nullptr) atomicAdd(&to_expert[id], 1);
      const int32_t rank = id / c.local_experts;
#pragma unroll
      for (int32_t w = 0; w < kWords; ++w) mask[w] |= rank / 32 == w ? 1u << (rank % 32) : 0u;
    }
    __syncwarp();
#pragma unroll
    for (int32_t w = 0; w < kWords; ++w)
      for (int32_t bit = 0; bit < 32 && w * 32 + bit < c.ranks; ++bit) {
        const uint32_t count = __popc(__ballot_sync(kAllLanes, (mask[w] >> bit) & 1u));
        if (lane_index() == bit) sum[w] += count;
      }
  }
#pragma unroll
  for (int32_t w = 0; w < kWords; ++w)
    if (sum[w] != 0) atomicAdd(&to_rank[w * 32 + lane_index()], static_cast<int32_t>(sum[w]));
}

/// Reports ids out of range, which count as no choice; block 0 only.
static __device__ void check_ids(const DispatchParams& p) {
  const Context& c = p.context;
  for (int64_t i = threadIdx.x; i < int64_t{p.tokens} * c.topk; i += blockDim.x) {
    const int64_t id =
        p.id_bytes == 8 ? static_cast<const int64_t*>(p.ids)[i] : static_cast<const int32_t*>(p.ids)[i];
    if (id >= c.experts)
      report(c, FaultKind::bad_expert, Step::notify, c.rank, c.experts, id, static_cast<int32_t>(i / c.topk));
  }
}

/// Block 0 counts all tokens and sends the counts for all ranks to all ranks.
static __device__ void notify(const DispatchParams& p, const DispatchShared& s, uint64_t call) {
  const Context& c = p.context;
  int32_t* to_expert = s.running + c.ranks;
  check_ids(p);
  count_tokens(p, 0, p.tokens, s.running, to_expert);
  __syncthreads();
  const int32_t words_per_rank = 1 + c.local_experts;
  const int32_t words = c.ranks * words_per_rank;
  for (int32_t step = 0; step < c.ranks; ++step) {
    uint64_t* out = count_words(c, peer_at_step(c.rank, step, c.ranks), call, c.rank);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < words; i += static_cast<int32_t>(blockDim.x)) {
      const int32_t dst = i / words_per_rank;
      const int32_t local = i % words_per_rank - 1;
      const int32_t count = local < 0 ? s.running[dst] : to_expert[dst * c.local_experts + local];
      ptx::store_relaxed_sys(out + i, tagged(call, static_cast<uint32_t>(count)));
    }
  }
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks + c.experts; i += static_cast<int32_t>(blockDim.x))
    s.running[i] = 0;
  __syncthreads();
}

/// Numbers the rows of tokens [first, last) per destination, from zero; one warp. A row to a rank is numbered
/// by its last selection there.
static __device__ void number_tokens(const DispatchParams& p, int32_t first, int32_t last, int32_t* counter) {
  const Context& c = p.context;
  const int32_t lane = lane_index();
  for (int32_t token = first; token < last; ++token) {
    const int64_t index = int64_t{token} * c.topk + lane;
    const int32_t id = lane < c.topk ? expert_id(p, index) : kNone;
    const int32_t rank = id < 0 ? kNone : id / c.local_experts;
    const int32_t last_lane = 31 - __clz(static_cast<int32_t>(__match_any_sync(kAllLanes, rank)));
    const uint32_t same = __match_any_sync(kAllLanes, id < 0 ? -1 - lane : id);
    if (id >= 0 && (same & (same - 1)) != 0)
      report(c, FaultKind::repeated_expert, Step::dispatch, c.rank, 0, id, token);
    int32_t slot = 0;
    int32_t row = 0;
    if (rank >= 0 && lane == last_lane) slot = counter[rank]++;
    if (p.expand && id >= 0) row = counter[c.ranks + id]++;
    slot = __shfl_sync(kAllLanes, slot, last_lane);
    __syncwarp();
    if (lane >= c.topk) continue;
    p.handle.ids[index] = id;
    p.handle.slots[index] = slot;
    if (p.expand) p.handle.rows[index] = row;
  }
}

/// Numbers the rows of the block's tokens; the numbers count from this source's first row at the destination.
static __device__ void number_slots(const DispatchParams& p, const DispatchShared& s, int32_t begin, int32_t end) {
  const Context& c = p.context;
  const int32_t warp = warp_index();
  const RowSplit split{end - begin, p.plan_warps};
  const bool works = warp < p.plan_warps;
  const int32_t first = begin + static_cast<int32_t>(split.begin(works ? warp : 0));
  const int32_t last = works ? begin + static_cast<int32_t>(split.end(warp)) : first;
  int32_t* counter = s.histogram + (works ? warp : 0) * s.bins;
  if (works) {
    for (int32_t i = lane_index(); i < s.bins; i += 32) counter[i] = 0;
    __syncwarp();
    number_tokens(p, first, last, counter);
  }
  __syncthreads();
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < s.bins; bin += static_cast<int32_t>(blockDim.x)) {
    int32_t before = s.running[bin];
    for (int32_t w = 0; w < p.plan_warps; ++w) {
      const int32_t count = s.histogram[w * s.bins + bin];
      s.histogram[w * s.bins + bin] = before;
      before += count;
    }
  }
  __syncthreads();
  for (int64_t i = int64_t{first} * c.topk + lane_index(); i < int64_t{last} * c.topk; i += 32) {
    const int32_t id = p.handle.ids[i];
    if (id < 0) continue;
    p.handle.slots[i] += counter[id / c.local_experts];
    if (p.expand) p.handle.rows[i] += counter[c.ranks + id];
  }
}

/// Turns group totals into the first row of each expert's group and adds it to group_base; a warp per rank.
static __device__ void begin_groups(const DispatchParams& p, const DispatchShared& s, int64_t* rows_of_rank) {
  const Context& c = p.context;
  for (int32_t rank = warp_index(); rank < c.ranks; rank += static_cast<int32_t>(blockDim.x / 32)) {
    int32_t begin = 0;
    for (int32_t first = 0; first < c.local_experts; first += 32) {
      const int32_t local = first + lane_index();
      const int32_t expert = rank * c.local_experts + local;
      const bool exists = local < c.local_experts;
      const int32_t aligned =
          exists ? static_cast<int32_t>(round_up(s.group_total[expert], p.alignment)) : 0;
      int32_t sum = aligned;
#pragma unroll
      for (int32_t step = 1; step < 32; step *= 2) {
        const int32_t below = __shfl_up_sync(kAllLanes, sum, step);
        if (lane_index() >= step) sum += below;
      }
      if (exists) s.group_base[expert] += begin + sum - aligned;
      begin += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane_index() == 0) rows_of_rank[rank] = begin;
  }
}

/// Waits for all counts; first slots and rows of this source everywhere. False: nothing may be moved, since a
/// count is missing or a rank would receive more than it holds; then all ranks decide alike.
static __device__ bool place(const DispatchParams& p, const DispatchShared& s, uint64_t call) {
  const Context& c = p.context;
  __shared__ int64_t rows_of_rank[kMaxRanks];
  const int32_t words_per_rank = 1 + c.local_experts;
  bool fits = true;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks * c.ranks; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t src = i / c.ranks;
    const int32_t dst = i % c.ranks;
    const uint32_t count = wait_count(c, count_words(c, c.rank, call, src) + dst * words_per_rank, src, call);
    if (count == kPoison) fits = false;
    if (src < c.rank) atomicAdd(&s.base[dst], static_cast<int32_t>(count));
    atomicAdd(&s.copies[dst], static_cast<int32_t>(count));
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); p.expand && i < c.ranks * c.experts;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t src = i / c.experts;
    const int32_t expert = i % c.experts;
    const int32_t word = expert + expert / c.local_experts + 1;
    const uint32_t count = wait_count(c, count_words(c, c.rank, call, src) + word, src, call);
    if (count == kPoison) fits = false;
    if (src < c.rank) atomicAdd(&s.group_base[expert], static_cast<int32_t>(count));
    atomicAdd(&s.group_total[expert], static_cast<int32_t>(count));
  }
  if (__syncthreads_or(fits ? 0 : 1) != 0) return false;
  if (p.expand) begin_groups(p, s, rows_of_rank);
  __syncthreads();
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < c.ranks; d += static_cast<int32_t>(blockDim.x)) {
    const int64_t rows = p.expand ? rows_of_rank[d] : s.copies[d];
    const bool too_many_copies = s.copies[d] > c.copies_capacity;
    if (!too_many_copies && rows <= c.rows_capacity) continue;
    fits = false;
    report(c, FaultKind::overflow, Step::counts, d, too_many_copies ? c.copies_capacity : c.rows_capacity,
           too_many_copies ? s.copies[d] : rows, kNone);
  }
  return __syncthreads_or(fits ? 0 : 1) == 0;
}

/// Cached: the same from the handle. Fills what the block needs of it.
static __device__ void place_from_handle(const DispatchParams& p, const DispatchShared& s) {
  const Context& c = p.context;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  for (int32_t d = thread; d < c.ranks; d += threads) s.base[d] = p.handle.slot_begin[d];
  for (int32_t e = thread; p.expand && e < c.experts; e += threads) s.group_base[e] = p.handle.row_begin[e];
  for (int32_t l = thread; p.expand && l < c.local_experts; l += threads)
    s.group_total[c.rank * c.local_experts + l] =
        static_cast<int32_t>(p.handle.counts[kFirstCount + c.ranks + l]);
  if (thread == 0) s.copies[c.rank] = static_cast<int32_t>(p.handle.counts[kNumCopies]);
  __syncthreads();
}

/// Inclusive sum over the lanes.
__device__ __forceinline__ int64_t warp_sum_up(int64_t value) {
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const int64_t below = __shfl_up_sync(kAllLanes, value, step);
    if (lane_index() >= step) value += below;
  }
  return value;
}

/// One warp writes the counts into the handle and, if asked, to the host and the running totals. Requires
/// that place() succeeded.
static __device__ void publish_counts(const DispatchParams& p, const DispatchShared& s, uint64_t call) {
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
    const int64_t count =
        src < c.ranks
            ? static_cast<uint32_t>(ptx::load_relaxed_sys(count_words(c, c.rank, call, src) + c.rank * words_per_rank))
            : 0;
    const int64_t sum = copies + warp_sum_up(count);
    if (src < c.ranks) {
      put(kFirstCount + src, sum);
      p.handle.slot_begin[src] = s.base[src];
    }
    copies = __shfl_sync(kAllLanes, sum, 31);
  }
  int64_t rows = 0;
  for (int32_t first = 0; first < c.local_experts; first += 32) {
    const int32_t local = first + lane;
    int64_t count = 0;
    if (local < c.local_experts) {
#pragma unroll 8
      for (int32_t src = 0; src < c.ranks; ++src)
        count += static_cast<uint32_t>(ptx::load_relaxed_sys(count_words(c, c.rank, call, src) +
                                                             c.rank * words_per_rank + 1 + local));
    }
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
    out[kDispatchNumber] = static_cast<int64_t>(call);
  }
  __threadfence_system();
  __syncwarp();
  if (lane == 0 && p.host_counts != nullptr)
    atomicExch_system(reinterpret_cast<unsigned long long*>(p.host_counts + kDispatchNumber), call);
}

}  // namespace plumb::kernels

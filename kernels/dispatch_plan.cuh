// First half of dispatch: who gets how many rows, and where each row goes. Counting, exchange of counts,
// numbering of slots, first rows. All loops run over the whole block unless a function says otherwise.
// Device only.
#pragma once

#include <type_traits>

#include "kernels/shared_map.h"
#include "kernels/transport.cuh"
#include "model/schedule.h"

namespace plumb::kernels {

/// Pointers into a block's shared memory and what its threads agree on.
struct DispatchShared {
  char* stages;
  uint64_t* barriers;
  char** peers;
  int32_t* own;
  int32_t* before;
  int32_t* total;
  int32_t* histogram;
  int32_t* base;
  int32_t* copies;
  int32_t* group_base;
  int32_t* group_total;
  int32_t* inbound;
  uint32_t* sent;
  int32_t stage_bytes;
  int32_t bins;
};

__device__ __forceinline__ DispatchShared dispatch_shared(const auto& p, char* memory) {
  const DispatchMap& map = p.shared;
  const auto ints = [&](int64_t offset) { return reinterpret_cast<int32_t*>(memory + offset); };
  return {memory,
          reinterpret_cast<uint64_t*>(memory + map.barriers),
          reinterpret_cast<char**>(memory + map.peers),
          ints(map.own),
          ints(map.before),
          ints(map.total),
          ints(map.histogram),
          ints(map.base),
          ints(map.copies),
          ints(map.group_base),
          ints(map.group_total),
          ints(map.inbound),
          reinterpret_cast<uint32_t*>(memory + map.sent),
          static_cast<int32_t>(map.stage_bytes),
          DispatchBlock{.ranks = p.context.ranks, .experts = p.context.experts, .expand = p.expand}.bins()};
}

/// The global expert id of a selection; kNone for any negative number and for one out of range, which is
/// reported.
__device__ __forceinline__ int32_t expert_id(const auto& p, int64_t index, int32_t token) {
  const Context& c = p.context;
  const int64_t id =
      p.id_bytes == 8 ? static_cast<const int64_t*>(p.ids)[index] : static_cast<const int32_t*>(p.ids)[index];
  if (id >= c.experts) report(c, FaultKind::bad_expert, Step::notify, c.rank, c.experts, id, token);
  return id >= 0 && id < c.experts ? static_cast<int32_t>(id) : kNone;
}

__device__ __forceinline__ uint64_t* count_words(const Context& c, int32_t at, const Call& call,
                                                 int32_t src) {
  const int64_t row = int64_t{c.ranks} * (1 + c.local_experts);
  return at_peer<uint64_t>(c, at, c.map.counts) +
         (static_cast<int64_t>(call.number % 2) * c.ranks + src) * row;
}

inline constexpr int32_t kGroupedTokens = 64;  // of a block, from which on metadata leaves in groups

/// Whether blocks tell all ranks their counts themselves (direct_counts.cuh), which pays with many tokens.
/// Alike on all ranks, whose numbers of tokens differ.
__device__ __forceinline__ bool counts_directly(const auto& p) {
  const Context& c = p.context;
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  return !p.expand && c.ranks * c.ranks * blocks <= kDirectWords && c.max_tokens >= kGroupedTokens * blocks;
}

/// Words [dst] of a source's block in a call. Sources have the same room whatever number of blocks they run.
__device__ __forceinline__ uint64_t* direct_words(const Context& c, int32_t at, const Call& call, int32_t src,
                                                  int32_t block) {
  const int32_t most = kDirectWords / (c.ranks * c.ranks);
  return at_peer<uint64_t>(c, at, c.map.block_counts) + static_cast<int64_t>(call.number % 2) * kDirectWords +
         (src * most + block) * c.ranks;
}

constexpr int32_t kIdsAtOnce = 4;  // loads of a lane under way

/// Ids of selections from, from + 32, ... below `selections` of the tokens from `chunk` on, those of lane 0.
__device__ __forceinline__ void load_ids(const auto& p, int32_t chunk, int32_t from, int32_t selections,
                                         int32_t (&ids)[kIdsAtOnce]) {
#pragma unroll
  for (int32_t i = 0; i < kIdsAtOnce; ++i) {
    ids[i] = kNone;
    if (from + 32 * i >= selections) continue;  // for the whole warp
    const int32_t at = from + 32 * i + lane_index();
    if (at < selections)
      ids[i] = expert_id(p, int64_t{chunk} * p.context.topk + at, chunk + at / p.context.topk);
  }
}

constexpr int32_t kFewRanks = 8;  // up to which lanes mark ranks together; else hits on one word queue up

/// Marks the destinations of these ids: one word of `members` per destination, zero before; bit t says that
/// token t of the chunk sends it a row. All lanes.
__device__ __forceinline__ void mark_members(const auto& p, const DispatchShared& s, int32_t chunk,
                                             int32_t from, int32_t selections, uint32_t* members,
                                             const int32_t (&ids)[kIdsAtOnce]) {
  const Context& c = p.context;
  const bool has_few_ranks = c.ranks <= kFewRanks;
  int32_t ranks[kIdsAtOnce];
  uint32_t bits[kIdsAtOnce];
#pragma unroll
  for (int32_t i = 0; i < kIdsAtOnce; ++i) {
    ranks[i] = kNone;
    bits[i] = 0;
    if (from + 32 * i >= selections) continue;  // for the whole warp
    const int32_t at = from + 32 * i + lane_index();
    if (at >= selections) continue;
    bits[i] = 1u << (at / c.topk);
    p.handle.ids[int64_t{chunk} * c.topk + at] = ids[i];
    if (ids[i] < 0) continue;
    ranks[i] = ids[i] / c.local_experts;
    if (!has_few_ranks) atomicOr(&members[ranks[i]], bits[i]);
    if (p.expand)
      atomicOr(&members[c.ranks + ids[i]], bits[i]);
    else
      atomicAdd(&s.own[c.ranks + ids[i]], 1);
  }
  for (int32_t rank = 0; has_few_ranks && rank < c.ranks; ++rank) {
    uint32_t mine = 0;
#pragma unroll
    for (int32_t i = 0; i < kIdsAtOnce; ++i) mine |= ranks[i] == rank ? bits[i] : 0;
    const uint32_t all = __reduce_or_sync(kAllLanes, mine);
    if (lane_index() == 0) members[rank] |= all;
  }
}

__device__ __forceinline__ int32_t chunk_selections(const auto& p, int32_t chunk, int32_t last) {
  return (last - chunk < 32 ? last - chunk : 32) * p.context.topk;
}

/// Numbers the rows of tokens [first, last) per destination, from zero; one warp, 32 tokens at a time. The
/// members below a token say how many rows come before its own. `ids`: load_ids() of the first chunk.
static __device__ void number_tokens(const auto& p, const DispatchShared& s, int32_t first, int32_t last,
                                     int32_t* counter, uint32_t* members, int32_t (&ids)[kIdsAtOnce]) {
  const Context& c = p.context;
  constexpr int32_t kStep = 32 * kIdsAtOnce;
  for (int32_t chunk = first; chunk < last; chunk += 32) {
    const int32_t selections = chunk_selections(p, chunk, last);
    for (int32_t from = 0; from < selections; from += kStep) {
      if (chunk != first || from > 0) load_ids(p, chunk, from, selections, ids);
      mark_members(p, s, chunk, from, selections, members, ids);
    }
    __syncwarp();
    const int64_t begin = int64_t{chunk} * c.topk;
    const bool all_kept = selections <= kStep;
    for (int32_t from = 0; from < selections; from += kStep) {
#pragma unroll
      for (int32_t i = 0; i < kIdsAtOnce; ++i) {
        if (from + 32 * i >= selections) continue;  // for the whole warp
        const int32_t at = from + 32 * i + lane_index();
        if (at >= selections) continue;
        const int32_t id = all_kept ? ids[i] : p.handle.ids[begin + at];  // written by this lane
        if (id < 0) continue;
        const uint32_t below = (1u << (at / c.topk)) - 1;
        const auto number = [&](int32_t bin) { return counter[bin] + __popc(members[bin] & below); };
        (p.grouped ? c.numbers : p.handle.slots)[begin + at] = number(id / c.local_experts);
        if (p.expand) p.handle.rows[begin + at] = number(c.ranks + id);
      }
    }
    __syncwarp();
    for (int32_t bin = lane_index(); bin < s.bins; bin += 32) {
      counter[bin] += __popc(members[bin]);
      members[bin] = 0;
    }
    __syncwarp();
  }
}

/// Warps that number the block's tokens: enough to give each 4, so that few tokens take one pass each.
__device__ __forceinline__ int32_t numbering_warps(const auto& p, int32_t tokens) {
  const int32_t wanted = static_cast<int32_t>(ceil_div(tokens, 4));
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
  const int32_t most = p.plan_warps < warps ? p.plan_warps : warps;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

/// Tokens [first, last) of a rank: the part of a block, or what a warp numbers of it.
struct TokenRange {
  int32_t first = 0;
  int32_t last = 0;

  __device__ __forceinline__ int32_t count() const { return last - first; }
};

/// Tokens of the block's part that each of its first warps numbers; the last of them numbers the rest.
__device__ __forceinline__ int32_t numbering_share(const auto& p, const TokenRange& part) {
  const int32_t warps = numbering_warps(p, part.count());
  const int32_t share = (part.count() + warps - 1) / warps;
  return p.grouped && share > 32 ? (share + 31) / 32 * 32 : share;  // whole groups
}

__device__ __forceinline__ TokenRange numbered_tokens(const TokenRange& part, int32_t share, int32_t warp) {
  const auto begin_of = [&](int32_t w) {
    return part.first + w * share < part.last ? part.first + w * share : part.last;
  };
  return {begin_of(warp), begin_of(warp + 1)};
}

constexpr int32_t kSharesAtOnce = 7;  // counts of numbering warps that a thread loads at once

/// Turns what each numbering warp counted for a bin into what the warps before it did, from `sum` on; returns
/// the sum of all.
__device__ __forceinline__ int32_t sum_shares(const DispatchShared& s, int32_t bin, int32_t warps,
                                              int32_t sum) {
  for (int32_t first = 0; first < warps; first += kSharesAtOnce) {
    int32_t counts[kSharesAtOnce];
#pragma unroll
    for (int32_t k = 0; k < kSharesAtOnce; ++k)
      counts[k] = first + k < warps ? s.histogram[(first + k) * s.bins + bin] : 0;
#pragma unroll
    for (int32_t k = 0; k < kSharesAtOnce; ++k) {
      if (first + k < warps) s.histogram[(first + k) * s.bins + bin] = sum;
      sum += counts[k];
    }
  }
  return sum;
}

/// The window of a thread's peer, on its way into shared memory while ids are loaded.
struct LoadedPeer {
  char* base = nullptr;

  __device__ explicit LoadedPeer(const Context& c) {
    if (threadIdx.x < static_cast<uint32_t>(c.ranks)) base = c.peers[threadIdx.x];
  }
  __device__ __forceinline__ void store(const Context& c, const DispatchShared& s) const {
    if (threadIdx.x < static_cast<uint32_t>(c.ranks)) s.peers[threadIdx.x] = base;
  }
};

/// Tells all ranks which call this is. `peers`: Context::peers or DispatchShared::peers.
__device__ __forceinline__ void sign_dispatch(const Context& c, const Call& call, char* const* peers) {
  if (blockIdx.x == 0 && is_last_warp()) sign(c, Step::dispatch, call, peers);
}

/// Numbers the rows of the block's tokens, per numbering warp; the histogram then says what to add for rows
/// of each warp. The block's counts go to the other blocks of the rank or, directly, of all. Ends the
/// clearing of shared memory.
static __device__ void number_slots(const auto& p, const DispatchShared& s, const TokenRange& part,
                                    const Call& call, const LoadedPeer& peer) {
  const Context& c = p.context;
  const int32_t warp = warp_index();
  const int32_t warps = numbering_warps(p, part.count());
  const auto [first, last] = numbered_tokens(part, numbering_share(p, part), warp);
  int32_t ids[kIdsAtOnce];
  if (warp < warps) load_ids(p, first, 0, chunk_selections(p, first, last), ids);
  peer.store(c, s);
  __syncthreads();
  if (warp < warps) {
    int32_t* counter = s.histogram + warp * s.bins;
    uint32_t* members = reinterpret_cast<uint32_t*>(s.histogram + (p.plan_warps + warp) * s.bins);
    for (int32_t i = lane_index(); i < s.bins; i += 32) counter[i] = members[i] = 0;
    __syncwarp();
    number_tokens(p, s, first, last, counter, members, ids);
  }
  __syncthreads();
  sign_dispatch(c, call, s.peers);
  uint64_t* out = c.block_counts + int64_t{blockIdx.x} * (c.ranks + c.experts);
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < c.ranks + c.experts;
       bin += static_cast<int32_t>(blockDim.x)) {
    const int32_t sum = bin < s.bins ? sum_shares(s, bin, warps, s.own[bin]) : s.own[bin];
    const uint64_t word = call.word(static_cast<uint32_t>(sum));
    if (!counts_directly(p)) {
      ptx::store_relaxed_sys(out + bin, word);
    } else if (bin < c.ranks) {
      s.own[bin] = sum;
      for (int32_t step = 1; step <= c.ranks; ++step)  // itself last
        ptx::store_relaxed_sys(direct_words(c, peer_at_step(c.rank, step, c.ranks), call, c.rank,
                                            static_cast<int32_t>(blockIdx.x)) +
                                   bin,
                               word);
    }
  }
}

/// Sums the counts of the rank's blocks: those before this one, and all. `bins`: how many are needed here:
/// those of ranks, then those of experts from `expert` on. A thread takes one bin of every `groups`-th block.
static __device__ bool sum_blocks(const auto& p, const DispatchShared& s, int32_t bins, int32_t expert,
                                  const Call& call) {
  const Context& c = p.context;
  constexpr int32_t kCountsAtOnce = std::remove_cvref_t<decltype(p)>::kCountsAtOnce;
  bool is_known = true;
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  const int32_t fit = static_cast<int32_t>(blockDim.x) / bins;
  const int32_t groups = fit < 1 ? 1 : fit < blocks ? fit : blocks;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < bins * groups;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t group = i / bins;
    const int32_t number = i - group * bins;
    const int32_t bin = number < c.ranks ? number : number + expert;
    int32_t before = 0;
    int32_t total = 0;
    for (int32_t first = group; first < blocks; first += groups * kCountsAtOnce) {
      const auto word_at = [&](int32_t k) {
        const int32_t block = first + k * groups;
        return block < blocks ? c.block_counts + int64_t{block} * (c.ranks + c.experts) + bin : nullptr;
      };
      uint32_t counts[kCountsAtOnce];
      is_known &= wait_counts(
          c, word_at, [&](int32_t) { return c.rank; }, Step::notify, call, counts);
#pragma unroll
      for (int32_t k = 0; k < kCountsAtOnce; ++k) {
        if (first + k * groups < static_cast<int32_t>(blockIdx.x)) before += static_cast<int32_t>(counts[k]);
        total += static_cast<int32_t>(counts[k]);
      }
    }
    atomicAdd(&s.before[bin], before);
    atomicAdd(&s.total[bin], total);
  }
  return __syncthreads_or(is_known ? 0 : 1) == 0;
}

/// Sends the rank's counts to the peers whose turn this block is; every block sums what it needs. A peer of
/// the plain layout needs the copies of all ranks, but rows of its own experts only.
static __device__ bool notify(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  const bool is_brief = !p.expand && static_cast<int32_t>(gridDim.x) >= c.ranks;  // at most one peer a block
  const int32_t expert = is_brief ? peer_at_step(c.rank, block % c.ranks, c.ranks) * c.local_experts : 0;
  const int32_t experts = block >= c.ranks && !p.expand ? 0 : is_brief ? int32_t{c.local_experts} : c.experts;
  if (!sum_blocks(p, s, c.ranks + experts, expert, call)) return false;
  for (int32_t step = block; step < c.ranks; step += static_cast<int32_t>(gridDim.x)) {
    uint64_t* out = count_words(c, peer_at_step(c.rank, step, c.ranks), call, c.rank);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks + experts;
         i += static_cast<int32_t>(blockDim.x)) {
      const int32_t e = i - c.ranks + expert;  // below for a rank's copies
      const int32_t at = i < c.ranks ? i * (1 + c.local_experts) : e + e / c.local_experts + 1;
      const int32_t count = s.total[i < c.ranks ? i : c.ranks + e];
      ptx::store_relaxed_sys(out + at, call.word(static_cast<uint32_t>(count)));
    }
  }
  return true;
}

/// Turns group totals into the first row of each expert's group and adds it to group_base; a warp per rank.
static __device__ void begin_groups(const auto& p, const DispatchShared& s, int64_t* rows_of_rank) {
  const Context& c = p.context;
  for (int32_t rank = warp_index(); rank < c.ranks; rank += static_cast<int32_t>(blockDim.x / 32)) {
    int32_t begin = 0;
    for (int32_t first = 0; first < c.local_experts; first += 32) {
      const int32_t local = first + lane_index();
      const int32_t expert = rank * c.local_experts + local;
      const bool exists = local < c.local_experts;
      const int32_t aligned = exists ? static_cast<int32_t>(round_up(s.group_total[expert], p.alignment)) : 0;
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

/// Adds up how long the rank waits for the first count of each source, with a lane per source; one warp of a
/// counted call, beside others that wait for all counts.
static __device__ void time_counts(const Context& c, bool is_direct, const Call& call) {
  for (int32_t src = lane_index(); src < c.ranks; src += 32) {
    const uint64_t* word = is_direct ? direct_words(c, c.rank, call, src, 0)
                                     : count_words(c, c.rank, call, src) + c.rank * (1 + c.local_experts);
    wait_count<true>(c, word, Step::counts, src, call);
  }
  __syncwarp();
}

/// Whether all ranks can hold what they receive; reports the one that cannot. `rows`: of each tensor. Every
/// warp finds out by itself.
static __device__ bool fits_everywhere(const auto& p, const DispatchShared& s, const auto* rows) {
  const Context& c = p.context;
  bool fits = true;
  for (int32_t d = lane_index(); d < c.ranks; d += 32) {
    const bool too_many_copies = s.copies[d] > c.copies_capacity;
    if (!too_many_copies && rows[d] <= c.rows_capacity) continue;
    fits = false;
    if (warp_index() == 0)
      report(c, FaultKind::overflow, Step::counts, d, too_many_copies ? c.copies_capacity : c.rows_capacity,
             too_many_copies ? s.copies[d] : rows[d], kNone);
  }
  return __all_sync(kAllLanes, fits) != 0;
}

/// Waits for all counts; first slots and rows of this source everywhere. False: nothing may be moved, since a
/// count is missing or a rank would receive more than it holds; then all ranks decide alike.
static __device__ bool place(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  constexpr int32_t kCountsAtOnce = std::remove_cvref_t<decltype(p)>::kCountsAtOnce;
  __shared__ int64_t rows_of_rank[kMaxRanks];
  const int32_t words_per_rank = 1 + c.local_experts;
  bool fits = true;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks * c.ranks;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t src = i / c.ranks;
    const int32_t dst = i % c.ranks;
    const uint32_t count =
        wait_count(c, count_words(c, c.rank, call, src) + dst * words_per_rank, Step::counts, src, call);
    if (count == kPoison) fits = false;
    if (src < c.rank) atomicAdd(&s.base[dst], static_cast<int32_t>(count));
    atomicAdd(&s.copies[dst], static_cast<int32_t>(count));
  }
  const int32_t words = p.expand ? c.ranks * c.experts : 0;
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < words;
       first += kCountsAtOnce * static_cast<int32_t>(blockDim.x)) {
    const auto number_at = [&](int32_t k) { return first + k * static_cast<int32_t>(blockDim.x); };
    const auto word_at = [&](int32_t k) -> const uint64_t* {
      const int32_t src = number_at(k) / c.experts;
      const int32_t expert = number_at(k) - src * c.experts;
      return number_at(k) < words ? count_words(c, c.rank, call, src) + expert + expert / c.local_experts + 1
                                  : nullptr;
    };
    uint32_t counts[kCountsAtOnce];
    fits &= wait_counts(
        c, word_at, [&](int32_t k) { return number_at(k) / c.experts; }, Step::counts, call, counts);
#pragma unroll
    for (int32_t k = 0; k < kCountsAtOnce; ++k) {
      if (number_at(k) >= words) continue;
      const int32_t src = number_at(k) / c.experts;
      const int32_t expert = number_at(k) - src * c.experts;
      if (src < c.rank) atomicAdd(&s.group_base[expert], static_cast<int32_t>(counts[k]));
      atomicAdd(&s.group_total[expert], static_cast<int32_t>(counts[k]));
    }
  }
  if (__syncthreads_or(fits ? 0 : 1) != 0) return false;
  if (p.expand) {
    begin_groups(p, s, rows_of_rank);
    if (threadIdx.x == 0) {
      s.inbound[0] = 0;
      for (int32_t src = 0; src < c.ranks; ++src)
        s.inbound[src + 1] =
            s.inbound[src] + static_cast<int32_t>(static_cast<uint32_t>(ptx::load_relaxed_sys(
                                 count_words(c, c.rank, call, src) + c.rank * words_per_rank)));
    }
    __syncthreads();
  }
  return p.expand ? fits_everywhere(p, s, rows_of_rank) : fits_everywhere(p, s, s.copies);
}

/// Cached: the same from the handle. Fills what the block needs of it. Ends the clearing of shared memory.
static __device__ void place_from_handle(const auto& p, const DispatchShared& s, const LoadedPeer& peer) {
  const Context& c = p.context;
  peer.store(c, s);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  __syncthreads();
  for (int32_t d = thread; d < c.ranks; d += threads) s.base[d] = p.handle.slot_begin[d];
  for (int32_t i = thread; p.expand && i <= c.ranks; i += threads)
    s.inbound[i] = i == 0 ? 0 : static_cast<int32_t>(p.handle.counts[kFirstCount + i - 1]);
  for (int32_t e = thread; p.expand && e < c.experts; e += threads) s.group_base[e] = p.handle.row_begin[e];
  for (int32_t l = thread; p.expand && l < c.local_experts; l += threads)
    s.group_total[c.rank * c.local_experts + l] =
        static_cast<int32_t>(p.handle.counts[kFirstCount + c.ranks + l]);
  if (thread == 0) {
    s.copies[c.rank] = static_cast<int32_t>(p.handle.counts[kNumCopies]);
    s.total[c.rank] =
        static_cast<int32_t>(p.handle.counts[kFirstCount + c.rank]) - p.handle.slot_begin[c.rank];
  }
  __syncthreads();
}

}  // namespace plumb::kernels

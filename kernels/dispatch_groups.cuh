// Metadata of many rows at once (plain layout): rows of consecutive tokens stand at consecutive slots of a
// destination, so ids, weights, sources and scales of a numbering warp's tokens leave as whole lines instead
// of seven small stores a row. Device only.
#pragma once

#include "kernels/dispatch_plan.cuh"

namespace plumb::kernels {

/// Rows of up to 32 tokens to one destination.
struct RowGroup {
  int32_t dst = 0;
  int32_t rows = 0;
  int32_t token = 0;  // lane i: of row i
  int64_t slot = 0;   // of the first row
};

constexpr int32_t kWordsAtOnce = 4;  // of a lane: loaded, then stored
constexpr int32_t kPacksAtOnce = 8;  // likewise, of columns

/// Stores `count` words behind each other, value(i) the i-th; every store of the warp ends at a line of 128
/// bytes. All lanes call value().
template <class Word, class Value>
__device__ __forceinline__ void store_words(Word* to, int32_t count, Value value) {
  constexpr int32_t kLine = 128 / sizeof(Word);
  const int32_t shift = static_cast<int32_t>(reinterpret_cast<uintptr_t>(to) / sizeof(Word) % kLine);
  for (int32_t first = lane_index() - shift; first - lane_index() < count; first += 32 * kWordsAtOnce) {
    const auto is_word = [&](int32_t k) { return first + 32 * k >= 0 && first + 32 * k < count; };
    Word words[kWordsAtOnce];
#pragma unroll
    for (int32_t k = 0; k < kWordsAtOnce; ++k) words[k] = value(is_word(k) ? first + 32 * k : 0);
#pragma unroll
    for (int32_t k = 0; k < kWordsAtOnce; ++k)
      if (is_word(k)) to[first + 32 * k] = words[k];
  }
}

/// Which of the tokens chunk .. last - 1, at most 32, send `dst` a row.
__device__ __forceinline__ uint32_t members_of(const auto& p, int32_t chunk, int32_t last, int32_t dst) {
  const Context& c = p.context;
  const int32_t selections = chunk_selections(p, chunk, last);
  const int32_t* ids = p.handle.ids + int64_t{chunk} * c.topk;
  uint32_t members = 0;
  for (int32_t first = lane_index(); first - lane_index() < selections; first += 32 * kWordsAtOnce) {
    int32_t found[kWordsAtOnce];
#pragma unroll
    for (int32_t k = 0; k < kWordsAtOnce; ++k)
      found[k] = first + 32 * k < selections ? ids[first + 32 * k] : kNone;
#pragma unroll
    for (int32_t k = 0; k < kWordsAtOnce; ++k)
      if (found[k] >= 0 && found[k] / c.local_experts == dst) members |= 1u << ((first + 32 * k) / c.topk);
  }
  return __reduce_or_sync(kAllLanes, members);
}

/// Cached: the handle's slot of a token's row to `dst`.
__device__ __forceinline__ int32_t slot_of(const auto& p, int32_t token, int32_t dst) {
  const Context& c = p.context;
  const int64_t at = int64_t{token} * c.topk + lane_index();
  const bool is_there =
      lane_index() < c.topk && p.handle.ids[at] >= 0 && p.handle.ids[at] / c.local_experts == dst;
  const uint32_t there = __ballot_sync(kAllLanes, is_there);
  return __shfl_sync(kAllLanes, is_there ? p.handle.slots[at] : 0, __ffs(static_cast<int32_t>(there)) - 1);
}

__device__ __forceinline__ void send_group(const auto& p, const DispatchShared& s, const RowGroup& g) {
  const Context& c = p.context;
  char* peer = s.peers[g.dst];
  const auto token_of = [&](int32_t row) { return int64_t{__shfl_sync(kAllLanes, g.token, row)}; };
  if (lane_index() < g.rows)
    reinterpret_cast<int32_t*>(peer + c.map.source)[g.slot + lane_index()] = c.rank * c.max_tokens + g.token;
  const int32_t selections = g.rows * c.topk;
  const int64_t first = g.slot * c.topk;
  store_words(reinterpret_cast<uint32_t*>(peer + c.map.ids) + first, selections, [&](int32_t i) {
    const int32_t row = i / c.topk;
    const int32_t id = p.handle.ids[token_of(row) * c.topk + i - row * c.topk];
    return static_cast<uint32_t>(id >= 0 && id / c.local_experts == g.dst ? id - g.dst * c.local_experts
                                                                          : kNone);
  });
  store_words(reinterpret_cast<uint32_t*>(peer + c.map.weights) + first, selections, [&](int32_t i) {
    const int32_t row = i / c.topk;
    const int64_t at = token_of(row) * c.topk + i - row * c.topk;
    return p.weights != nullptr && p.handle.ids[at] >= 0 ? __float_as_uint(p.weights[at]) : 0u;
  });
  uint32_t* scales = reinterpret_cast<uint32_t*>(peer + c.map.scales);
  const bool is_dense = p.scale_column_stride == 1 && p.scale_pack_stride == 1;
  if (is_dense && p.scale_packs % 4 == 0 && p.scale_token_stride % 4 == 0 &&
      reinterpret_cast<uintptr_t>(p.scales) % 16 == 0) {
    const int32_t quads = p.scale_packs / 4;
    store_words(reinterpret_cast<uint4*>(scales + g.slot * p.scale_row_stride), g.rows * quads,
                [&](int32_t i) {
                  const int32_t row = i / quads;
                  return *reinterpret_cast<const uint4*>(p.scales + token_of(row) * p.scale_token_stride +
                                                         (i - row * quads) * 4);
                });
  } else if (p.scale_column_stride == 1) {
    store_words(scales + g.slot * p.scale_row_stride, g.rows * p.scale_packs, [&](int32_t i) {
      const int32_t row = i / p.scale_packs;
      return p.scales[token_of(row) * p.scale_token_stride + (i - row * p.scale_packs) * p.scale_pack_stride];
    });
  } else {
    if (lane_index() >= g.rows) return;
    const uint32_t* from = p.scales + g.token * p.scale_token_stride;
    scales += (g.slot + lane_index()) * p.scale_row_stride;
    for (int32_t first = 0; first < p.scale_packs; first += kPacksAtOnce) {
      uint32_t packs[kPacksAtOnce];
#pragma unroll
      for (int32_t k = 0; k < kPacksAtOnce; ++k)
        packs[k] = first + k < p.scale_packs ? from[(first + k) * p.scale_pack_stride] : 0;
#pragma unroll
      for (int32_t k = 0; k < kPacksAtOnce; ++k)
        if (first + k < p.scale_packs) scales[(first + k) * p.scale_column_stride] = packs[k];
    }
  }
}

/// Sends the metadata of the block's part: `worker` of `workers` warps. Requires places.
static __device__ void send_groups(const auto& p, const DispatchShared& s, const TokenRange& part,
                                   int32_t worker, int32_t workers) {
  const Context& c = p.context;
  const int32_t warps = numbering_warps(p, part.count());
  const int32_t share = numbering_share(p, part);
  const int32_t joined = share > 0 && share < 32 ? 32 / share : 1;  // warps whose tokens make a group
  const int32_t groups = static_cast<int32_t>(ceil_div(warps, joined)) * c.ranks;
  for (int32_t item = worker; item < groups; item += workers) {
    const int32_t warp = item / c.ranks * joined;
    const int32_t last_warp = warp + joined < warps ? warp + joined - 1 : warps - 1;
    const TokenRange numbered{numbered_tokens(part, share, warp).first,
                              numbered_tokens(part, share, last_warp).last};
    RowGroup g{.dst = peer_at_step(c.rank, item % c.ranks, c.ranks)};
    g.slot = s.base[g.dst];
    if (!p.cached) g.slot += s.before[g.dst] + s.histogram[warp * s.bins + g.dst];
    for (int32_t chunk = numbered.first; chunk < numbered.last; chunk += 32) {
      const uint32_t members = members_of(p, chunk, numbered.last, g.dst);
      if (members == 0) continue;
      if (p.cached)
        g.slot = s.base[g.dst] + slot_of(p, chunk + __ffs(static_cast<int32_t>(members)) - 1, g.dst);
      g.rows = __popc(members);
      g.token = chunk + static_cast<int32_t>(__fns(members, 0, lane_index() + 1) & 31);
      send_group(p, s, g);
      g.slot += g.rows;
    }
  }
}

}  // namespace plumb::kernels

// Expand layout: what a receiver does itself. A source writes each of its rows to a peer once; the peer
// copies it to the rows of the token's other experts. With many blocks half of the warps follow the sources,
// row by row; with few, whose stores are the limit, all warps copy when all rows are there. Device only.
#pragma once

#include "kernels/dispatch_plan.cuh"
#include "kernels/policy.cuh"

namespace plumb::kernels {

/// Whether warps copy rows as they land. Alike on all ranks.
__device__ __forceinline__ bool follows(const auto& p) {
  return p.expand && copies_follow(p.context.ranks, static_cast<int32_t>(gridDim.x));
}

/// Copies row `from` of the tensor to the rows of the other selections of its token; one warp.
__device__ __forceinline__ void copy_to_others(const auto& p, const DispatchShared& s, int32_t row,
                                               uint32_t others, int32_t from, uint32_t parity) {
  const Context& c = p.context;
  char* own = c.peers[c.rank];
  char* stage = s.stages + int64_t{warp_index()} * s.stage_bytes;
  uint64_t* barrier = &s.barriers[warp_index()];
  if (lane_index() == 0) {
    ptx::mbarrier_expect(barrier, static_cast<uint32_t>(p.row_bytes));
    ptx::bulk_load(stage, own + c.map.x + int64_t{from} * p.row_bytes, static_cast<uint32_t>(p.row_bytes),
                   barrier);
  }
  uint32_t* scales = reinterpret_cast<uint32_t*>(own + c.map.scales);
  for (int32_t i = lane_index(); i - lane_index() < p.scale_packs; i += 32) {
    const bool has_pack = i < p.scale_packs;
    const uint32_t pack = has_pack ? scales[from * p.scale_row_stride + i * p.scale_column_stride] : 0;
    for (uint32_t rest = others; rest != 0; rest &= rest - 1) {
      const int64_t to = __shfl_sync(kAllLanes, row, __ffs(static_cast<int32_t>(rest)) - 1);
      if (has_pack) scales[to * p.scale_row_stride + i * p.scale_column_stride] = pack;
    }
  }
  wait_load(barrier, parity);
  if ((others >> lane_index()) & 1u) {
    ptx::bulk_store(own + c.map.x + int64_t{row} * p.row_bytes, stage, static_cast<uint32_t>(p.row_bytes));
    ptx::bulk_commit();
  }
  ptx::bulk_wait_read();
  __syncwarp();
}

/// What a warp has copied.
struct Copied {
  uint32_t parity = 0;  // of its next load
  uint32_t rows = 0;    // written
};

/// A copy of a peer whose links lanes 0 .. topk - 1 hold: its row to the rows of all its selections.
__device__ __forceinline__ void copy_one(const auto& p, const DispatchShared& s, int32_t row, Copied& done) {
  const uint32_t rows = __ballot_sync(kAllLanes, row >= 0);
  const uint32_t others = rows & (rows - 1);
  if (others == 0) return;
  const int32_t from = __shfl_sync(kAllLanes, row, __ffs(static_cast<int32_t>(rows)) - 1);
  copy_to_others(p, s, row, others, from, done.parity);
  done.parity ^= 1;
  done.rows += __popc(others);
}

/// Link of a selection of a copy, which the handle keeps.
__device__ __forceinline__ int32_t take_link(const auto& p, int32_t copy) {
  const Context& c = p.context;
  if (lane_index() >= c.topk) return kNone;
  const int64_t at = int64_t{copy} * c.topk + lane_index();
  const int32_t row = at_peer<int32_t>(c, c.rank, c.map.links)[at];
  p.handle.links[at] = row;
  return row;
}

/// All copies, over the warps of all blocks, when all have arrived; move_row() wrote the own ones to all
/// their rows.
static __device__ void copy_rows(const auto& p, const DispatchShared& s, Copied& done) {
  const Context& c = p.context;
  const int32_t step = static_cast<int32_t>(gridDim.x) * p.stages;
  const int32_t copies = s.copies[c.rank];
  int32_t copy = static_cast<int32_t>(blockIdx.x) + warp_index() * static_cast<int32_t>(gridDim.x);
  int32_t next = copy < copies ? take_link(p, copy) : kNone;
  for (; copy < copies; copy += step) {
    const int32_t row = next;
    next = copy + step < copies ? take_link(p, copy + step) : kNone;
    if (copy < s.inbound[c.rank] || copy >= s.inbound[c.rank + 1]) copy_one(p, s, row, done);
  }
}

/// The copies of peers as they land. A block takes the share of each source's copies that the source's block
/// of this number sends; `worker` of `workers` warps of the block. Matching side: announce().
static __device__ void follow_peers(const auto& p, const DispatchShared& s, int32_t worker, int32_t workers,
                                    const Call& call, Copied& done) {
  const Context& c = p.context;
  const int32_t peers = c.ranks - 1;
  const int32_t longest = s.inbound[c.ranks] / static_cast<int32_t>(gridDim.x) + 1;  // share, or above
  const uint64_t* landed = at_peer<uint64_t>(c, c.rank, c.map.landed);
  for (int32_t i = worker; i < longest * peers; i += workers) {
    const int32_t src = peer_at_step(c.rank, 1 + i % peers, c.ranks);
    const RowSplit split{s.inbound[src + 1] - s.inbound[src], static_cast<int64_t>(gridDim.x)};
    const int64_t n = split.begin(blockIdx.x) + i / peers;
    if (n >= split.end(blockIdx.x)) continue;
    const int32_t copy = s.inbound[src] + static_cast<int32_t>(n);
    const Awaited what{Step::copy, src, call.number, call.options, 0};
    if (wait_until<false>(c, what, landed + copy, [&](uint64_t seen) { return seen >= call.number; }) == 0)
      return;
    ptx::fence_async_proxy();  // the row is read by a bulk load
    copy_one(p, s, take_link(p, copy), done);
  }
}

/// The warp's stores are complete and visible; the ledger.
template <bool kCounted>
__device__ __forceinline__ void end_copies(const auto& p, const Copied& done) {
  ptx::bulk_wait();
  ptx::fence_async_proxy();
  if constexpr (kCounted)
    if (lane_index() == 0) count(p.context, Step::copy, p.context.rank, 0, done.rows * p.record_bytes);
}

/// Zeros into the gaps behind each group; a group per block in turn, a warp per row.
template <bool kCounted>
__device__ void pad_rows(const auto& p, const DispatchShared& s) {
  const Context& c = p.context;
  char* own = c.peers[c.rank];
  const int32_t num_warps = static_cast<int32_t>(blockDim.x / 32);
  int32_t begin = 0;
  uint32_t padded = 0;
  for (int32_t local = 0; local < c.local_experts; ++local) {
    const int32_t rows = s.group_total[c.rank * c.local_experts + local];
    const int32_t end = begin + static_cast<int32_t>(round_up(rows, p.alignment));
    const bool is_mine = local % static_cast<int32_t>(gridDim.x) == static_cast<int32_t>(blockIdx.x);
    for (int64_t row = begin + rows + warp_index(); is_mine && row < end; row += num_warps, ++padded) {
      for (int32_t i = lane_index() * 16; i < p.row_bytes; i += 512)
        ptx::store_once(own + c.map.x + row * p.row_bytes + i, make_uint4(0, 0, 0, 0));
      for (int32_t i = lane_index(); i < p.scale_packs; i += 32)
        reinterpret_cast<uint32_t*>(own +
                                    c.map.scales)[row * p.scale_row_stride + i * p.scale_column_stride] = 0;
      if (lane_index() == 0) reinterpret_cast<float*>(own + c.map.weights)[row] = 0.0f;
    }
    begin = end;
  }
  if constexpr (kCounted)
    if (lane_index() == 0) count(c, Step::pad, c.rank, 0, padded * p.record_bytes);
}

}  // namespace plumb::kernels

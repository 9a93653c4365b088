// Which rows a warp moves. Two ranks on GPUs of their own share tokens among their blocks: SMs differ by a
// third in how fast they reach a link, so a block is dealt a share of its part and draws the rest
// (TokenPools in model/token_pools.h). All other calls deal out everything. Device only.
#pragma once

#include "kernels/expand_copies.cuh"
#include "model/token_pools.h"

namespace plumb::kernels {

/// Which rows of a token a warp moves.
enum class Kind : uint8_t { all, own, others };

/// Of a token.
struct Rows {
  int32_t token = kNone;  // none: nothing is left to move
  Kind kind = Kind::all;
  bool is_drawn = false;  // its slots are those of the handle
};

/// A warp's turn of what its block is dealt: first, first + step, ... With few tokens several warps share
/// one: the first moves the row, all send metadata to their part of its destinations.
struct Turn {
  int32_t first = 0;
  int32_t step = 1;
  int32_t part = 0;
  int32_t parts = 1;

  __device__ __forceinline__ bool moves(int32_t end) const { return part == 0 && first < end; }
};

constexpr int32_t kGroupWarps = 4;  // that send metadata, at least
/// Warps that move rows of blocks that share tokens: to a link, where more queue up, and at home.
constexpr int32_t kLinkMovers = 8, kOwnMovers = 16;
/// Quarters of its part that a block is dealt, with kinds apart or together.
constexpr int32_t kDealtApart = 3, kDealtTogether = 2;
static_assert(kGroupedTokens * kDealtTogether / 4 >= kOwnMovers);  // each warp is dealt a row

__device__ __forceinline__ bool shares_tokens(const auto& p) {
  return p.may_share && are_two_apart(p.context.ranks, p.has_far_peers);
}

__device__ __forceinline__ TokenPools pools_of(const auto& p) {
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  const int32_t own_blocks = own_blocks_of(blocks);
  const int32_t quarters = own_blocks > 0 ? kDealtApart : kDealtTogether;
  return {{p.tokens, blocks}, p.tokens / blocks * quarters / 4, own_blocks};
}

__device__ __forceinline__ bool is_own_block(const TokenPools& pools) {
  return static_cast<int32_t>(blockIdx.x) < pools.own_blocks;
}

/// The first warps of a block move rows; the others settle slots, send metadata in groups, or copy rows that
/// have landed. `is_own`: see is_own_block().
__device__ __forceinline__ int32_t movers_of(const auto& p, bool is_own) {
  if (follows(p)) return p.stages - p.stages / 2;
  const int32_t all = static_cast<int32_t>(blockDim.x / 32) - (p.grouped ? kGroupWarps : 1);
  const int32_t most = !shares_tokens(p) ? all : is_own ? kOwnMovers : kLinkMovers;
  return p.stages < most ? p.stages : most;
}

/// Warps of the rank that settle slots: those that do not move rows.
__device__ __forceinline__ uint64_t num_settlers(const auto& p, const TokenPools& pools) {
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
  return pools.own_blocks * (warps - movers_of(p, true)) +
         (pools.split.workers - pools.own_blocks) * (warps - movers_of(p, false));
}

/// Writes the slots of the block's part into the handle: `worker` of `workers` warps. Requires places.
static __device__ void settle_slots(const auto& p, const DispatchShared& s, const TokenRange& part,
                                    int32_t worker, int32_t workers) {
  const Context& c = p.context;
  const int32_t share = numbering_share(p, part);
  const int64_t begin = int64_t{part.first} * c.topk;
  const int32_t selections = part.count() * c.topk;
  constexpr int32_t kAtOnce = 4;
  for (int32_t first = worker * 32 + lane_index(); first < selections; first += kAtOnce * workers * 32) {
    int32_t ids[kAtOnce], slots[kAtOnce];
#pragma unroll
    for (int32_t k = 0; k < kAtOnce; ++k) {
      const int32_t at = first + k * workers * 32;
      ids[k] = at < selections ? p.handle.ids[begin + at] : kNone;
      slots[k] = ids[k] >= 0 ? c.numbers[begin + at] : 0;
    }
#pragma unroll
    for (int32_t k = 0; k < kAtOnce; ++k) {
      if (ids[k] < 0) continue;
      const int32_t at = first + k * workers * 32;
      const int32_t rank = ids[k] / c.local_experts;
      p.handle.slots[begin + at] =
          slots[k] + s.histogram[at / c.topk / share * s.bins + rank] + s.before[rank];
    }
  }
  if (!shares_tokens(p)) return;
  __syncwarp();
  ptx::fence_gpu();  // matching side: RowSource::draw()
  if (lane_index() == 0) atomicAdd(reinterpret_cast<unsigned long long*>(&c.state->settled), 1ull);
}

/// What a warp moves, one token after the other.
template <class Params>
class RowSource {
 public:
  /// `turn`: of the tokens before `end`.
  __device__ RowSource(const Params& p, const Turn& turn, int32_t end, const Call& call)
      : p_(p), call_(call), step_(turn.step), end_(end) {
    if (shares_tokens(p)) pools_ = pools_of(p);
    is_own_ = is_own_block(pools_);
    now_ = {turn.first < end ? turn.first : kNone, kind(), false};
  }

  __device__ __forceinline__ const Rows& now() const { return now_; }
  /// Those after now(); all lanes.
  __device__ __forceinline__ Rows following() {
    if (!now_.is_drawn && now_.token + step_ < end_) return {now_.token + step_, now_.kind, false};
    return shares_tokens(p_) ? draw() : Rows{};
  }
  __device__ __forceinline__ void advance(const Rows& following) { now_ = following; }

 private:
  __device__ __forceinline__ Kind kind() const {
    return pools_.own_blocks == 0 ? Kind::all : is_own_ ? Kind::own : Kind::others;
  }
  /// From the pool of the block's kind of rows, then from the other one.
  __device__ __forceinline__ Rows draw() {
    RankState* state = p_.context.state;
    if (!p_.cached && !now_.is_drawn) {
      const Awaited what{Step::dispatch, p_.context.rank, call_.number, call_.options, 0};
      if (wait_until<false>(p_.context, what, &state->settled,
                            [&](uint64_t seen) { return seen == num_settlers(p_, pools_); }) == 0)
        return {};
    }
    for (;;) {
      const int32_t i = kernels::draw(&state->drawn[is_own_]);
      if (i < pools_.size(is_own_)) return {pools_.token(is_own_, i), kind(), true};
      if (pools_.own_blocks == 0 || is_second_) return {};
      is_second_ = true;
      is_own_ = !is_own_;
      if (!is_own_ && warp_index() >= kLinkMovers) return {};
    }
  }

  const Params& p_;
  const Call& call_;
  TokenPools pools_;
  int32_t step_;
  int32_t end_;
  bool is_own_ = false;
  bool is_second_ = false;  // the pool is that of the other kind
  Rows now_;
};

}  // namespace plumb::kernels

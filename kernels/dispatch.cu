// Dispatch inside one scale-up domain: tokens to the ranks of their experts, each row straight to its place
// in the destination's tensor.
//
// Phases of a block (it owns a contiguous share of the rank's tokens):
//   load      mover warps start to load their first rows
//   number    slots of the block's rows, counted per numbering warp (dispatch_plan.cuh); the block's counts
//             go to the rank's other blocks, in large calls to all ranks at once (direct_counts.cuh)
//   notify    the rank's counts for all ranks, into all windows
//   counts    wait for the counts of all sources: every rank is inside this call, so its tensors are free,
//             and prefix sums over sources say where rows go. No barrier before.
//   move      one warp per row, dealt out or drawn (dispatch_pools.cuh): a bulk load and a bulk store per
//             destination; ids, weights and scales by lanes of the same warp, or in groups
//             by warps of their own (dispatch_groups.cuh)
//   flush     every block signals every peer; the rank's first one waits for the blocks of all
//   copy, pad expand layout: further experts of a peer's row, zeros into alignment gaps (expand_copies.cuh)
// Cached calls replace number, notify and counts by a signal to and from every peer.
// Warps: the first ones move rows (movers_of), all plan, the last one of block 0 publishes the counts.
// Shared memory: shared_map.h. Must match on all ranks: what call_options.h names; words of calls that differ
// in it do not match (transport.cuh). Versions: 1 one row stage per warp, direct placement. 2 blocks count
// their own tokens only and exchange counts (version 1: block 0 counted all, 80 us at 8192 tokens);
// selections and scales of the next row loaded ahead. 3 slots are numbered by a lane per selection (version
// 2: a warp per token, 54 ns a token and block). 4 counts of several blocks polled at once, ids and first
// selections loaded during waits, rows before metadata, metadata of few tokens shared by warps, a signal per
// block (version 3: 17.4 us for 128 tokens over NVLink, then 14.0); own rows of the expand layout written to
// all places. 5 metadata in groups, direct counts (8192 tokens, 64 SMs: 198 us, now 192); copies follow the
// sources (expand: 315 us, now 260). 6 fewer threads for few tokens, peers get the counts of their own
// experts only, one poll for all blocks at the end (128 tokens: 14.4 us, now 12.7). Tried: direct counts for
// few tokens (the counts of experts then come last), 16-byte stores instead of bulk stores (+6 %). 7 blocks
// share tokens, fewer warps send to the link, divisions by multiplication, ranks marked by warps (8192
// tokens, 32 SMs: 205 us, now 184; 64: 189, now 183). Tried: sharing in the expand layout (64 SMs: 257 us,
// then 268).
#include "kernels/direct_counts.cuh"
#include "kernels/dispatch_groups.cuh"
#include "kernels/dispatch_pools.cuh"
#include "kernels/expand_copies.cuh"
#include "kernels/launch.h"
#include "kernels/policy.cuh"
#include "kernels/publish_counts.cuh"

namespace plumb::kernels {
namespace {

/// A kernel for each: shorter code, fewer registers. few and many are the plain layout; the metadata of few
/// tokens leaves row by row, that of many in groups (dispatch_groups.cuh).
enum class Form { few, many, expand };

/// Hides the member `expand`.
template <Form kForm, int32_t kCapacity>
struct OfForm : DispatchParams {
  static constexpr bool expand = kForm == Form::expand;
  static constexpr bool grouped = kForm == Form::many;
  static constexpr bool may_share = grouped && kCapacity == 1;          // ranks of a batch share a GPU
  static constexpr int32_t kCountsAtOnce = kForm == Form::few ? 8 : 6;  // polls of a thread under way
};

template <Form kForm>
constexpr int32_t kThreadsOf = kForm == Form::few ? kFewThreads : kDispatchThreads;
static_assert(kFewThreads >= kMaxRanks);  // a thread for each peer

constexpr int32_t kMaxSharers = 4;  // of a token, which has at most as many destinations as there are ranks

__device__ __forceinline__ Turn turn_of_warp(const auto& p, int32_t movers, int32_t begin, int32_t end) {
  const int32_t fit = end > begin && !follows(p) && !p.grouped ? movers / (end - begin) : 1;
  Turn out;
  const int32_t most = p.context.ranks < kMaxSharers ? int32_t{p.context.ranks} : kMaxSharers;
  out.parts = fit < 1 ? 1 : fit < most ? fit : most;
  out.step = movers / out.parts;
  const int32_t group = warp_index() / out.parts;
  out.part = warp_index() - group * out.parts;
  out.first = group < out.step ? begin + group : end;
  return out;
}

__device__ __forceinline__ void load_row(const auto& p, const DispatchShared& s, int32_t token) {
  const int32_t warp = warp_index();
  ptx::mbarrier_expect(&s.barriers[warp], static_cast<uint32_t>(p.row_bytes));
  ptx::bulk_load(s.stages + int64_t{warp} * s.stage_bytes,
                 static_cast<const char*>(p.x) + int64_t{token} * p.row_bytes,
                 static_cast<uint32_t>(p.row_bytes), &s.barriers[warp]);
}

/// What lane k of a warp knows about selection k of its token.
struct Selection {
  int32_t id = kNone;
  int32_t rank = kNone;
  int32_t slot = 0;     // of the copy at that rank
  int32_t row = 0;      // expand: of the selection in the tensor
  int32_t landing = 0;  // row of the tensor that the copy is written to: its first selection's
  float weight = 0.0f;
  bool sends = false;  // the lane that sends the copy to `rank`
};

constexpr int32_t kScalesAtOnce = 2;  // packs that a lane loads ahead

/// A token's selections and scales, loaded while its row is under way.
struct Ahead {
  Selection mine;
  uint32_t scales[kScalesAtOnce] = {};
};

__device__ __forceinline__ Ahead load_ahead(const auto& p, int32_t token, bool is_drawn = false) {
  const int32_t lane = lane_index();
  const int64_t index = int64_t{token} * p.context.topk + lane;
  Ahead out;
  if (lane < p.context.topk) {
    out.mine.id = p.handle.ids[index];
    const bool is_settled = !p.grouped || p.cached || is_drawn;
    out.mine.slot = (is_settled ? p.handle.slots : p.context.numbers)[index];
    if (p.expand) out.mine.row = p.handle.rows[index];
    if (!p.grouped && p.weights != nullptr) out.mine.weight = p.weights[index];
  }
  if (p.grouped) return out;
  const uint32_t* from = p.scales + int64_t{token} * p.scale_token_stride;
#pragma unroll
  for (int32_t i = 0; i < kScalesAtOnce; ++i)
    if (lane + i * 32 < p.scale_packs) out.scales[i] = from[(lane + i * 32) * p.scale_pack_stride];
  return out;
}

/// Turns numbers that count from the numbering warp's first row into places at the destination. Keeps in the
/// handle those that count from this source's first row when the warp `keeps` them; of many tokens
/// settle_slots() does. `number_warp`: the numbering warp of the token.
__device__ __forceinline__ void place_selection(const auto& p, const DispatchShared& s, const Rows& rows,
                                                int32_t number_warp, bool keeps, Selection& mine) {
  const Context& c = p.context;
  if (mine.id < 0) {
    mine.weight = 0.0f;  // of no choice; it may be anything
    return;
  }
  mine.rank = mine.id / c.local_experts;
  if (!p.cached && !rows.is_drawn) {
    const int32_t* counter = s.histogram + number_warp * s.bins;
    const int64_t index = int64_t{rows.token} * c.topk + lane_index();
    mine.slot += counter[mine.rank] + s.before[mine.rank];
    if (keeps && !p.grouped) p.handle.slots[index] = mine.slot;
    if (p.expand) {
      mine.row += counter[c.ranks + mine.id] + s.before[c.ranks + mine.id];
      if (keeps) p.handle.rows[index] = mine.row;
    }
  }
  mine.slot += s.base[mine.rank];
  if (p.expand) mine.row += s.group_base[mine.id];
}

/// Ids, weights, source and scales of a copy; all lanes together.
__device__ __forceinline__ void send_metadata(const auto& p, const DispatchShared& s, const Ahead& in,
                                              int32_t token, int32_t from_lane) {
  const Context& c = p.context;
  const Selection& mine = in.mine;
  const int32_t lane = lane_index();
  const int32_t dst = __shfl_sync(kAllLanes, mine.rank, from_lane);
  const int64_t slot = __shfl_sync(kAllLanes, mine.slot, from_lane);
  const int64_t landing = __shfl_sync(kAllLanes, mine.landing, from_lane);
  char* peer = s.peers[dst];
  if (lane < c.topk) {
    const int64_t at = slot * c.topk + lane;
    const bool is_there = mine.rank == dst;
    float* weights = reinterpret_cast<float*>(peer + c.map.weights);
    if (p.expand) {
      const int32_t link = is_there ? mine.row : kNone;
      reinterpret_cast<int32_t*>(peer + c.map.links)[at] = link;
      if (dst == c.rank) p.handle.links[at] = link;
      if (is_there) weights[mine.row] = mine.weight;
    } else {
      reinterpret_cast<int32_t*>(peer + c.map.ids)[at] = is_there ? mine.id - dst * c.local_experts : kNone;
      weights[at] = mine.weight;
    }
  }
  if (lane == 0) reinterpret_cast<int32_t*>(peer + c.map.source)[slot] = c.rank * c.max_tokens + token;
  uint32_t* to = reinterpret_cast<uint32_t*>(peer + c.map.scales) + landing * p.scale_row_stride;
#pragma unroll
  for (int32_t i = 0; i < kScalesAtOnce; ++i)
    if (lane + i * 32 < p.scale_packs) to[(lane + i * 32) * p.scale_column_stride] = in.scales[i];
  const uint32_t* from = p.scales + int64_t{token} * p.scale_token_stride;
  if (p.expand && dst == c.rank) {
    uint32_t* own = reinterpret_cast<uint32_t*>(peer + c.map.scales);
    for (uint32_t rest = __ballot_sync(kAllLanes, mine.rank == dst && mine.row != landing); rest != 0;
         rest &= rest - 1) {
      const int64_t row = __shfl_sync(kAllLanes, mine.row, __ffs(static_cast<int32_t>(rest)) - 1);
#pragma unroll
      for (int32_t i = 0; i < kScalesAtOnce; ++i)
        if (lane + i * 32 < p.scale_packs)
          own[row * p.scale_row_stride + (lane + i * 32) * p.scale_column_stride] = in.scales[i];
      for (int32_t i = lane + kScalesAtOnce * 32; i < p.scale_packs; i += 32)
        own[row * p.scale_row_stride + i * p.scale_column_stride] = from[i * p.scale_pack_stride];
    }
  }
  for (int32_t i = lane + kScalesAtOnce * 32; i < p.scale_packs; i += 32)
    to[i * p.scale_column_stride] = from[i * p.scale_pack_stride];
}

/// Sends a loaded row to its ranks; `in` has its places.
template <bool kCounted>
__device__ __forceinline__ void move_row(const auto& p, const DispatchShared& s, Ahead& in, const Rows& rows,
                                         const Turn& turn, uint32_t parity) {
  Selection& mine = in.mine;
  const int32_t warp = warp_index();
  const uint32_t same_rank = same_lanes(mine.rank, p.context.topk);
  const int32_t first_row =
      __shfl_sync(kAllLanes, mine.row, (__ffs(static_cast<int32_t>(same_rank)) - 1) & 31);
  mine.landing = p.expand ? first_row : mine.slot;
  const bool is_of_kind = rows.kind == Kind::all || (rows.kind == Kind::own) == (mine.rank == p.context.rank);
  const bool sends = mine.sends =
      mine.rank >= 0 && is_of_kind && lane_index() == 31 - __clz(static_cast<int32_t>(same_rank));
  if (turn.part == 0) wait_load(&s.barriers[warp], parity);
  const bool is_own = p.expand && mine.rank == p.context.rank;  // each to its row: no copy afterwards
  if ((sends || is_own) && turn.part == 0) {
    ptx::bulk_store(
        s.peers[mine.rank] + p.context.map.x + int64_t{is_own ? mine.row : mine.landing} * p.row_bytes,
        s.stages + int64_t{warp} * s.stage_bytes, static_cast<uint32_t>(p.row_bytes));
    ptx::bulk_commit();
    if constexpr (kCounted) atomicAdd(&s.sent[mine.rank], 1u);
  }
  // While the row is read from shared memory.
  int32_t turns = turn.part;
  for (uint32_t rest = __ballot_sync(kAllLanes, sends); rest != 0 && !p.grouped; rest &= rest - 1, --turns) {
    if (turns != 0) continue;
    send_metadata(p, s, in, rows.token, __ffs(static_cast<int32_t>(rest)) - 1);
    turns = turn.parts;
  }
  if (p.cached || turn.part != 0 || rows.kind == Kind::own) return;
  const uint32_t same = same_lanes(mine.id, p.context.topk);
  if (mine.id >= 0 && (same & (same - 1)) != 0)
    report(p.context, FaultKind::repeated_expert, Step::dispatch, p.context.rank, 0, mine.id, rows.token);
}

/// Expand: tells the peers that the token's row and its metadata have landed. Matching side: follow_peers().
__device__ __forceinline__ void announce(const auto& p, const Selection& mine, const Call& call) {
  ptx::bulk_wait();
  ptx::fence_async_proxy();
  __syncwarp();
  if (mine.sends && mine.rank != p.context.rank)
    ptx::store_release_sys(at_peer<uint64_t>(p.context, mine.rank, p.context.map.landed) + mine.slot,
                           call.number);
}

/// Mover warps: the first row is being loaded, `next` are its selections. `part`: of the block; the warp is
/// dealt its turn of the tokens before `dealt_end`.
template <bool kCounted>
__device__ void move_rows(const auto& p, const DispatchShared& s, const Turn& turn, const TokenRange& part,
                          int32_t dealt_end, const Call& call, Ahead next) {
  uint32_t parity = 0;
  const int32_t share = numbering_share(p, part);
  RowSource source(p, turn, dealt_end, call);
  while (source.now().token >= 0) {
    const Rows rows = source.now();
    Ahead in = next;
    const int32_t number_warp = p.cached || rows.is_drawn ? 0 : (rows.token - part.first) / share;
    place_selection(p, s, rows, number_warp, turn.part == 0, in.mine);
    const Rows following = source.following();
    const bool has_next = following.token >= 0;
    if (has_next) next = load_ahead(p, following.token, following.is_drawn);
    move_row<kCounted>(p, s, in, rows, turn, parity);
    parity ^= 1;
    ptx::bulk_wait_read();
    __syncwarp();
    if (lane_index() == 0 && has_next) load_row(p, s, following.token);
    if (follows(p)) announce(p, in.mine, call);
    source.advance(following);
  }
  ptx::bulk_wait();
  ptx::fence_async_proxy();  // the block's release of its rows covers the bulk stores
}

/// Nothing may be moved: the loads under way must still end before the block does.
__device__ void drain_load(const DispatchShared& s, const Turn& turn, int32_t end) {
  if (turn.moves(end)) wait_load(&s.barriers[warp_index()], 0);
}

/// The block's rows are sent and signalled; the first block (every one, if it then copies what has arrived)
/// waits until all rows have arrived.
template <bool kCounted>
__device__ void flush(const auto& p, const DispatchShared& s, const Call& call) {
  const Context& c = p.context;
  uint64_t* scratch = reinterpret_cast<uint64_t*>(s.stages);
  if (blockIdx.x == 0)
    await_blocks<kCounted>(c, Step::flush, c.map.arrived, call, scratch);
  else if (p.expand && !follows(p))
    await_blocks<false>(c, Step::flush, c.map.arrived, call, scratch);
  if (blockIdx.x == 0 && threadIdx.x == 0) {  // all blocks of the rank are done with these
    c.state->dispatches = call.number;
    c.state->settled = 0;
    c.state->drawn[0] = c.state->drawn[1] = 0;
  }
  if constexpr (kCounted) stamp_end(c, Step::flush);
}

template <bool kCounted>
__device__ void count_moves(const auto& p, const DispatchShared& s) {
  const Context& c = p.context;
  const bool counts_notify = blockIdx.x == 0 && !p.cached;  // for the blocks that sent
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < c.ranks; d += static_cast<int32_t>(blockDim.x)) {
    const bool is_self = d == c.rank;
    if (counts_notify) count(c, Step::notify, d, is_self ? 0 : 1, c.ranks * notify_bytes(c.local_experts));
    count(c, Step::dispatch, d, is_self ? 0 : s.sent[d], s.sent[d] * p.record_bytes);
  }
}

/// Warps of a block that do not move rows: metadata of many rows, or copies of rows that land.
template <bool kCounted>
__device__ __forceinline__ void help_movers(const auto& p, const DispatchShared& s, const TokenRange& part,
                                            int32_t movers, const Call& call) {
  const int32_t worker = warp_index() - movers;
  const int32_t workers = static_cast<int32_t>(blockDim.x / 32) - movers;
  if constexpr (p.grouped) send_groups(p, s, part, worker, workers);
  if (!follows(p) || warp_index() >= p.stages) return;
  Copied done;
  follow_peers(p, s, worker, p.stages - movers, call, done);
  end_copies<kCounted>(p, done);
}

/// Until this rank knows where its rows go and that they may be written; false: move nothing. `first`: the
/// selections of `token`, the warp's first row if it has one, loaded during the waits.
template <bool kCounted>
__device__ bool plan_rows(const auto& p, const DispatchShared& s, const TokenRange& part, int32_t token,
                          const Call& call, const LoadedPeer& peer, Ahead& first) {
  const Context& c = p.context;
  const bool has_row = token >= 0;
  if (p.cached) {
    const uint64_t number = static_cast<uint64_t>(p.handle.counts[kDispatchNumber]);
    if (has_row) first = load_ahead(p, token);
    sign_dispatch(c, call, c.peers);
    place_from_handle(p, s, peer);
    if constexpr (kCounted) stamp_begin(c, Step::enter);
    const bool is_entered =
        enter<kCounted>(c, Step::enter, c.map.entered, call, static_cast<uint32_t>(number));
    if constexpr (kCounted) stamp_end(c, Step::enter);
    return is_entered;
  }
  if constexpr (kCounted) stamp_begin(c, Step::notify);
  number_slots(p, s, part, call, peer);
  if (has_row) first = load_ahead(p, token);
  const bool is_direct = counts_directly(p);
  if (!is_direct && !notify(p, s, call)) return false;
  if constexpr (kCounted) {
    stamp_end(c, Step::notify);
    stamp_begin(c, Step::counts);
    if (blockIdx.x == 0 && is_last_warp()) time_counts(c, is_direct, call);
  }
  const bool is_placed = is_direct ? place_directly(p, s, call) : place(p, s, call);
  if constexpr (kCounted) stamp_end(c, Step::counts);
  return is_placed;
}

template <class Policy, Form kForm, int32_t kCapacity>
__global__ void __launch_bounds__(Policy::config.threads, 1)
    dispatch(const __grid_constant__ Batch<OfForm<kForm, kCapacity>, kCapacity> batch) {
  constexpr bool kCounted = Policy::config.counted;
  extern __shared__ __align__(128) char memory[];
  const auto& p = batch.ranks[kCapacity == 1 ? 0 : blockIdx.y];
  const Context& c = p.context;
  const DispatchShared s = dispatch_shared(p, memory);
  const TokenSplit split{p.tokens, static_cast<int32_t>(gridDim.x)};
  const TokenRange part{split.begin(static_cast<int32_t>(blockIdx.x)),
                        split.end(static_cast<int32_t>(blockIdx.x))};
  const int32_t end = shares_tokens(p) ? part.first + pools_of(p).dealt : part.last;
  const int32_t movers = movers_of(p, is_own_block(pools_of(p)));
  const bool moves = warp_index() < movers;
  const Turn turn = turn_of_warp(p, movers, part.first, end);

  if (warp_index() < p.stages && lane_index() == 0) {
    ptx::mbarrier_init(&s.barriers[warp_index()], 1);
    ptx::fence_mbarrier_init();
  }
  const auto clear = [](int32_t* from, const void* to) {
    for (int32_t* at = from + threadIdx.x; at < to; at += blockDim.x) *at = 0;
  };
  clear(s.own, s.histogram);  // the numbering warps clear the histogram
  clear(s.base, s.sent + c.ranks);
  ptx::grid_dependency_wait();
  if (moves && lane_index() == 0 && turn.moves(end)) load_row(p, s, turn.first);
  const Call call(c.state->dispatches + 1, p.options);
  const LoadedPeer peer(c);
  Ahead first;
  const bool is_placed =
      plan_rows<kCounted>(p, s, part, turn.first < end ? turn.first : kNone, call, peer, first);
  if constexpr (kCounted) stamp_begin(c, Step::dispatch);
  if (moves && is_placed) move_rows<kCounted>(p, s, turn, part, end, call, first);
  if (moves && !is_placed) drain_load(s, turn, end);
  if constexpr (p.grouped)  // before all else: other blocks may wait for it
    if (is_placed && !moves && !p.cached)
      settle_slots(p, s, part, warp_index() - movers, static_cast<int32_t>(blockDim.x / 32) - movers);
  if (!p.cached && is_last_warp() && counts_directly(p)) send_totals(p, s, call);
  if (is_placed && !p.cached && blockIdx.x == 0 && is_last_warp()) publish_counts(p, s, call);
  if (is_placed && !moves) help_movers<kCounted>(p, s, part, movers, call);
  if constexpr (kCounted) {
    __syncthreads();
    stamp_end(c, Step::dispatch);
    count_moves<kCounted>(p, s);
  }
  signal_block_done(c, c.map.arrived, call);
  flush<kCounted>(p, s, call);
  if (!p.expand || !is_placed || is_aborted(c)) return;
  if constexpr (kCounted) stamp_begin(c, Step::copy);
  if (moves && !follows(p)) {
    const int32_t loads = turn.moves(end) ? (end - 1 - turn.first) / turn.step + 1 : 0;
    Copied done{static_cast<uint32_t>(loads) % 2};
    ptx::fence_async_proxy();  // rows of peers, acquired in flush(), are read by bulk loads
    copy_rows(p, s, done);
    end_copies<kCounted>(p, done);
  }
  if constexpr (kCounted) stamp_end(c, Step::copy);
  if (!p.zero_padding) return;
  if constexpr (kCounted) stamp_begin(c, Step::pad);
  pad_rows<kCounted>(p, s);
  if constexpr (kCounted) stamp_end(c, Step::pad);
}

template <Form kForm, int32_t kCapacity>
cudaError_t launch_form(std::span<const DispatchParams> ranks, const Launch& launch, int64_t shared_bytes) {
  constexpr int32_t kThreads = kThreadsOf<kForm>;
  return launch_policy(launch.counted ? dispatch<Counted<kThreads>, kForm, kCapacity>
                                      : dispatch<Fast<kThreads>, kForm, kCapacity>,
                       ranks, launch, kThreads, shared_bytes);
}

/// The kernels of one rank: those of a batch run all ranks of the GPU.
template <Form kForm>
cudaError_t load_form(cudaFuncAttributes& attributes) {
  const cudaError_t error = cudaFuncGetAttributes(&attributes, dispatch<Fast<kThreadsOf<kForm>>, kForm, 1>);
  return error != cudaSuccess
             ? error
             : cudaFuncGetAttributes(&attributes, dispatch<Counted<kThreadsOf<kForm>>, kForm, 1>);
}

template <int32_t kCapacity>
cudaError_t launch_capacity(std::span<const DispatchParams> ranks, const Launch& launch,
                            int64_t shared_bytes) {
  int32_t tokens = 0;
  for (const DispatchParams& p : ranks) tokens = p.tokens > tokens ? p.tokens : tokens;
  if (ranks.front().expand) return launch_form<Form::expand, kCapacity>(ranks, launch, shared_bytes);
  return tokens >= kGroupedTokens * launch.sms
             ? launch_form<Form::many, kCapacity>(ranks, launch, shared_bytes)
             : launch_form<Form::few, kCapacity>(ranks, launch, shared_bytes);
}

}  // namespace

cudaError_t launch_dispatch(std::span<const DispatchParams> ranks, const Launch& launch) {
  const int64_t shared_bytes = ranks.front().shared.bytes;
  return ranks.size() == 1 ? launch_capacity<1>(ranks, launch, shared_bytes)
                           : launch_capacity<kMaxBatch>(ranks, launch, shared_bytes);
}

cudaError_t load_dispatch() {
  cudaFuncAttributes attributes;
  for (const cudaError_t error : {load_form<Form::few>(attributes), load_form<Form::many>(attributes),
                                  load_form<Form::expand>(attributes)})
    if (error != cudaSuccess) return error;
  return cudaSuccess;
}

cudaError_t report_dispatch(KernelReport& fast, KernelReport& counted) {
  const cudaError_t first = report_kernel(dispatch<Fast<kDispatchThreads>, Form::many, 1>, "dispatch", fast);
  return first != cudaSuccess
             ? first
             : report_kernel(dispatch<Counted<kDispatchThreads>, Form::many, 1>, "dispatch counted", counted);
}

}  // namespace plumb::kernels

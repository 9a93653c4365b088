// Combine inside one scale-up domain: each source reads the rows of its tokens from the peers' windows and
// sums them in registers, so there is no pass after it. In large calls of two ranks most rows are not read:
// the peer pushes them (push_rows.cuh).
//
// Phases:
//   local     expand with multiple reduction only: a rank sums its rows of one token into one bf16 row
//   enter     a signal to and from every peer: its rows (or partial sums) are there; carries the number of
//             the handle's dispatch, so that a peer with another handle is named
//   up+reduce one warp per (token, part of the row): bulk loads of the rows, chunk by chunk, through the ring
//             of the warp; fp32 sum of biases, then rows in ascending top-k position of their last member,
//             one rounding. Dealt out, or drawn one by one (draws_items())
//   flush     every block signals every peer that it has read its rows; the first one waits for all blocks
// Warps: all sum; of blocks that push, some push and one tells first. Shared memory: rings (row_sums.cuh),
// then CombineShared.
// Must match on all ranks: what call_options.h names.
// Versions: 1 pull, 16-byte loads summed in registers: 52 GB/s per SM with 5 rows a token, 25 with 2. 2 bulk
// loads through rings, so that what is in flight does not depend on the number of rows. 3 handle loaded
// before peers are awaited, a signal per block (version 2: 15.9 us for 128 tokens over NVLink, now 14.7).
// 4 two rows summed without accumulators; rows pushed. 5 many items are drawn by all calls (4 ranks on a GPU,
// 2048 tokens: 173 us, now 160).
#include "kernels/launch.h"
#include "kernels/policy.cuh"
#include "kernels/push_rows.cuh"
#include "model/schedule.h"

namespace plumb::kernels {
namespace {

constexpr int32_t kManySms = 32;  // of a rank, whose loads would queue up: 371 us at 64 SMs, 364 with half
constexpr int32_t kCombineThreads = 32 * kRingWarps;

/// Bytes of a part of a row: whole chunks, so that parts begin aligned.
__device__ __forceinline__ int32_t part_bytes(const CombineParams& p) {
  return static_cast<int32_t>(round_up(ceil_div(p.row_bytes, p.parts), kPieceBytes));
}

__device__ __forceinline__ int32_t grid_warp() {
  return static_cast<int32_t>(
      worker_of_warp({static_cast<int32_t>(blockIdx.x), warp_index()}, static_cast<int32_t>(gridDim.x)));
}
__device__ __forceinline__ int32_t grid_warps() { return static_cast<int32_t>(gridDim.x) * kRingWarps; }

/// Expand: one row per received copy, the sum of its selections' rows.
template <bool kCounted>
__device__ void sum_locally(const CombineParams& p, Ring& ring) {
  const Context& c = p.context;
  char* own = c.peers[c.rank];
  const int32_t lane = lane_index();
  int64_t rows_read = 0;
  int64_t rows_written = 0;
  int64_t copy = grid_warp() - grid_warps();
  const int64_t end = p.handle.counts[kNumCopies];
  sum_items(ring, Biases{}, [&] {
    copy += grid_warps();
    if (copy >= end) return Item{};
    const int32_t row = lane < c.topk ? p.handle.links[copy * c.topk + lane] : kNone;
    const uint32_t rows = __ballot_sync(kAllLanes, row >= 0);
    rows_read += __popc(rows);
    ++rows_written;
    return Item{compacted(own + c.map.expert_out + int64_t{row} * p.row_bytes, rows),
                own + c.map.partial + copy * p.row_bytes,
                0,
                0,
                p.row_bytes,
                __popc(rows)};
  });
  if constexpr (kCounted)
    if (lane == 0) count(c, Step::combine_local, c.rank, rows_written, rows_read * p.record_bytes);
}

/// Behind the rings. Of more experts than fit, the first rows stay in the handle.
struct CombineShared {
  int32_t* slot_begin;       // [ranks]
  const int32_t* row_begin;  // [experts], expand
};
/// Of the 227 KiB that a block of sm_90 may have (CUDA C++ programming guide), less static words.
constexpr int32_t kBehindRings = 227 * 1024 - kRingBytes - 128;

PLUMB_HD constexpr int32_t experts_kept(const CombineParams& p) {
  const int32_t experts = p.expand ? int32_t{p.context.experts} : 0;
  return 4 * (p.context.ranks + experts) <= kBehindRings ? experts : 0;
}

/// Selection k of a token as the handle has it, in lane k.
struct Chosen {
  int32_t id = kNone;
  int32_t slot = 0;
  int32_t row = 0;  // expand
};

__device__ __forceinline__ Chosen load_chosen(const CombineParams& p, int64_t item) {
  const int64_t index = int64_t{static_cast<int32_t>(item) / p.parts} * p.context.topk + lane_index();
  Chosen out;
  if (lane_index() < p.context.topk) {
    out.id = p.handle.ids[index];
    out.slot = p.handle.slots[index];
    if (p.expand) out.row = p.handle.rows[index];
  }
  return out;
}

__device__ __forceinline__ Biases biases_of(const CombineParams& p) {
  return {static_cast<const char*>(p.bias[0]), static_cast<const char*>(p.bias[1])};
}

/// One part of one token; the first part also carries its weights home. `inbound`: Pushes::inbound.
template <bool kCounted>
__device__ __forceinline__ Item token_item(const CombineParams& p, const CombineShared& s, int64_t item,
                                           const Chosen& chosen, int32_t inbound = 0) {
  const Context& c = p.context;
  const int32_t lane = lane_index();
  const int32_t token = static_cast<int32_t>(item) / p.parts;
  const int32_t part = static_cast<int32_t>(item) % p.parts;
  const int64_t index = int64_t{token} * c.topk + lane;
  const bool takes_all = p.expand && !p.multiple_reduction;
  const int32_t id = chosen.id;
  int64_t slot = chosen.slot;
  int64_t row = chosen.row;
  const int32_t rank = id < 0 ? kNone : id / c.local_experts;
  const uint32_t same_rank = same_lanes(rank, c.topk);
  const bool has_row = rank >= 0 && (takes_all || lane == 31 - __clz(static_cast<int32_t>(same_rank)));
  const char* address = nullptr;
  if (rank >= 0) {
    const bool is_home = rank != c.rank && slot < inbound;
    const int64_t home_slot = slot;
    slot += s.slot_begin[rank];
    if (p.expand) row += s.row_begin[id];
    const int64_t area = p.expand && p.multiple_reduction ? c.map.partial : c.map.expert_out;
    address = is_home ? c.peers[c.rank] + c.map.returned + home_slot * p.row_bytes
                      : c.peers[rank] + area + (takes_all ? row : slot) * p.row_bytes;
  }
  const uint32_t rows = __ballot_sync(kAllLanes, has_row);
  const int32_t biases = biases_of(p).count();
  if (part == 0 && p.out_weights != nullptr && lane < c.topk) {
    float weight = 0.0f;
    if (rank >= 0) {
      const float* weights = reinterpret_cast<const float*>(c.peers[rank] + c.map.expert_weights);
      weight = p.expand ? weights[row] : weights[slot * c.topk + lane];
    }
    p.out_weights[index] = weight;
  }
  if constexpr (kCounted) {
    if (part == 0 && has_row) count(c, Step::combine_up, rank, rank == c.rank ? 0 : 1, p.record_bytes);
    if (part == 0 && lane == 0)
      count(c, Step::combine_reduce, c.rank, 1, (__popc(rows) + biases) * p.record_bytes);
  }
  const int64_t own_row = int64_t{token} * p.row_bytes;
  const int32_t bytes = part_bytes(p);
  const int32_t begin = part * bytes;
  const int32_t end = begin + bytes < p.row_bytes ? begin + bytes : p.row_bytes;
  return {compacted(address, rows), static_cast<char*>(p.out) + own_row, own_row, begin, end,
          biases + __popc(rows)};
}

/// Fills in what token_item() needs, while the peers are awaited. Before a barrier of the block.
__device__ __forceinline__ CombineShared load_begins(const CombineParams& p, char* memory) {
  const Context& c = p.context;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t threads = static_cast<int32_t>(blockDim.x);
  const int32_t kept = experts_kept(p);
  int32_t* slot_begin = reinterpret_cast<int32_t*>(memory + kRingBytes);
  int32_t* row_begin = slot_begin + c.ranks;
  for (int32_t i = thread; i < c.ranks; i += threads) slot_begin[i] = p.handle.slot_begin[i];
  for (int32_t i = thread; i < kept; i += threads) row_begin[i] = p.handle.row_begin[i];
  return {slot_begin, kept > 0 ? row_begin : p.handle.row_begin};
}

constexpr int32_t kDrawnItems = 8;  // of a warp; with fewer, drawing takes longer than it saves

/// Whether warps draw their items, so that those of faster SMs sum more of them.
__device__ __forceinline__ bool draws_items(const CombineParams& p, const Pushes& pushes) {
  return pushes.any() || int64_t{p.tokens} * p.parts >= int64_t{kDrawnItems} * grid_warps();
}

/// The items of a warp: dealt out, or drawn in the order of tokens; then sums follow the rows that come home,
/// and rows to be read come last. Number and selections of an item that is drawn are on their way before it
/// is needed; of those dealt out, which are few, only the first's, so that its rows are loaded at once.
template <bool kCounted>
class Items {
 public:
  __device__ Items(const CombineParams& p, const Call& call, const Pushes& pushes)
      : p_(p), call_(call), inbound_(pushes.inbound), draws_(draws_items(p, pushes)) {}

  /// Before next(): asks for the first item.
  __device__ __forceinline__ void begin() {
    if (draws_) ask();
    look_ahead();
  }
  /// Empty when there are no more, or a wait was given up. Requires load_begins() and a barrier of the block.
  __device__ __forceinline__ Item next(const CombineShared& s) {
    if (has_begun_ && !draws_) look_ahead();
    has_begun_ = true;
    if (!has_item_ || !await()) return {};
    const Item item = token_item<kCounted>(p_, s, item_, chosen_, inbound_);
    if (draws_) look_ahead();
    return item;
  }

 private:
  __device__ __forceinline__ void ask() {
    if (lane_index() == 0) asked_ = static_cast<int32_t>(atomicAdd(&p_.context.state->sums_drawn, 1u));
  }
  __device__ __forceinline__ void look_ahead() {
    item_ = draws_ ? __shfl_sync(kAllLanes, asked_, 0) : item_ + grid_warps();
    has_item_ = item_ < p_.tokens * static_cast<int32_t>(p_.parts);
    if (!has_item_) return;
    if (draws_) ask();
    chosen_ = load_chosen(p_, item_);
  }
  /// Until the token's row is there, if it comes home. Matching side: tell_rows().
  __device__ __forceinline__ bool await() const {
    if (inbound_ == 0) return true;
    const Context& c = p_.context;
    const bool is_far = chosen_.id >= 0 && chosen_.id / c.local_experts != c.rank;
    const uint32_t far = __ballot_sync(kAllLanes, is_far);
    if (far == 0) return true;
    const int32_t slot = __shfl_sync(kAllLanes, chosen_.slot, __ffs(static_cast<int32_t>(far)) - 1);
    if (slot >= inbound_) return true;
    const Awaited what{Step::combine_up, peer_of_two(c), call_.number, call_.options};
    const uint64_t* word = at_peer<uint64_t>(c, c.rank, c.map.home) + slot;
    const uint64_t seen =
        wait_until<false>(c, what, word, [&](uint64_t found) { return found == call_.signature(); });
    ptx::fence_async_proxy();  // the row is read by bulk loads
    return __all_sync(kAllLanes, seen != 0);
  }

  const CombineParams& p_;
  const Call& call_;
  int32_t inbound_;  // Pushes::inbound
  bool draws_;
  int32_t asked_ = 0;  // lane 0: number of the item after the next one, when drawn
  int32_t item_ = grid_warp() - grid_warps();
  bool has_item_ = false;
  bool has_begun_ = false;
  Chosen chosen_;
};

/// `number`: of the handle's dispatch. The signal to the peers, after the local sums of all blocks, and the
/// wait for theirs.
template <bool kCounted>
__device__ bool enter_combine(const CombineParams& p, const Call& call, uint32_t number) {
  const Context& c = p.context;
  if (!p.expand || !p.multiple_reduction)
    return enter<kCounted>(c, Step::combine_enter, c.map.combine_ready, call, number);
  if (is_last_block(&c.state->locals_done)) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x))
      signal(c, peer_at_step(c.rank, i, c.ranks), c.map.combine_ready, call.word(number));
    if (threadIdx.x == 0) c.state->locals_done = 0;
  }
  return enter<kCounted>(c, Step::combine_enter, c.map.combine_ready, call, number, false);
}

template <class Policy, int32_t kCapacity, bool kMayPush = false>
__global__ void __launch_bounds__(Policy::config.threads, 1)
    combine(const __grid_constant__ Batch<CombineParams, kCapacity> batch) {
  constexpr bool kCounted = Policy::config.counted;
  extern __shared__ __align__(128) char memory[];
  const CombineParams& p = batch.ranks[kCapacity == 1 ? 0 : blockIdx.y];
  const Context& c = p.context;
  Ring ring(memory);
  if (static_cast<int32_t>(gridDim.x) >= kManySms) ring.limit = kRingStages / 2;
  ptx::grid_dependency_wait();
  const Call call(c.state->combines + 1, p.options);
  if (blockIdx.x == 0 && is_last_warp()) sign(c, Step::combine_enter, call, c.peers);
  const auto number = static_cast<uint32_t>(p.handle.counts[kDispatchNumber]);
  Pushes pushes;
  if constexpr (kMayPush) pushes = pushes_of(p);
  Items<kCounted> items(p, call, pushes);
  if (!pushes.any()) items.begin();
  const CombineShared s = load_begins(p, memory);

  if (p.expand && p.multiple_reduction) {
    if constexpr (kCounted) stamp_begin(c, Step::combine_local);
    sum_locally<kCounted>(p, ring);
    if constexpr (kCounted) stamp_end(c, Step::combine_local);
  }
  if (kMayPush && is_last_warp()) clear(board_in(memory));
  if constexpr (kCounted) stamp_begin(c, Step::combine_enter);
  const bool may_read = enter_combine<kCounted>(p, call, number);
  if constexpr (kCounted) {
    stamp_end(c, Step::combine_enter);
    stamp_begin(c, Step::combine_reduce);
  }
  if (may_read) {
    ptx::fence_async_proxy();  // rows of peers, acquired on entry, are read by bulk loads
    if (kMayPush && pushes.any()) {
      if (is_push_block()) push_rows(p, ring, memory, call, pushes.outbound);
      ptx::fence_async_proxy();  // the board becomes a ring
      items.begin();
    }
    sum_items(ring, biases_of(p), [&] { return items.next(s); });
  }
  if constexpr (kCounted) {
    __syncthreads();
    stamp_end(c, Step::combine_reduce);
  }
  signal_block_done(c, c.map.combine_done, call);
  if (blockIdx.x != 0) return;
  await_blocks<kCounted>(c, Step::combine_flush, c.map.combine_done, call,
                         reinterpret_cast<uint64_t*>(memory));
  if (threadIdx.x == 0) {  // all blocks of the rank are done with these
    c.state->combines = call.number;
    c.state->pushes_drawn = c.state->sums_drawn = 0;
  }
  if constexpr (kCounted) stamp_end(c, Step::combine_flush);
}

template <int32_t kCapacity, bool kMayPush = false>
cudaError_t launch_capacity(std::span<const CombineParams> ranks, const Launch& launch,
                            int64_t shared_bytes) {
  return launch_policy(launch.counted ? combine<Counted<kCombineThreads>, kCapacity, kMayPush>
                                      : combine<Fast<kCombineThreads>, kCapacity, kMayPush>,
                       ranks, launch, kCombineThreads, shared_bytes);
}

}  // namespace

bool may_push(const CombineParams& p, int32_t sms) {
  return are_two_apart(p.context.ranks, p.has_far_peers) && returns_one_row(p.expand, p.multiple_reduction) &&
         pushed_rows(p.context.max_tokens, sms) > 0;
}

cudaError_t launch_combine(std::span<const CombineParams> ranks, const Launch& launch) {
  const Context& c = ranks.front().context;
  const int64_t shared_bytes = kRingBytes + 4 * (int64_t{c.ranks} + experts_kept(ranks.front()));
  if (ranks.size() != 1) return launch_capacity<kMaxBatch>(ranks, launch, shared_bytes);
  return may_push(ranks.front(), launch.sms) ? launch_capacity<1, true>(ranks, launch, shared_bytes)
                                             : launch_capacity<1>(ranks, launch, shared_bytes);
}

cudaError_t load_combine() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, combine<Fast<kCombineThreads>, 1>);
  return error != cudaSuccess ? error
                              : cudaFuncGetAttributes(&attributes, combine<Counted<kCombineThreads>, 1>);
}

cudaError_t report_combine(KernelReport& fast, KernelReport& counted) {
  const cudaError_t first = report_kernel(combine<Fast<kCombineThreads>, 1>, "combine", fast);
  return first != cudaSuccess
             ? first
             : report_kernel(combine<Counted<kCombineThreads>, 1>, "combine counted", counted);
}

}  // namespace plumb::kernels

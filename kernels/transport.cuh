// The seam between kernels and the way to a peer. Today a peer is the base pointer of its window (local
// world, NVLink); a GIN endpoint would be a second kind behind the same names. Every wait ends: with the
// signal, with the time-out, or because another wait of this rank timed out. Device only.
#pragma once

#include "kernels/params.h"
#include "kernels/ptx.cuh"
#include "model/schedule.h"

namespace plumb::kernels {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ int32_t lane_index() { return static_cast<int32_t>(threadIdx.x % 32); }
__device__ __forceinline__ int32_t warp_index() { return static_cast<int32_t>(threadIdx.x / 32); }

__device__ __forceinline__ bool is_last_warp() { return threadIdx.x / 32 == blockDim.x / 32 - 1; }

/// Lanes below `count` that hold the same value as this one. A loop of shuffles.
__device__ __forceinline__ uint32_t same_lanes(int32_t value, int32_t count) {
  uint32_t same = 0;
#pragma unroll 4
  for (int32_t lane = 0; lane < count; ++lane)
    same |= __shfl_sync(kAllLanes, value, lane) == value ? 1u << lane : 0u;
  return same;
}

/// The next of what the warps of a rank share out; all lanes.
__device__ __forceinline__ int32_t draw(uint32_t* drawn) {
  const int32_t i = lane_index() == 0 ? static_cast<int32_t>(atomicAdd(drawn, 1u)) : 0;
  return __shfl_sync(kAllLanes, i, 0);
}

template <class T>
__device__ __forceinline__ T* at_peer(const Context& c, int32_t peer, int64_t offset) {
  return reinterpret_cast<T*>(c.peers[peer] + offset);
}

/// Writes the first fault of the rank; later ones are dropped.
static __device__ __noinline__ void report(const Context& c, FaultKind kind, Step step, int32_t peer,
                                           int64_t expected, int64_t seen, int32_t token) {
  if (atomicCAS(&c.state->has_fault, 0, 1) != 0) return;
  c.fault->kind = kind;
  c.fault->step = step;
  c.fault->rank = c.rank;
  c.fault->peer = peer;
  c.fault->token = token;
  c.fault->expected = expected;
  c.fault->seen = seen;
  ptx::store_release_sys(&c.fault->state, 1);  // matching side: read_fault() on the host
}

__device__ __forceinline__ bool is_aborted(const Context& c) {
  return *static_cast<volatile int32_t*>(&c.state->aborted) != 0;
}

/// A call as this rank makes it. Words that ranks exchange carry its number and what must be alike on all
/// ranks, so that no word of a call with other options is taken for one of this call.
struct Call {
  uint64_t number = 0;   // 1, 2, ... of this kind of call
  uint32_t options = 0;  // CallOptions::word()

  __device__ Call(uint64_t number_in, uint32_t options_in)
      : number(number_in), options(options_in | (gridDim.x - 1)) {}

  /// 24 bits of the number, 8 bits that differ when num_sms does, and nearly always when other options do.
  __device__ __forceinline__ uint32_t tag() const {
    return static_cast<uint32_t>(number) << 8 | ((options + ((options >> 8) * 0x9e3779b1u >> 24)) & 0xffu);
  }
  /// A count, or another number that travels with the call. One 64-bit store: it needs no flag and no order.
  __device__ __forceinline__ uint64_t word(uint32_t count) const { return uint64_t{tag()} << 32 | count; }
  /// The number and all options.
  __device__ __forceinline__ uint64_t signature() const { return number << 32 | options; }
};

/// Where a rank finds the signatures of all ranks; parity of the call, source.
__device__ __forceinline__ int64_t signature_word(const Context& c, Step step, uint64_t number, int32_t src) {
  const int64_t offset = step < Step::combine_enter ? c.map.dispatch_calls : c.map.combine_calls;
  return offset + 8 * (static_cast<int64_t>(number % 2) * c.ranks + src);
}

/// Tells all peers which call this rank makes; one warp of the rank, before it waits for others. Nobody waits
/// for these words: a wait that takes long looks at them (gives_up()). Relaxed. `peers`: Context::peers or a
/// copy.
__device__ __forceinline__ void sign(const Context& c, Step step, const Call& call, char* const* peers) {
  for (int32_t i = lane_index(); i < c.ranks; i += 32)
    ptx::store_relaxed_sys(
        reinterpret_cast<uint64_t*>(peers[i] + signature_word(c, step, call.number, c.rank)),
        call.signature());
}

/// Ends all waits of the rank. The host learns of it even when the record is taken.
__device__ __forceinline__ void abandon(const Context& c, FaultKind kind, Step step, int32_t peer,
                                        int64_t expected, int64_t seen) {
  atomicExch(&c.state->aborted, 1);
  ptx::store_release_sys(&c.fault->lost, 1);
  ptx::fence_sys();  // before the look at the record. Matching side: raise_fault() on the host
  report(c, kind, step, peer, expected, seen, kNone);
}

/// Gives up a wait: true when the rank is aborted, the peer is in this call with other options, or the time
/// since `begin_ns` is over; then all waits of the rank end. `seen`: number of the call the peer was last
/// seen in. `options` does not matter for a barrier.
static __device__ __noinline__ bool gives_up(const Context& c, Step step, int32_t peer, uint64_t begin_ns,
                                             uint64_t number, uint32_t options, uint64_t seen) {
  if (is_aborted(c)) return true;
  if (step != Step::barrier) {
    const uint64_t theirs =
        ptx::load_relaxed_sys(at_peer<uint64_t>(c, c.rank, signature_word(c, step, number, peer)));
    if (static_cast<uint32_t>(theirs >> 32) == static_cast<uint32_t>(number) &&
        static_cast<uint32_t>(theirs) != options) {
      abandon(c, FaultKind::options_differ, step, peer, options, static_cast<uint32_t>(theirs));
      return true;
    }
  }
  if (static_cast<int64_t>(ptx::global_timer() - begin_ns) < c.timeout_ns) return false;
  abandon(c, FaultKind::timeout, step, peer, static_cast<int64_t>(number), static_cast<int64_t>(seen));
  return true;
}

/// Puts `value` into the peer's word; everything this thread saw before is visible to who acquires it.
/// Matching side: wait_until.
__device__ __forceinline__ void signal(const Context& c, int32_t peer, int64_t offset, uint64_t value) {
  ptx::store_release_sys(at_peer<uint64_t>(c, peer, offset) + c.rank, value);
}

inline constexpr uint32_t kPollsPerClock = 64;  // polls between two looks at the clock

/// What a wait says when it takes long.
struct Awaited {
  Step step = Step::enter;
  int32_t peer = 0;
  uint64_t number = 0;   // of the call
  uint32_t options = 0;  // of the call
  int32_t shift = 32;    // of the number in the word
};

/// Waits until an own word that the peer writes satisfies `is_there` (acquire; matching side: a release
/// store). Returns the word, or 0 when the wait was given up. Counted waits read the clock before each poll:
/// a lane that is done first stands still until its warp is, so that a reading after the loop would tell the
/// time of the slowest peer.
template <bool kCounted, class IsThere>
__device__ __forceinline__ uint64_t wait_until(const Context& c, const Awaited& what, const uint64_t* word,
                                               IsThere is_there) {
  const uint64_t begin_ns = ptx::global_timer();
  uint64_t now_ns = begin_ns;
  uint64_t seen = ptx::load_acquire_sys(word);
  for (uint32_t polls = 1; !is_there(seen); ++polls) {
    if (polls % kPollsPerClock == 0 &&
        gives_up(c, what.step, what.peer, begin_ns, what.number, what.options, seen >> what.shift))
      return 0;
    if constexpr (kCounted) now_ns = ptx::global_timer();
    seen = ptx::load_acquire_sys(word);
  }
  if constexpr (kCounted)
    c.counters->waited_ns[static_cast<int32_t>(what.step)][what.peer] += now_ns - begin_ns;
  return seen;
}

inline constexpr uint32_t kPoison = 0xffffffffu;  // as a count: the source met an input that it refuses

__device__ __forceinline__ bool is_of(uint64_t word, const Call& call) {
  return static_cast<uint32_t>(word >> 32) == call.tag();
}

/// Waits for the count of a call in an own word; kPoison when given up. Matching side: a relaxed store.
template <bool kCounted = false>
__device__ __forceinline__ uint32_t wait_count(const Context& c, const uint64_t* word, Step step,
                                               int32_t peer, const Call& call) {
  uint64_t seen = ptx::load_relaxed_sys(word);
  if (is_of(seen, call)) return static_cast<uint32_t>(seen);
  const uint64_t begin_ns = ptx::global_timer();
  uint64_t now_ns = begin_ns;
  for (uint32_t polls = 1; !is_of(seen, call); ++polls) {
    if (polls % kPollsPerClock == 0 &&
        gives_up(c, step, peer, begin_ns, call.number, call.options, seen >> 40))
      return kPoison;
    if constexpr (kCounted) now_ns = ptx::global_timer();
    seen = ptx::load_relaxed_sys(word);
  }
  if constexpr (kCounted) c.counters->waited_ns[static_cast<int32_t>(step)][peer] += now_ns - begin_ns;
  return static_cast<uint32_t>(seen);
}

/// wait_count() for several words at once: their loads are under way together. `word_at(k)`: the k-th word,
/// null for none, whose count is then 0. False when given up or when a count is kPoison.
template <int32_t kWords, class WordAt, class PeerAt>
__device__ __forceinline__ bool wait_counts(const Context& c, WordAt word_at, PeerAt peer_at, Step step,
                                            const Call& call, uint32_t (&counts)[kWords]) {
  uint64_t begin_ns = 0;
  for (uint32_t polls = 0;; ++polls) {
    uint64_t seen[kWords];
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      const uint64_t* word = word_at(k);
      seen[k] = word != nullptr ? ptx::load_relaxed_sys(word) : call.word(0);
    }
    int32_t missing = kNone;
    bool is_poisoned = false;
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      counts[k] = static_cast<uint32_t>(seen[k]);
      if (!is_of(seen[k], call)) missing = k;
      is_poisoned |= counts[k] == kPoison;
    }
    if (missing == kNone) return !is_poisoned;
    if (polls == 0) begin_ns = ptx::global_timer();
    if (polls % kPollsPerClock == kPollsPerClock - 1 &&
        gives_up(c, step, peer_at(missing), begin_ns, call.number, call.options, 0))
      return false;
  }
}

/// Tells all peers that this block is done with its part of the call: what its threads wrote or read before
/// is then complete for who acquires the word. All threads call it. A word per block, so that no block waits
/// for another before its peers learn of it. Matching side: await_blocks.
__device__ __forceinline__ void signal_block_done(const Context& c, int64_t offset, const Call& call) {
  __syncthreads();
  const int64_t word = int64_t{c.rank} * kMaxBlocks + blockIdx.x;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x))
    ptx::store_release_sys(at_peer<uint64_t>(c, peer_at_step(c.rank, i, c.ranks), offset) + word,
                           call.signature());
}

/// Waits for the words of a peer's blocks: 32 from `first` on, 32 from `first` + `stride` on, ...; one warp,
/// which then sees what they did. A peer has as many blocks as this rank.
__device__ __forceinline__ void await_peer(const Context& c, Step step, int64_t offset, int32_t peer,
                                           const Call& call, int32_t first = 0, int32_t stride = 32) {
  const uint64_t* words = at_peer<uint64_t>(c, c.rank, offset) + int64_t{peer} * kMaxBlocks;
  const Awaited what{step, peer, call.number, call.options};
  for (int32_t block = first + lane_index(); block < static_cast<int32_t>(gridDim.x); block += stride)
    wait_until<false>(c, what, words + block, [&](uint64_t seen) { return seen == call.signature(); });
  __syncwarp();
}

/// Waits for all blocks of all ranks; all threads of the block call it. Counted: a warp per rank; the step
/// begins when the own blocks are done, and peers that are done later were awaited since then. `scratch`: of
/// the block, a word for each rank.
template <bool kCounted>
__device__ __forceinline__ void await_blocks(const Context& c, Step step, int64_t offset, const Call& call,
                                             uint64_t* scratch) {
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
  const int32_t parts = kCounted ? 1 : (static_cast<int32_t>(gridDim.x) + 31) / 32;
  for (int32_t i = warp_index(); i < c.ranks * parts; i += warps) {
    const int32_t peer = i / parts;
    await_peer(c, step, offset, peer, call, 32 * (i - peer * parts), 32 * parts);
    if constexpr (kCounted)
      if (lane_index() == 0) scratch[peer] = ptx::global_timer();
  }
  __syncthreads();
  if constexpr (kCounted) {
    const int32_t i = static_cast<int32_t>(step);
    const uint64_t begin_ns = scratch[c.rank];
    if (threadIdx.x == 0) c.counters->begin_ns[i] = begin_ns;
    for (int32_t peer = static_cast<int32_t>(threadIdx.x); peer < c.ranks;
         peer += static_cast<int32_t>(blockDim.x))
      if (scratch[peer] > begin_ns) c.counters->waited_ns[i][peer] += scratch[peer] - begin_ns;
    __syncthreads();  // the block may use the words otherwise
  }
}

/// Waits for a bulk load of the own block. It always ends, or the GPU itself is lost.
__device__ __forceinline__ void wait_load(uint64_t* barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
  }
}

/// Arrival of a block at the end of its part of a launch; call it from all threads. True in the block that
/// comes last, which then sees what all blocks wrote. Matching side: itself.
__device__ __forceinline__ bool is_last_block(uint32_t* counter) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::fence_sys();  // also covers this block's stores to peers
    is_last = ptx::add_acq_rel_gpu(counter, 1) + 1 == gridDim.x;
  }
  __syncthreads();
  return is_last;
}

}  // namespace plumb::kernels

// The seam between kernels and the way to a peer. Today a peer is the base pointer of its window (local
// world, NVLink); a GIN endpoint would be a second kind behind the same names. Every wait ends: with the
// signal, with the time-out, or because another wait of this rank timed out. Device only.
#pragma once

#include "kernels/params.h"
#include "kernels/ptx.cuh"

namespace plumb::kernels {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ int32_t lane_index() { return static_cast<int32_t>(threadIdx.x % 32); }
__device__ __forceinline__ int32_t warp_index() { return static_cast<int32_t>(threadIdx.x / 32); }

/// Lanes below `count` that hold the same value as this one. A loop of shuffles.
__device__ __forceinline__ uint32_t same_lanes(int32_t value, int32_t count) {
  uint32_t same = 0;
#pragma unroll 4
  for (int32_t lane = 0; lane < count; ++lane)
    same |= __shfl_sync(kAllLanes, value, lane) == value ? 1u << lane : 0u;
  return same;
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

/// Gives up a wait: true when the rank is aborted or the time since `begin_ns` is over; then all waits of the
/// rank end.
static __device__ __noinline__ bool gives_up(const Context& c, Step step, int32_t peer, uint64_t begin_ns,
                                             int64_t expected, int64_t seen) {
  if (is_aborted(c)) return true;
  if (static_cast<int64_t>(ptx::global_timer() - begin_ns) < c.timeout_ns) return false;
  report(c, FaultKind::timeout, step, peer, expected, seen, kNone);
  atomicExch(&c.state->aborted, 1);
  return true;
}

/// Puts `value` into the peer's word; everything this thread saw before is visible to who acquires it (see
/// wait_for). Matching side: wait_for.
__device__ __forceinline__ void signal(const Context& c, int32_t peer, int64_t offset, uint64_t value) {
  ptx::store_release_sys(at_peer<uint64_t>(c, peer, offset) + c.rank, value);
}

inline constexpr uint32_t kPollsPerClock = 64;  // polls between two looks at the clock

/// Waits until an own word that `peer` writes reaches `value` (acquire; matching side: a release store).
/// Returns the word, or 0 when the wait was given up. Counted waits read the clock before each poll: a lane
/// that is done first stands still until its warp is, so that a reading after the loop would tell the time of
/// the slowest peer.
template <bool kCounted>
__device__ __forceinline__ uint64_t wait_word(const Context& c, Step step, int32_t peer, const uint64_t* word,
                                              uint64_t value) {
  const uint64_t begin_ns = ptx::global_timer();
  uint64_t now_ns = begin_ns;
  uint64_t seen = ptx::load_acquire_sys(word);
  for (uint32_t polls = 1; seen < value; ++polls) {
    if (polls % kPollsPerClock == 0 &&
        gives_up(c, step, peer, begin_ns, static_cast<int64_t>(value), static_cast<int64_t>(seen)))
      return 0;
    if constexpr (kCounted) now_ns = ptx::global_timer();
    seen = ptx::load_acquire_sys(word);
  }
  if constexpr (kCounted) c.counters->waited_ns[static_cast<int32_t>(step)][peer] += now_ns - begin_ns;
  return seen;
}

/// The same for the word that signal() of `peer` writes.
template <bool kCounted>
__device__ __forceinline__ uint64_t wait_for(const Context& c, Step step, int32_t peer, int64_t offset,
                                             uint64_t value) {
  return wait_word<kCounted>(c, step, peer, at_peer<uint64_t>(c, c.rank, offset) + peer, value);
}

inline constexpr uint32_t kPoison = 0xffffffffu;  // as a count: the source met an input that it refuses

/// A count with the number of its call. One 64-bit store, so that it needs no flag and no order.
__device__ __forceinline__ uint64_t tagged(uint64_t call, uint32_t count) { return call << 32 | count; }

/// Waits for the count of call `call` in an own word; kPoison when given up. Matching side: a relaxed store.
template <bool kCounted = false>
__device__ __forceinline__ uint32_t wait_count(const Context& c, const uint64_t* word, Step step,
                                               int32_t peer, uint64_t call) {
  const uint32_t tag = static_cast<uint32_t>(call);
  uint64_t seen = ptx::load_relaxed_sys(word);
  if (static_cast<uint32_t>(seen >> 32) == tag) return static_cast<uint32_t>(seen);
  const uint64_t begin_ns = ptx::global_timer();
  uint64_t now_ns = begin_ns;
  for (uint32_t polls = 1; static_cast<uint32_t>(seen >> 32) != tag; ++polls) {
    if (polls % kPollsPerClock == 0 &&
        gives_up(c, step, peer, begin_ns, static_cast<int64_t>(tag), static_cast<int64_t>(seen >> 32)))
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
                                            uint64_t call, uint32_t (&counts)[kWords]) {
  const uint32_t tag = static_cast<uint32_t>(call);
  uint64_t begin_ns = 0;
  for (uint32_t polls = 0;; ++polls) {
    uint64_t seen[kWords];
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      const uint64_t* word = word_at(k);
      seen[k] = word != nullptr ? ptx::load_relaxed_sys(word) : tagged(call, 0);
    }
    int32_t missing = kNone;
    bool is_poisoned = false;
#pragma unroll
    for (int32_t k = 0; k < kWords; ++k) {
      counts[k] = static_cast<uint32_t>(seen[k]);
      if (static_cast<uint32_t>(seen[k] >> 32) != tag) missing = k;
      is_poisoned |= counts[k] == kPoison;
    }
    if (missing == kNone) return !is_poisoned;
    if (polls == 0) begin_ns = ptx::global_timer();
    if (polls % kPollsPerClock == kPollsPerClock - 1 &&
        gives_up(c, step, peer_at(missing), begin_ns, static_cast<int64_t>(tag), 0))
      return false;
  }
}

/// Tells all peers that this block is done with its part of call `call`: what its threads wrote or read
/// before is then complete for who acquires the word. All threads call it. A word per block, so that no block
/// waits for another before its peers learn of it. Matching side: await_blocks.
__device__ __forceinline__ void signal_block_done(const Context& c, int64_t offset, uint64_t call) {
  __syncthreads();
  const int64_t word = int64_t{c.rank} * kMaxBlocks + blockIdx.x;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < c.ranks; i += static_cast<int32_t>(blockDim.x))
    ptx::store_release_sys(at_peer<uint64_t>(c, (c.rank + i) % c.ranks, offset) + word,
                           tagged(call, gridDim.x));
}

/// Waits for the words of all blocks of a peer; one warp, which then sees what they did.
__device__ __forceinline__ void await_peer(const Context& c, Step step, int64_t offset, int32_t peer,
                                           uint64_t call) {
  const uint64_t* words = at_peer<uint64_t>(c, c.rank, offset) + int64_t{peer} * kMaxBlocks;
  // All lanes look at the first word, which says how many there are.
  const auto blocks = static_cast<int32_t>(wait_word<false>(c, step, peer, words, tagged(call, 0)));
  for (int32_t block = lane_index(); block < blocks; block += 32)
    wait_word<false>(c, step, peer, words + block, tagged(call, 0));
  __syncwarp();
}

/// Waits for all blocks of all peers, with a warp per peer; all threads of the block call it. Counted: the
/// first lane adds up how long each peer was awaited.
template <bool kCounted>
__device__ __forceinline__ void await_blocks(const Context& c, Step step, int64_t offset, uint64_t call) {
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
  for (int32_t peer = warp_index(); peer < c.ranks; peer += warps) {
    const uint64_t begin_ns = ptx::global_timer();
    await_peer(c, step, offset, peer, call);
    if constexpr (kCounted)
      if (lane_index() == 0)
        c.counters->waited_ns[static_cast<int32_t>(step)][peer] += ptx::global_timer() - begin_ns;
  }
  __syncthreads();
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

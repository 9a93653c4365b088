// Rows of a combine that go home by stores. Reads that cross an NVLink both ways reach 335 GB/s, stores 365;
// so in large calls of two ranks on GPUs of their own, warps of half of the blocks push the first of the rows
// that they hold for the peer into its window, and the peer sums them as they land (pushed_rows() in
// model/token_pools.h). Device only.
#pragma once

#include "kernels/policy.cuh"
#include "kernels/row_sums.cuh"
#include "model/token_pools.h"

namespace plumb::kernels {

inline constexpr int32_t kPushWarps = 8;     // of a block that pushes; its last warp tells
inline constexpr int32_t kBoardRows = 8;     // of a warp
inline constexpr uint32_t kChunksLater = 3;  // stored when a chunk is held to be complete

/// Rows of a call that go home by stores.
struct Pushes {
  int32_t outbound = 0;  // to the peer, by this rank
  int32_t inbound = 0;   // to this rank: those of its tokens whose slots at the peer are smaller

  __device__ __forceinline__ bool any() const { return outbound > 0 || inbound > 0; }
};

__device__ __forceinline__ int32_t peer_of_two(const Context& c) { return 1 - c.rank; }

__device__ __forceinline__ bool is_push_block() { return blockIdx.x < gridDim.x / 2; }

__device__ __forceinline__ Pushes pushes_of(const CombineParams& p) {
  const int32_t peer = peer_of_two(p.context);
  const int64_t* prefix = p.handle.counts + kFirstCount;
  const auto held = static_cast<int32_t>(prefix[peer] - (peer > 0 ? prefix[peer - 1] : 0));
  const int32_t blocks = static_cast<int32_t>(gridDim.x);
  return {pushed_rows(held, blocks), pushed_rows(p.handle.sent[peer], blocks)};
}

/// Rows that the warps of a block have pushed and its last warp has not taken yet: row n of a warp, plus one,
/// is at n % kBoardRows; zero is a free place. Shared memory; see clear().
struct Board {
  uint32_t rows[kPushWarps][kBoardRows];
};
inline constexpr uint32_t kNoMore = 0xffffffffu;  // in place of a row

/// In the ring of the warp that tells, which loads nothing before it has told all.
__device__ __forceinline__ Board* board_in(char* memory) {
  static_assert(sizeof(Board) <= kRingStages * kChunkBytes && kPushWarps < kRingWarps);
  return reinterpret_cast<Board*>(memory + (kRingWarps - 1) * kRingStages * kChunkBytes);
}

/// The warp that tells; before a barrier of the block.
__device__ __forceinline__ void clear(Board* board) {
  for (int32_t i = lane_index(); i < kPushWarps * kBoardRows; i += 32) (&board->rows[0][0])[i] = 0;
}

/// Puts a row, plus one, or kNoMore into its place once that is free; one lane. Ends: tell_rows() waits for
/// nobody. Matching side: take().
__device__ __forceinline__ void put(uint32_t* place, uint32_t value) {
  while (ptx::swap_if_release_cta(place, 0, value) != 0) {
  }
}
__device__ __forceinline__ uint32_t take(uint32_t* place) { return ptx::swap_acquire_cta(place, 0); }

/// Tells the peer which rows are home. Before a signal between GPUs all stores of its SM must be complete,
/// which takes microseconds; so one warp of the block gives it for what is on the board. Ends when all are
/// told.
static __device__ void tell_rows(const Context& c, Board* board, const Call& call) {
  const int32_t lane = lane_index();
  uint64_t* home = at_peer<uint64_t>(c, peer_of_two(c), c.map.home);
  uint32_t told = 0;
  bool has_more = lane < kPushWarps;
  while (__any_sync(kAllLanes, has_more)) {
    const uint32_t found = has_more ? take(&board->rows[lane][told % kBoardRows]) : 0;
    if (!__any_sync(kAllLanes, found != 0)) continue;
    ptx::fence_sys();  // matching side: Items::await()
    if (found == kNoMore) has_more = false;
    if (found == 0 || found == kNoMore) continue;
    ptx::store_relaxed_sys(home + found - 1, call.signature());
    ++told;
  }
}

/// Moves rows that a warp draws chunk by chunk through its ring, and puts them on the board.
class RowPusher {
 public:
  __device__ RowPusher(const CombineParams& p, Ring& ring, Board* board, int32_t rows)
      : ring_(ring), board_(board), state_(p.context.state), rows_(rows), row_bytes_(p.row_bytes) {
    const Context& c = p.context;
    const int32_t peer = peer_of_two(c);
    const int64_t begin = peer > 0 ? p.handle.counts[kFirstCount + peer - 1] : 0;
    from_ = c.peers[c.rank] + (p.expand ? c.map.partial : c.map.expert_out) + begin * row_bytes_;
    to_ = at_peer<char>(c, peer, c.map.returned);
  }

  __device__ __forceinline__ void run() {
    row_ = draw(&state_->pushes_drawn);
    for (uint32_t i = 0; i + 1 < kRingStages; ++i) load();
    while (stored_ < loaded_) {
      store();
      load();
      if (stored_ <= kChunksLater) continue;
      if (lane_index() == 0) ptx::bulk_wait<kChunksLater>();
      post(stored_ - 1 - kChunksLater);
    }
    if (lane_index() == 0) ptx::bulk_wait();
    for (uint32_t chunk = stored_ - min(stored_, kChunksLater); chunk < stored_; ++chunk) post(chunk);
    if (lane_index() == 0) put(place(), kNoMore);
  }

 private:
  struct Chunk {
    int32_t row = 0;
    int32_t at = 0;
    int32_t bytes = 0;
  };
  __device__ __forceinline__ Chunk chunk(int32_t row, int32_t at) const {
    return {row, at, row_bytes_ - at < kChunkBytes ? row_bytes_ - at : kChunkBytes};
  }
  __device__ __forceinline__ Chunk loaded(uint32_t number) const {
    const auto lane = static_cast<int32_t>(number % 32);
    return chunk(__shfl_sync(kAllLanes, chunk_row_, lane), __shfl_sync(kAllLanes, chunk_at_, lane));
  }

  __device__ __forceinline__ uint32_t* place() const {
    return &board_->rows[warp_index()][pushed_ % kBoardRows];
  }

  /// The next chunk of the row, then of the next row, if there is one.
  __device__ __forceinline__ void load() {
    if (row_ >= rows_) return;
    const Chunk it = chunk(row_, at_);
    if (lane_index() == static_cast<int32_t>(loaded_ % 32)) {
      chunk_row_ = it.row;
      chunk_at_ = it.at;
    }
    ring_.issue(from_ + int64_t{it.row} * row_bytes_ + it.at, it.bytes);
    ++loaded_;
    at_ += it.bytes;
    if (at_ < row_bytes_) return;
    at_ = 0;
    row_ = draw(&state_->pushes_drawn);
  }
  /// Afterwards the stage of the chunk before may be loaded.
  __device__ __forceinline__ void store() {
    const char* stage = ring_.wait();
    const Chunk it = loaded(stored_);
    if (lane_index() == 0) {
      ptx::bulk_store(to_ + int64_t{it.row} * row_bytes_ + it.at, stage, static_cast<uint32_t>(it.bytes));
      ptx::bulk_commit();
      ptx::bulk_wait_read<1>();
    }
    ++stored_;
    ring_.release();
  }
  /// The chunk is complete; if it ends its row, the row goes on the board.
  __device__ __forceinline__ void post(uint32_t number) {
    const Chunk it = loaded(number);
    if (it.at + it.bytes < row_bytes_) return;
    if (lane_index() == 0) {
      ptx::fence_async_proxy();
      put(place(), static_cast<uint32_t>(it.row) + 1);
    }
    ++pushed_;
  }

  static_assert(kRingStages + kChunksLater <= 32);  // chunks that lanes know

  Ring& ring_;
  Board* board_;
  RankState* state_;
  int32_t rows_;
  int32_t row_bytes_;
  const char* from_;
  char* to_;
  int32_t row_ = 0;  // to be loaded
  int32_t at_ = 0;
  int32_t chunk_row_ = 0;  // lane n % 32: of chunk n
  int32_t chunk_at_ = 0;
  uint32_t loaded_ = 0;
  uint32_t stored_ = 0;
  uint32_t pushed_ = 0;
};

/// All warps of a block that pushes; those without such a task return at once.
__device__ __forceinline__ void push_rows(const CombineParams& p, Ring& ring, char* memory, const Call& call,
                                          int32_t rows) {
  if (is_last_warp())
    tell_rows(p.context, board_in(memory), call);
  else if (warp_index() < kPushWarps)
    RowPusher(p, ring, board_in(memory), rows).run();
}

}  // namespace plumb::kernels

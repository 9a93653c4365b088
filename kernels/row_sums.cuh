// Ordered sums of bf16 rows that lie anywhere: each warp streams chunks of rows through a ring of shared
// memory with bulk loads, running ahead into its next item, and adds them in fp32. Device only.
#pragma once

#include <cuda_bf16.h>

#include "kernels/transport.cuh"

namespace plumb::kernels {

inline constexpr int32_t kRingWarps = 16;
inline constexpr int32_t kRingStages = 4;    // chunks in flight of a warp
inline constexpr int32_t kPieceBytes = 512;  // 32 lanes of 16 bytes
inline constexpr int32_t kChunkPieces = 7;   // 4 chunks of a row of 7168
inline constexpr int32_t kChunkBytes = kChunkPieces * kPieceBytes;
inline constexpr int32_t kRingBarriers =
    kRingWarps * kRingStages * kChunkBytes;  // offset of the barrier words
inline constexpr int32_t kRingBytes = kRingBarriers + kRingWarps * kRingStages * 8;
static_assert(kChunkBytes % 128 == 0 && (kRingStages & (kRingStages - 1)) == 0);

/// One sum of bytes [begin, end) of `count` rows, biases first.
struct Item {
  const char* row = nullptr;  // lane l: the l-th row behind the biases
  char* out = nullptr;
  int64_t bias_at = 0;  // offset of its row in the biases
  int32_t begin = 0;    // a multiple of 16
  int32_t end = 0;
  int32_t count = 0;

  __device__ __forceinline__ bool is_empty() const { return begin >= end || count == 0; }
};

struct Biases {
  const char* row[2] = {nullptr, nullptr};

  __device__ __forceinline__ int32_t count() const {
    return row[1] != nullptr ? 2 : row[0] != nullptr ? 1 : 0;
  }
};

/// Moves the addresses of the lanes in `rows` to lanes 0, 1, ...
__device__ __forceinline__ const char* compacted(const char* address, uint32_t rows) {
  int32_t from = 0;
  int32_t count = 0;
  for (uint32_t rest = rows; rest != 0; rest &= rest - 1, ++count)
    if (lane_index() == count) from = __ffs(static_cast<int32_t>(rest)) - 1;
  return reinterpret_cast<const char*>(__shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(address), from));
}

/// A warp's ring: chunk number n uses stage n % kRingStages.
struct Ring {
  char* stages;
  uint64_t* barriers;
  uint32_t limit = kRingStages;  // chunks in flight
  uint32_t issued = 0;
  uint32_t consumed = 0;

  __device__ explicit Ring(char* memory)
      : stages(memory + warp_index() * kRingStages * kChunkBytes),
        barriers(reinterpret_cast<uint64_t*>(memory + kRingBarriers) + warp_index() * kRingStages) {
    if (lane_index() < kRingStages) ptx::mbarrier_init(&barriers[lane_index()], 1);
    ptx::fence_mbarrier_init();
    __syncwarp();
  }

  __device__ __forceinline__ bool is_full() const { return issued - consumed >= limit; }
  /// The stage must have been read by all lanes.
  __device__ __forceinline__ void issue(const char* from, int32_t bytes) {
    const uint32_t stage = issued % kRingStages;
    if (lane_index() == 0) {
      ptx::mbarrier_expect(&barriers[stage], static_cast<uint32_t>(bytes));
      ptx::bulk_load(stages + stage * kChunkBytes, from, static_cast<uint32_t>(bytes), &barriers[stage]);
    }
    ++issued;
  }
  /// For the next chunk but `ahead`.
  __device__ __forceinline__ const char* wait(uint32_t ahead = 0) const {
    const uint32_t chunk = consumed + ahead;
    const uint32_t stage = chunk % kRingStages;
    wait_load(&barriers[stage], chunk / kRingStages % 2);
    return stages + stage * kChunkBytes;
  }
  __device__ __forceinline__ void release(uint32_t chunks = 1) {
    consumed += chunks;
    __syncwarp();
  }
};

/// The next chunk to load: of the present item (0), of the one after it (1), or none yet (2).
struct IssueCursor {
  int32_t item = 0;
  int32_t at = 0;
  int32_t addend = 0;

  __device__ __forceinline__ void fill(Ring& ring, const Biases& biases, const Item& now, const Item& next) {
    while (item < 2 && !ring.is_full()) {
      const Item it = item == 0 ? now : next;
      if (it.is_empty() || at >= it.end) {
        ++item;
        at = next.begin;
        continue;
      }
      const int32_t before = biases.count();
      const char* row = reinterpret_cast<const char*>(
          __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(it.row), addend - before));
      if (addend < before) row = (addend == 0 ? biases.row[0] : biases.row[1]) + it.bias_at;
      ring.issue(row + at, it.end - at < kChunkBytes ? it.end - at : kChunkBytes);
      if (++addend < it.count) continue;
      addend = 0;
      at += kChunkBytes;
    }
  }
  /// The item after becomes the present one.
  __device__ __forceinline__ void shift(const Item& next) {
    if (item == 0) at = next.begin;  // the present one was issued to its end
    if (item > 0) --item;
  }
};

struct Sum {
  float value[8] = {};
};

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ void add(Sum& sum, const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    sum.value[2 * i] += low_half(words[i]);
    sum.value[2 * i + 1] += high_half(words[i]);
  }
}

__device__ __forceinline__ uint32_t rounded_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint4 rounded(const Sum& sum) {
  uint32_t words[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) words[i] = rounded_pair(sum.value[2 * i], sum.value[2 * i + 1]);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Sums one chunk of an item and stores it.
__device__ __forceinline__ void sum_chunk(Ring& ring, IssueCursor& cursor, const Biases& biases,
                                          const Item& now, const Item& next, int32_t at) {
  const int32_t lane_byte = lane_index() * 16;
  Sum sum[kChunkPieces];
#pragma unroll 1
  for (int32_t addend = 0; addend < now.count; ++addend) {
    cursor.fill(ring, biases, now, next);
    const char* stage = ring.wait();
#pragma unroll
    for (int32_t i = 0; i < kChunkPieces; ++i)
      if (at + lane_byte + i * kPieceBytes < now.end)
        add(sum[i], *reinterpret_cast<const uint4*>(stage + lane_byte + i * kPieceBytes));
    ring.release();
  }
#pragma unroll
  for (int32_t i = 0; i < kChunkPieces; ++i)
    if (at + lane_byte + i * kPieceBytes < now.end)
      ptx::store_once(now.out + at + lane_byte + i * kPieceBytes, rounded(sum[i]));
}

/// As if added to zero: two negative zeros make a positive one.
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 sum = __floats2bfloat162_rn(low_half(a) + low_half(b), high_half(a) + high_half(b));
  const __nv_bfloat162 positive = __hadd2_rn(sum, __floats2bfloat162_rn(0.0f, 0.0f));
  return *reinterpret_cast<const uint32_t*>(&positive);
}

/// The same of two rows, without accumulators.
__device__ __forceinline__ void sum_two(Ring& ring, IssueCursor& cursor, const Biases& biases,
                                        const Item& now, const Item& next, int32_t at) {
  cursor.fill(ring, biases, now, next);
  const int32_t lane_byte = lane_index() * 16;
  const char* first = ring.wait() + lane_byte;
  const char* second = ring.wait(1) + lane_byte;
  const int32_t left = now.end - at - lane_byte;
  char* out = now.out + at + lane_byte;
#pragma unroll
  for (int32_t i = 0; i < kChunkPieces; ++i)
    if (i * kPieceBytes < left) {
      const uint4 a = *reinterpret_cast<const uint4*>(first + i * kPieceBytes);
      const uint4 b = *reinterpret_cast<const uint4*>(second + i * kPieceBytes);
      ptx::store_once(out + i * kPieceBytes, make_uint4(add_pairs(a.x, b.x), add_pairs(a.y, b.y),
                                                        add_pairs(a.z, b.z), add_pairs(a.w, b.w)));
    }
  ring.release(2);
}

/// Sums the items that `next()` yields, called by the whole warp one item ahead of the sums, until one has no
/// `out`. An item without rows yields zeros.
template <class NextItem>
__device__ __forceinline__ void sum_items(Ring& ring, const Biases& biases, NextItem next_item) {
  Item now = next_item();
  IssueCursor cursor{0, now.begin, 0};
  while (now.out != nullptr) {
    cursor.fill(ring, biases, now, Item{});
    if (cursor.item > 1) cursor.item = 1;
    const Item next = next_item();
    if (cursor.item == 1) cursor.at = next.begin;
#pragma unroll 1
    for (int32_t at = now.begin; at < now.end; at += kChunkBytes)
      if (now.count == 2)
        sum_two(ring, cursor, biases, now, next, at);
      else
        sum_chunk(ring, cursor, biases, now, next, at);
    now = next;
    cursor.shift(next);
  }
}

}  // namespace plumb::kernels

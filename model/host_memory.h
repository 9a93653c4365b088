// The memory of all ranks in the host executor: one arena per region and rank, what the bytes of a row mean,
// and which op wrote each row. Internal to the host executor and its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/plan.h"
#include "model/shape.h"

namespace plumb {

/// How much of the payload is moved, and with how much memory and how many threads.
struct HostOptions {
  /// Bytes of hidden data of each row that are kept and moved, from its begin (rounded up to 32); 0 = all.
  /// Metadata is always whole, scales are those of the blocks kept, repeated. For shapes whose payload does
  /// not fit into memory.
  int64_t window_bytes = 0;
  int64_t memory_limit = int64_t{8} << 30;  // bytes of all regions together
  int32_t threads = 1;                      // that move the rows of one op
};

/// Byte offsets in a row as stored, which is as in the plan except for hidden data outside the window. An
/// offset of kAbsent: the row has no such part. Rows that are no token records have none.
struct RowFormat {
  DType type = DType::bf16;
  int64_t plan_bytes = 0;  // of a row on the wire
  int64_t row_bytes = 0;   // of a row as stored
  int64_t hidden = kAbsent;
  int64_t hidden_bytes = 0;  // stored
  int64_t scales = kAbsent;
  int64_t scales_bytes = 0;  // unrounded
  int32_t scale_block = 0;   // elements per scale
  ScaleFormat scale_format = ScaleFormat::fp32;
  int64_t ids = kAbsent;      // int32 [topk], global expert id or -1
  int64_t weights = kAbsent;  // float [topk]
  int64_t source = kAbsent;   // int32: source rank * T_max + token

  bool is_record() const { return hidden != kAbsent; }
  bool has_metadata() const { return ids != kAbsent; }
  /// Number of hidden elements stored.
  int32_t elements() const {
    return static_cast<int32_t>(type == DType::bf16 ? hidden_bytes / 2 : hidden_bytes);
  }
};

/// Format of rows with that layout, whose hidden data is trimmed to the window (0 = not at all). The layout
/// must be one of the records that the shape has: of dispatch, combine, or of low latency; Error(usage)
/// otherwise.
RowFormat record_format(const Shape& shape, const TokenLayout& layout, int64_t window_bytes);

/// Format of the rows of a region; rows that are no records are trimmed as payload, except those of counts.
RowFormat row_format(const Shape& shape, const Region& region, int64_t window_bytes);

/// The arenas. Memory starts as zeros, and as "never written": reading it is an error of the plan.
class HostMemory {
 public:
  static constexpr OpId kNever = -1;    // not written
  static constexpr OpId kInitial = -2;  // filled before the first op

  HostMemory() = default;
  /// Allocates. Throws Error(usage) naming need and limit when the arenas do not fit.
  HostMemory(const Plan& plan, const Shape& shape, const HostOptions& options);

  const RowFormat& format(RegionId region) const { return formats_[region]; }
  int64_t rows(RegionId region, Rank rank) const { return arena(region, rank).rows; }
  /// The op that wrote the row last, kNever or kInitial.
  OpId writer(RegionId region, Rank rank, int64_t slot) const {
    return arena(region, rank).writers[static_cast<size_t>(slot)];
  }
  void set_writer(RegionId region, Rank rank, int64_t slot, OpId op) {
    arena(region, rank).writers[static_cast<size_t>(slot)] = op;
  }
  /// The bytes of a row; slot < rows(region, rank) is the caller's duty.
  std::span<std::byte> row(RegionId region, Rank rank, int64_t slot) {
    const int64_t bytes = formats_[region].row_bytes;
    return {arena(region, rank).bytes.get() + slot * bytes, static_cast<size_t>(bytes)};
  }
  std::span<const std::byte> row(RegionId region, Rank rank, int64_t slot) const {
    const int64_t bytes = formats_[region].row_bytes;
    return {arena(region, rank).bytes.get() + slot * bytes, static_cast<size_t>(bytes)};
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  struct Arena {
    int64_t rows = 0;
    std::unique_ptr<std::byte[], Free> bytes;
    std::vector<OpId> writers;  // [rows]
  };
  const Arena& arena(RegionId region, Rank rank) const {
    return arenas_[region * static_cast<size_t>(ranks_) + static_cast<size_t>(rank)];
  }
  Arena& arena(RegionId region, Rank rank) {
    return arenas_[region * static_cast<size_t>(ranks_) + static_cast<size_t>(rank)];
  }

  int32_t ranks_ = 0;
  std::vector<RowFormat> formats_;  // [regions]
  std::vector<Arena> arenas_;       // [regions][ranks]
};

}  // namespace plumb

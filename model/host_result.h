// What a run of the host executor left in the ranks' memories, decoded into the tensors that a user of
// dispatch and combine receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/host_memory.h"
#include "model/host_payload.h"
#include "model/plan.h"

namespace plumb {

/// Output of dispatch on one rank. n = rows of the tensor: copies, or in the expanded layout all rows with
/// padding. Padding rows that nobody zeroed have zeros here, too, and source kNone.
struct Received {
  int32_t rows = 0;
  std::vector<std::byte> x;       // [n][row bytes inside the window]: bf16 or e4m3
  std::vector<std::byte> scales;  // [n][4 * scale packs], empty for bf16
  std::vector<int32_t> topk_idx;  // [n][topk] local expert or -1; empty in the expanded layout
  std::vector<float>
      weights;  // [n][topk], as sent, also of foreign experts; expanded: [n]; low latency: none
  std::vector<int32_t> source;  // [n] source rank * T_max + token

  // One entry per copy (token, this rank), by ascending source:
  std::vector<int32_t> copy_source;    // [copies]
  std::vector<int32_t> master_lane;    // [copies]: highest top-k position that leads to this rank
  std::vector<int32_t> expanded_rows;  // [copies][topk]: row of each selection or -1; expanded layout only

  std::vector<int32_t> count_per_source_rank;  // [ranks]
  /// Inclusive prefix sum of copies by scale-up source: source rank (direct), forwarding GPU (hybrid).
  std::vector<int32_t> psum_per_scaleup_rank;
  std::vector<int32_t> unaligned_per_expert;  // [local experts]
  std::vector<int32_t> aligned_per_expert;    // [local experts]
  /// Plain: inclusive prefix sum of aligned counts; expanded: aligned counts before, plus the real count.
  std::vector<int32_t> psum_per_expert;
  std::vector<int32_t> padding_rows;  // ascending
};

/// Output of combine on one rank.
struct Combined {
  std::vector<uint16_t> x;     // bf16 [tokens][elements inside the window]
  std::vector<float> weights;  // [tokens][topk], 0 for a masked choice; empty when rows carry none
};

/// All memory after a run, and a copy of the plan. Refers to the batch.
class HostResult {
 public:
  HostResult(const Plan& plan, const HostBatch& batch, HostMemory memory);

  const Plan& plan() const { return plan_; }
  const HostBatch& batch() const { return *batch_; }
  const HostMemory& memory() const { return memory_; }

  /// Bytes of one row as stored. Throws Error(usage) naming region, rank, slot and the allowed values.
  std::span<const std::byte> row(std::string_view region, Rank rank, int64_t slot) const;
  /// Whether the row was written. Throws as row().
  bool is_written(std::string_view region, Rank rank, int64_t slot) const;
  /// Rows of a region on a rank. Throws Error(usage) for an unknown region, listing those of the plan.
  int64_t rows(std::string_view region, Rank rank) const;
  const RowFormat& format(std::string_view region) const;

  /// Whether the plan delivers tokens, or sums for tokens.
  bool has_received() const { return has_records("received"); }
  bool has_combined() const { return has_records("combined"); }
  /// Decodes "received" or "combined". Throws Error(usage) when the plan has no such region or its rows are
  /// no tokens.
  Received received(Rank rank) const;
  Combined combined(Rank rank) const;

  /// Throws Error(mismatch) naming rank, row and part when a delivered row is missing, is not the one of the
  /// canonical order, or differs from what its source sent; for combined rows when a weight did not come
  /// home.
  void check_delivery() const;

 private:
  bool has_records(std::string_view region) const;
  RegionId find(std::string_view region) const;
  RegionId find(std::string_view region, Rank rank, int64_t slot) const;
  void check_counts(std::string_view name) const;
  void check_received(RegionId region) const;
  void check_combined(RegionId region) const;

  Plan plan_;
  const HostBatch* batch_;
  HostMemory memory_;
  std::vector<std::vector<Arrival>> arrivals_;  // [ranks]: rows that "received" must hold
};

}  // namespace plumb

// Shared memory of a dispatch block, for the kernel and for the host that chooses how many rows are in
// flight. Device-safe.
#pragma once

#include <cstdint>

#include "model/hd.h"

namespace plumb::kernels {

struct DispatchBlock {
  int32_t ranks = 1;
  int32_t experts = 1;
  int32_t row_bytes = 0;
  int32_t stages = 1;
  int32_t plan_warps = 1;
  bool expand = false;

  /// Counters of one warp that numbers slots: rows to each rank and, in the expand layout, to each expert.
  PLUMB_HD constexpr int32_t bins() const { return ranks + (expand ? experts : 0); }
};

/// Byte offsets. Row stages first (128-byte aligned), then one barrier word per stage, the peers' addresses,
/// then int32 arrays.
struct DispatchMap {
  int64_t stage_bytes = 0;
  int64_t barriers = 0;
  int64_t peers = 0;        // [ranks] bases of the peers' windows
  int64_t own = 0;          // [ranks + experts]: rows of the block's tokens to each rank and expert
  int64_t before = 0;       // [ranks + experts]: the same of the blocks before
  int64_t total = 0;        // [ranks + experts]: the same of all blocks
  int64_t histogram = 0;    // [2][plan_warps][bins]: numbers so far, and members of 32 tokens as bits
  int64_t base = 0;         // [ranks]: first slot of this source at each rank
  int64_t copies = 0;       // [ranks]: copies that each rank receives
  int64_t group_base = 0;   // [experts]: first row of this source in each expert's group (expand)
  int64_t group_total = 0;  // [experts]: rows of each group (expand)
  int64_t inbound = 0;      // [ranks + 1]: copies received from the sources before (expand)
  int64_t sent = 0;         // [ranks]: rows sent (ledger)
  int64_t bytes = 0;
};

PLUMB_HD constexpr DispatchMap dispatch_map(const DispatchBlock& in) {
  DispatchMap out;
  out.stage_bytes = round_up(in.row_bytes, 128);
  out.barriers = out.stage_bytes * in.stages;
  const int64_t counts = 4 * (int64_t{in.ranks} + in.experts);
  out.peers = out.barriers + 8 * int64_t{in.stages};
  out.own = out.peers + 8 * int64_t{in.ranks};
  out.before = out.own + counts;
  out.total = out.before + counts;
  out.histogram = out.total + counts;
  out.base = out.histogram + 8 * int64_t{in.plan_warps} * in.bins();
  out.copies = out.base + 4 * int64_t{in.ranks};
  out.group_base = out.copies + 4 * int64_t{in.ranks};
  out.group_total = out.group_base + (in.expand ? 4 * int64_t{in.experts} : 0);
  out.inbound = out.group_total + (in.expand ? 4 * int64_t{in.experts} : 0);
  out.sent = out.inbound + (in.expand ? 4 * (int64_t{in.ranks} + 1) : 0);
  out.bytes = out.sent + 4 * int64_t{in.ranks};
  return out;
}

inline constexpr int32_t kDispatchThreads = 896;  // 72 registers a thread
inline constexpr int32_t kFewThreads = 416;       // few tokens a block: 12.7 us for 128 tokens, 14.4 with 896
inline constexpr int32_t kMaxStages = kDispatchThreads / 32 - 1;  // the last warp publishes counts
inline constexpr int64_t kHistogramBytes = 16 * 1024;             // limits plan_warps

/// Stages and numbering warps that fit `shared_bytes`; stages 0 when not even one row does.
PLUMB_HD constexpr DispatchBlock fit_dispatch_block(DispatchBlock in, int64_t shared_bytes) {
  const int64_t fit = kHistogramBytes / (8 * int64_t{in.bins()});
  in.plan_warps = fit < 1                       ? 1
                  : fit > kDispatchThreads / 32 ? kDispatchThreads / 32
                                                : static_cast<int32_t>(fit);
  in.stages = kMaxStages;
  while (in.stages > 0 && dispatch_map(in).bytes > shared_bytes) --in.stages;
  return in;
}

}  // namespace plumb::kernels

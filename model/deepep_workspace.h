// The control memory of DeepEP V2: fixed offsets for every setting, so that a buffer can be reused by any
// call. Device-safe. Source: DeepEP deep_ep/include/deep_ep/common/layout.cuh (WorkspaceLayout).
#pragma once

#include <cstdint>

#include "model/hd.h"

namespace plumb {

// What the fixed offsets leave room for; a call beyond them is refused by DeepEP.
inline constexpr int64_t kDeepepMaxRanks = 1024;
inline constexpr int64_t kDeepepMaxExperts = 2048;
inline constexpr int64_t kDeepepMaxLocalExperts = 256;
inline constexpr int64_t kDeepepMaxChannels = 1024;
inline constexpr int64_t kDeepepMaxGathers = 32;
/// Registered memory comes in multiples of it.
inline constexpr int64_t kWindowAlignment = int64_t{2} << 20;

/// Byte offsets of its parts; `end` is the size before rounding to kWindowAlignment: 12 820 528 bytes.
struct DeepepWorkspace {
  int64_t nvlink_barrier = 0;          // counter and two signal words
  int64_t notify_reduction = 0;        // int64 [ranks + experts]: sums over the SMs
  int64_t scaleup_rank_counts = 0;     // int64 [2][ranks]: send, receive
  int64_t scaleup_expert_counts = 0;   // int64 [2][experts]
  int64_t slot_counters = 0;           // int32 [ranks]: next free slot at each destination
  int64_t scaleout_rank_counts = 0;    // int32 [2][ranks]
  int64_t scaleout_expert_counts = 0;  // int32 [2][experts]
  int64_t scaleout_tails = 0;          // int64 [channels][ranks]: finished flag, rows published
  int64_t scaleup_tails = 0;           // int32 [channels][ranks]
  int64_t ring_counts = 0;             // int64 [2][2]: send, receive x previous, next
  int64_t gather_signals = 0;          // int32 [gathers + 1][ranks]
  int64_t end = 0;
};

PLUMB_HD constexpr DeepepWorkspace deepep_workspace() {
  DeepepWorkspace out;
  out.notify_reduction = out.nvlink_barrier + 16;
  out.scaleup_rank_counts = out.notify_reduction + (kDeepepMaxRanks + kDeepepMaxExperts) * 8;
  out.scaleup_expert_counts = out.scaleup_rank_counts + 2 * kDeepepMaxRanks * 8;
  out.slot_counters = out.scaleup_expert_counts + 2 * kDeepepMaxExperts * 8;
  out.scaleout_rank_counts = out.slot_counters + kDeepepMaxRanks * 4;
  out.scaleout_expert_counts = out.scaleout_rank_counts + 2 * kDeepepMaxRanks * 4;
  out.scaleout_tails = out.scaleout_expert_counts + 2 * kDeepepMaxExperts * 4;
  out.scaleup_tails = out.scaleout_tails + kDeepepMaxChannels * kDeepepMaxRanks * 8;
  out.ring_counts = out.scaleup_tails + kDeepepMaxChannels * kDeepepMaxRanks * 4;
  out.gather_signals = out.ring_counts + 2 * 2 * 8;
  out.end = out.gather_signals + (kDeepepMaxGathers + 1) * kDeepepMaxRanks * 4;
  return out;
}

}  // namespace plumb

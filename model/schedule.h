// Who does which piece of work: rows over workers, SMs and warps, tokens over channels, channels over queue
// pairs, and the turn of a barrier. The one home of work ownership, for plan builders and kernels.
// Device-safe. Sources: DeepEP csrc/elastic/buffer.hpp, csrc/kernels/elastic/dispatch.hpp,
// deep_ep/include/deep_ep/common/comm.cuh where a function says DeepEP.
#pragma once

#include <cstdint>

#include "model/ids.h"

namespace plumb {

/// A contiguous split of `rows` rows over `workers` workers whose shares differ by at most one row; earlier
/// workers have the longer shares. 10 rows, 4 workers: [0,3) [3,6) [6,8) [8,10). Requires rows >= 0, workers
/// > 0.
template <class Int>
struct BasicSplit {
  Int rows = 0;
  Int workers = 1;

  PLUMB_HD constexpr Int begin(Int worker) const {
    const Int longer = rows % workers;
    return worker * (rows / workers) + (worker < longer ? worker : longer);
  }
  PLUMB_HD constexpr Int end(Int worker) const { return begin(worker + 1); }
  /// The worker whose share holds `row`; 0 <= row < rows.
  PLUMB_HD constexpr Int worker_of(Int row) const {
    const Int share = rows / workers;
    const Int in_longer = (rows % workers) * (share + 1);  // rows of all workers with a longer share
    return row < in_longer ? row / (share + 1) : rows % workers + (row - in_longer) / share;
  }
};
using RowSplit = BasicSplit<int64_t>;
using TokenSplit = BasicSplit<int32_t>;  // of a rank, over blocks

/// A warp of a grid.
struct WarpPlace {
  int32_t sm = 0;
  int32_t warp = 0;
  friend constexpr bool operator==(const WarpPlace&, const WarpPlace&) = default;
};

/// Numbering of the warps of a grid as workers, SM first: worker = warp * num_sms + sm, so that few rows
/// spread over all SMs before a second warp of any SM gets one.
PLUMB_HD constexpr int64_t worker_of_warp(WarpPlace place, int32_t num_sms) {
  return int64_t{place.warp} * num_sms + place.sm;
}
PLUMB_HD constexpr WarpPlace warp_of_worker(int64_t worker, int32_t num_sms) {
  return {static_cast<int32_t>(worker % num_sms), static_cast<int32_t>(worker / num_sms)};
}
/// The SM and warp that handle row `row` of `rows` on a grid of num_sms * num_warps warps.
PLUMB_HD constexpr WarpPlace warp_of_row(int64_t row, int64_t rows, int32_t num_sms, int32_t num_warps) {
  return warp_of_worker(RowSplit{rows, int64_t{num_sms} * num_warps}.worker_of(row), num_sms);
}

/// The peer that `rank` serves at `step` (0 or `ranks` = itself): at each step all ranks serve different
/// peers. Requires 0 <= step <= ranks.
PLUMB_HD constexpr Rank peer_at_step(Rank rank, int32_t step, int32_t ranks) {
  const Rank peer = rank + step;
  return peer < ranks ? peer : peer - ranks;
}

/// DeepEP's hybrid channels: channel c owns tokens c, c + C, c + 2C, ... of a rank.
struct ChannelSplit {
  int32_t tokens = 0;
  int32_t channels = 1;

  PLUMB_HD constexpr int32_t count(int32_t channel) const {
    return channel < tokens ? static_cast<int32_t>(ceil_div(int64_t{tokens} - channel, channels)) : 0;
  }
  PLUMB_HD constexpr int32_t max_count() const { return static_cast<int32_t>(ceil_div(tokens, channels)); }
  PLUMB_HD constexpr int32_t token(int32_t channel, int32_t i) const { return channel + i * channels; }
  PLUMB_HD constexpr int32_t channel_of(int32_t token) const { return token % channels; }
  PLUMB_HD constexpr int32_t index_in_channel(int32_t token) const { return token / channels; }
};

/// Rows after which DeepEP's hybrid dispatch publishes a channel's tail to a node.
inline constexpr int32_t kDeepepTailRows = 6;

/// Remote adds that publish `rows` rows of one (channel, node): one after each `interval` rows, and always a
/// last one that carries the finished flag, also when there is no row left to announce. 86 rows every 6: 15.
PLUMB_HD constexpr int32_t tail_updates(int32_t rows, int32_t interval) { return rows / interval + 1; }

/// Expanded dispatch: from so many SMs on half of the warps copy a peer's row to the rows of its token's
/// other experts as soon as it has landed. With fewer SMs, whose stores are the limit, all warps do it when
/// all rows have arrived. Source: measured on two H200 at 4 to 64 SMs, docs/hw.md.
inline constexpr int32_t kFollowSms = 48;

/// Whether that is so; a rank alone has no peer to follow.
PLUMB_HD constexpr bool copies_follow(int32_t ranks, int32_t num_sms) {
  return ranks > 1 && num_sms >= kFollowSms;
}

// Warps of a block of DeepEP's kernels: at most 32, four of them for the count exchange; channels of an SM.
inline constexpr int32_t kMaxWarps = 32;
inline constexpr int32_t kNotifyWarps = 4;
inline constexpr int32_t kMaxChannelsPerSm = 8;
inline constexpr int32_t kMaxChannelsPerSmAlone = 4;  // when not overlapped with compute

/// Shared memory in bytes, from which follows how many warps and channels fit.
struct SharedMemory {
  int64_t block_bytes = 0;     // what one block may use
  int64_t notify_bytes = 0;    // notify_shared_bytes(); 0 in a cached direct dispatch
  int64_t dispatch_bytes = 0;  // TokenLayout::shared_bytes of the dispatch record
  int64_t combine_bytes = 0;   // the same of the combine record
};

/// Counters of the notify warps: one int32 per rank and expert, rounded up to one per thread of these warps.
PLUMB_HD constexpr int64_t notify_shared_bytes(int32_t ranks, int32_t experts) {
  return round_up(int64_t{ranks} + experts, kNotifyWarps * 32) * 4;
}

/// How many records fit, at most `limit`; 0 when none does (the caller then refuses the shape).
PLUMB_HD constexpr int32_t records_that_fit(int64_t bytes, int64_t record_bytes, int32_t limit) {
  const int64_t fit = bytes < 0 ? 0 : bytes / record_bytes;
  return fit < limit ? static_cast<int32_t>(fit) : limit;
}

/// DeepEP's warps per block, one record each: direct dispatch beside the notify warps, its copy epilogue,
/// direct combine. H 7168, K 8, fp8, 232 448 bytes: 28, 30 and 16.
PLUMB_HD constexpr int32_t direct_dispatch_warps(const SharedMemory& in) {
  return records_that_fit(in.block_bytes - in.notify_bytes, in.dispatch_bytes, kMaxWarps - kNotifyWarps);
}
PLUMB_HD constexpr int32_t dispatch_epilogue_warps(const SharedMemory& in) {
  return records_that_fit(in.block_bytes, in.dispatch_bytes, kMaxWarps);
}
PLUMB_HD constexpr int32_t direct_combine_warps(const SharedMemory& in) {
  return records_that_fit(in.block_bytes, in.combine_bytes, kMaxWarps);
}

/// DeepEP's hybrid channels per SM: each takes two warps (send, forward), in dispatch and in combine alike.
/// H 7168, K 8: fp8 8, bf16 7; at most 4 when `overlaps_compute` is false.
PLUMB_HD constexpr int32_t hybrid_channels_per_sm(const SharedMemory& in, bool overlaps_compute) {
  const int32_t dispatch = direct_dispatch_warps(in);
  const int32_t combine = direct_combine_warps(in);
  const int32_t pairs = (dispatch < combine ? dispatch : combine) / 2;
  const int32_t limit = overlaps_compute ? kMaxChannelsPerSm : kMaxChannelsPerSmAlone;
  return pairs < limit ? pairs : limit;
}

/// Who may post to a queue pair at the same time.
enum class QpSharing : uint8_t { block, gpu };

struct QpChoice {
  int32_t qp = 0;
  QpSharing sharing = QpSharing::block;
};

struct QpRequest {
  int32_t num_sms = 1;
  int32_t num_qps = 1;
  int32_t channels_per_sm = 1;
  int32_t sm = 0;
  int32_t channel = 0;             // in its SM
  bool kernel_has_notify = false;  // then queue pair 0 is theirs
  bool is_notify = false;
};

/// DeepEP's queue pair of a channel. With one queue pair all use it. Else, of the a = QPs - (notify ? 1 : 0)
/// that carry data, SM i owns i, i + n, i + 2n, ... while n <= a; with fewer than SMs they are dealt out by
/// global channel and shared by the GPU. 12 SMs, 129 QPs, notify: channel 7 of SM 11 uses 96.
PLUMB_HD constexpr QpChoice queue_pair(const QpRequest& in) {
  if (in.num_qps == 1) return {0, in.num_sms == 1 ? QpSharing::block : QpSharing::gpu};
  if (in.is_notify) return {0, QpSharing::block};
  const int32_t first = in.kernel_has_notify ? 1 : 0;
  const int32_t data_qps = in.num_qps - first;
  if (in.num_sms <= data_qps) {
    const int32_t owned = data_qps / in.num_sms + (in.sm < data_qps % in.num_sms ? 1 : 0);
    return {first + in.sm + in.channel % owned * in.num_sms, QpSharing::block};
  }
  const int64_t channel = int64_t{in.sm} * in.channels_per_sm + in.channel;
  return {first + static_cast<int32_t>(channel % data_qps), QpSharing::gpu};
}

/// One NVLink barrier: every rank adds `sign` to word `word` of each peer, then waits until its own word is
/// `target`. Two words in turn, twice up and twice down, so that no word needs a reset. Source: DeepEP.
struct BarrierTurn {
  int32_t word = 0;
  int32_t sign = 1;
  int32_t target = 0;
};
PLUMB_HD constexpr BarrierTurn barrier_turn(uint64_t barrier, int32_t ranks) {
  const bool up = barrier % 4 < 2;
  return {static_cast<int32_t>(barrier % 2), up ? 1 : -1, up ? ranks : 0};
}

}  // namespace plumb

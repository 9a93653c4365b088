// Byte offsets of everything that moves or is reserved: the one home of byte sizes, for plan, buffers and
// kernels. Device-safe. Sizes are 64-bit. Sources: DeepEP deep_ep/include/deep_ep/common/layout.cuh where a
// function says so.
#pragma once

#include <cstdint>

#include "model/ids.h"

namespace plumb {

inline constexpr int64_t kRecordAlignment = 32;  // each part of a token record starts at a multiple of it

/// What one token record holds.
struct TokenParts {
  int64_t hidden_bytes = 0;  // a multiple of 16
  int32_t scale_packs = 0;   // 4-byte packs: one fp32 scale or four UE8M0 exponents
  int32_t topk = 0;
  bool is_dispatch = true;  // dispatch records also carry source-token id and linked-list positions
};

/// Offsets and sizes in bytes of one token record: [hidden][scales][expert ids, weights, (source, links)],
/// each part rounded up to 32. Equal to DeepEP's record wherever DeepEP accepts the shape (hidden bytes a
/// multiple of 32). H 7168, K 8, fp8 with 56 packs: 7168 + 224 + 128 = 7520 bytes.
struct TokenLayout {
  int64_t hidden = 0;
  int64_t hidden_bytes = 0;  // unrounded
  int64_t scales = 0;
  int64_t scales_bytes = 0;  // rounded
  int64_t expert_ids = 0;    // int32 [topk], global expert id or -1
  int64_t weights = 0;       // float [topk]
  int64_t source = 0;        // int32: source rank * T_max + token; dispatch only
  int64_t links = 0;         // int32 [topk]; dispatch only
  int64_t metadata_raw = 0;  // bytes of ids, weights, source and links
  int64_t metadata_bytes = 0;
  int64_t record_bytes = 0;  // on the wire and in every buffer
  int64_t mbarrier = 0;      // offset of the barrier word behind the record, in shared memory only
  int64_t shared_bytes = 0;  // record plus barrier word

  friend constexpr bool operator==(const TokenLayout&, const TokenLayout&) = default;
};

PLUMB_HD constexpr TokenLayout token_layout(const TokenParts& parts) {
  TokenLayout out;
  out.hidden_bytes = parts.hidden_bytes;
  out.scales = round_up(parts.hidden_bytes, kRecordAlignment);
  out.scales_bytes = round_up(int64_t{parts.scale_packs} * 4, kRecordAlignment);
  out.expert_ids = out.scales + out.scales_bytes;
  out.weights = out.expert_ids + int64_t{parts.topk} * 4;
  out.source = out.weights + int64_t{parts.topk} * 4;
  out.links = out.source + (parts.is_dispatch ? 4 : 0);
  out.metadata_raw = out.links + (parts.is_dispatch ? int64_t{parts.topk} * 4 : 0) - out.expert_ids;
  out.metadata_bytes = round_up(out.metadata_raw, kRecordAlignment);
  out.record_bytes = out.expert_ids + out.metadata_bytes;
  out.mbarrier = out.record_bytes;
  out.shared_bytes = out.record_bytes + kRecordAlignment;
  return out;
}

/// Bytes of the counts that one rank sends one destination before a dispatch: rows for the rank, then rows
/// for each of its experts, 8 bytes each. Source: DeepEP workspace words (8 bytes a count).
PLUMB_HD constexpr int64_t notify_bytes(int32_t local_experts) { return 8 * (1 + int64_t{local_experts}); }

/// Bytes of one signal, flag or doorbell write.
inline constexpr int64_t kSignalBytes = 8;

/// Message sizes of DeepEP V1's low-latency kernels. Dispatch fp8: 16 + H + 4 ceil(H/128), bf16: 16 + 2H;
/// combine: 2H. Source: DeepEP csrc/legacy/config.hpp and docs/legacy.md (7408 and 14336 at H 7168).
PLUMB_HD constexpr int64_t low_latency_dispatch_bytes(int32_t hidden, bool is_fp8) {
  return 16 + (is_fp8 ? hidden + 4 * ceil_div(hidden, 128) : 2 * int64_t{hidden});
}
PLUMB_HD constexpr int64_t low_latency_combine_bytes(int32_t hidden) { return 2 * int64_t{hidden}; }

/// Offset of a part that a record does not hold.
inline constexpr int64_t kAbsent = -1;

/// The same messages as records: [16: source id][hidden][scales], and [hidden].
PLUMB_HD constexpr TokenLayout low_latency_dispatch_layout(int32_t hidden, bool is_fp8) {
  TokenLayout out;
  out.source = 0;
  out.hidden = 16;
  out.hidden_bytes = is_fp8 ? hidden : 2 * int64_t{hidden};
  out.scales = out.hidden + out.hidden_bytes;
  out.scales_bytes = is_fp8 ? 4 * ceil_div(hidden, 128) : 0;
  out.expert_ids = out.weights = out.links = kAbsent;
  out.record_bytes = low_latency_dispatch_bytes(hidden, is_fp8);
  return out;
}
PLUMB_HD constexpr TokenLayout low_latency_combine_layout(int32_t hidden) {
  TokenLayout out;
  out.hidden_bytes = low_latency_combine_bytes(hidden);
  out.scales = out.expert_ids = out.weights = out.source = out.links = kAbsent;
  out.record_bytes = out.hidden_bytes;
  return out;
}

}  // namespace plumb

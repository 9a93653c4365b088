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

/// A row area of `owners` equal parts of `rows` rows each, owner-major: its bytes, and where row `row` of
/// `owner` starts. 8 owners, 4096 rows of 14464 bytes: 473 956 352 bytes. Exact while the product stays below
/// 2^63; sizes that a user chooses go through buffers.h, which refuses larger ones.
PLUMB_HD constexpr int64_t area_bytes(int64_t owners, int64_t rows, int64_t row_bytes) {
  return owners * rows * row_bytes;
}
PLUMB_HD constexpr int64_t row_offset(int64_t owner, int64_t row, int64_t rows, int64_t row_bytes) {
  return (owner * rows + row) * row_bytes;
}

/// Rows a rank can receive at most: T_max * R, and R * T_max * min(K, L) + (A - 1) * L rounded up to A when
/// expanded (one row per token and local expert, each expert's rows padded to A). R 2, T_max 16, K 4, L 2, A
/// 4: 32 and 72.
PLUMB_HD constexpr int64_t worst_case_rows(int32_t ranks, int32_t max_tokens) {
  return int64_t{ranks} * max_tokens;
}
struct ExpandCase {
  int32_t ranks = 1;
  int32_t max_tokens = 0;
  int32_t topk = 1;
  int32_t local_experts = 1;
  int32_t alignment = 1;
};
PLUMB_HD constexpr int64_t worst_case_expanded_rows(const ExpandCase& in) {
  const int64_t per_token = in.topk < in.local_experts ? in.topk : in.local_experts;
  const int64_t padding = (int64_t{in.alignment} - 1) * in.local_experts;
  return round_up(worst_case_rows(in.ranks, in.max_tokens) * per_token + padding, in.alignment);
}

/// Bytes of the counts that one rank sends one destination before a dispatch: rows for the rank, then rows
/// for each of its experts, 8 bytes each. Source: DeepEP workspace words (8 bytes a count).
PLUMB_HD constexpr int64_t notify_bytes(int32_t local_experts) { return 8 * (1 + int64_t{local_experts}); }

/// Bytes of one signal, flag or doorbell write.
inline constexpr int64_t kSignalBytes = 8;

/// A count as it crosses memory: v is stored as -v - 1, so that zeroed memory reads "not there yet". 5 is
/// stored as -6; memory 0 decodes to -1. is_ready: the decoded value is a count.
PLUMB_HD constexpr int64_t encode_count(int64_t count) { return -count - 1; }
PLUMB_HD constexpr int64_t decode_count(int64_t stored) { return -stored - 1; }
PLUMB_HD constexpr bool is_ready(int64_t stored) { return decode_count(stored) >= 0; }

/// One 64-bit word in which contributors add up their counts: the upper half counts contributors, the lower
/// half holds the sum (below 2^32). Words are added: 3, 0 and 7 give 3 * 2^32 + 10 = 12 884 901 898.
PLUMB_HD constexpr uint64_t reduction_word(uint32_t count) { return (uint64_t{1} << 32) + count; }
PLUMB_HD constexpr uint32_t contributors(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
PLUMB_HD constexpr uint32_t reduced_sum(uint64_t word) { return static_cast<uint32_t>(word); }

/// Bytes that DeepEP's benchmark counts per received row: hidden, scales, K ids of 8 bytes, K weights of 4
/// bytes. H 7168, K 8: fp8 7488, bf16 14432. Not what travels: that is TokenLayout::record_bytes.
PLUMB_HD constexpr int64_t bench_row_bytes(int64_t hidden_bytes, int64_t scale_bytes, int32_t topk) {
  return hidden_bytes + scale_bytes + 12 * int64_t{topk};
}

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

/// What the buffers of the low-latency kernels reserve per message: the larger type in dispatch; 4 bytes per
/// 128 channels (LogFMT minimum and maximum) beside each bf16 row in combine. H 7168: 14352 and 14560.
/// Requires H % 128 == 0.
PLUMB_HD constexpr int64_t low_latency_dispatch_slot_bytes(int32_t hidden) {
  const int64_t fp8 = low_latency_dispatch_bytes(hidden, true);
  const int64_t bf16 = low_latency_dispatch_bytes(hidden, false);
  return fp8 > bf16 ? fp8 : bf16;
}
PLUMB_HD constexpr int64_t low_latency_combine_slot_bytes(int32_t hidden) {
  return low_latency_combine_bytes(hidden) + 4 * (hidden / 128);
}

/// Row of an engram table, slot of a pipeline-parallel ring, and one gathered tensor of an all-gather
/// session: the raw bytes rounded up to 32. Engram H 100, 1 byte each: 128.
PLUMB_HD constexpr int64_t engram_row_bytes(int32_t hidden, int32_t element_bytes) {
  return round_up(int64_t{hidden} * element_bytes, kRecordAlignment);
}
PLUMB_HD constexpr int64_t ring_slot_bytes(int64_t tensor_bytes) {
  return round_up(tensor_bytes, kRecordAlignment);
}
PLUMB_HD constexpr int64_t gather_bytes(int32_t ranks, int64_t elements, int32_t element_bytes) {
  return round_up(ranks * elements * element_bytes, kRecordAlignment);
}

}  // namespace plumb

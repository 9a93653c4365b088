// What an expert-parallel step looks like: ranks, experts, top-k, tokens, hidden size and types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/layout.h"

namespace plumb {

inline constexpr int32_t kMaxRanks = 1 << 20;
inline constexpr int32_t kMaxExperts = 1 << 24;
inline constexpr int32_t kMaxTopk = 32;

enum class DType : uint8_t { bf16, fp8_e4m3 };
/// Encoding of the scale factors of an fp8 row: one float per block, or four 8-bit exponents in 4 bytes.
enum class ScaleFormat : uint8_t { fp32, ue8m0 };

std::string_view to_string(DType type);
std::string_view to_string(ScaleFormat format);

struct Shape {
  int32_t ranks = 1;
  int32_t experts = 1;          // physical experts (replicas count), a multiple of ranks
  int32_t topk = 1;             // 1..32
  int32_t hidden = 0;           // elements
  std::vector<int32_t> tokens;  // [ranks], 0 allowed
  int32_t max_tokens = 0;       // the agreed maximum T_max; tokens[r] <= max_tokens
  DType dispatch_type = DType::fp8_e4m3;
  ScaleFormat scale_format = ScaleFormat::fp32;  // of fp8 rows
  int32_t scale_block = 128;                     // elements per scale factor; the last block may be partial
  int32_t alignment = 1;                         // of an expert's rows in the expand layout

  int32_t local_experts() const { return experts / ranks; }
  Rank rank_of(ExpertId e) const { return e / local_experts(); }
  int64_t total_tokens() const;
  int64_t first_token(Rank r) const;  // sum of tokens of the ranks before r

  /// Bytes of one hidden row as dispatched, without scales.
  int64_t dispatch_row_bytes() const;
  /// 4-byte scale packs of one row, 0 for bf16. A row has ceil(hidden / scale_block) factors; a pack holds
  /// one (fp32) or four (ue8m0), the last one maybe less. hidden 2880, block 128: 23 or 6 packs.
  int32_t scale_packs() const;
  /// The record that travels in dispatch, and in combine (always bf16).
  TokenLayout dispatch_layout() const;
  TokenLayout combine_layout() const;

  bool operator==(const Shape&) const = default;
};

/// Throws Error(usage) that lists every violated limit: found value, allowed values and, for experts that are
/// no multiple of ranks, the nearest legal numbers; a rank with more tokens than max_tokens is named with
/// count and cap. Limits beside those above: ranks <= 2^20, experts <= 2^24, topk <= experts, bytes of a
/// dispatched row a multiple of 16, ranks * max_tokens < 2^31 (source ids, rank * max_tokens + token, have 32
/// bits).
void validate(const Shape& shape);

/// The part of validate() that a routing needs: ranks, tokens (in all below 2^31), experts and topk. Experts
/// may be no multiple of ranks (logical ones, before a Placement); hidden, types and max_tokens are not
/// looked at.
void validate_gate(const Shape& shape);

/// The multiples of `unit` around a `value` that is none, as text for messages: "8 or 12"; never zero.
std::string nearest_multiples(int64_t value, int64_t unit);

/// A Shape with `tokens_per_rank` tokens on each rank and max_tokens equal to it.
Shape uniform_shape(int32_t ranks, int32_t experts, int32_t topk, int32_t tokens_per_rank, int32_t hidden);

}  // namespace plumb

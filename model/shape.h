// What an expert-parallel step looks like: ranks, experts, top-k, tokens, hidden size and types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/layout.h"

namespace plumb {

enum class DType : uint8_t { bf16, fp8_e4m3 };
/// Encoding of the scale factors beside an fp8 row: one float per block, or four 8-bit exponents in a 4-byte
/// pack.
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

  /// Bytes of one hidden row as dispatched, without scales, and its number of 4-byte scale packs (0 for
  /// bf16).
  int64_t dispatch_row_bytes() const;
  int32_t scale_packs() const;
  /// The record that travels in dispatch, and in combine (always bf16).
  TokenLayout dispatch_layout() const;
  TokenLayout combine_layout() const;

  bool operator==(const Shape&) const = default;
};

/// Throws Error(usage) that lists every violated limit: found value, allowed values and, for experts % ranks
/// != 0, the nearest legal numbers of experts; a rank with more tokens than max_tokens is named with count
/// and cap.
void validate(const Shape& shape);

/// A Shape with `tokens_per_rank` tokens on each rank and max_tokens equal to it.
Shape uniform_shape(int32_t ranks, int32_t experts, int32_t topk, int32_t tokens_per_rank, int32_t hidden);

}  // namespace plumb

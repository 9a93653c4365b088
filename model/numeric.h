// Number formats on the wire, bit-exact: bf16, fp8 e4m3 and UE8M0 scales, and the quantisation of rows by
// blocks. Rounding is to nearest, ties to even, in integer arithmetic: the same bytes on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "model/shape.h"

namespace plumb {

// --- bf16: sign, 8 exponent bits, 7 mantissa bits ---

/// Nearest bf16. NaN stays NaN (quiet, sign and upper payload kept); values that round above the largest
/// finite bf16 become infinite.
constexpr uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Exact.
constexpr float from_bf16(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }

/// Element by element; both spans have equal size.
void to_bf16(std::span<const float> values, std::span<uint16_t> codes);
void from_bf16(std::span<const uint16_t> codes, std::span<float> values);

/// sum[i] += row[i] in fp32: one term of an ordered sum of rows, rounded by to_bf16() after the last. Equal
/// sizes.
void accumulate_bf16(std::span<const uint16_t> row, std::span<float> sum);

// --- fp8 e4m3, the variant without infinity (FN): sign, 4 exponent bits of bias 7, 3 mantissa bits; 0x7f and
// 0xff are NaN. Source: OCP 8-bit Floating Point Specification 1.0, section 5. ---

inline constexpr float kE4m3Max = 448;     // 0x7e
inline constexpr uint8_t kE4m3Nan = 0x7f;  // with either sign

/// Nearest e4m3. Above 448, infinity included, the result saturates to 448 with the sign of the value; NaN
/// stays NaN with its sign. Requires the default rounding mode of the floating-point unit.
constexpr uint8_t to_e4m3(float value) {
  constexpr uint32_t kMax = std::bit_cast<uint32_t>(kE4m3Max);
  constexpr uint32_t kMinNormal = std::bit_cast<uint32_t>(0x1p-6f);
  // The step of an e4m3 below 2^-6 is 2^-9, and so is that of a float at 2^14: the sum rounds as wanted.
  constexpr float kMagic = 0x1p14f;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  if (magnitude < kMinNormal) {
    const uint32_t sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kMagic);
    return static_cast<uint8_t>(sign | (sum - std::bit_cast<uint32_t>(kMagic)));
  }
  const uint32_t clamped = magnitude < kMax ? magnitude : kMax;
  const uint32_t rounded = clamped + 0x7ffffu + ((clamped >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - ((127u - 7u) << 3)));
}

/// Exact.
constexpr float from_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) {  // subnormal: a multiple of 2^-9
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

// --- UE8M0: a power of two as its exponent + 127; 255 is NaN. Source: OCP Microscaling Formats 1.0,
// section 5.4.1. ---

inline constexpr uint8_t kUe8m0Nan = 255;

/// Code of the smallest power of two >= scale, within 2^-127 .. 2^127. NaN and negative values give NaN.
constexpr uint8_t to_ue8m0(float scale) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return kUe8m0Nan;
  if (bits > 0x80000000u) return kUe8m0Nan;  // negative; -0 counts as 0
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude <= 0x00400000u) return 0;  // 2^-127, a subnormal float
  const uint32_t code = (magnitude + 0x7fffffu) >> 23;
  return static_cast<uint8_t>(code < 254u ? code : 254u);
}

/// Exact; 2^-127 is a subnormal float.
constexpr float from_ue8m0(uint8_t code) {
  if (code == kUe8m0Nan) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : uint32_t{code} << 23);
}

// --- rows of fp8 with one scale per block ---

/// How a row is cut into blocks, and how their scales are encoded.
struct BlockScaling {
  int32_t block = 128;  // elements; the last block of a row may be partial
  ScaleFormat format = ScaleFormat::fp32;
};

/// Scale of a block whose largest finite magnitude is `amax` (>= 0, finite): amax / 448, for UE8M0 the next
/// power of two. Never below 2^-126, so that it is a normal float; 1 when amax is 0.
float block_scale(float amax, ScaleFormat format);

/// Quantises one row: code = e4m3(value / scale) with the scale of its block.
///   row: float [hidden], codes: e4m3 [hidden], scales: float [ceil(hidden / block)], all written.
/// Returns whether the row holds a NaN or an infinity. Such an element becomes NaN (e4m3 has no infinity, and
/// 448 would hide it) and does not enter the scale, so that its neighbours keep their values. Zeros keep
/// their sign.
bool quantise_row(std::span<const float> row, BlockScaling scaling, std::span<uint8_t> codes,
                  std::span<float> scales);

/// Quantises rows [rows][hidden]; rows = values.size() / hidden, 0 allowed. Returns the number of rows with a
/// non-finite element. Throws LogicError when the sizes do not fit together.
int64_t quantise_rows(std::span<const float> values, int32_t hidden, BlockScaling scaling,
                      std::span<uint8_t> codes, std::span<float> scales);

/// values[i] = codes[i] * scale of its block, in fp32. Shapes as in quantise_row().
void dequantise_row(std::span<const uint8_t> codes, std::span<const float> scales, int32_t block,
                    std::span<float> values);

}  // namespace plumb

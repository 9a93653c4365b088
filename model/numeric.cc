// Loops of numeric.h over rows. They work on fixed chunks so that the compiler can use vector registers at
// -O2.
#include "model/numeric.h"

#include <algorithm>
#include <array>

#include "model/error.h"

namespace plumb {
namespace {

constexpr size_t kChunk = 16;

/// Branch-free form of to_bf16(float), for vector registers.
inline uint16_t select_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

constexpr auto kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = from_e4m3(static_cast<uint8_t>(code));
  return values;
}();

bool is_finite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000u) != 0x7f800000u; }

/// Quantises one block and returns whether it holds a non-finite element.
bool quantise_block(std::span<const float> values, ScaleFormat format, std::span<uint8_t> codes,
                    float& scale) {
  // The order of magnitudes is the order of their bits.
  uint32_t amax = 0;
  uint32_t largest = 0;
  for (const float value : values) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    largest = std::max(largest, magnitude);
    amax = std::max(amax, magnitude < 0x7f800000u ? magnitude : 0u);
  }
  scale = block_scale(std::bit_cast<float>(amax), format);
  for (size_t i = 0; i < values.size(); ++i) codes[i] = to_e4m3(values[i] / scale);
  if (largest < 0x7f800000u) return false;
  for (size_t i = 0; i < values.size(); ++i)
    if (!is_finite(values[i])) codes[i] = static_cast<uint8_t>((codes[i] & 0x80u) | kE4m3Nan);
  return true;
}

}  // namespace

void to_bf16(std::span<const float> values, std::span<uint16_t> codes) {
  PLUMB_CHECK(values.size() == codes.size(), "{} values, {} codes", values.size(), codes.size());
  size_t i = 0;
  for (; i + kChunk <= values.size(); i += kChunk) {
    std::array<uint16_t, kChunk> chunk;
    for (size_t j = 0; j < kChunk; ++j) chunk[j] = select_bf16(values[i + j]);
    std::copy(chunk.begin(), chunk.end(), codes.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (; i < values.size(); ++i) codes[i] = to_bf16(values[i]);
}

void from_bf16(std::span<const uint16_t> codes, std::span<float> values) {
  PLUMB_CHECK(values.size() == codes.size(), "{} values, {} codes", values.size(), codes.size());
  for (size_t i = 0; i < codes.size(); ++i) values[i] = from_bf16(codes[i]);
}

void accumulate_bf16(std::span<const uint16_t> row, std::span<float> sum) {
  PLUMB_CHECK(row.size() == sum.size(), "row of {}, sum of {}", row.size(), sum.size());
  size_t i = 0;
  for (; i + kChunk <= row.size(); i += kChunk) {
    std::array<float, kChunk> chunk;
    for (size_t j = 0; j < kChunk; ++j) chunk[j] = sum[i + j] + from_bf16(row[i + j]);
    std::copy(chunk.begin(), chunk.end(), sum.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (; i < row.size(); ++i) sum[i] += from_bf16(row[i]);
}

float block_scale(float amax, ScaleFormat format) {
  PLUMB_CHECK(is_finite(amax) && amax >= 0, "amax {}", amax);
  if (amax == 0) return 1;
  const float scale = std::max(amax / kE4m3Max, 0x1p-126f);
  return format == ScaleFormat::ue8m0 ? from_ue8m0(to_ue8m0(scale)) : scale;
}

bool quantise_row(std::span<const float> row, BlockScaling scaling, std::span<uint8_t> codes,
                  std::span<float> scales) {
  PLUMB_CHECK(scaling.block > 0, "scale block {}", scaling.block);
  const size_t block = static_cast<size_t>(scaling.block);
  PLUMB_CHECK(codes.size() == row.size() && scales.size() == (row.size() + block - 1) / block,
              "row of {} in blocks of {}: {} codes, {} scales", row.size(), block, codes.size(),
              scales.size());
  bool has_non_finite = false;
  for (size_t b = 0; b < scales.size(); ++b) {
    const size_t first = b * block;
    const size_t count = std::min(block, row.size() - first);
    has_non_finite |=
        quantise_block(row.subspan(first, count), scaling.format, codes.subspan(first, count), scales[b]);
  }
  return has_non_finite;
}

int64_t quantise_rows(std::span<const float> values, int32_t hidden, BlockScaling scaling,
                      std::span<uint8_t> codes, std::span<float> scales) {
  PLUMB_CHECK(hidden > 0 && scaling.block > 0, "hidden {}, scale block {}", hidden, scaling.block);
  const size_t width = static_cast<size_t>(hidden);
  const size_t blocks = static_cast<size_t>(ceil_div(hidden, scaling.block));
  const size_t rows = values.size() / width;
  PLUMB_CHECK(
      rows * width == values.size() && codes.size() == values.size() && scales.size() == rows * blocks,
      "{} values of rows of {}: {} codes, {} scales for {} blocks a row", values.size(), width, codes.size(),
      scales.size(), blocks);
  int64_t non_finite = 0;
  for (size_t r = 0; r < rows; ++r)
    non_finite += quantise_row(values.subspan(r * width, width), scaling, codes.subspan(r * width, width),
                               scales.subspan(r * blocks, blocks));
  return non_finite;
}

void dequantise_row(std::span<const uint8_t> codes, std::span<const float> scales, int32_t block,
                    std::span<float> values) {
  PLUMB_CHECK(block > 0 && codes.size() == values.size() &&
                  scales.size() == static_cast<size_t>(ceil_div(static_cast<int64_t>(codes.size()), block)),
              "{} codes, {} scales of blocks of {}, {} values", codes.size(), scales.size(), block,
              values.size());
  const size_t width = static_cast<size_t>(block);
  for (size_t b = 0; b < scales.size(); ++b) {
    const size_t end = std::min((b + 1) * width, codes.size());
    for (size_t i = b * width; i < end; ++i) values[i] = kE4m3Values[codes[i]] * scales[b];
  }
}

}  // namespace plumb

// bf16, e4m3 and UE8M0 over all their codes and all rounding ties, against references in double; quantised
// rows.
#include "model/numeric.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "model/error.h"

namespace plumb {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Value of a small float format from its definition, in double. Not for NaN and infinity.
double decode(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const bool is_negative = (code >> (mantissa_bits + exponent_bits)) != 0;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                               : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return is_negative ? -magnitude : magnitude;
}

/// The e4m3 code nearest to a finite value, by search over all codes; ties to the even code, saturating.
uint8_t nearest_e4m3(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::fabs(decode(code, 4, 3) - magnitude);
    const double best_distance = std::fabs(decode(best, 4, 3) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Bf16, EveryCodeDecodesToItsDefinitionAndBack) {
  for (int code = 0; code < 65536; ++code) {
    const float value = from_bf16(static_cast<uint16_t>(code));
    const int exponent = (code >> 7) & 0xff;
    if (exponent == 0xff && (code & 0x7f) != 0) {
      ASSERT_TRUE(std::isnan(value)) << code;
      // Quiet: the top mantissa bit is set; the rest of the payload and the sign stay.
      ASSERT_EQ(to_bf16(value), code | 0x40) << code;
      continue;
    }
    if (exponent == 0xff)
      ASSERT_EQ(value, code < 0x8000 ? kInf : -kInf);
    else
      ASSERT_EQ(static_cast<double>(value), decode(code, 8, 7)) << code;
    ASSERT_EQ(to_bf16(value), code);
  }
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  // Neighbours c and c + 1 of one sign: below the middle gives c, above it c + 1, at it the even one. The
  // middle has one more mantissa bit, so it is a float; the sum in double is exact. From the largest finite
  // code the next is infinity.
  for (int sign : {0, 0x8000}) {
    for (int magnitude = 0; magnitude < 0x7f80; ++magnitude) {
      const int code = sign | magnitude;
      const double low = decode(code, 8, 7);
      const double high = magnitude == 0x7f7f ? std::ldexp(sign ? -1.0 : 1.0, 128) : decode(code + 1, 8, 7);
      const float middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
      ASSERT_EQ(to_bf16(middle), code % 2 == 0 ? code : code + 1) << code;
      ASSERT_EQ(to_bf16(std::nextafter(middle, 0.0f)), code) << code;
      ASSERT_EQ(to_bf16(std::nextafter(middle, sign ? -kInf : kInf)), code + 1) << code;
    }
  }
}

TEST(Bf16, NanWhosePayloadIsInTheLowBitsStaysNan) {
  // Truncation alone would give infinity; rounding alone would carry 0x7fffffff into the sign bit.
  for (uint32_t pattern : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t code = to_bf16(std::bit_cast<float>(pattern));
    EXPECT_TRUE(std::isnan(from_bf16(code))) << pattern;
    EXPECT_EQ(code >> 15, pattern >> 31);
  }
}

TEST(Bf16, BulkEqualsElementwiseAtEverySizeAroundAChunk) {
  std::vector<float> values = {0, -0.0f, kNan, kInf, -kInf, 1.00390625f, 3.3895314e38f, 1e-40f};
  for (int i = 0; values.size() < 50; ++i) values.push_back(static_cast<float>(i * i) * -1.7f);
  for (size_t size = 0; size <= values.size(); ++size) {
    std::vector<uint16_t> codes(size);
    to_bf16(std::span(values).first(size), codes);
    std::vector<float> back(size);
    from_bf16(codes, back);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(codes[i], to_bf16(values[i])) << i;
      ASSERT_EQ(bits(back[i]), bits(from_bf16(codes[i]))) << i;
    }
  }
  std::vector<uint16_t> short_codes(3);
  EXPECT_THROW(to_bf16(values, short_codes), LogicError);
}

TEST(Bf16, RowsAreSummedInFp32AndRoundedOnce) {
  // 1 + 2^-8 + 2^-8: in bf16 each addition of 2^-8 to 1 is a tie to even and is lost; in fp32 the sum is 1 +
  // 2^-7.
  const std::vector<uint16_t> one(37, to_bf16(1.0f));
  const std::vector<uint16_t> small(37, to_bf16(0x1p-8f));
  std::vector<float> sum(37, 0.0f);
  accumulate_bf16(one, sum);
  accumulate_bf16(small, sum);
  accumulate_bf16(small, sum);
  for (float value : sum) EXPECT_EQ(value, 1.0078125f);
  std::vector<float> wrong(36);
  EXPECT_THROW(accumulate_bf16(one, wrong), LogicError);
}

TEST(E4m3, EveryCodeDecodesToItsDefinitionAndBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = from_e4m3(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(std::signbit(value), code >= 0x80);
    } else {
      EXPECT_EQ(static_cast<double>(value), decode(code, 4, 3)) << code;
    }
    EXPECT_EQ(to_e4m3(value), code);
  }
  EXPECT_EQ(from_e4m3(0x7e), 448.0f);   // 1.75 * 2^8
  EXPECT_EQ(from_e4m3(0x01), 0x1p-9f);  // smallest subnormal
  EXPECT_EQ(from_e4m3(0x08), 0x1p-6f);  // smallest normal
}

TEST(E4m3, RoundsToNearestAndTiesToEven) {
  for (int sign : {0, 0x80}) {
    for (int magnitude = 0; magnitude < 0x7e; ++magnitude) {
      const int code = sign | magnitude;
      const float middle = static_cast<float>((decode(code, 4, 3) + decode(code + 1, 4, 3)) / 2);
      EXPECT_EQ(to_e4m3(middle), code % 2 == 0 ? code : code + 1) << code;
      EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)), code) << code;
      EXPECT_EQ(to_e4m3(std::nextafter(middle, sign ? -kInf : kInf)), code + 1) << code;
    }
  }
}

TEST(E4m3, EqualsASearchForTheNearestCode) {
  // Every bf16 value with exponent -12 .. 9: all binades of e4m3 and both sides beyond them.
  for (int code = 0; code < 65536; ++code) {
    const int exponent = ((code >> 7) & 0xff) - 127;
    if (exponent < -12 || exponent > 9) continue;
    const float value = from_bf16(static_cast<uint16_t>(code));
    ASSERT_EQ(to_e4m3(value), nearest_e4m3(value)) << value;
  }
}

TEST(E4m3, SaturatesAt448AndKeepsNan) {
  for (float value : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(to_e4m3(value), 0x7e) << value;
    EXPECT_EQ(to_e4m3(-value), 0xfe) << value;
  }
  EXPECT_EQ(to_e4m3(kNan), 0x7f);
  EXPECT_EQ(to_e4m3(-kNan), 0xff);
  EXPECT_EQ(to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(to_e4m3(1e-40f), 0x00);
}

TEST(Ue8m0, EveryCodeIsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float scale = from_ue8m0(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(scale), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(to_ue8m0(scale), code);
    // One step above a power of two needs the next one, up to the end of the range.
    EXPECT_EQ(to_ue8m0(std::nextafter(scale, kInf)), std::min(code + 1, 254)) << code;
  }
  EXPECT_TRUE(std::isnan(from_ue8m0(255)));
}

TEST(Ue8m0, ClampsAndKeepsNan) {
  EXPECT_EQ(to_ue8m0(0.0f), 0);
  EXPECT_EQ(to_ue8m0(-0.0f), 0);
  EXPECT_EQ(to_ue8m0(1e-45f), 0);
  EXPECT_EQ(to_ue8m0(kInf), 254);
  EXPECT_EQ(to_ue8m0(kNan), 255);
  EXPECT_EQ(to_ue8m0(-1.0f), 255);
}

TEST(BlockScale, IsAmaxOver448OrTheNextPowerOfTwo) {
  EXPECT_EQ(block_scale(448, ScaleFormat::fp32), 1.0f);
  EXPECT_EQ(block_scale(672, ScaleFormat::fp32), 1.5f);
  EXPECT_EQ(block_scale(448, ScaleFormat::ue8m0), 1.0f);
  EXPECT_EQ(block_scale(449, ScaleFormat::ue8m0), 2.0f);
  EXPECT_EQ(block_scale(0, ScaleFormat::fp32), 1.0f);
  EXPECT_EQ(block_scale(0, ScaleFormat::ue8m0), 1.0f);
  // 1e-44 / 448 is below the smallest float: the scale stays a normal number.
  EXPECT_EQ(block_scale(1e-44f, ScaleFormat::fp32), 0x1p-126f);
  EXPECT_EQ(block_scale(1e-44f, ScaleFormat::ue8m0), 0x1p-126f);
}

TEST(Quantise, ErrorStaysWithinHalfAStepOfTheBlock) {
  // Steps of e4m3 at magnitude m are at most m / 8 for normal codes and 2^-9 below: |error| <= max(|x| / 16,
  // scale 2^-10), plus two fp32 roundings (2^-23 relative).
  for (ScaleFormat format : {ScaleFormat::fp32, ScaleFormat::ue8m0}) {
    std::vector<float> row(300);  // two blocks of 128 and one of 44
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = (static_cast<float>(i) - 140.5f) * (i < 128 ? 100.0f : 1e-3f);
    std::vector<uint8_t> codes(row.size());
    std::vector<float> scales(3);
    EXPECT_FALSE(quantise_row(row, {.block = 128, .format = format}, codes, scales));
    std::vector<float> back(row.size());
    dequantise_row(codes, scales, 128, back);
    for (size_t i = 0; i < row.size(); ++i) {
      const double scale = scales[i / 128];
      const double bound = std::max(std::fabs(static_cast<double>(row[i])) / 16, scale * 0x1p-10);
      EXPECT_LE(std::fabs(static_cast<double>(back[i]) - row[i]), bound * (1 + 1e-5)) << i;
    }
    // Block 0: amax 140.5 * 100 = 14050, 14050 / 448 = 31.36; the power of two above it is 32.
    EXPECT_EQ(scales[0], format == ScaleFormat::ue8m0 ? 32.0f : 14050.0f / 448.0f);
  }
}

TEST(FieldCases, B12_ZeroTinyHugeAndNonFiniteRows) {
  constexpr int32_t kHidden = 256;
  const std::vector<float> fill = {0.0f, -0.0f, 2.0f, 2.0f, 1e-30f, 448.0f * 128, 2.0f};
  for (ScaleFormat format : {ScaleFormat::fp32, ScaleFormat::ue8m0}) {
    std::vector<float> values;
    for (float value : fill) values.insert(values.end(), kHidden, value);
    values[2 * kHidden + 5] = kNan;
    values[3 * kHidden + 130] = -kInf;
    std::vector<uint8_t> codes(values.size());
    std::vector<float> scales(fill.size() * 2);
    EXPECT_EQ(quantise_rows(values, kHidden, {.block = 128, .format = format}, codes, scales), 2);

    std::vector<float> back(values.size());
    for (size_t r = 0; r < fill.size(); ++r)
      dequantise_row(std::span(codes).subspan(r * kHidden, kHidden), std::span(scales).subspan(r * 2, 2), 128,
                     std::span(back).subspan(r * kHidden, kHidden));
    for (float scale : scales) EXPECT_TRUE(std::isfinite(scale) && scale > 0);
    for (size_t i = 0; i < back.size(); ++i) {
      if (i == 2 * kHidden + 5 || i == 3 * kHidden + 130)
        EXPECT_TRUE(std::isnan(back[i])) << i;
      else if (values[i] == 0)
        EXPECT_EQ(bits(back[i]), bits(values[i])) << i;  // zeros keep their sign
      else if (format == ScaleFormat::fp32)              // each row is its own maximum: 448 * (v / 448)
        EXPECT_NEAR(back[i] / values[i], 1.0f, 1e-6f) << i;
      else
        EXPECT_NEAR(back[i] / values[i], 1.0f, 0.0625f) << i;
    }
    EXPECT_EQ(scales[0], 1.0f);
    EXPECT_EQ(scales[2], 1.0f);
    EXPECT_EQ(scales[10], 128.0f);  // 448 * 2^7 / 448, a power of two in both formats
    // The blocks with NaN and infinity have the scale of their other elements, equal to that of the clean
    // last row.
    EXPECT_EQ(scales[4], scales[12]);
    EXPECT_EQ(scales[7], scales[12]);
  }
}

TEST(FieldCases, B12_EmptyInputGivesEmptyOutput) {
  EXPECT_EQ(quantise_rows({}, 7168, {}, {}, {}), 0);
  EXPECT_FALSE(quantise_row({}, {}, {}, {}));
  to_bf16(std::span<const float>(), std::span<uint16_t>());
  dequantise_row({}, {}, 128, {});
}

TEST(Quantise, RefusesSizesThatDoNotFit) {
  const std::vector<float> values(300);
  std::vector<uint8_t> codes(300);
  std::vector<float> scales(2);
  EXPECT_THROW(quantise_row(values, {}, codes, scales), LogicError);        // 3 blocks
  EXPECT_THROW(quantise_rows(values, 128, {}, codes, scales), LogicError);  // 300 = 2.3 rows
  EXPECT_THROW(quantise_row(values, {.block = 0}, codes, scales), LogicError);
}

}  // namespace
}  // namespace plumb

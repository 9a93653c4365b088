// Limits of a shape, their messages, and the sizes that follow from it.
#include "model/shape.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/error.h"

namespace plumb {
namespace {

__extension__ using Wide = __int128;

Shape bf16_shape(int32_t hidden) {
  Shape shape = uniform_shape(4, 8, 2, 3, hidden);
  shape.dispatch_type = DType::bf16;
  return shape;
}

std::string problem_of(const Shape& shape) {
  try {
    validate(shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

#define EXPECT_TEXT(whole, part) EXPECT_NE((whole).find(part), std::string::npos) << (whole)

TEST(Shape, UniformShapeIsValid) {
  const Shape shape = uniform_shape(8, 256, 8, 4096, 7168);
  EXPECT_EQ(problem_of(shape), "");
  EXPECT_EQ(shape.tokens, std::vector<int32_t>(8, 4096));
  EXPECT_EQ(shape.max_tokens, 4096);
  EXPECT_EQ(shape.local_experts(), 32);
  EXPECT_EQ(shape.rank_of(31), 0);
  EXPECT_EQ(shape.rank_of(32), 1);
}

TEST(Shape, FirstTokenSumsTheRanksBefore) {
  Shape shape = uniform_shape(4, 8, 2, 0, 256);
  shape.tokens = {3, 0, 5, 1};
  EXPECT_EQ(shape.first_token(0), 0);
  EXPECT_EQ(shape.first_token(1), 3);
  EXPECT_EQ(shape.first_token(2), 3);
  EXPECT_EQ(shape.first_token(3), 8);
  EXPECT_EQ(shape.total_tokens(), 9);
}

TEST(Shape, RanksMayHaveNoTokens) {
  EXPECT_EQ(problem_of(uniform_shape(4, 8, 2, 0, 256)), "");
  EXPECT_EQ(uniform_shape(4, 8, 2, 0, 256).total_tokens(), 0);
}

TEST(Shape, ScalePacksRoundUpTwice) {
  Shape shape = uniform_shape(1, 8, 2, 1, 7168);
  EXPECT_EQ(shape.scale_packs(), 56);  // 7168 / 128
  shape.scale_format = ScaleFormat::ue8m0;
  EXPECT_EQ(shape.scale_packs(), 14);  // 56 / 4
  shape.hidden = 2880;                 // 22.5 blocks -> 23 factors -> 5.75 packs
  EXPECT_EQ(shape.scale_packs(), 6);
  shape.scale_format = ScaleFormat::fp32;
  EXPECT_EQ(shape.scale_packs(), 23);
  shape.dispatch_type = DType::bf16;
  EXPECT_EQ(shape.scale_packs(), 0);
}

TEST(Shape, LayoutsUseTheDispatchTypeAndBf16ForCombine) {
  const Shape shape = uniform_shape(1, 8, 8, 1, 7168);
  // fp8: 7168 + 56 * 4 + metadata 8 * 4 * 3 + 4 = 100 -> 128.
  EXPECT_EQ(shape.dispatch_layout().record_bytes, 7168 + 224 + 128);
  // bf16: 14336 + metadata 8 * 4 * 2 = 64.
  EXPECT_EQ(shape.combine_layout().record_bytes, 14336 + 64);
}

TEST(Shape, AllProblemsComeInOneMessage) {
  Shape shape = uniform_shape(4, 10, 33, 2, 7170);
  shape.alignment = 0;
  shape.scale_block = 0;
  EXPECT_EQ(
      problem_of(shape),
      "the shape breaks these limits:\n"
      "  topk is 33; allowed: 1 .. 10 (at most 32 and at most the number of experts)\n"
      "  experts is 10, not a multiple of ranks 4; nearest allowed: 8 or 12\n"
      "  hidden is 7170, 7170 bytes a row in fp8_e4m3; row bytes must be a multiple of 16; nearest allowed "
      "hidden: 7168 or 7184\n"
      "  scale_block is 0; allowed: 1 or more elements\n"
      "  alignment is 0; allowed: 1 or more");
}

TEST(Shape, TopkLimitIs32) {
  EXPECT_EQ(problem_of(uniform_shape(1, 64, 32, 1, 256)), "");
  EXPECT_TEXT(problem_of(uniform_shape(1, 64, 33, 1, 256)), "topk is 33; allowed: 1 .. 32");
  EXPECT_TEXT(problem_of(uniform_shape(1, 64, 0, 1, 256)), "topk is 0; allowed: 1 .. 32");
}

TEST(Shape, RankLimitAndTokenListAreChecked) {
  EXPECT_EQ(problem_of(uniform_shape(1 << 20, 1 << 20, 1, 2047, 256)), "");
  EXPECT_TEXT(problem_of(uniform_shape((1 << 20) + 1, (1 << 20) + 1, 1, 1, 256)), "allowed: 1 .. 1048576");
  EXPECT_TEXT(problem_of(uniform_shape(0, 8, 1, 1, 256)), "ranks is 0");
  Shape shape = uniform_shape(4, 8, 1, 1, 256);
  shape.tokens.pop_back();
  EXPECT_TEXT(problem_of(shape), "tokens has 3 entries; it needs one for each of the 4 ranks");
}

TEST(Shape, NegativeNumbersAreRefused) {
  EXPECT_TEXT(problem_of(uniform_shape(1, 8, 1, 1, -16)), "hidden is -16");
  EXPECT_TEXT(problem_of(uniform_shape(1, -8, 1, 1, 256)), "experts is -8");
  Shape shape = uniform_shape(4, 8, 1, 1, 256);
  shape.tokens = {1, -5, 1, 1};
  EXPECT_TEXT(problem_of(shape), "rank 1 has -5 tokens; allowed: 0 or more");
  shape = uniform_shape(4, 8, 1, 0, 256);
  shape.max_tokens = -1;
  EXPECT_TEXT(problem_of(shape), "max_tokens is -1");
}

TEST(Shape, ManyBadRanksAreCountedNotListed) {
  Shape shape = uniform_shape(8, 8, 1, 5, 256);
  shape.max_tokens = 4;
  const std::string text = problem_of(shape);
  EXPECT_TEXT(text, "rank 2 has 5 tokens");
  EXPECT_EQ(text.find("rank 3 "), std::string::npos);
  EXPECT_TEXT(text, "5 more ranks have such a token count");
}

TEST(Shape, SourceIdsMustFit32Bits) {
  // 2^20 * 2047 = 2^31 - 2^20 fits, 2^20 * 2048 = 2^31 does not.
  EXPECT_TEXT(
      problem_of(uniform_shape(1 << 20, 1 << 20, 1, 2048, 256)),
      "ranks 1048576 * max_tokens 2048 = 2147483648 does not fit the 32 bits of a source id; allowed: "
      "max_tokens up to 2047");
}

TEST(Shape, GateCheckLeavesDivisibilityAndRowsOut) {
  EXPECT_NO_THROW(validate_gate(uniform_shape(4, 10, 2, 1, 0)));
  EXPECT_THROW(validate_gate(uniform_shape(4, 10, 11, 1, 0)), Error);
}

TEST(FieldCases, B05_IndivisibleExpertsNameTheNearestLegalNumbers) {
  EXPECT_TEXT(problem_of(uniform_shape(4, 10, 2, 1, 256)),
              "experts is 10, not a multiple of ranks 4; nearest allowed: 8 or 12");
  EXPECT_TEXT(problem_of(uniform_shape(2, 5, 2, 1, 256)),
              "experts is 5, not a multiple of ranks 2; nearest allowed: 4 or 6");
  EXPECT_TEXT(problem_of(uniform_shape(8, 5, 2, 1, 256)),
              "experts is 5, not a multiple of ranks 8; nearest allowed: 8");
}

TEST(FieldCases, B05_EachExpertIsOnExactlyOneLegalRank) {
  for (const int32_t ranks : {1, 2, 3, 4, 24, 72}) {
    const Shape shape = uniform_shape(ranks, ranks * 5, 1, 1, 256);
    std::vector<int32_t> experts(static_cast<size_t>(ranks), 0);
    for (int32_t e = 0; e < shape.experts; ++e) {
      ASSERT_GE(shape.rank_of(e), 0);
      ASSERT_LT(shape.rank_of(e), ranks);
      ++experts[static_cast<size_t>(shape.rank_of(e))];
    }
    EXPECT_EQ(experts, std::vector<int32_t>(static_cast<size_t>(ranks), 5));
  }
}

// Bytes of all copies of a batch in 64 bits against 128-bit arithmetic, around the borders at 2^31 and 2^32
// bytes.
TEST(FieldCases, B06_SizesAreExactBeyond32Bits) {
  int64_t before = 0;
  for (const int32_t tokens : {131072, 149796, 149797, 299593, 299594}) {
    for (const int32_t ranks : {1, 64}) {
      Shape shape = bf16_shape(7168);
      shape.ranks = ranks;
      shape.experts = 64;
      shape.topk = 8;
      shape.tokens.assign(static_cast<size_t>(ranks), tokens);
      shape.max_tokens = tokens;
      ASSERT_EQ(problem_of(shape), "");
      const int64_t bytes = shape.total_tokens() * shape.topk * shape.dispatch_row_bytes();
      EXPECT_TRUE(Wide{bytes} == Wide{tokens} * ranks * 8 * 14336);
      EXPECT_TRUE(Wide{shape.first_token(ranks - 1)} == Wide{tokens} * (ranks - 1));
      if (ranks == 1) {
        EXPECT_GT(bytes, before);
        before = bytes;
      }
    }
  }
  // T 131072, k 8: 131072 * 8 * 14336 = 15 032 385 536.
  EXPECT_EQ(uniform_shape(1, 64, 8, 131072, 14336).total_tokens() * 8 * 14336, 15032385536);
}

TEST(FieldCases, B06_LargestShapeDoesNotOverflow) {
  Shape shape = uniform_shape(1, 64, 32, std::numeric_limits<int32_t>::max(), 0);
  shape.hidden = std::numeric_limits<int32_t>::max() - 15;  // a multiple of 16
  shape.dispatch_type = DType::bf16;
  EXPECT_EQ(problem_of(shape), "");
  EXPECT_EQ(shape.dispatch_row_bytes(), 2 * (int64_t{std::numeric_limits<int32_t>::max()} - 15));
  EXPECT_EQ(shape.total_tokens(), std::numeric_limits<int32_t>::max());
  EXPECT_GT(shape.dispatch_layout().record_bytes, shape.dispatch_row_bytes());
  EXPECT_GT(shape.combine_layout().record_bytes, shape.dispatch_row_bytes());
}

TEST(FieldCases, B09_TooManyTokensNameRankCountAndCap) {
  Shape shape = uniform_shape(4, 8, 2, 4, 256);
  shape.tokens = {4, 5, 1, 0};
  EXPECT_EQ(problem_of(shape),
            "the shape breaks these limits:\n  rank 1 has 5 tokens; the cap max_tokens is 4");
  shape.max_tokens = 5;
  EXPECT_EQ(problem_of(shape), "");
}

TEST(FieldCases, B10_RowBytesMustBeAMultipleOf16) {
  EXPECT_EQ(problem_of(bf16_shape(2880)), "");  // 5760 bytes = 360 * 16
  EXPECT_EQ(problem_of(bf16_shape(136)), "");   // 272 bytes = 17 * 16
  EXPECT_TEXT(problem_of(bf16_shape(7169)),
              "hidden is 7169, 14338 bytes a row in bf16; row bytes must be a multiple of 16; nearest "
              "allowed hidden: "
              "7168 or 7176");
  EXPECT_EQ(problem_of(uniform_shape(4, 8, 2, 3, 2880)), "");  // fp8: 2880 bytes = 180 * 16
  EXPECT_TEXT(problem_of(uniform_shape(4, 8, 2, 3, 136)),
              "row bytes must be a multiple of 16");  // 136 = 8.5 * 16
}

}  // namespace
}  // namespace plumb

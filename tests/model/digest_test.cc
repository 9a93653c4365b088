// Digests: the known hash, the byte layout, and their text.
#include "model/digest.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/error.h"

namespace plumb {
namespace {

TEST(Digest, OfNothingIsThePublishedValue) {
  // XXH128 of the empty input with seed 0, from the self test of the reference implementation.
  EXPECT_EQ(to_string(DigestBuilder().finish()), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, ValuesAreLittleEndianAfterTheirLength) {
  // "abcdefgh" is its length 8 and then the bytes 0x61 .. 0x68; little-endian, the first is the lowest.
  EXPECT_EQ(DigestBuilder().add("abcdefgh").finish(),
            DigestBuilder().add(int64_t{8}).add(int64_t{0x6867666564636261}).finish());
  // An array of two is 2 and then 4 bytes each, the first element in the low half.
  const std::vector<int32_t> array{0x01020304, 0x05060708};
  EXPECT_EQ(DigestBuilder().add(std::span<const int32_t>(array)).finish(),
            DigestBuilder().add(int64_t{2}).add(int64_t{0x0506070801020304}).finish());
}

TEST(Digest, DependsOnWhereTextsEnd) {
  EXPECT_NE(DigestBuilder().add("ab").add("c").finish(), DigestBuilder().add("a").add("bc").finish());
  EXPECT_NE(DigestBuilder().add("").finish(), DigestBuilder().finish());
}

TEST(Digest, EqualNumbersHaveEqualDigests) {
  EXPECT_EQ(DigestBuilder().add(0.0).finish(), DigestBuilder().add(-0.0).finish());
  EXPECT_NE(DigestBuilder().add(1.0).finish(), DigestBuilder().add(int64_t{1}).finish());
  EXPECT_EQ(DigestBuilder().add(int32_t{-1}).finish(), DigestBuilder().add(int64_t{-1}).finish());
}

TEST(Digest, FinishMayBeFollowedByMore) {
  DigestBuilder builder;
  builder.add(int64_t{1});
  const Digest one = builder.finish();
  EXPECT_EQ(builder.finish(), one);
  EXPECT_EQ(builder.add(int64_t{2}).finish(), DigestBuilder().add(int64_t{1}).add(int64_t{2}).finish());
}

TEST(Digest, TextRoundTrips) {
  const Digest digest{.high = 0x0123456789abcdef, .low = 0x00000000000000ff};
  EXPECT_EQ(to_string(digest), "0123456789abcdef00000000000000ff");
  EXPECT_EQ(parse_digest("0123456789ABCDEF00000000000000FF"), digest);
}

TEST(Digest, RefusesOtherText) {
  for (const char* text : {"", "0123", "0123456789abcdef00000000000000f", "0123456789abcdef00000000000000fff",
                           "0123456789abcdefg0000000000000ff", "-123456789abcdef00000000000000ff"})
    EXPECT_THROW(parse_digest(text), Error) << text;
}

}  // namespace
}  // namespace plumb

// The generator against published vectors, its streams, and the bounds of its distributions.
#include "model/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "model/error.h"

namespace plumb {
namespace {

TEST(Random, SplitMixGivesThePublishedNumbers) {
  // Outputs for seed 1234567 as listed for the reference C code.
  uint64_t state = 1234567;
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u})
    EXPECT_EQ(split_mix(state), expected);
}

TEST(Random, XoshiroStepsAsDerivedByHand) {
  // State {1, 2, 3, 4}. Output 1: rotl(2 * 5, 7) * 9 = 1280 * 9 = 11520.
  // Step: s2 = 3 ^ 1 = 2, s3 = 4 ^ 2 = 6, s1 = 2 ^ 2 = 0, s0 = 1 ^ 6 = 7, s2 ^= 2 << 17 = 262146, s3 =
  // rotl(6, 45). Output 2: rotl(0 * 5, 7) * 9 = 0. Step: s1 = 0 ^ (262146 ^ 7) = 262149. Output 3:
  // rotl(262149 * 5, 7) * 9 = 1310745 * 128 * 9 = 1509978240.
  Random random(std::array<uint64_t, 4>{1, 2, 3, 4});
  EXPECT_EQ(random.next(), 11520u);
  EXPECT_EQ(random.next(), 0u);
  EXPECT_EQ(random.next(), 1509978240u);
}

TEST(Random, RefusesTheZeroState) { EXPECT_THROW(Random(std::array<uint64_t, 4>{}), LogicError); }

TEST(Random, SeedsFromAChainOfMixes) {
  // The definition, written out: seed, then stream, then index enter between mixes; four more mixes give the
  // state.
  uint64_t chain = 42;
  chain = split_mix(chain) ^ 7;  // RandomStream::test
  chain = split_mix(chain) ^ 3;
  std::array<uint64_t, 4> state{};
  for (uint64_t& word : state) word = split_mix(chain);
  Random expected(state);
  Random random(42, RandomStream::test, 3);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(random.next(), expected.next());
}

TEST(Random, StreamsOfSmallNumbersDiffer) {
  std::set<uint64_t> first;
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (const RandomStream stream : {RandomStream::routing, RandomStream::payload, RandomStream::weights})
      for (uint64_t index = 0; index < 8; ++index) first.insert(Random(seed, stream, index).next());
  EXPECT_EQ(first.size(), 8u * 3 * 8);
}

TEST(Random, BelowIsUnbiased) {
  // 60000 draws below 6: 10000 each, standard deviation sqrt(60000 * 5 / 36) = 91; six deviations are 548.
  Random random(1, RandomStream::test);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) ++counts.at(random.below(6));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 548);
}

TEST(Random, BelowIsUnbiasedForHugeBounds) {
  // Of bound 3 * 2^62, plain reduction of 64 bits would make the lowest third twice as likely as another (1/2
  // against 1/4). 30000 draws: 10000 in each third, standard deviation sqrt(30000 * 2 / 9) = 82; six are 490.
  const uint64_t bound = uint64_t{3} << 62;
  Random random(2, RandomStream::test);
  std::array<int, 3> counts{};
  for (int i = 0; i < 30000; ++i) {
    const uint64_t value = random.below(bound);
    ASSERT_LT(value, bound);
    ++counts.at(value >> 62);
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 490);
}

TEST(Random, BelowOneIsZeroAndBelowZeroIsRefused) {
  Random random(3, RandomStream::test);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0u);
  EXPECT_THROW(random.below(0), LogicError);
}

TEST(Random, UniformFillsTheHalfOpenUnitInterval) {
  // Mean 1/2, standard deviation of the mean of 10000: sqrt(1 / 12) / 100 = 0.0029; six are 0.0173.
  Random random(4, RandomStream::test);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.0173);
}

TEST(Random, UniformUsesTheTop53Bits) {
  // The first output is 11520 (above) = 5 * 2^11 + 1280: the low 11 bits are dropped, 5 * 2^-53 remains.
  EXPECT_EQ(Random(std::array<uint64_t, 4>{1, 2, 3, 4}).uniform(), 5 * 0x1p-53);
}

}  // namespace
}  // namespace plumb

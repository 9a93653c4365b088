// xoshiro256** and its seeding. Integer arithmetic only, so that every machine draws the same numbers.
#include "model/random.h"

#include "model/error.h"

#include <bit>

namespace plumb {

uint64_t split_mix(uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

Random::Random(uint64_t seed, RandomStream stream, uint64_t index) {
  // A chain of mixes, not a sum: seed 1 stream 2 must not equal seed 2 stream 1.
  uint64_t chain = seed;
  chain = split_mix(chain) ^ static_cast<uint64_t>(stream);
  chain = split_mix(chain) ^ index;
  // Four consecutive outputs of SplitMix64 differ from each other, so the state is never all 0.
  for (uint64_t& word : state_) word = split_mix(chain);
}

Random::Random(const std::array<uint64_t, 4>& state) : state_(state) {
  PLUMB_CHECK((state_[0] | state_[1] | state_[2] | state_[3]) != 0, "xoshiro256** never leaves the state 0");
}

uint64_t Random::next() {
  const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t Random::below(uint64_t bound) {
  PLUMB_CHECK(bound > 0, "below({})", bound);
  // Lemire, "Fast random integer generation in an interval" (2019): the high word of next() * bound is
  // uniform once the 2^64 mod bound lowest low words are refused.
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t refused = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < refused) product = static_cast<Wide>(next()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

}  // namespace plumb

// The generator and the distributions of the project: the standard ones differ between libraries. Same seed,
// same numbers, on every machine. Independent streams keep routing, workload and faults apart.
#pragma once

#include <array>
#include <cstdint>

namespace plumb {

/// One step of SplitMix64 (Steele, Lea and Flood, 2014): advances `state` and returns the mixed value.
uint64_t split_mix(uint64_t& state);

/// Purposes that draw from streams of their own, so that a change of one leaves the others alone.
enum class RandomStream : uint64_t {
  routing = 1,
  payload = 2,
  weights = 3,
  placement = 4,
  network = 5,
  faults = 6,
  test = 7,
  workload = 8,
};

/// xoshiro256** (Blackman and Vigna, 2018) seeded by SplitMix64 from (seed, stream, index): e.g. index =
/// rank, so that each rank's numbers can be drawn without those of the others.
class Random {
 public:
  Random(uint64_t seed, RandomStream stream, uint64_t index = 0);
  /// Starts from a raw state, for the published test vectors. Requires that not all four words are 0.
  explicit Random(const std::array<uint64_t, 4>& state);

  uint64_t next();
  /// Uniform in [0, bound), unbiased. Requires bound > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace plumb

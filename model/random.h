// The generator and the distributions of the project: the standard ones differ between libraries. Same seed,
// same numbers, on every machine. Independent streams keep routing, workload and faults apart.
#pragma once

#include <cstdint>

namespace plumb {

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

  uint64_t next();
  /// Uniform in [0, bound), unbiased. Requires bound > 0.
  uint64_t below(uint64_t bound);
  /// Uniform in [0, 1), 53 bits.
  double uniform();

 private:
  uint64_t state_[4];
};

}  // namespace plumb

// Simulated time: whole picoseconds, so that no date depends on rounding of floating point.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "model/error.h"
#include "model/units.h"

namespace plumb::sim {

using Ps = int64_t;  // picoseconds; 63 bits hold 106 days

inline constexpr Ps kNever = std::numeric_limits<Ps>::max();
inline constexpr uint32_t kNil = 0xffffffff;  // no index

/// Rounds to the nearest picosecond. Throws Error(usage) for what is negative, not finite or above 10^7 s.
inline Ps to_ps(Seconds seconds) {
  if (!(seconds.value >= 0 && seconds.value < 9.2e6))
    fail_usage("simulated time {} s is outside 0 .. 9.2e6 s", seconds.value);
  return static_cast<Ps>(std::llround(seconds.value * 1e12));
}

inline Seconds to_seconds(Ps time) { return {static_cast<double>(time) * 1e-12}; }

}  // namespace plumb::sim

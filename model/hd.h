// Host/device qualifier, the integer roundings that every layout formula needs, division by a known number.
// Device-safe: compiled by the host compiler and by nvcc.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PLUMB_HD __host__ __device__
#else
#define PLUMB_HD
#endif

namespace plumb {

/// Returns the smallest integer >= a / b. Requires a >= 0, b > 0.
PLUMB_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Returns the smallest multiple of `unit` that is >= a. Requires a >= 0, unit > 0.
PLUMB_HD constexpr int64_t round_up(int64_t a, int64_t unit) { return ceil_div(a, unit) * unit; }

/// A number >= 1 by which a kernel divides often: n / d and n % d take a multiplication instead of some
/// twenty instructions; exact for 0 <= n < 2^31. Source: Granlund, Montgomery, Division by Invariant Integers
/// using Multiplication, PLDI 1994, figure 4.1.
class Divisor {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for the number
  PLUMB_HD constexpr Divisor(int32_t value) : value_(value) {
    uint32_t log = 0;  // rounded up
    while ((uint64_t{1} << log) < static_cast<uint64_t>(value)) ++log;
    const uint64_t divisor = static_cast<uint64_t>(value);
    multiplier_ = static_cast<uint32_t>((((uint64_t{1} << log) - divisor) << 32) / divisor + 1);
    first_shift_ = log < 1 ? 0 : 1;
    second_shift_ = log < 1 ? 0 : log - 1;
  }

  // NOLINTNEXTLINE(google-explicit-constructor)
  PLUMB_HD constexpr operator int32_t() const { return value_; }

  friend PLUMB_HD constexpr int32_t operator/(int32_t n, const Divisor& d) {
    const uint32_t number = static_cast<uint32_t>(n);
    const uint32_t high = static_cast<uint32_t>((uint64_t{number} * d.multiplier_) >> 32);
    return static_cast<int32_t>((high + ((number - high) >> d.first_shift_)) >> d.second_shift_);
  }
  friend PLUMB_HD constexpr int32_t operator%(int32_t n, const Divisor& d) { return n - n / d * d.value_; }

 private:
  int32_t value_;
  uint32_t multiplier_;
  uint32_t first_shift_;
  uint32_t second_shift_;
};

}  // namespace plumb

// Host/device qualifier and the integer roundings that every layout formula needs.
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

}  // namespace plumb

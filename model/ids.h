// The integer types that name ranks, experts and nodes, and the grouping of ranks into scale-up domains.
// Device-safe.
#pragma once

#include <cstdint>

#include "model/hd.h"

namespace plumb {

using Rank = int32_t;      // 0 .. ranks-1
using ExpertId = int32_t;  // 0 .. experts-1, kNone = no choice

inline constexpr int32_t kNone = -1;

/// How ranks form scale-up domains: rank = node * scaleup + local. All that a plan builder knows of the
/// machine. The last node may not be partly filled: ranks % scaleup == 0 (checked where a Grouping is made
/// from input).
struct Grouping {
  int32_t ranks = 1;
  int32_t scaleup = 1;  // ranks per scale-up domain

  PLUMB_HD constexpr int32_t nodes() const { return ranks / scaleup; }
  PLUMB_HD constexpr int32_t node(Rank r) const { return r / scaleup; }
  PLUMB_HD constexpr int32_t local(Rank r) const { return r % scaleup; }  // also the rail index
  PLUMB_HD constexpr Rank rank(int32_t node, int32_t local) const { return node * scaleup + local; }
  PLUMB_HD constexpr bool is_local(Rank a, Rank b) const { return node(a) == node(b); }
};

}  // namespace plumb

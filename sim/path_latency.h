// Latency of minimal paths, remembered per pair of places where ranks hang: Fabric::latency() walks a path.
#pragma once

#include <array>
#include <vector>

#include "model/fabric.h"
#include "sim/time.h"

namespace plumb::sim {

/// Ranks whose first switches and latencies to them are the same share their answers.
class PathLatencies {
 public:
  /// `fabric` must outlive it.
  explicit PathLatencies(const Fabric& fabric);

  /// As Fabric::latency(); src and dst differ.
  Ps of(Link network, Rank src, Rank dst);

 private:
  struct Net {
    std::vector<int32_t> place;  // [ranks]
    int32_t places = 0;
    std::vector<Ps> known;  // [places][places], -1 = not yet; empty when there would be too many
  };
  const Fabric& fabric_;
  std::array<Net, 2> nets_;
};

}  // namespace plumb::sim

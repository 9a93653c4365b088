// SimGrid's own fluid network as a third opinion beside packets and flows: a list of flows over the links of
// a Fabric, shared max-min fairly. For small cases: its cost grows with the square of the live flows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "model/units.h"

namespace plumb::sim {

struct ReferenceFlow {
  Rank src = 0;
  Rank dst = 0;
  Link network = Link::scale_out;
  int64_t bytes = 0;  // on the wire; there are no headers
  Seconds start{};
};

struct ReferenceSettings {
  /// 1: each flow takes one minimal path, chosen by its destination. More: it splits over up to so many, by
  /// the shares of Fabric::routes(), and ends with its last part.
  int32_t paths = 1;
  /// Options of SimGrid, "key:value": part of the header of a result. Empty: reference_keys().
  std::vector<std::string> keys{};
  /// Flows from a rank to itself touch no link: latency + bytes / rate. (SimGrid would send them over a
  /// hidden loop-back of its own.) Needed for such flows only.
  BytesPerSecond local_rate{};
  Seconds local_latency{};
};

inline constexpr int32_t kMaxReferenceFlows = 1000;

/// The options that take TCP out of SimGrid: model CM02, no cross traffic, factors 1, no window, dates to
/// 1 ps.
std::vector<std::string> reference_keys();

/// The largest end date of two opposed flows of 1 MB over a reference link of 50 GB/s and 1 us, from SimGrid
/// with these keys; 21.00 us is right. Throws Error(environment) naming the keys when it is more than 0.1 %
/// off. With `keys` empty: reference_keys().
Seconds check_reference_network(const std::vector<std::string>& keys = {});

/// End dates of the flows, in their order. A flow waits the latency of its path and then shares the links
/// max-min fairly with the others. SimGrid would weight shares by inverse latency, as TCP does: so its links
/// get no latency, and the flow starts later instead. Runs check_reference_network() first. Each run is a
/// process of its own (see run_in_child()). Throws Error(usage) for more than kMaxReferenceFlows flows, parts
/// counted, and for flows that make no sense.
std::vector<Seconds> run_reference_network(const Fabric& fabric, std::span<const ReferenceFlow> flows,
                                           const ReferenceSettings& settings = {});

}  // namespace plumb::sim

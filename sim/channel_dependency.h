// The static check against deadlock: which channels wait for which under given routes and lanes (Dally and
// Seitz, 1987).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/channels.h"
#include "sim/route_table.h"

namespace plumb::sim {

/// How packets change their hop class.
struct ClassRule {
  std::vector<uint8_t> raising;  // [channels] 1 = one class higher after it
  int32_t count = 1;             // classes; the last is kept
  bool detours = false;          // packets may go over a Valiant vertex
};

/// A buffer of the dependency graph.
struct ClassedChannel {
  Channel channel = 0;
  int32_t hop_class = 0;
};

/// [channels] 1 for the given links; where there are none, for all channels from switch to switch or GPU to
/// GPU.
std::vector<uint8_t> raising_channels(const ChannelGraph& graph, std::span<const LinkId> datelines);

/// Buffers that wait for each other in a circle, each for the next and the last for the first; empty when
/// there are none, so that no deadlock is possible. Considers every candidate of every policy, all virtual
/// lanes being alike.
std::vector<ClassedChannel> find_cycle(const ChannelGraph& graph, std::span<const RouteTable> tables,
                                       const ClassRule& rule);

/// The smallest number of classes without a cycle. Throws Error(usage) naming the cycle when no number up to
/// 16 helps, as with datelines that do not cut it.
int32_t fewest_classes(const ChannelGraph& graph, std::span<const RouteTable> tables, ClassRule rule);

/// One line per buffer: "  leaf 0.1 -> spine 0.3 class 1".
std::string to_string(std::span<const ClassedChannel> cycle, const ChannelGraph& graph);

}  // namespace plumb::sim

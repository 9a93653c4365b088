// Which of the next hops a packet takes: the routing policies, over next-hop tables that change after
// failures.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "sim/even_split.h"
#include "sim/packet_records.h"
#include "sim/packet_settings.h"
#include "sim/route_table.h"

namespace plumb::sim {

/// Which of `count` next hops a hash of the flow takes at a vertex: RoutePolicy::by_flow, in both fidelities.
uint32_t choose_by_flow(const Message& message, uint64_t seed, Vertex at, uint32_t count);

class Router {
 public:
  /// All three must outlive the router.
  Router(const Fabric& fabric, const ChannelGraph& graph, const PacketSettings& settings);

  /// Lanes of a port and hop classes of a virtual lane, known once the tables are.
  void set_lanes(uint32_t lanes_per_port, uint32_t hop_classes);

  const RouteTable& table(size_t network) const { return tables_[network]; }
  std::span<const RouteTable> tables() const { return tables_; }
  /// False when some rank cannot reach some other on that network.
  bool is_connected(size_t network) const { return is_connected_[network]; }
  /// Some network's policy may send packets over a Valiant vertex.
  bool may_detour() const { return may_detour_; }

  std::span<const Channel> candidates(const Packet& p, Vertex at) const {
    return tables_[p.flags & kScaleOut].candidates(at, p.target);
  }
  /// Takes one of several candidates. `message`: the packet's, for hashes. kNil: none of these now (`even`,
  /// at a source).
  Channel choose(std::span<const Channel> candidates, const Packet& p, const Message& message, Vertex at);
  /// Whether all packets of a flow take one way.
  bool is_fixed(size_t network, uint8_t traffic_class) const;

  /// Whether ranks split what they send evenly; the links that they take are then counted.
  bool is_even(size_t network) const { return settings_.networks[network].policy == RoutePolicy::even; }
  void count_even(const Packet& p, Vertex at, Channel channel) {
    const size_t network = p.flags & kScaleOut;
    evens_[network].add(tables_[network].candidates(at, p.target), at, p.target, channel, p.bytes);
  }

  /// At its first switch a packet may be given a Valiant vertex; where it meets that, it heads for `dst`.
  /// Returns true when it starts on a detour.
  bool consider_detour(Packet& p, Rank dst, Vertex at);

  /// Units queued for a lane, or sent and not yet returned: what adaptive choices compare.
  void add_load(LaneId lane, int32_t units) { loads_[lane] += units; }

  void set_down(Channel channel, bool down);
  bool is_down(Channel channel) const { return down_[channel] != 0; }
  bool any_down() const { return any_down_; }
  /// New tables, without the channels that are down.
  void rebuild();

  int64_t memory_bytes() const;

 private:
  uint32_t lane_of(const Packet& p) const { return p.virtual_lane * hop_classes_ + p.hop_class; }
  Channel least_loaded(std::span<const Channel> candidates, const Packet& p);
  uint32_t random_below(uint32_t bound);
  uint32_t choose_by_destination(const Packet& p, Vertex at, uint32_t count) const;

  const Fabric& fabric_;
  const ChannelGraph& graph_;
  const PacketSettings& settings_;
  std::vector<RouteTable> tables_;  // scale_up, scale_out
  std::array<bool, 2> is_connected_{};
  std::array<std::array<RoutePolicy, kServiceLevels>, 2> policies_{};
  /// For routes by destination: ranks in the order of the switches they hang on.
  struct DestinationOrder {
    std::vector<uint32_t> position;  // [ranks]
    std::vector<uint8_t> is_edge;    // [vertices] ranks hang on it
    uint32_t fan = 1;                // most choices that an edge vertex has
  };
  static DestinationOrder destination_order(const ChannelGraph& graph, const RouteTable& table);
  std::array<DestinationOrder, 2> orders_;  // empty under other policies
  std::array<EvenSplit, 2> evens_;          // empty under other policies
  bool may_detour_ = false;
  uint32_t lanes_per_port_ = 1;
  uint32_t hop_classes_ = 1;
  std::vector<int32_t> loads_;  // [channels][lanes]
  std::vector<uint8_t> down_;   // [channels]
  bool any_down_ = false;
  uint64_t random_ = 1;
};

}  // namespace plumb::sim

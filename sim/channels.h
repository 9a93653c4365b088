// The graph that packets travel: the links of a Fabric with its pass-through NICs taken out of the way.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "sim/time.h"

namespace plumb::sim {

using Channel = uint32_t;  // index of a channel
using Vertex = uint32_t;   // index of a node: rank r is vertex r, the other nodes follow

/// A link, or the two links through a NIC that serves one GPU and one switch at one rate: such a NIC can
/// neither choose nor queue, so packets pass it without an event.
struct ChannelInfo {
  Vertex from = 0;
  Vertex to = 0;
  std::array<LinkId, 2> links{kNone, kNone};
  Link network = Link::scale_up;
  bool shared = false;         // scale_up channel that scale_out paths use too
  bool between_nodes = false;  // switch to switch, or GPU to GPU on meshes: neither in- nor ejection
  BytesPerSecond rate{};
  Ps latency = 0;       // head leaves `from` until head is ready to leave `to`
  Ps wire_latency = 0;  // the part of it that credits take on their way back

  bool carries(Link path) const { return network == path || (shared && path == Link::scale_out); }
};

/// Channels are numbered by their origin, so those that leave a vertex are neighbours.
class ChannelGraph {
 public:
  explicit ChannelGraph(const Fabric& fabric);

  uint32_t num_vertices() const { return static_cast<uint32_t>(out_begin_.size()) - 1; }
  Rank ranks() const { return ranks_; }
  bool is_endpoint(Vertex v) const { return v < static_cast<Vertex>(ranks_); }
  std::span<const ChannelInfo> channels() const { return channels_; }
  const ChannelInfo& operator[](Channel c) const { return channels_[c]; }

  Channel out_begin(Vertex v) const { return out_begin_[v]; }
  Channel out_end(Vertex v) const { return out_begin_[v + 1]; }
  uint32_t num_in(Vertex v) const { return num_in_[v]; }
  /// Position of a channel among those that enter its destination.
  uint32_t in_slot(Channel c) const { return in_slot_[c]; }

  /// The channel that starts with a link, or kNil when it is the second part of one or no longer used.
  Channel starts_with(LinkId link) const { return starts_with_[link]; }
  /// The channel that a link belongs to.
  Channel of(LinkId link) const { return of_[link]; }

  /// Node of the fabric behind a vertex, kNone for NICs that were taken out.
  NodeId node(Vertex v) const { return nodes_[v]; }
  Vertex vertex(NodeId node) const { return vertices_[node]; }
  const std::string& name(Vertex v) const { return names_[v]; }
  /// "leaf 0.1 -> spine 0.3".
  std::string name_of_channel(Channel c) const;

 private:
  void number_vertices(const Fabric& fabric, const std::vector<uint8_t>& passed);
  void add_channels(const Fabric& fabric, const std::vector<uint8_t>& passed);

  Rank ranks_ = 0;
  std::vector<ChannelInfo> channels_;
  std::vector<Channel> out_begin_;  // [vertices + 1]
  std::vector<uint32_t> num_in_;    // [vertices]
  std::vector<uint32_t> in_slot_;   // [channels]
  std::vector<Channel> starts_with_;
  std::vector<Channel> of_;
  std::vector<NodeId> nodes_;
  std::vector<Vertex> vertices_;
  std::vector<std::string> names_;
};

}  // namespace plumb::sim

// Next-hop tables of one network: at each vertex, the channels of minimal paths towards each group of
// destinations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/channels.h"

namespace plumb::sim {

/// Destinations that hang on the same vertices (leaf, planes) form a group: at every other vertex their next
/// hops are the same. Memory: vertices that have a choice x groups x 4 bytes, candidate lists stored once.
class RouteTable {
 public:
  /// Asks `fabric` for the next links of every (vertex, group). `down`: [channels] 1 = not in service, empty
  /// = all are. Then the lists lose these channels, and those that lead to a vertex from which nothing is
  /// left: what a subnet manager does after a failure. Paths stay minimal ones of the whole fabric.
  RouteTable(const Fabric& fabric, const ChannelGraph& graph, Link network,
             std::span<const uint8_t> down = {});

  /// Channels that lead one hop nearer to rank dst, ascending; empty when there are none.
  std::span<const Channel> candidates(Vertex at, Rank dst) const {
    const Destination& d = destinations_[dst];
    if (d.last.from == at) return {&d.last.channel, 1};
    for (uint32_t i = d.more_begin; i < d.more_end; ++i)
      if (more_[i].from == at) return {&more_[i].channel, 1};
    const uint32_t row = row_of_[at];
    if ((row & kOnly) == 0) return list(entries_[static_cast<size_t>(row) * num_groups_ + d.group]);
    return row == kNil ? std::span<const Channel>{} : list(row & ~kOnly);
  }

  uint32_t num_groups() const { return num_groups_; }
  uint32_t group(Rank dst) const { return destinations_[dst].group; }
  /// A rank of the group.
  Rank member(uint32_t group) const { return members_[group]; }
  /// A vertex that the rank hangs on.
  Vertex last_vertex(Rank dst) const { return destinations_[dst].last.from; }
  /// True when the rank hangs on the vertex.
  bool is_last(Vertex at, Rank dst) const {
    const Destination& d = destinations_[dst];
    bool found = d.last.from == at;
    for (uint32_t i = d.more_begin; i < d.more_end; ++i) found |= more_[i].from == at;
    return found;
  }

  /// Channels of a minimal path from a vertex to a rank; 0 at the rank itself, -1 without a path.
  int32_t hops(Vertex at, Rank dst) const;

  int64_t memory_bytes() const;

 private:
  static constexpr uint32_t kOnly = 0x80000000;  // in row_of_: all destinations share the list that follows

  /// A channel into a rank.
  struct Last {
    Vertex from = kNil;
    Channel channel = kNil;
  };
  struct Destination {
    Last last;  // the only one of most
    uint32_t group = 0;
    uint32_t more_begin = 0, more_end = 0;  // further ones in more_
  };

  void find_groups(const ChannelGraph& graph, std::span<const uint8_t> down);
  void fill(const Fabric& fabric, const ChannelGraph& graph);
  void prune(const ChannelGraph& graph, std::span<const uint8_t> down);
  uint32_t store(const std::vector<Channel>& channels);
  std::span<const Channel> list(uint32_t entry) const { return {pool_.data() + entry + 1, pool_[entry]}; }

  Link network_;
  uint32_t num_groups_ = 0;
  std::vector<Destination> destinations_;  // [ranks]
  std::vector<Last> more_;
  std::vector<Rank> members_;       // [groups]
  std::vector<uint32_t> row_of_;    // [vertices] kNil without a way out
  std::vector<Vertex> row_vertex_;  // [rows]
  std::vector<uint32_t> entries_;   // [rows][groups] position in pool_
  std::vector<uint32_t> pool_;      // lists: length, channels
  std::vector<Vertex> to_of_;       // [channels] where each leads
};

}  // namespace plumb::sim

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
    for (uint32_t i = last_begin_[dst]; i < last_begin_[dst + 1]; ++i)
      if (last_[i].from == at) return {&last_[i].channel, 1};
    if (only_[at] != kNil) return {&only_[at], 1};
    const uint32_t row = row_of_[at];
    if (row == kNil) return {};
    return list(entries_[static_cast<size_t>(row) * num_groups_ + group_of_[dst]]);
  }

  uint32_t num_groups() const { return num_groups_; }
  uint32_t group(Rank dst) const { return group_of_[dst]; }
  /// A rank of the group.
  Rank member(uint32_t group) const { return members_[group]; }
  /// A vertex that the rank hangs on.
  Vertex last_vertex(Rank dst) const { return last_[last_begin_[dst]].from; }
  /// True when the rank hangs on the vertex.
  bool is_last(Vertex at, Rank dst) const {
    for (uint32_t i = last_begin_[dst]; i < last_begin_[dst + 1]; ++i)
      if (last_[i].from == at) return true;
    return false;
  }

  /// Channels of a minimal path from a vertex to a rank; 0 at the rank itself, -1 without a path.
  int32_t hops(Vertex at, Rank dst) const;

  int64_t memory_bytes() const;

 private:
  struct Last {
    Vertex from;
    Channel channel;
  };

  void find_groups(const ChannelGraph& graph, std::span<const uint8_t> down);
  void fill(const Fabric& fabric, const ChannelGraph& graph);
  void prune(const ChannelGraph& graph, std::span<const uint8_t> down);
  uint32_t store(const std::vector<Channel>& channels);
  std::span<const Channel> list(uint32_t entry) const { return {&pool_[entry + 1], pool_[entry]}; }

  Link network_;
  uint32_t num_groups_ = 0;
  std::vector<uint32_t> group_of_;    // [ranks]
  std::vector<Rank> members_;         // [groups]
  std::vector<Last> last_;            // the channels into each rank
  std::vector<uint32_t> last_begin_;  // [ranks + 1]
  std::vector<Channel> only_;         // [vertices] the one way out, kNil when there are several or none
  std::vector<uint32_t> row_of_;      // [vertices] kNil without a row
  std::vector<Vertex> row_vertex_;    // [rows]
  std::vector<uint32_t> entries_;     // [rows][groups] position in pool_
  std::vector<uint32_t> pool_;        // lists: length, channels
  std::vector<Vertex> to_of_;         // [channels] where each leads
};

}  // namespace plumb::sim

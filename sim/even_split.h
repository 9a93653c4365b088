// Spreads what a rank sends to each other rank equally over its links, as GPUs do over NVLink: by address, in
// pieces far smaller than a packet here, so that all NVSwitches carry the same part of every pair.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/route_table.h"

namespace plumb::sim {

/// Memory: pairs of ranks of one domain x links of a rank x 4 bytes.
class EvenSplit {
 public:
  EvenSplit() = default;
  /// `table` is that of the network whose packets are split. `slack`: bytes that a link of a pair may be
  /// ahead of another, so that a link which is free need not wait for one that is not.
  EvenSplit(const ChannelGraph& graph, const RouteTable& table, uint32_t slack)
      : graph_(&graph), slack_(slack) {
    const auto ranks = static_cast<size_t>(graph.ranks());
    for (size_t r = 0; r < ranks; ++r) {
      const auto v = static_cast<Vertex>(r);
      links_ = std::max<size_t>(links_, graph.out_end(v) - graph.out_begin(v));
      domain_ += table.hops(0, static_cast<Rank>(r)) >= 0;
    }
    sent_.resize(ranks * domain_ * links_);
  }

  /// Of the links that are free the one that has carried the least of this pair; kNil when it is too far
  /// ahead of one of `all`. All must be in service.
  Channel least(std::span<const Channel> free, std::span<const Channel> all, Vertex src, Rank dst) const {
    const Channel best = least(free, src, dst), behind = least(all, src, dst);
    return ahead(at(src, dst, best), at(src, dst, behind) + slack_) ? kNil : best;
  }

  /// Counts a packet. A link that was out of service does not make up for what it missed.
  void add(std::span<const Channel> candidates, Vertex src, Rank dst, Channel channel, uint32_t bytes) {
    const uint32_t before = at(src, dst, channel);
    at(src, dst, channel) += bytes;
    for (const Channel c : candidates)
      if (ahead(before, at(src, dst, c) + 2 * slack_)) at(src, dst, c) = before;
  }

  int64_t memory_bytes() const { return static_cast<int64_t>(sent_.capacity() * sizeof(uint32_t)); }

 private:
  /// Pairs begin at different links.
  Channel least(std::span<const Channel> candidates, Vertex src, Rank dst) const {
    const size_t count = candidates.size(), first = (src + static_cast<size_t>(dst)) % count;
    Channel best = candidates[first];
    for (size_t i = 1; i < count; ++i) {
      const Channel c = candidates[(first + i) % count];
      if (ahead(at(src, dst, best), at(src, dst, c))) best = c;
    }
    return best;
  }
  /// Of counts that wrap around.
  static bool ahead(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }
  /// Ranks of a domain are neighbours, so their numbers modulo its size differ.
  size_t index(Vertex src, Rank dst, Channel channel) const {
    return (src * domain_ + static_cast<size_t>(dst) % domain_) * links_ + (channel - graph_->out_begin(src));
  }
  uint32_t& at(Vertex src, Rank dst, Channel channel) { return sent_[index(src, dst, channel)]; }
  uint32_t at(Vertex src, Rank dst, Channel channel) const { return sent_[index(src, dst, channel)]; }

  const ChannelGraph* graph_ = nullptr;
  uint32_t slack_ = 0;
  size_t links_ = 1;            // most that leave a rank
  size_t domain_ = 0;           // ranks that one rank reaches
  std::vector<uint32_t> sent_;  // [ranks][domain][links] bytes, modulo 2^32
};

}  // namespace plumb::sim

// Builds and prunes next-hop tables.
#include "sim/route_table.h"

#include <algorithm>
#include <map>

#include "model/error.h"

namespace plumb::sim {

RouteTable::RouteTable(const Fabric& fabric, const ChannelGraph& graph, Link network,
                       std::span<const uint8_t> down)
    : network_(network) {
  for (const ChannelInfo& info : graph.channels()) to_of_.push_back(info.to);
  find_groups(graph, down);
  fill(fabric, graph);
  if (!down.empty()) prune(graph, down);
}

void RouteTable::find_groups(const ChannelGraph& graph, std::span<const uint8_t> down) {
  const Rank ranks = graph.ranks();
  std::vector<std::map<Vertex, std::vector<Channel>>> into(ranks);
  for (Channel c = 0; c < graph.channels().size(); ++c) {
    const ChannelInfo& info = graph[c];
    if (!down.empty() && down[c]) continue;
    if (info.carries(network_) && graph.is_endpoint(info.to)) into[info.to][info.from].push_back(c);
  }
  std::map<std::vector<Vertex>, uint32_t> groups;
  for (Rank r = 0; r < ranks; ++r) {
    std::vector<Vertex> key;
    for (const auto& [from, channels] : into[r]) key.push_back(from);
    const auto [it, added] = groups.try_emplace(key, static_cast<uint32_t>(members_.size()));
    if (added) members_.push_back(r);
    Destination destination;
    destination.group = it->second;
    destination.more_begin = static_cast<uint32_t>(more_.size());
    for (const auto& [from, channels] : into[r]) {
      Last last{.from = from, .channel = channels[0], .count = static_cast<uint32_t>(channels.size())};
      if (last.count > 1) {
        last.channel = static_cast<Channel>(last_channels_.size());
        last_channels_.insert(last_channels_.end(), channels.begin(), channels.end());
      }
      if (from == into[r].begin()->first)
        destination.last = last;
      else
        more_.push_back(last);
    }
    destination.more_end = static_cast<uint32_t>(more_.size());
    destinations_.push_back(destination);
  }
  num_groups_ = static_cast<uint32_t>(members_.size());
}

uint32_t RouteTable::store(const std::vector<Channel>& channels) {
  const uint32_t position = static_cast<uint32_t>(pool_.size());
  pool_.push_back(static_cast<uint32_t>(channels.size()));
  pool_.insert(pool_.end(), channels.begin(), channels.end());
  return position;
}

void RouteTable::fill(const Fabric& fabric, const ChannelGraph& graph) {
  const uint32_t vertices = graph.num_vertices();
  std::map<std::vector<Channel>, uint32_t> stored;  // of one vertex: others have other channels
  // Two ranks of a group, so that one is not at the vertex asked for.
  std::vector<Rank> second(num_groups_, kNone);
  for (Rank r = 0; r < graph.ranks(); ++r)
    if (r != members_[group(r)]) second[group(r)] = r;
  row_of_.assign(vertices, kNil);
  std::vector<LinkId> next;
  std::vector<Channel> channels;
  for (Vertex v = 0; v < vertices; ++v) {
    uint32_t ways = 0;
    Channel way = kNil;
    for (Channel c = graph.out_begin(v); c < graph.out_end(v); ++c) {
      if (!graph[c].carries(network_)) continue;
      ++ways;
      way = c;
    }
    if (ways == 0) continue;
    // Wherever it goes, it goes there. (At another rank it could only turn back, if that leads nowhere.)
    if (ways == 1 && graph.is_endpoint(v) && !graph.is_endpoint(graph[way].to)) {
      row_of_[v] = kOnly | store({way});
      continue;
    }
    row_of_[v] = static_cast<uint32_t>(row_vertex_.size());
    row_vertex_.push_back(v);
    stored.clear();
    for (uint32_t g = 0; g < num_groups_; ++g) {
      Rank dst = members_[g];
      if (static_cast<Vertex>(dst) == v) dst = second[g];
      next.clear();
      if (dst != kNone) fabric.next_links(network_, graph.node(v), dst, next);
      channels.clear();
      for (LinkId link : next) channels.push_back(graph.starts_with(link));
      std::sort(channels.begin(), channels.end());
      const auto [it, added] = stored.try_emplace(channels, 0);
      if (added) it->second = store(channels);
      entries_.push_back(it->second);
    }
  }
  entries_.shrink_to_fit();
  pool_.shrink_to_fit();
}

int32_t RouteTable::hops(Vertex at, Rank dst) const {
  int32_t result = 0;
  // Candidates lie on minimal paths, so any of them will do.
  for (; at != static_cast<Vertex>(dst); ++result) {
    const auto next = candidates(at, dst);
    if (next.empty() || result > 254) return -1;
    at = to_of_[next[0]];
  }
  return result;
}

void RouteTable::prune(const ChannelGraph& graph, std::span<const uint8_t> down) {
  std::map<std::vector<Channel>, uint32_t> stored;
  std::vector<Channel> kept;
  // Removing a channel may leave a vertex without any, which removes the channels that lead there: repeat
  // until nothing changes. Each round settles the vertices one hop further from the failure.
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t row = 0; row < row_vertex_.size(); ++row) {
      for (uint32_t g = 0; g < num_groups_; ++g) {
        uint32_t& entry = entries_[static_cast<size_t>(row) * num_groups_ + g];
        const auto old = list(entry);
        kept.clear();
        for (Channel c : old) {
          const Vertex to = graph[c].to;
          if (down[c]) continue;
          const bool goes_on = to == static_cast<Vertex>(members_[g]) || is_last(to, members_[g]) ||
                               !candidates(to, members_[g]).empty();
          if (goes_on) kept.push_back(c);
        }
        if (kept.size() == old.size()) continue;
        const auto [it, added] = stored.try_emplace(kept, 0);
        if (added) it->second = store(kept);
        entry = it->second;
        changed = true;
      }
    }
  }
}

int64_t RouteTable::memory_bytes() const {
  const size_t words = 6 * destinations_.capacity() + members_.capacity() + 3 * more_.capacity() +
                       last_channels_.capacity() + row_of_.capacity() + row_vertex_.capacity() +
                       entries_.capacity() + pool_.capacity() + to_of_.capacity();
  return static_cast<int64_t>(words * sizeof(uint32_t));
}

}  // namespace plumb::sim

// Shares of links per pair of ranks or groups, and the resources that they make up.
#include "sim/flow_routes.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "model/random.h"
#include "sim/router.h"

namespace plumb::sim {

namespace {

constexpr size_t kMostPairs = size_t{1} << 18;  // of groups; more are listed flow by flow
constexpr int kMostHops = 255;
constexpr double kNoMore = 1 + 1e-9;  // rounding of sums of rates

uint64_t hash(uint64_t a, uint64_t b) {
  uint64_t state = a * 0x9e3779b97f4a7c15ULL ^ b;
  return split_mix(state);
}

/// Equal shares differ in their last bits when sums were taken in another order.
uint64_t rounded(double share) { return static_cast<uint64_t>(share * 0x1p40 + 0.5); }

/// Of a channel that stands at or after `begin`, counted from there.
uint32_t place_in(const std::vector<Channel>& channels, uint32_t begin, Channel c) {
  uint32_t place = 0;
  while (channels[begin + place] != c) ++place;
  return place;
}

}  // namespace

FlowRoutes::FlowRoutes(const Fabric& fabric, const ChannelGraph& graph, std::array<FlowPolicy, 2> policies,
                       uint64_t seed)
    : fabric_(fabric),
      graph_(graph),
      policies_(policies),
      seed_(seed),
      down_(graph.channels().size(), 0),
      factors_(graph.channels().size(), 1),
      bytes_(graph.channels().size(), 0),
      place_(graph.channels().size(), kNil) {
  tables_.emplace_back(fabric, graph, Link::scale_up);
  tables_.emplace_back(fabric, graph, Link::scale_out);
  regroup();
}

double FlowRoutes::capacity(Channel c) const {
  return down_[c] ? 0 : graph_[c].rate.value * factors_[c] * 1e-12;
}

bool FlowRoutes::any_down() const { return std::find(down_.begin(), down_.end(), uint8_t{1}) != down_.end(); }
void FlowRoutes::set_down(Channel channel, bool down) {
  flush();  // along the routes that the bytes took
  down_[channel] = down;
}

void FlowRoutes::set_factor(Channel channel, double factor) {
  flush();
  factors_[channel] = factor;
}

void FlowRoutes::rebuild(FlowPolicy policy) {
  std::span<const uint8_t> down;
  if (any_down()) down = down_;
  for (size_t n = 0; n < 2; ++n)
    if (policies_[n] == policy)
      tables_[n] = RouteTable(fabric_, graph_, n == 0 ? Link::scale_up : Link::scale_out, down);
  regroup();
}

void FlowRoutes::regroup() {
  is_grouped_ = may_group();
  shares_.clear();
  leader_.clear();
  if (is_grouped_)
    for (size_t n = 0; n < 2; ++n) find_groups(n);
  is_grouped_ = is_grouped_ && groupings_[0].pairs.size() + groupings_[1].pairs.size() <= kMostPairs;
  if (!is_grouped_) {
    groupings_ = {};
    return;
  }
  const size_t channels = graph_.channels().size();
  signatures_.assign(channels, 0);
  from_sources_.assign(channels, 0);
  to_destinations_.assign(channels, 0);
  for (size_t n = 0; n < 2; ++n) {
    sign(n);
    bound(n);
  }
  merge();
  for (size_t n = 0; n < 2; ++n) fill_pairs(n);
  signatures_ = {};
  from_sources_ = to_destinations_ = {};
}

bool FlowRoutes::may_group() const {
  if (policies_[0] == FlowPolicy::hash || policies_[1] == FlowPolicy::hash) return false;
  return std::none_of(graph_.channels().begin(), graph_.channels().end(), [&](const ChannelInfo& info) {
    return graph_.is_endpoint(info.from) && graph_.is_endpoint(info.to);
  });
}

/// Ranks whose links lead to and come from the same vertices, in the same order, at equal rates.
void FlowRoutes::find_groups(size_t network) {
  Grouping& g = groupings_[network] = {};
  const Link link = network == 0 ? Link::scale_up : Link::scale_out;
  const Rank ranks = graph_.ranks();
  std::vector<std::vector<Channel>> out(ranks), in(ranks);
  for (Channel c = 0; c < graph_.channels().size(); ++c) {
    const ChannelInfo& info = graph_[c];
    if (!info.carries(link)) continue;
    if (graph_.is_endpoint(info.from)) out[info.from].push_back(c);
    if (graph_.is_endpoint(info.to)) in[info.to].push_back(c);
  }
  std::map<std::vector<std::tuple<Vertex, double, Ps>>, uint32_t> known;
  g.out_begin = g.in_begin = {0};
  for (Rank r = 0; r < ranks; ++r) {
    std::vector<std::tuple<Vertex, double, Ps>> key;
    for (Channel c : out[r]) key.push_back({graph_[c].to, capacity(c), graph_[c].latency});
    key.push_back({kNil, 0, 0});
    for (Channel c : in[r]) key.push_back({graph_[c].from, capacity(c), graph_[c].latency});
    const auto [it, added] = known.try_emplace(std::move(key), static_cast<uint32_t>(g.groups.size()));
    if (added) g.groups.push_back({.first = r});
    Group& group = g.groups[it->second];
    if (++group.members == 2) group.second = r;
    g.of.push_back(it->second);
    g.out.insert(g.out.end(), out[r].begin(), out[r].end());
    g.in.insert(g.in.end(), in[r].begin(), in[r].end());
    g.out_begin.push_back(static_cast<uint32_t>(g.out.size()));
    g.in_begin.push_back(static_cast<uint32_t>(g.in.size()));
  }
  g.pairs.resize(g.groups.size() * g.groups.size());
}

/// spread() between members of two groups; -1 also when both would be one rank.
Ps FlowRoutes::spread_pair(const Grouping& g, size_t network, size_t from, size_t to) {
  const Rank dst = from == to ? g.groups[to].second : g.groups[to].first;
  found_.clear();
  return dst == kNone ? -1 : spread(network, g.groups[from].first, dst);
}

/// Signatures: sums of a hash of (pair, share) over all pairs, so that channels with equal ones carry equal
/// shares of every flow. Links of ranks are signed by their place, for all members of the group at once.
void FlowRoutes::sign(size_t network) {
  const Grouping& g = groupings_[network];
  const size_t count = g.groups.size();
  std::vector<uint64_t> out(g.out.size(), 0), in(g.in.size(), 0);  // those of first members are used
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to) {
      if (spread_pair(g, network, from, to) < 0) continue;
      const Rank src = g.groups[from].first, dst = from == to ? g.groups[to].second : g.groups[to].first;
      for (const ChannelShare& s : found_) {
        const uint64_t sign = hash(hash(from * count + to, network), rounded(s.share));
        if (graph_[s.channel].from == static_cast<Vertex>(src)) {
          out[g.out_begin[src] + place_in(g.out, g.out_begin[src], s.channel)] += sign;
        } else if (graph_[s.channel].to == static_cast<Vertex>(dst)) {
          in[g.in_begin[g.groups[to].first] + place_in(g.in, g.in_begin[dst], s.channel)] += sign;
        } else {
          signatures_[s.channel] += sign;
        }
      }
    }
  for (Rank r = 0; r < graph_.ranks(); ++r) {
    const Rank first = g.groups[g.of[r]].first;
    for (uint32_t i = g.out_begin[r]; i < g.out_begin[r + 1]; ++i)
      signatures_[g.out[i]] += out[g.out_begin[first] + i - g.out_begin[r]];
    for (uint32_t i = g.in_begin[r]; i < g.in_begin[r + 1]; ++i)
      signatures_[g.in[i]] += in[g.in_begin[first] + i - g.in_begin[r]];
  }
}

/// The most that all sources, and all destinations, can have on a channel: their rate times the largest share
/// of it that any of their flows puts there.
void FlowRoutes::bound(size_t network) {
  const Grouping& g = groupings_[network];
  const size_t count = g.groups.size();
  std::vector<double> largest(graph_.channels().size(), 0);
  std::vector<Channel> touched;
  auto note = [&] {
    for (const ChannelShare& s : found_) {
      if (largest[s.channel] == 0) touched.push_back(s.channel);
      largest[s.channel] = std::max(largest[s.channel], s.share);
    }
  };
  auto add_to = [&](std::vector<double>& sums, const Group& group, const std::vector<Channel>& channels,
                    const std::vector<uint32_t>& begin) {
    double limit = 0;
    for (uint32_t i = begin[group.first]; i < begin[group.first + 1]; ++i) limit += capacity(channels[i]);
    for (Channel c : touched) {
      sums[c] += largest[c] * limit * group.members;
      largest[c] = 0;
    }
    touched.clear();
  };
  for (size_t from = 0; from < count; ++from) {
    for (size_t to = 0; to < count; ++to)
      if (spread_pair(g, network, from, to) >= 0) note();
    add_to(from_sources_, g.groups[from], g.out, g.out_begin);
  }
  for (size_t to = 0; to < count; ++to) {
    for (size_t from = 0; from < count; ++from)
      if (spread_pair(g, network, from, to) >= 0) note();
    add_to(to_destinations_, g.groups[to], g.in, g.in_begin);
  }
}

bool FlowRoutes::is_dominated(Channel c) const {
  if (graph_.is_endpoint(graph_[c].from) || graph_.is_endpoint(graph_[c].to)) return false;
  return std::min(from_sources_[c], to_destinations_[c]) <= capacity(c) * kNoMore;
}

/// One resource per signature and rate; links of ranks only together with others of their rank.
void FlowRoutes::merge() {
  resource_of_.assign(graph_.channels().size(), kNil);
  std::map<std::tuple<uint64_t, double, Vertex, bool>, uint32_t> known;
  for (Channel c = 0; c < graph_.channels().size(); ++c) {
    const ChannelInfo& info = graph_[c];
    if (is_dominated(c)) continue;
    const bool leaves_rank = graph_.is_endpoint(info.from);
    const Vertex rank = leaves_rank ? info.from : graph_.is_endpoint(info.to) ? info.to : kNil;
    const auto [it, added] = known.try_emplace({signatures_[c], capacity(c), rank, leaves_rank},
                                               static_cast<uint32_t>(leader_.size()));
    if (added) leader_.push_back(c);
    resource_of_[c] = it->second;
  }
}

void FlowRoutes::fill_pairs(size_t network) {
  Grouping& g = groupings_[network];
  const size_t count = g.groups.size();
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to) {
      Pair& pair = g.pairs[from * count + to];
      pair.latency = spread_pair(g, network, from, to);
      pair.begin = pair.middle = pair.end = static_cast<uint32_t>(shares_.size());
      if (pair.latency < 0) continue;
      const Rank src = g.groups[from].first, dst = from == to ? g.groups[to].second : g.groups[to].first;
      std::vector<Share> ends;
      for (const ChannelShare& s : found_) {
        const ChannelInfo& info = graph_[s.channel];
        Share share = {.share = s.share, .index = resource_of_[s.channel]};
        if (info.from == static_cast<Vertex>(src)) {
          share.side = Side::source;
          share.index = place_in(g.out, g.out_begin[src], s.channel);
        } else if (info.to == static_cast<Vertex>(dst)) {
          share.side = Side::destination;
          share.index = place_in(g.in, g.in_begin[dst], s.channel);
        }
        if (share.side != Side::inner) ends.push_back(share);
        const uint32_t resource = resource_of_[s.channel];
        if (resource != kNil && (share.side != Side::inner || leader_[resource] == s.channel))
          shares_.push_back(share);
      }
      pair.middle = static_cast<uint32_t>(shares_.size());
      shares_.insert(shares_.end(), ends.begin(), ends.end());
      pair.end = static_cast<uint32_t>(shares_.size());
    }
}

void FlowRoutes::take(Channel channel, double share) {
  uint32_t& place = place_[channel];
  if (place < found_.size() && found_[place].channel == channel) {
    found_[place].share += share;
    return;
  }
  place = static_cast<uint32_t>(found_.size());
  found_.push_back({channel, share});
}

/// Splits equally over the candidates at each vertex; the latency is that of the longest way.
Ps FlowRoutes::spread(size_t network, Rank src, Rank dst) {
  struct At {
    Vertex vertex;
    double share;
    Ps latency;
  };
  found_.clear();
  const RouteTable& table = tables_[network];
  const Vertex end = static_cast<Vertex>(dst);
  std::vector<At> level = {{static_cast<Vertex>(src), 1, 0}}, next;
  for (int hop = 0; hop < kMostHops; ++hop) {
    if (level.size() == 1 && level[0].vertex == end) return level[0].latency;
    next.clear();
    auto arrive = [&](const At& at) {
      for (At& n : next)
        if (n.vertex == at.vertex) {
          n.share += at.share;
          n.latency = std::max(n.latency, at.latency);
          return;
        }
      next.push_back(at);
    };
    for (const At& at : level) {
      if (at.vertex == end) {
        arrive(at);
        continue;
      }
      const auto candidates = table.candidates(at.vertex, dst);
      if (candidates.empty()) return -1;
      const double share = at.share / static_cast<double>(candidates.size());
      for (Channel c : candidates) {
        if (down_[c]) return -1;
        take(c, share);
        arrive({graph_[c].to, share, at.latency + graph_[c].latency});
      }
    }
    std::swap(level, next);
  }
  return -1;
}

Ps FlowRoutes::pick(const Message& message) {
  const RouteTable& table = tables_[message.network == Link::scale_out ? 1 : 0];
  found_.clear();
  Ps latency = 0;
  for (Vertex at = static_cast<Vertex>(message.src); at != static_cast<Vertex>(message.dst);) {
    const auto candidates = table.candidates(at, message.dst);
    if (candidates.empty() || found_.size() > kMostHops) return -1;
    const uint32_t count = static_cast<uint32_t>(candidates.size());
    const Channel c = candidates[choose_by_flow(message, seed_, at, count)];
    found_.push_back({c, 1});
    latency += graph_[c].latency;
    at = graph_[c].to;
  }
  return latency;
}

std::vector<double> FlowRoutes::capacities() const {
  std::vector<double> result;
  if (is_grouped_) {
    for (Channel c : leader_) result.push_back(capacity(c));
  } else {
    for (Channel c = 0; c < graph_.channels().size(); ++c) result.push_back(capacity(c));
  }
  return result;
}

FlowRoutes::Way FlowRoutes::find(const Message& message, std::vector<ResourceUse>& uses) {
  uses.clear();
  const size_t network = message.network == Link::scale_out ? 1 : 0;
  if (!is_grouped_) {
    const Ps latency =
        policies_[network] == FlowPolicy::hash ? pick(message) : spread(network, message.src, message.dst);
    if (latency >= 0)
      for (const ChannelShare& s : found_) uses.push_back({s.share, s.channel});
    return {.latency = latency};
  }
  const Grouping& g = groupings_[network];
  const uint32_t index = g.of[message.src] * static_cast<uint32_t>(g.groups.size()) + g.of[message.dst];
  const Pair& pair = g.pairs[index];
  const Channel* out = g.out.data() + g.out_begin[message.src];
  const Channel* in = g.in.data() + g.in_begin[message.dst];
  for (uint32_t i = pair.begin; i < pair.middle; ++i) {
    const Share& s = shares_[i];
    if (s.side == Side::inner) {
      uses.push_back({s.share, s.index});
      continue;
    }
    const Channel c = s.side == Side::source ? out[s.index] : in[s.index];
    if (leader_[resource_of_[c]] == c) uses.push_back({s.share, resource_of_[c]});
  }
  return {.latency = pair.latency, .pair = index};
}

double FlowRoutes::source_rate(const Message& message) const {
  const RouteTable& table = tables_[message.network == Link::scale_out ? 1 : 0];
  const auto candidates = table.candidates(static_cast<Vertex>(message.src), message.dst);
  return candidates.empty() ? 0 : graph_[candidates[0]].rate.value * factors_[candidates[0]] * 1e-12;
}

void FlowRoutes::account(const Message& message, const Way& way, double bytes,
                         std::span<const ResourceUse> uses, double weight) {
  if (way.pair == kNil) {
    for (const ResourceUse& use : uses) bytes_[use.resource] += use.share / weight * bytes;
    return;
  }
  Grouping& g = groupings_[message.network == Link::scale_out ? 1 : 0];
  Pair& pair = g.pairs[way.pair];
  pair.bytes += bytes;
  for (uint32_t i = pair.middle; i < pair.end; ++i) {
    const Share& s = shares_[i];
    const Channel c = s.side == Side::source ? g.out[g.out_begin[message.src] + s.index]
                                             : g.in[g.in_begin[message.dst] + s.index];
    bytes_[c] += s.share * bytes;
  }
}

/// Puts what stands in pairs onto the inner channels.
void FlowRoutes::flush() {
  for (size_t n = 0; n < 2; ++n) {
    Grouping& g = groupings_[n];
    const size_t count = g.groups.size();
    for (size_t i = 0; i < g.pairs.size(); ++i) {
      if (g.pairs[i].bytes == 0) continue;
      spread_pair(g, n, i / count, i % count);
      for (const ChannelShare& s : found_)
        if (!graph_.is_endpoint(graph_[s.channel].from) && !graph_.is_endpoint(graph_[s.channel].to))
          bytes_[s.channel] += s.share * g.pairs[i].bytes;
      g.pairs[i].bytes = 0;
    }
  }
}

std::vector<double> FlowRoutes::channel_bytes() {
  flush();
  return bytes_;
}

int64_t FlowRoutes::memory_bytes() const {
  auto bytes = []<class T>(const std::vector<T>& v) {
    return static_cast<int64_t>(v.capacity() * sizeof(T));
  };
  int64_t total = bytes(down_) + bytes(factors_) + bytes(shares_) + bytes(resource_of_) + bytes(leader_) +
                  bytes(bytes_) + bytes(found_) + bytes(place_);
  for (const RouteTable& table : tables_) total += table.memory_bytes();
  for (const Grouping& g : groupings_)
    total += bytes(g.groups) + bytes(g.of) + bytes(g.pairs) + bytes(g.out) + bytes(g.in) +
             bytes(g.out_begin) + bytes(g.in_begin);
  return total;
}

}  // namespace plumb::sim

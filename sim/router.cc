// The routing policies.
#include "sim/router.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "model/random.h"
#include "sim/order.h"

namespace plumb::sim {

namespace {

constexpr uint32_t kEvenSlack = 4;  // packets; with 1 some of 18 NVSwitches idle beside few destinations

RoutePolicy effective_policy(const PacketSettings& settings, size_t network, size_t level) {
  const RoutePolicy policy = settings.networks[network].policy;
  const bool adapts =
      policy != RoutePolicy::by_destination && policy != RoutePolicy::by_flow && policy != RoutePolicy::even;
  return adapts && !settings.lanes.adaptive[level] ? RoutePolicy::by_flow : policy;
}

bool is_connected(const ChannelGraph& graph, const RouteTable& table) {
  for (Rank r = 0; r < graph.ranks(); ++r)
    for (uint32_t g = 0; g < table.num_groups(); ++g)
      if (table.hops(static_cast<Vertex>(r), table.member(g)) < 0) return false;
  return true;
}

uint64_t mix(uint64_t x) {  // SplitMix64's finaliser
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

}  // namespace

uint32_t choose_by_flow(const Message& message, uint64_t seed, Vertex at, uint32_t count) {
  return static_cast<uint32_t>(mix(mix(flow_key(message) ^ seed) ^ at) % count);
}

Router::Router(const Fabric& fabric, const ChannelGraph& graph, const PacketSettings& settings)
    : fabric_(fabric), graph_(graph), settings_(settings), down_(graph.channels().size(), 0) {
  tables_.emplace_back(fabric, graph, Link::scale_up);
  tables_.emplace_back(fabric, graph, Link::scale_out);
  for (size_t n = 0; n < 2; ++n) {
    is_connected_[n] = sim::is_connected(graph, tables_[n]);
    for (size_t level = 0; level < kServiceLevels; ++level)
      policies_[n][level] = effective_policy(settings, n, level);
    const RoutePolicy policy = settings.networks[n].policy;
    if (policy == RoutePolicy::by_destination) orders_[n] = destination_order(graph, tables_[n]);
    if (policy == RoutePolicy::even)
      evens_[n] = EvenSplit(graph, tables_[n], kEvenSlack * uint32_t(settings.networks[n].mtu_bytes));
    may_detour_ |= policy == RoutePolicy::valiant || policy == RoutePolicy::ugal;
  }
  random_ = Random(settings.seed, RandomStream::network).next() | 1;
}

void Router::set_lanes(uint32_t lanes_per_port, uint32_t hop_classes) {
  lanes_per_port_ = lanes_per_port;
  hop_classes_ = hop_classes;
  loads_.assign(down_.size() * lanes_per_port, 0);
}

uint32_t Router::random_below(uint32_t bound) {
  random_ ^= random_ >> 12;  // xorshift64*, high bits; the bias of at most bound / 2^32 does not matter here
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return static_cast<uint32_t>(((random_ * 0x2545f4914f6cdd1dULL) >> 32) * bound >> 32);
}

bool Router::is_fixed(size_t network, uint8_t traffic_class) const {
  const RoutePolicy policy = policies_[network][traffic_class];
  return policy == RoutePolicy::by_destination || policy == RoutePolicy::by_flow;
}

Channel Router::choose(std::span<const Channel> candidates, const Packet& p, const Message& message,
                       Vertex at) {
  const uint32_t count = static_cast<uint32_t>(candidates.size());
  switch (policies_[p.flags & kScaleOut][p.traffic_class]) {
    case RoutePolicy::by_destination:
      return candidates[choose_by_destination(p, at, count)];
    case RoutePolicy::by_flow:
      return candidates[choose_by_flow(message, settings_.seed, at, count)];
    case RoutePolicy::spread:
      return candidates[random_below(count)];
    case RoutePolicy::even:
      if (graph_.is_endpoint(at) && !any_down_)
        return evens_[p.flags & kScaleOut].least(candidates, this->candidates(p, at), at, p.target);
      break;
    case RoutePolicy::adaptive:
    case RoutePolicy::valiant:
    case RoutePolicy::ugal:
      break;
  }
  return least_loaded(candidates, p);
}

Router::DestinationOrder Router::destination_order(const ChannelGraph& graph, const RouteTable& table) {
  DestinationOrder order;
  const auto ranks = static_cast<size_t>(graph.ranks());
  order.position.resize(ranks);
  order.is_edge.resize(graph.num_vertices());
  std::vector<Rank> sorted(ranks);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](Rank a, Rank b) { return table.group(a) < table.group(b); });
  for (size_t i = 0; i < ranks; ++i) {
    order.position[static_cast<size_t>(sorted[i])] = static_cast<uint32_t>(i);
    const Vertex edge = table.last_vertex(sorted[i]);
    if (edge != kNil) order.is_edge[edge] = 1;
  }
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    for (uint32_t g = 0; g < table.num_groups() && order.is_edge[v] != 0; ++g)
      order.fan = std::max(order.fan, static_cast<uint32_t>(table.candidates(v, table.member(g)).size()));
  return order;
}

/// As D-mod-K does in fat trees (Zahavi 2012): an edge switch deals its destinations out in turn, in the
/// order of the switches that they hang on; further up, where only every fan-th comes by, that is divided
/// out. By plain rank number all GPUs of a rail would share one spine.
uint32_t Router::choose_by_destination(const Packet& p, Vertex at, uint32_t count) const {
  const auto& [position, is_edge, fan] = orders_[p.flags & kScaleOut];
  const uint32_t turn = position[static_cast<size_t>(p.target)];
  return (is_edge[at] != 0 ? turn : turn / fan) % count;
}

/// Ties and samples start at a random candidate, so that no port is preferred.
Channel Router::least_loaded(std::span<const Channel> candidates, const Packet& p) {
  const uint32_t lane = lane_of(p), count = static_cast<uint32_t>(candidates.size());
  const int32_t sample = settings_.networks[p.flags & kScaleOut].sample;
  const uint32_t looks = sample > 0 && !any_down_ ? std::min(static_cast<uint32_t>(sample), count) : count;
  const uint32_t first = random_below(count);
  Channel best = candidates[first];
  int32_t least = std::numeric_limits<int32_t>::max();
  // True when there is no need to look further.
  auto look = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const Channel c = candidates[i];
      const int32_t load = loads_[c * lanes_per_port_ + lane];
      if (load >= least || (any_down_ && down_[c])) continue;
      best = c;
      least = load;
      if (load == 0) return true;
    }
    return false;
  };
  if (!look(first, std::min(first + looks, count)) && first + looks > count) look(0, first + looks - count);
  return best;
}

bool Router::consider_detour(Packet& p, Rank dst, Vertex at) {
  const RouteTable& table = tables_[p.flags & kScaleOut];
  const RoutePolicy policy = policies_[p.flags & kScaleOut][p.traffic_class];
  if ((p.flags & kDetour) != 0) {
    if (!table.is_last(at, p.target)) return false;
    p.flags &= static_cast<uint8_t>(~kDetour);
    p.target = dst;
    return false;
  }
  p.flags &= static_cast<uint8_t>(~kFresh);
  if (policy != RoutePolicy::valiant && policy != RoutePolicy::ugal) return false;
  if (table.is_last(at, p.target)) return false;  // neighbours at one switch
  const Rank via = table.member(random_below(table.num_groups()));
  if (at == static_cast<Vertex>(via) || table.is_last(at, via) || table.group(via) == table.group(p.target) ||
      table.hops(at, via) < 0)
    return false;
  if (policy == RoutePolicy::ugal) {
    auto cost = [&](Rank rank, int32_t hops) {
      const Channel c = least_loaded(table.candidates(at, rank), p);
      return int64_t{loads_[c * lanes_per_port_ + lane_of(p)]} * hops;
    };
    const int32_t over_via = table.hops(at, via) - 1 + table.hops(table.last_vertex(via), p.target);
    if (cost(p.target, table.hops(at, p.target)) <= cost(via, over_via)) return false;
  }
  p.target = via;
  p.flags |= kDetour;
  return true;
}

void Router::set_down(Channel channel, bool down) {
  down_[channel] = down;
  any_down_ = std::find(down_.begin(), down_.end(), uint8_t{1}) != down_.end();
}

void Router::rebuild() {
  tables_.clear();
  tables_.emplace_back(fabric_, graph_, Link::scale_up, down_);
  tables_.emplace_back(fabric_, graph_, Link::scale_out, down_);
}

int64_t Router::memory_bytes() const {
  int64_t total = static_cast<int64_t>(loads_.capacity() * sizeof(int32_t) + down_.capacity());
  for (const RouteTable& table : tables_) total += table.memory_bytes();
  for (const EvenSplit& even : evens_) total += even.memory_bytes();
  return total;
}

}  // namespace plumb::sim

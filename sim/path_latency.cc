// Groups ranks by where they hang.
#include "sim/path_latency.h"

#include <map>

namespace plumb::sim {

namespace {

constexpr int64_t kMaxKnown = 1 << 22;  // 32 MB

/// First switches of a rank and the latency to each; NICs are passed.
std::vector<std::pair<NodeId, double>> reach(const Fabric& fabric, Rank rank, Link network) {
  std::vector<std::pair<NodeId, double>> out;
  for (const LinkId l : fabric.out_links(fabric.endpoint(rank))) {
    const FabricLink& link = fabric.links()[static_cast<size_t>(l)];
    if (link.network != network && !link.shared) continue;
    if (fabric.nodes()[static_cast<size_t>(link.to)].kind != NodeKind::nic) {
      out.emplace_back(link.to, link.latency.value);
      continue;
    }
    for (const LinkId next : fabric.out_links(link.to)) {
      const FabricLink& up = fabric.links()[static_cast<size_t>(next)];
      if (up.to != link.from) out.emplace_back(up.to, link.latency.value + up.latency.value);
    }
  }
  return out;
}

}  // namespace

PathLatencies::PathLatencies(const Fabric& fabric) : fabric_(fabric) {
  for (size_t n = 0; n < 2; ++n) {
    Net& net = nets_[n];
    std::map<std::vector<std::pair<NodeId, double>>, int32_t> places;
    for (Rank r = 0; r < fabric.ranks(); ++r) {
      const auto found =
          places.emplace(reach(fabric, r, n == 1 ? Link::scale_out : Link::scale_up), net.places);
      if (found.second) ++net.places;
      net.place.push_back(found.first->second);
    }
    if (int64_t{net.places} * net.places <= kMaxKnown)
      net.known.assign(static_cast<size_t>(net.places) * static_cast<size_t>(net.places), -1);
  }
}

Ps PathLatencies::of(Link network, Rank src, Rank dst) {
  Net& net = nets_[network == Link::scale_out ? 1 : 0];
  if (net.known.empty()) return to_ps(fabric_.latency(network, src, dst));
  Ps& known =
      net.known[static_cast<size_t>(net.place[static_cast<size_t>(src)]) * static_cast<size_t>(net.places) +
                static_cast<size_t>(net.place[static_cast<size_t>(dst)])];
  if (known < 0) known = to_ps(fabric_.latency(network, src, dst));
  return known;
}

}  // namespace plumb::sim

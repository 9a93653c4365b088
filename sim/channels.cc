// Turns a Fabric into channels.
#include "sim/channels.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

namespace {

/// Links that enter and leave a NIC, as far as they matter here.
struct NicLinks {
  LinkId from_gpu = kNone, to_gpu = kNone, from_switch = kNone, to_switch = kNone;
  int count = 0;
};

bool is_pass_through(const Fabric& fabric, const NicLinks& nic) {
  if (nic.count != 4 || nic.from_gpu == kNone || nic.to_gpu == kNone || nic.from_switch == kNone ||
      nic.to_switch == kNone)
    return false;
  const auto links = fabric.links();
  const FabricLink &up = links[nic.from_gpu], &down = links[nic.to_gpu];
  const FabricLink &out = links[nic.to_switch], &in = links[nic.from_switch];
  return up.from == down.to && out.to == in.from && up.rate == out.rate && in.rate == down.rate &&
         up.network == out.network && in.network == down.network;
}

/// [nodes] 1 = packets pass the NIC without an event.
std::vector<uint8_t> find_pass_through(const Fabric& fabric) {
  const auto nodes = fabric.nodes();
  std::vector<NicLinks> nics(nodes.size());
  const auto links = fabric.links();
  for (size_t l = 0; l < links.size(); ++l) {
    const LinkId id = static_cast<LinkId>(l);
    NicLinks &from = nics[links[l].from], &to = nics[links[l].to];
    ++from.count;
    ++to.count;
    (nodes[links[l].to].kind == NodeKind::gpu ? from.to_gpu : from.to_switch) = id;
    (nodes[links[l].from].kind == NodeKind::gpu ? to.from_gpu : to.from_switch) = id;
  }
  std::vector<uint8_t> passed(nodes.size(), 0);
  for (size_t n = 0; n < nodes.size(); ++n)
    passed[n] = nodes[n].kind == NodeKind::nic && is_pass_through(fabric, nics[n]);
  return passed;
}

ChannelInfo from_link(const Fabric& fabric, LinkId id) {
  const FabricLink& link = fabric.links()[id];
  const Ps latency = to_ps(link.latency);
  ChannelInfo info;
  info.links[0] = id;
  info.network = link.network;
  info.shared = link.shared;
  info.rate = link.rate;
  info.latency = latency;
  info.wire_latency = latency;
  return info;
}

}  // namespace

ChannelGraph::ChannelGraph(const Fabric& fabric) : ranks_(fabric.ranks()) {
  const std::vector<uint8_t> passed = find_pass_through(fabric);
  number_vertices(fabric, passed);
  add_channels(fabric, passed);
}

void ChannelGraph::number_vertices(const Fabric& fabric, const std::vector<uint8_t>& passed) {
  const auto nodes = fabric.nodes();
  vertices_.assign(nodes.size(), kNil);
  auto add = [&](NodeId node) {
    vertices_[node] = static_cast<Vertex>(nodes_.size());
    nodes_.push_back(node);
    names_.push_back(nodes[node].name);
  };
  for (Rank r = 0; r < ranks_; ++r) add(fabric.endpoint(r));
  for (size_t n = 0; n < nodes.size(); ++n)
    if (vertices_[n] == kNil && !passed[n]) add(static_cast<NodeId>(n));
}

void ChannelGraph::add_channels(const Fabric& fabric, const std::vector<uint8_t>& passed) {
  const auto links = fabric.links();
  for (size_t l = 0; l < links.size(); ++l) {
    if (passed[links[l].from]) continue;
    const LinkId id = static_cast<LinkId>(l);
    ChannelInfo info = from_link(fabric, id);
    NodeId to = links[l].to;
    if (passed[to]) {
      for (LinkId next : fabric.out_links(links[l].to)) {
        if (links[next].to == links[l].from) continue;
        info.links[1] = next;
        to = links[next].to;
        const Ps latency = to_ps(links[next].latency);
        info.latency += latency;
        if (fabric.nodes()[links[l].from].kind == NodeKind::gpu) info.wire_latency = latency;
      }
    }
    info.from = vertices_[links[l].from];
    info.to = vertices_[to];
    channels_.push_back(info);
  }
  std::stable_sort(channels_.begin(), channels_.end(),
                   [](const ChannelInfo& a, const ChannelInfo& b) { return a.from < b.from; });

  out_begin_.assign(nodes_.size() + 1, 0);
  num_in_.assign(nodes_.size(), 0);
  starts_with_.assign(links.size(), kNil);
  of_.assign(links.size(), kNil);
  for (Channel c = 0; c < channels_.size(); ++c) {
    ChannelInfo& info = channels_[c];
    ++out_begin_[info.from + 1];
    in_slot_.push_back(num_in_[info.to]++);
    starts_with_[info.links[0]] = c;
    for (LinkId link : info.links)
      if (link != kNone) of_[link] = c;
    info.between_nodes = is_endpoint(info.from) == is_endpoint(info.to);
  }
  for (size_t v = 1; v < out_begin_.size(); ++v) out_begin_[v] += out_begin_[v - 1];
}

std::string ChannelGraph::name_of_channel(Channel c) const {
  return fmt::format("{} -> {}", names_[channels_[c].from], names_[channels_[c].to]);
}

}  // namespace plumb::sim

// Builds the tables of minimal hop counts and answers with them; see fabric_routing.h.
#include "model/fabric_routing.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {

namespace {

using Net = Fabric::Routing::Net;
constexpr uint8_t kNoHops = 255;

bool is_switch(const FabricNode& node) {
  return node.kind == NodeKind::scale_up_switch || node.kind == NodeKind::scale_out_switch;
}

/// Links into each node that a network uses, as compressed rows.
struct InLinks {
  std::vector<int32_t> begin;
  std::vector<LinkId> links;

  InLinks(const Fabric& fabric, const Net& net) : begin(fabric.nodes().size() + 1, 0) {
    const auto all = fabric.links();
    for (const FabricLink& link : all)
      if (net.uses(link)) ++begin[link.to + 1];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    links.resize(begin.back());
    std::vector<int32_t> fill(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < all.size(); ++i)
      if (net.uses(all[i])) links[fill[all[i].to]++] = static_cast<LinkId>(i);
  }
  std::span<const LinkId> of(NodeId node) const {
    return std::span(links).subspan(begin[node], begin[node + 1] - begin[node]);
  }
};

/// Numbers the connected parts of the transit nodes and the nodes inside each; returns the sizes of the
/// parts.
std::vector<int32_t> number_components(const Fabric& fabric, const InLinks& in, Net& net) {
  const size_t count = fabric.nodes().size();
  net.component.assign(count, kNone);
  net.index.assign(count, kNone);
  std::vector<int32_t> sizes;
  std::vector<NodeId> stack;
  for (size_t start = 0; start < count; ++start) {
    if (!net.transit[start] || net.component[start] != kNone) continue;
    const int32_t part = static_cast<int32_t>(sizes.size());
    sizes.push_back(0);
    auto visit = [&](NodeId node) {
      if (!net.transit[node] || net.component[node] != kNone) return;
      net.component[node] = part;
      net.index[node] = sizes[part]++;
      stack.push_back(node);
    };
    visit(static_cast<NodeId>(start));
    while (!stack.empty()) {
      const NodeId node = stack.back();
      stack.pop_back();
      for (LinkId l : fabric.out_links(node))
        if (net.uses(fabric.links()[l])) visit(fabric.links()[l].to);
      for (LinkId l : in.of(node)) visit(fabric.links()[l].from);
    }
  }
  return sizes;
}

/// The attach nodes of a GPU with the hops down from each, nearest way only.
std::vector<std::pair<NodeId, int32_t>> find_attaches(const Fabric& fabric, const InLinks& in, const Net& net,
                                                      NodeId gpu) {
  if (net.transit[gpu]) return {{gpu, 0}};
  std::vector<std::pair<NodeId, int32_t>> found;
  for (LinkId l : in.of(gpu)) {
    const NodeId from = fabric.links()[l].from;
    if (net.transit[from]) found.push_back({from, 1});
    if (fabric.nodes()[from].kind != NodeKind::nic) continue;
    for (LinkId up : in.of(from)) {
      const NodeId above = fabric.links()[up].from;
      if (net.transit[above]) found.push_back({above, 2});
    }
  }
  std::sort(found.begin(), found.end());
  auto same_node = [](const auto& a, const auto& b) { return a.first == b.first; };
  found.erase(std::unique(found.begin(), found.end(), same_node), found.end());
  return found;
}

/// Breadth-first search against the direction of the links, from the attach node of the last row.
void add_row(const Fabric& fabric, const InLinks& in, const std::vector<int32_t>& sizes, Net& net) {
  const NodeId root = net.row_node.back();
  const size_t begin = net.hops.size();
  net.row_begin.push_back(static_cast<int64_t>(begin));
  net.hops.resize(begin + sizes[net.component[root]], kNoHops);
  net.hops[begin + net.index[root]] = 0;
  std::vector<NodeId> queue = {root};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t hops = net.hops[begin + net.index[queue[head]]] + 1;
    for (LinkId l : in.of(queue[head])) {
      const NodeId from = fabric.links()[l].from;
      if (!net.transit[from] || net.hops[begin + net.index[from]] != kNoHops) continue;
      if (hops >= kNoHops) fail_usage("fabric: a minimal path of more than {} hops", kNoHops - 1);
      net.hops[begin + net.index[from]] = static_cast<uint8_t>(hops);
      queue.push_back(from);
    }
  }
}

void build_tables(const Fabric& fabric, bool gpus_forward, Net& net) {
  const auto nodes = fabric.nodes();
  net.transit.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    net.transit[i] = is_switch(nodes[i]) || (gpus_forward && nodes[i].kind == NodeKind::gpu);
  const InLinks in(fabric, net);
  const std::vector<int32_t> sizes = number_components(fabric, in, net);
  std::vector<int32_t> row_of(nodes.size(), kNone);
  net.attach_begin.push_back(0);
  for (Rank rank = 0; rank < fabric.ranks(); ++rank) {
    for (const auto& [node, down] : find_attaches(fabric, in, net, fabric.endpoint(rank))) {
      if (row_of[node] == kNone) {
        row_of[node] = static_cast<int32_t>(net.row_node.size());
        net.row_node.push_back(node);
        add_row(fabric, in, sizes, net);
      }
      net.attaches.push_back({.row = row_of[node], .down = down});
    }
    net.attach_begin.push_back(static_cast<int32_t>(net.attaches.size()));
  }
}

void build_mesh(const Fabric& fabric, const std::vector<int32_t>& dimensions, Net& net) {
  net.dimensions = dimensions;
  net.block = 1;
  for (int32_t d : dimensions) {
    PLUMB_CHECK(d >= 1, "mesh dimension {}", d);
    net.block *= d;
    net.ports += d;
  }
  PLUMB_CHECK(fabric.ranks() % net.block == 0, "{} ranks in meshes of {}", fabric.ranks(), net.block);
  net.mesh_links.assign(static_cast<size_t>(fabric.ranks()) * net.ports, kNone);
  for (Rank rank = 0; rank < fabric.ranks(); ++rank) {
    int32_t found = 0;
    for (LinkId l : fabric.out_links(fabric.endpoint(rank))) {
      const FabricLink& link = fabric.links()[l];
      if (!net.uses(link)) continue;
      const Rank other = fabric.nodes()[link.to].rank;
      PLUMB_CHECK(fabric.nodes()[link.to].kind == NodeKind::gpu && net.mesh_hops(rank, other) == 1,
                  "link {} of rank {} is none of its mesh", l, rank);
      int32_t port = 0;
      int32_t a = rank % net.block, b = other % net.block;
      for (int32_t d : dimensions) {
        if (a % d != b % d) port += b % d;
        if (a % d != b % d) break;
        port += d;
        a /= d;
        b /= d;
      }
      LinkId& slot = net.mesh_links[static_cast<size_t>(rank) * net.ports + port];
      PLUMB_CHECK(slot == kNone, "two links from rank {} to rank {}", rank, other);
      slot = l;
      ++found;
    }
    const int32_t wanted = net.ports - static_cast<int32_t>(dimensions.size());
    PLUMB_CHECK(found == wanted, "rank {} has {} links, its mesh {}", rank, found, wanted);
  }
}

}  // namespace

Fabric::Routing::Target Net::target(const Fabric& fabric, Rank rank) const {
  const int32_t begin = attach_begin[rank], end = attach_begin[rank + 1];
  return {std::span(attaches).subspan(begin, end - begin), fabric.endpoint(rank)};
}

int32_t Net::only_row(Rank rank) const {
  return attach_begin[rank + 1] - attach_begin[rank] == 1 ? attaches[attach_begin[rank]].row : kNone;
}

int32_t Net::hops_from_transit(NodeId node, const Target& target) const {
  int32_t best = kFar;
  for (const Attach& attach : target.attaches) {
    if (component[row_node[attach.row]] != component[node]) continue;
    const uint8_t way = hops[row_begin[attach.row] + index[node]];
    if (way != kNoHops) best = std::min(best, way + attach.down);
  }
  return best;
}

int32_t Net::hops_from_nic(const Fabric& fabric, NodeId node, const Target& target) const {
  int32_t best = kFar;
  for (LinkId l : fabric.out_links(node)) {
    const FabricLink& link = fabric.links()[l];
    if (!uses(link)) continue;
    if (link.to == target.endpoint) return 1;
    if (transit[link.to]) best = std::min(best, 1 + hops_from_transit(link.to, target));
  }
  return best;
}

int32_t Net::hops_after(const Fabric& fabric, NodeId from, NodeId to, const Target& target) const {
  if (to == target.endpoint) return 0;
  if (transit[to]) return hops_from_transit(to, target);
  if (fabric.nodes()[to].kind != NodeKind::nic) return kFar;
  if (fabric.nodes()[from].kind == NodeKind::gpu) return hops_from_nic(fabric, to, target);
  // Downwards a NIC leads to its own GPUs only: it never joins two switches.
  for (LinkId l : fabric.out_links(to))
    if (uses(fabric.links()[l]) && fabric.links()[l].to == target.endpoint) return 1;
  return kFar;
}

int32_t Net::hops_from(const Fabric& fabric, NodeId node, const Target& target) const {
  if (node == target.endpoint) return 0;
  if (transit[node]) return hops_from_transit(node, target);
  if (fabric.nodes()[node].kind == NodeKind::nic) return hops_from_nic(fabric, node, target);
  int32_t best = kFar;
  for (LinkId l : fabric.out_links(node)) {
    const FabricLink& link = fabric.links()[l];
    if (uses(link)) best = std::min(best, 1 + hops_after(fabric, node, link.to, target));
  }
  return best;
}

void Net::next(const Fabric& fabric, NodeId at, const Target& target, std::vector<LinkId>& out) const {
  const int32_t here = hops_from(fabric, at, target);
  if (here == 0 || here >= kFar) return;
  for (LinkId l : fabric.out_links(at)) {
    const FabricLink& link = fabric.links()[l];
    if (uses(link) && hops_after(fabric, at, link.to, target) == here - 1) out.push_back(l);
  }
}

bool Net::is_adjacent(const Fabric& fabric, Rank src, Rank dst) const {
  const NodeId from = fabric.endpoint(src);
  if (transit[from]) return false;
  const Target direct = {{}, fabric.endpoint(dst)};
  return hops_from(fabric, from, direct) < kFar;
}

int32_t Net::mesh_hops(Rank src, Rank dst) const {
  if (src / block != dst / block) return kFar;
  int32_t result = 0;
  int32_t a = src % block, b = dst % block;
  for (int32_t d : dimensions) {
    result += a % d != b % d;
    a /= d;
    b /= d;
  }
  return result;
}

void Net::mesh_next(Rank at, Rank dst, std::vector<LinkId>& out) const {
  if (at / block != dst / block) return;
  const LinkId* links = mesh_links.data() + static_cast<size_t>(at) * ports;
  const size_t first = out.size();
  int32_t a = at % block, b = dst % block;
  for (int32_t d : dimensions) {
    if (a % d != b % d) out.push_back(links[b % d]);
    links += d;
    a /= d;
    b /= d;
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

std::shared_ptr<const Fabric::Routing> Fabric::Routing::compute(
    const Fabric& fabric, const std::array<FabricBuilder::Forwarding, 2>& forwarding) {
  auto result = std::make_shared<Routing>();
  for (size_t i = 0; i < 2; ++i) {
    Net& net = result->nets[i];
    net.network = i == 0 ? Link::scale_up : Link::scale_out;
    if (forwarding[i].mesh.empty()) {
      build_tables(fabric, forwarding[i].gpus_forward, net);
    } else {
      build_mesh(fabric, forwarding[i].mesh, net);
    }
  }
  return result;
}

int64_t Fabric::Routing::memory_bytes() const {
  size_t total = 0;
  auto add = [&total]<class T>(const std::vector<T>& v) { total += v.capacity() * sizeof(T); };
  for (const Net& net : nets) {
    add(net.transit);
    add(net.component);
    add(net.index);
    add(net.row_node);
    add(net.row_begin);
    add(net.hops);
    add(net.attaches);
    add(net.attach_begin);
    add(net.mesh_links);
  }
  return static_cast<int64_t>(total);
}

}  // namespace plumb

// The graph and its queries; hop counts come from fabric_routing.cc, loads() stands in fabric_loads.cc.
#include "model/fabric.h"

#include <algorithm>
#include <map>

#include "model/error.h"
#include "model/fabric_routing.h"

namespace plumb {

namespace {

/// All minimal paths between two ranks as a graph without cycles, nodes in order of distance from the source.
struct PathGraph {
  std::vector<NodeId> nodes;
  std::vector<std::vector<LinkId>> next;       // [nodes]
  std::vector<std::vector<size_t>> followers;  // [nodes] positions that `next` leads to
  std::vector<double> paths;                   // [nodes] number of paths to the destination

  PathGraph(const Fabric& fabric, Link network, Rank src, Rank dst) {
    std::map<NodeId, size_t> position;
    auto place = [&](NodeId node) {
      const auto [it, added] = position.try_emplace(node, nodes.size());
      if (added) nodes.push_back(node);
      return it->second;
    };
    place(fabric.endpoint(src));
    for (size_t i = 0; i < nodes.size(); ++i) {
      next.emplace_back();
      followers.emplace_back();
      fabric.next_links(network, nodes[i], dst, next.back());
      for (LinkId l : next.back()) {
        const size_t to = place(fabric.links()[l].to);
        followers[i].push_back(to);
      }
    }
    paths.assign(nodes.size(), 0);
    for (size_t i = nodes.size(); i-- > 0;) {
      if (nodes[i] == fabric.endpoint(dst)) paths[i] = 1;
      for (size_t to : followers[i]) paths[i] += paths[to];
    }
  }
};

/// The path of number `index` in the order of depth-first search.
Path pick_path(const PathGraph& graph, double index) {
  Path path;
  size_t at = 0;
  while (!graph.next[at].empty()) {
    size_t choice = 0;
    while (choice + 1 < graph.next[at].size() && index >= graph.paths[graph.followers[at][choice]])
      index -= graph.paths[graph.followers[at][choice++]];
    path.links.push_back(graph.next[at][choice]);
    path.share /= static_cast<double>(graph.next[at].size());
    at = graph.followers[at][choice];
  }
  return path;
}

[[noreturn]] void fail_unreachable(Link network, Rank src, Rank dst) {
  fail_usage("no {} path from rank {} to rank {}", to_string(network), src, dst);
}

}  // namespace

std::span<const LinkId> Fabric::out_links(NodeId node) const {
  return std::span(out_links_).subspan(out_begin_[node], out_begin_[node + 1] - out_begin_[node]);
}

void Fabric::next_links(Link network, NodeId at, Rank dst, std::vector<LinkId>& out) const {
  out.clear();
  if (network == Link::local) return;
  const Routing::Net& net = routing_->net(network);
  if (!net.is_mesh()) {
    net.next(*this, at, net.target(*this, dst), out);
  } else if (nodes_[at].kind == NodeKind::gpu) {
    net.mesh_next(nodes_[at].rank, dst, out);
  }
}

int32_t Fabric::distance(Link network, Rank src, Rank dst) const {
  if (src == dst) return 0;
  if (network == Link::local) return -1;
  const Routing::Net& net = routing_->net(network);
  const int32_t hops =
      net.is_mesh() ? net.mesh_hops(src, dst) : net.hops_from(*this, endpoint_[src], net.target(*this, dst));
  return hops >= kFar ? -1 : hops;
}

std::vector<Path> Fabric::routes(Link network, Rank src, Rank dst, int32_t limit) const {
  PLUMB_CHECK(limit >= 1, "limit {}", limit);
  if (src == dst) return {};
  const PathGraph graph(*this, network, src, dst);
  const double total = graph.paths[0];
  if (total < 1) fail_unreachable(network, src, dst);
  // More paths than asked for: evenly spaced ones, so that they stay spread over the fabric.
  const int32_t count = static_cast<int32_t>(std::min<double>(limit, total));
  std::vector<Path> result;
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    const double index = count == total ? i : std::min(total - 1, static_cast<double>(i) * total / count);
    result.push_back(pick_path(graph, static_cast<double>(static_cast<int64_t>(index))));
    sum += result.back().share;
  }
  for (Path& path : result) path.share /= sum;
  return result;
}

Seconds Fabric::latency(Link network, Rank src, Rank dst) const {
  if (src == dst) return {};
  const PathGraph graph(*this, network, src, dst);
  if (graph.paths[0] < 1) fail_unreachable(network, src, dst);
  std::vector<double> longest(graph.nodes.size(), 0);
  for (size_t i = graph.nodes.size(); i-- > 0;)
    for (size_t k = 0; k < graph.next[i].size(); ++k)
      longest[i] =
          std::max(longest[i], links_[graph.next[i][k]].latency.value + longest[graph.followers[i][k]]);
  return {longest[0]};
}

std::string Fabric::unreachable(Link network) const {
  if (network == Link::local) return "";
  const Routing::Net& net = routing_->net(network);
  auto name = [&](Rank src, Rank dst) {
    return fmt::format("{}: no path from rank {} to rank {}", to_string(network), src, dst);
  };
  if (net.is_mesh()) return net.block < ranks() ? name(0, net.block) : "";
  std::vector<Rank> reached(net.row_node.size(),
                            kNone);  // by row: the last source that reaches its attach node
  for (Rank src = 0; src < ranks(); ++src) {
    for (Rank dst = 0; dst < ranks(); ++dst) {
      const int32_t row = net.only_row(dst);
      if (row != kNone && reached[row] == src) continue;
      if (distance(network, src, dst) < 0) return name(src, dst);
      if (row != kNone && !net.is_adjacent(*this, src, dst)) reached[row] = src;
    }
  }
  return "";
}

Fabric Fabric::with_rates(double scale_up, double scale_out) const {
  Fabric out = *this;
  for (FabricLink& link : out.links_)
    link.rate = link.rate * (link.network == Link::scale_out ? scale_out : scale_up);
  return out;
}

int64_t Fabric::memory_bytes() const {
  size_t total = nodes_.capacity() * sizeof(FabricNode) + links_.capacity() * sizeof(FabricLink) +
                 (endpoint_.capacity() + out_begin_.capacity() + out_links_.capacity()) * sizeof(int32_t);
  for (const FabricNode& node : nodes_)
    if (node.name.capacity() >= sizeof(std::string) / 2) total += node.name.capacity() + 1;
  return static_cast<int64_t>(total) + (routing_ ? routing_->memory_bytes() : 0);
}

FabricBuilder::FabricBuilder() : fabric_(std::make_unique<Fabric>()) {}
FabricBuilder::~FabricBuilder() = default;

NodeId FabricBuilder::add_node(FabricNode node) {
  fabric_->nodes_.push_back(std::move(node));
  return static_cast<NodeId>(fabric_->nodes_.size()) - 1;
}

LinkId FabricBuilder::add_link(FabricLink link) {
  constexpr size_t kMaxLinks = size_t{1} << 26;  // 2.7 GB: a slip in a dimension, not a machine
  if (fabric_->links_.size() >= kMaxLinks) fail_usage("fabric: more than {} links", kMaxLinks);
  fabric_->links_.push_back(link);
  return static_cast<LinkId>(fabric_->links_.size()) - 1;
}

void FabricBuilder::add_cable(NodeId a, NodeId b, FabricLink link) {
  link.from = a;
  link.to = b;
  add_link(link);
  std::swap(link.from, link.to);
  add_link(link);
}

void FabricBuilder::let_gpus_forward(Link network) {
  forwarding_[network == Link::scale_out ? 1 : 0].gpus_forward = true;
}

void FabricBuilder::set_mesh(Link network, std::vector<int32_t> dimensions) {
  forwarding_[network == Link::scale_out ? 1 : 0].mesh = std::move(dimensions);
}

Fabric FabricBuilder::finish() && {
  Fabric& f = *fabric_;
  const NodeId count = static_cast<NodeId>(f.nodes_.size());
  f.endpoint_.assign(std::count_if(f.nodes_.begin(), f.nodes_.end(),
                                   [](const FabricNode& n) { return n.kind == NodeKind::gpu; }),
                     kNone);
  for (NodeId i = 0; i < count; ++i) {
    const FabricNode& node = f.nodes_[i];
    if (node.kind != NodeKind::gpu) continue;
    if (node.rank < 0 || node.rank >= f.ranks())
      fail_usage("fabric: {} has rank {}, allowed are 0 to {}", node.name, node.rank, f.ranks() - 1);
    if (f.endpoint_[node.rank] != kNone) fail_usage("fabric: rank {} stands twice", node.rank);
    f.endpoint_[node.rank] = i;
  }
  f.out_begin_.assign(count + 1, 0);
  for (const FabricLink& link : f.links_) {
    if (link.from < 0 || link.from >= count || link.to < 0 || link.to >= count || link.from == link.to)
      fail_usage("fabric: a link from node {} to node {}, nodes are 0 to {}", link.from, link.to, count - 1);
    if (!(link.rate.value > 0) || link.cables < 1 || !(link.latency.value >= 0))
      fail_usage("fabric: link {} -> {} has rate {}, {} cables, latency {}", f.nodes_[link.from].name,
                 f.nodes_[link.to].name, link.rate.value, link.cables, link.latency.value);
    ++f.out_begin_[link.from + 1];
  }
  for (NodeId i = 0; i < count; ++i) f.out_begin_[i + 1] += f.out_begin_[i];
  f.out_links_.resize(f.links_.size());
  std::vector<int32_t> fill(f.out_begin_.begin(), f.out_begin_.end() - 1);
  for (size_t i = 0; i < f.links_.size(); ++i)
    f.out_links_[fill[f.links_[i].from]++] = static_cast<LinkId>(i);
  f.nodes_.shrink_to_fit();
  f.links_.shrink_to_fit();
  f.routing_ = Fabric::Routing::compute(f, forwarding_);
  return std::move(f);
}

}  // namespace plumb

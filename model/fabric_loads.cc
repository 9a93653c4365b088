// Fabric::loads: the bytes that many demands put on every link. Where to go next depends on the destination
// only, so all demands for the ranks behind one attach switch are poured in at their sources and drained
// together, farthest nodes first; from the attach switch on they are told apart by rank. Meshes have a closed
// form per demand.
#include <algorithm>

#include "model/error.h"
#include "model/fabric.h"
#include "model/fabric_routing.h"

namespace plumb {

namespace {

using Net = Fabric::Routing::Net;
using Target = Fabric::Routing::Target;

/// Demands sorted into buckets that drain together, as compressed rows: first one bucket per row of the
/// tables, then one per rank, for ranks with several attach switches and for demands that pass none.
struct Buckets {
  std::vector<int64_t> begin;
  std::vector<int32_t> order;
};

Buckets sort_demands(const Fabric& fabric, const Net& net, std::span<const Demand> demands) {
  const size_t rows = net.row_node.size();
  std::vector<int32_t> bucket(demands.size(), kNone);
  Buckets result;
  result.begin.assign(rows + fabric.ranks() + 1, 0);
  for (size_t i = 0; i < demands.size(); ++i) {
    const Demand& demand = demands[i];
    if (demand.network != net.network || demand.src == demand.dst || demand.bytes == 0) continue;
    const int32_t row = net.only_row(demand.dst);
    const bool together = row != kNone && !net.is_adjacent(fabric, demand.src, demand.dst);
    bucket[i] = together ? row : static_cast<int32_t>(rows) + demand.dst;
    ++result.begin[bucket[i] + 1];
  }
  for (size_t i = 1; i < result.begin.size(); ++i) result.begin[i] += result.begin[i - 1];
  result.order.resize(result.begin.back());
  std::vector<int64_t> fill(result.begin.begin(), result.begin.end() - 1);
  for (size_t i = 0; i < demands.size(); ++i)
    if (bucket[i] != kNone) result.order[fill[bucket[i]]++] = static_cast<int32_t>(i);
  return result;
}

/// Bytes on their way to one target, kept at the nodes that they have reached.
class Drain {
 public:
  Drain(const Fabric& fabric, const Net& net, std::vector<double>& loads)
      : fabric_(fabric),
        net_(net),
        loads_(loads),
        held_(fabric.nodes().size(), 0),
        seen_(fabric.nodes().size(), 0) {}

  void pour(NodeId node, double bytes) {
    if (!seen_[node]) touched_.push_back(node);
    seen_[node] = 1;
    held_[node] += bytes;
  }

  /// Moves everything to `stop`, splitting equally over the next links at each node. False when a node has no
  /// way.
  bool run(const Target& target, NodeId stop) {
    levels_.clear();
    for (NodeId node : touched_)
      if (!place(node, net_.hops_from(fabric_, node, target))) return false;
    for (size_t level = levels_.size(); level-- > 0;) {
      for (size_t i = 0; i < levels_[level].size(); ++i) {
        const NodeId node = levels_[level][i];
        if (node == stop) continue;
        next_.clear();
        net_.next(fabric_, node, target, next_);
        const double share = held_[node] / static_cast<double>(next_.size());
        for (LinkId l : next_) {
          loads_[l] += share;
          const NodeId to = fabric_.links()[l].to;
          if (!seen_[to]) place(to, static_cast<int32_t>(level) - 1);
          pour(to, share);
        }
        held_[node] = 0;
      }
    }
    for (NodeId node : touched_) {
      held_[node] = 0;
      seen_[node] = 0;
    }
    touched_.clear();
    return true;
  }

 private:
  bool place(NodeId node, int32_t hops) {
    if (hops >= kFar) return false;
    if (static_cast<int32_t>(levels_.size()) <= hops) levels_.resize(hops + 1);
    levels_[hops].push_back(node);
    return true;
  }

  const Fabric& fabric_;
  const Net& net_;
  std::vector<double>& loads_;
  std::vector<double> held_;   // [nodes]
  std::vector<uint8_t> seen_;  // [nodes]
  std::vector<NodeId> touched_;
  std::vector<std::vector<NodeId>> levels_;  // by hops to the target
  std::vector<LinkId> next_;
};

[[noreturn]] void fail_unreachable(const Fabric& fabric, const Net& net, std::span<const Demand> demands,
                                   std::span<const int32_t> order) {
  for (int32_t i : order)
    if (fabric.distance(net.network, demands[i].src, demands[i].dst) < 0)
      fail_usage("no {} path from rank {} to rank {}", to_string(net.network), demands[i].src,
                 demands[i].dst);
  throw LogicError("a drain found no way, but every demand has a path");
}

void table_loads(const Fabric& fabric, const Net& net, std::span<const Demand> demands,
                 std::vector<double>& loads) {
  const Buckets buckets = sort_demands(fabric, net, demands);
  const size_t rows = net.row_node.size();
  Drain drain(fabric, net, loads);
  std::vector<double> received(fabric.ranks(), 0);
  for (size_t b = 0; b + 1 < buckets.begin.size(); ++b) {
    const auto order =
        std::span(buckets.order).subspan(buckets.begin[b], buckets.begin[b + 1] - buckets.begin[b]);
    if (order.empty()) continue;
    for (int32_t i : order) {
      drain.pour(fabric.endpoint(demands[i].src), static_cast<double>(demands[i].bytes));
      received[demands[i].dst] += static_cast<double>(demands[i].bytes);
    }
    const Fabric::Routing::Attach root = {.row = static_cast<int32_t>(b), .down = 0};
    const bool is_row = b < rows;
    const NodeId stop = is_row ? net.row_node[b] : fabric.endpoint(static_cast<Rank>(b - rows));
    const Target target =
        is_row ? Target{std::span(&root, 1), kNone} : net.target(fabric, static_cast<Rank>(b - rows));
    if (!drain.run(target, stop)) fail_unreachable(fabric, net, demands, order);
    for (int32_t i : order) {
      const Rank dst = demands[i].dst;
      if (received[dst] == 0) continue;
      if (is_row && fabric.endpoint(dst) != stop) {
        drain.pour(stop, received[dst]);
        if (!drain.run(net.target(fabric, dst), fabric.endpoint(dst)))
          fail_unreachable(fabric, net, demands, order);
      }
      received[dst] = 0;
    }
  }
}

/// One demand over a mesh with k differing digits: any order of the k steps is a minimal path, all equally
/// likely, so the node where a set of s digits is already right carries 1 / C(k, s), split over the k - s
/// digits that remain.
void mesh_load(const Net& net, const Demand& demand, std::vector<double>& loads) {
  struct Step {
    int32_t port;   // of the destination's digit
    int32_t shift;  // rank difference that the step makes
  };
  Step steps[32];
  int32_t k = 0;
  int32_t a = demand.src % net.block, b = demand.dst % net.block, offset = 0, stride = 1;
  for (int32_t d : net.dimensions) {
    if (a % d != b % d) steps[k++] = {offset + b % d, (b % d - a % d) * stride};
    offset += d;
    stride *= d;
    a /= d;
    b /= d;
  }
  double choose[33] = {1};  // C(k, s)
  for (int32_t s = 1; s <= k; ++s) choose[s] = choose[s - 1] * (k - s + 1) / s;
  for (uint32_t done = 0; done + 1 < (1u << k); ++done) {
    Rank at = demand.src;
    int32_t count = 0;
    for (int32_t i = 0; i < k; ++i) {
      if (!(done >> i & 1)) continue;
      at += steps[i].shift;
      ++count;
    }
    const double share = static_cast<double>(demand.bytes) / (choose[count] * (k - count));
    for (int32_t i = 0; i < k; ++i)
      if (!(done >> i & 1))
        loads[net.mesh_links[static_cast<size_t>(at) * net.ports + steps[i].port]] += share;
  }
}

}  // namespace

std::vector<double> Fabric::loads(std::span<const Demand> demands) const {
  for (const Demand& d : demands)
    if (d.src < 0 || d.src >= ranks() || d.dst < 0 || d.dst >= ranks() || d.bytes < 0)
      fail_usage("demand of {} bytes from rank {} to rank {}: ranks are 0 to {}", d.bytes, d.src, d.dst,
                 ranks() - 1);
  std::vector<double> result(links_.size(), 0);
  for (const Routing::Net& net : routing_->nets) {
    if (!net.is_mesh()) {
      table_loads(*this, net, demands, result);
      continue;
    }
    for (const Demand& d : demands) {
      if (d.network != net.network || d.src == d.dst || d.bytes == 0) continue;
      if (net.mesh_hops(d.src, d.dst) >= kFar)
        fail_usage("no {} path from rank {} to rank {}", to_string(net.network), d.src, d.dst);
      mesh_load(net, d, result);
    }
  }
  return result;
}

}  // namespace plumb

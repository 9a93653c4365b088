// The network as a graph: GPUs, NICs, switches and directed links, with minimal routes. The same graph and
// the same routes serve the analytic executor and both fidelities of the simulator.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/plan.h"
#include "model/units.h"

namespace plumb {

using NodeId = int32_t;
using LinkId = int32_t;

enum class NodeKind : uint8_t { gpu, nic, scale_up_switch, scale_out_switch };

struct FabricNode {
  NodeKind kind = NodeKind::gpu;
  int16_t tier = 0;   // 0 = endpoints and NICs; switches count from 1 at the leaves
  Rank rank = kNone;  // of a gpu; of a NIC that serves one GPU
  std::string name;   // "gpu 3", "leaf 2.1": stable, unique
};

/// One direction of a cable, or of `cables` parallel cables between the same two nodes.
struct FabricLink {
  NodeId from = 0;
  NodeId to = 0;
  Link network = Link::scale_up;  // which class of path uses it
  bool shared = false;  // a scale_up link that paths of scale_out use too (UnifiedBus: one network for both)
  int16_t cables = 1;
  BytesPerSecond rate{};  // of all its cables together, one direction, payload and headers
  Seconds latency{};      // propagation plus the latency of the node it leads to
};

/// Bytes from one rank to another over a class of path.
struct Demand {
  Rank src = 0;
  Rank dst = 0;
  Link network = Link::scale_up;
  int64_t bytes = 0;
};

/// One candidate path and the share of traffic that equal splitting at each hop gives it.
struct Path {
  std::vector<LinkId> links;
  double share = 1;
};

class Fabric {
 public:
  std::span<const FabricNode> nodes() const { return nodes_; }
  std::span<const FabricLink> links() const { return links_; }
  int32_t ranks() const { return static_cast<int32_t>(endpoint_.size()); }
  NodeId endpoint(Rank r) const { return endpoint_[r]; }
  std::span<const LinkId> out_links(NodeId node) const;

  /// Links that lead from `at` one hop nearer to rank `dst` on a minimal path of that network, ascending;
  /// empty when there is none or `at` is the endpoint of dst. A path of network scale_out never crosses a gpu
  /// node other than its ends; on switchless meshes (where GPUs forward) it may.
  void next_links(Link network, NodeId at, Rank dst, std::vector<LinkId>& out) const;

  /// Hops of a minimal path, 0 when src == dst, -1 when unreachable.
  int32_t distance(Link network, Rank src, Rank dst) const;

  /// All minimal paths, at most `limit` (the shares then still sum to 1). Empty when src == dst. Throws
  /// Error(usage) naming both ranks when there is none.
  std::vector<Path> routes(Link network, Rank src, Rank dst, int32_t limit = 64) const;

  /// Sum of link latencies of one minimal path (they are equal by construction up to cable length; the
  /// largest).
  Seconds latency(Link network, Rank src, Rank dst) const;

  /// Bytes on every link [links] when each demand splits equally over the next links at each hop. Cost grows
  /// with demands plus destination switches times links, not with demands times paths. Throws Error(usage)
  /// for a rank that does not exist, and for a demand without a path, naming both ranks.
  std::vector<double> loads(std::span<const Demand> demands) const;

  /// Names both ranks of the first pair (of ranks 0 .. ranks-1) that `network` cannot connect; empty when all
  /// can.
  std::string unreachable(Link network) const;

  /// The same network with each link's rate multiplied by the factor of its class of path; routes are shared.
  Fabric with_rates(double scale_up, double scale_out) const;

  /// Bytes of memory held, routes included.
  int64_t memory_bytes() const;

  struct Routing;  // distances; private to the implementation (model/fabric_routing.h)

 private:
  friend class FabricBuilder;
  std::vector<FabricNode> nodes_;
  std::vector<FabricLink> links_;
  std::vector<NodeId> endpoint_;    // [ranks]
  std::vector<int32_t> out_begin_;  // CSR of out_links_
  std::vector<LinkId> out_links_;
  std::shared_ptr<const Routing> routing_;
};

/// Adds nodes and links in order and computes routes at the end.
class FabricBuilder {
 public:
  FabricBuilder();
  ~FabricBuilder();
  NodeId add_node(FabricNode node);
  /// Both directions with the same rate and latency.
  void add_cable(NodeId a, NodeId b, FabricLink link);
  /// One direction only.
  LinkId add_link(FabricLink link);
  /// Lets GPUs pass on traffic of others on that network, as on switchless meshes. Default: they do not.
  void let_gpus_forward(Link network);
  /// Says that `network` is a full mesh in each dimension: rank r has the digits of r % product in the mixed
  /// radix `dimensions` (first = fastest), and one link to each rank that differs in one digit. Routes then
  /// come from the digits, any differing one first, and need no tables. finish() throws LogicError when the
  /// links say otherwise.
  void set_mesh(Link network, std::vector<int32_t> dimensions);
  /// Computes the routes. Throws Error(usage) when a rank is missing or twice, a link leads nowhere or has no
  /// rate.
  Fabric finish() &&;

  /// What a network's GPUs do beside sending and receiving.
  struct Forwarding {
    bool gpus_forward = false;
    std::vector<int32_t> mesh;  // dimensions of set_mesh(), empty: routes from tables
  };

 private:
  std::unique_ptr<Fabric> fabric_;
  std::array<Forwarding, 2> forwarding_;  // scale_up, scale_out
};

}  // namespace plumb

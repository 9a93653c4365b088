// How a Fabric finds minimal routes; private to fabric*.cc. A network with switches holds one row of hop
// counts per switch that destinations hang on (attach switch), for the nodes of its connected part only; a
// switchless full mesh holds coordinates. GPUs and NICs stand in no table: their hops follow from the
// switches that they are cabled to.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/fabric.h"

namespace plumb {

inline constexpr int32_t kFar = 1 << 20;  // hops where there is no path

struct Fabric::Routing {
  /// A forwarding node from which a rank's GPU is reached without another one: `down` hops, over a NIC or
  /// directly.
  struct Attach {
    int32_t row = 0;
    int32_t down = 0;
  };

  /// Where traffic goes: to the GPU `endpoint`, or (kNone) only to the attach nodes.
  struct Target {
    std::span<const Attach> attaches;
    NodeId endpoint = kNone;
  };

  struct Net {
    Link network = Link::scale_up;

    // Tables; empty for a mesh.
    std::vector<uint8_t> transit;       // [nodes] 1 = passes on traffic of others
    std::vector<int32_t> component;     // [nodes] connected part of the transit nodes, kNone for others
    std::vector<int32_t> index;         // [nodes] position inside its component
    std::vector<NodeId> row_node;       // [rows] the attach node of a row
    std::vector<int64_t> row_begin;     // [rows] where its hops start
    std::vector<uint8_t> hops;          // by row, then by index; 255 = no path
    std::vector<Attach> attaches;       // by rank
    std::vector<int32_t> attach_begin;  // [ranks + 1]

    // Mesh.
    std::vector<int32_t> dimensions;  // empty: not a mesh
    int32_t block = 0;                // ranks of one mesh = product of dimensions
    int32_t ports = 0;                // sum of dimensions
    std::vector<LinkId>
        mesh_links;  // [ranks][ports], port = offset of the dimension + digit of the neighbour

    bool is_mesh() const { return !dimensions.empty(); }
    bool uses(const FabricLink& link) const {
      return link.network == network || (link.shared && network == Link::scale_out);
    }
    Target target(const Fabric& fabric, Rank rank) const;
    /// The row of the only attach node of a rank, kNone when it has none or several.
    int32_t only_row(Rank rank) const;

    /// Hops of a minimal path from a node to the target; kFar when there is none.
    int32_t hops_from(const Fabric& fabric, NodeId node, const Target& target) const;
    /// Appends the links that start a minimal path, ascending.
    void next(const Fabric& fabric, NodeId at, const Target& target, std::vector<LinkId>& out) const;
    /// True when src reaches dst over links and NICs alone, without any forwarding node between.
    bool is_adjacent(const Fabric& fabric, Rank src, Rank dst) const;

    int32_t mesh_hops(Rank src, Rank dst) const;
    void mesh_next(Rank at, Rank dst, std::vector<LinkId>& out) const;

   private:
    int32_t hops_from_transit(NodeId node, const Target& target) const;
    int32_t hops_from_nic(const Fabric& fabric, NodeId node, const Target& target) const;
    /// Hops that remain after stepping from a node of kind `from` to `to`.
    int32_t hops_after(const Fabric& fabric, NodeId from, NodeId to, const Target& target) const;
  };

  std::array<Net, 2> nets;  // scale_up, scale_out

  const Net& net(Link network) const { return nets[network == Link::scale_out ? 1 : 0]; }

  static std::shared_ptr<const Routing> compute(const Fabric& fabric,
                                                const std::array<FabricBuilder::Forwarding, 2>& forwarding);
  int64_t memory_bytes() const;
};

}  // namespace plumb

// What the files that build fabrics share; private to fabric_build.cc, fabric_tree.cc, fabric_mesh.cc,
// machine_check.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "model/machine.h"

namespace plumb {

/// A fabric in the making: the GPUs stand first, node i is the GPU of rank i.
struct Assembly {
  explicit Assembly(const Machine& m) : machine(m) {}

  const Machine& machine;
  FabricBuilder builder;
  std::vector<NodeId> scale_up_switches;  // [nodes][planes] of a switched domain

  NodeId gpu(int32_t node, int32_t local) const { return node * machine.ranks_per_node() + local; }
  NodeId add_switch(NodeKind kind, int32_t tier, std::string name);

  /// A cable whose end `b` is a switch: what arrives there has spent `latency`; what arrives at `a` too when
  /// `a` is a switch itself, and nothing otherwise (an endpoint's own latency stands elsewhere).
  void to_switch(NodeId a, NodeId b, FabricLink link, bool a_is_switch);
};

/// How a fat tree is cabled when its machine is complete. All counts are exact; check_fat_tree() says so
/// first.
struct TreeShape {
  int32_t rails = 1;  // leaves that share the NICs of one node: NICs per node, or 1 when not rail-optimized
  int32_t pods = 1;
  int32_t nics_per_leaf = 1;
  int32_t leaves_per_pod = 1;
  int32_t leaf_cables = 1;  // between a leaf and each spine of its pod
  int32_t spines_per_pod = 0;
  int32_t core_cables = 1;      // between a spine and each core switch of its plane
  int32_t cores_per_plane = 0;  // plane = the spines of equal number in all pods
};

TreeShape tree_shape(const Machine& machine, const FatTree& tree);

/// Cables of one rank of a mesh in use by the largest configuration: sum over dimensions of (size - 1) x
/// cables.
int32_t mesh_cables(const std::vector<int32_t>& dimensions, const std::vector<int32_t>& cables);

/// Largest number of cables at one rank of the list.
int32_t pair_cables(const PairList& pairs);

/// The dimensions that `nodes` domains fill: whole lower dimensions and part of the next. Empty when they do
/// not.
std::vector<int32_t> used_dimensions(const std::vector<int32_t>& dimensions, int32_t nodes);

void build_fat_tree(Assembly& assembly, const FatTree& tree);
void build_dragonfly(Assembly& assembly, const Dragonfly& dragonfly);
void build_planes(Assembly& assembly, const Planes& planes);
void build_mesh_domains(Assembly& assembly, const MeshDomain& mesh, bool shared);
void build_mesh(Assembly& assembly, const Mesh& mesh);

/// NIC i of a node, all cables of its GPUs in place: [nodes][nics_per_node].
std::vector<NodeId> add_nics(Assembly& assembly);

}  // namespace plumb

// Builds scale-out networks of switches: fat trees of one to three tiers, and dragonflies.
#include <algorithm>

#include "model/error.h"
#include "model/fabric_build.h"

namespace plumb {

namespace {

FabricLink cable_of(const ScaleOut& out, int32_t cables) {
  return {.network = Link::scale_out,
          .cables = static_cast<int16_t>(cables),
          .rate = out.port_rate.value * cables,
          .latency = out.hop_latency.value};
}

/// Cables the NICs in use to leaves, which are made when their first NIC comes; returns the leaves by pod.
std::vector<std::vector<NodeId>> build_leaves(Assembly& assembly, const TreeShape& shape,
                                              const std::vector<NodeId>& nics) {
  const Machine& m = assembly.machine;
  const int32_t nics_per_node = m.scale_out.nics_per_node;
  const FabricLink down = cable_of(m.scale_out, m.scale_out.ports_per_nic);
  std::vector<NodeId> leaf_of(static_cast<size_t>(shape.pods) * shape.leaves_per_pod, kNone);
  std::vector<std::vector<NodeId>> pods(shape.pods);
  for (size_t n = 0; n < nics.size(); ++n) {
    const int32_t node = static_cast<int32_t>(n) / nics_per_node, i = static_cast<int32_t>(n) % nics_per_node;
    // Rail-optimized: `rails` leaves stand side by side, leaf i of them takes NIC i of nics_per_leaf nodes.
    const int32_t leaf = shape.rails > 1 ? node / shape.nics_per_leaf * shape.rails + i
                                         : static_cast<int32_t>(n) / shape.nics_per_leaf;
    const int32_t pod = leaf / shape.leaves_per_pod;
    if (leaf_of[leaf] == kNone) {
      leaf_of[leaf] = assembly.add_switch(NodeKind::scale_out_switch, 1,
                                          fmt::format("leaf {}.{}", pod, leaf % shape.leaves_per_pod));
      pods[pod].push_back(leaf_of[leaf]);
    }
    assembly.to_switch(nics[n], leaf_of[leaf], down, false);
  }
  return pods;
}

/// Cables of one group to the others, each pair of groups as often as the others, give or take one: the base
/// number for all pairs, and a ring of chords for what remains. Calls connect(group, other group).
template <class Connect>
void spread_global_cables(const Dragonfly& d, Connect connect) {
  const int32_t peers = d.groups - 1;
  const int32_t ports = d.routers * d.global_cables;
  for (int32_t copy = 0; copy < ports / peers; ++copy)
    for (int32_t a = 0; a < d.groups; ++a)
      for (int32_t b = a + 1; b < d.groups; ++b) connect(a, b);
  const int32_t rest = ports % peers;
  for (int32_t chord = 1; chord <= rest / 2; ++chord)
    for (int32_t a = 0; a < d.groups; ++a) connect(a, (a + chord) % d.groups);
  if (rest % 2 == 1 &&
      d.groups % 2 == 0)  // the diameters; with an odd number of groups one port of each stays free
    for (int32_t a = 0; a < d.groups / 2; ++a) connect(a, a + d.groups / 2);
}

}  // namespace

TreeShape tree_shape(const Machine& machine, const FatTree& tree) {
  const ScaleOut& out = machine.scale_out;
  const int32_t pod_nodes = tree.pod_nodes > 0 ? tree.pod_nodes : machine.max_nodes;
  TreeShape shape;
  shape.rails = tree.rail_optimized ? out.nics_per_node : 1;
  shape.pods = machine.max_nodes / pod_nodes;
  shape.nics_per_leaf = tree.down[0] / out.ports_per_nic;
  shape.leaves_per_pod = pod_nodes * out.nics_per_node / shape.nics_per_leaf;
  if (tree.down.size() > 1) {
    shape.leaf_cables = tree.down[1] / shape.leaves_per_pod;
    shape.spines_per_pod = tree.up[0] / shape.leaf_cables;
  }
  if (tree.down.size() > 2) {
    shape.core_cables = tree.down[2] / shape.pods;
    shape.cores_per_plane = tree.up[1] / shape.core_cables;
  }
  return shape;
}

void build_fat_tree(Assembly& assembly, const FatTree& tree) {
  const TreeShape shape = tree_shape(assembly.machine, tree);
  const auto pods = build_leaves(assembly, shape, add_nics(assembly));
  size_t leaves = 0, pods_used = 0;
  for (const auto& pod : pods) {
    leaves += pod.size();
    pods_used += !pod.empty();
  }
  if (leaves <= 1) return;

  const FabricLink leaf_cable = cable_of(assembly.machine.scale_out, shape.leaf_cables);
  std::vector<std::vector<NodeId>> spines(shape.spines_per_pod);  // by plane
  for (size_t p = 0; p < pods.size(); ++p) {
    for (int32_t s = 0; s < shape.spines_per_pod && !pods[p].empty(); ++s) {
      spines[s].push_back(
          assembly.add_switch(NodeKind::scale_out_switch, 2, fmt::format("spine {}.{}", p, s)));
      for (NodeId leaf : pods[p]) assembly.to_switch(leaf, spines[s].back(), leaf_cable, true);
    }
  }
  if (pods_used <= 1) return;

  const FabricLink core_cable = cable_of(assembly.machine.scale_out, shape.core_cables);
  for (size_t plane = 0; plane < spines.size(); ++plane) {
    for (int32_t c = 0; c < shape.cores_per_plane; ++c) {
      const NodeId core =
          assembly.add_switch(NodeKind::scale_out_switch, 3, fmt::format("core {}.{}", plane, c));
      for (NodeId spine : spines[plane]) assembly.to_switch(spine, core, core_cable, true);
    }
  }
}

void build_dragonfly(Assembly& assembly, const Dragonfly& d) {
  const ScaleOut& out = assembly.machine.scale_out;
  const std::vector<NodeId> nics = add_nics(assembly);
  std::vector<NodeId> routers;
  for (int32_t g = 0; g < d.groups; ++g)
    for (int32_t r = 0; r < d.routers; ++r)
      routers.push_back(
          assembly.add_switch(NodeKind::scale_out_switch, 1, fmt::format("router {}.{}", g, r)));
  for (size_t i = 0; i < nics.size(); ++i)
    assembly.to_switch(nics[i], routers[i / d.endpoints], cable_of(out, out.ports_per_nic), false);

  const FabricLink cable = cable_of(out, 1);
  for (int32_t g = 0; g < d.groups; ++g)
    for (int32_t a = 0; a < d.routers; ++a)
      for (int32_t b = a + 1; b < d.routers; ++b)
        assembly.to_switch(routers[g * d.routers + a], routers[g * d.routers + b], cable, true);

  if (d.groups == 1) return;
  std::vector<int32_t> next(d.groups, 0);  // global cables of a group go round its routers
  auto router = [&](int32_t group) { return routers[group * d.routers + next[group]++ % d.routers]; };
  spread_global_cables(d, [&](int32_t a, int32_t b) {
    const NodeId from = router(a);
    assembly.to_switch(from, router(b), cable, true);
  });
}

}  // namespace plumb

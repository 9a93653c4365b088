// Small machines, one of each family of fabrics, that the tests of fabrics share.
#pragma once

#include <algorithm>
#include <utility>

#include "model/fabric.h"
#include "model/machine.h"

namespace plumb {

inline Machine machine_of(int32_t nodes, decltype(ScaleUp::topology) up, decltype(ScaleOut::topology) out,
                          int32_t nics_per_node = 8) {
  Machine m;
  m.name = "test";
  m.nodes = m.max_nodes = nodes;
  m.scale_up.topology = std::move(up);
  m.scale_up.rate.value = gigabytes_per_second(400);
  m.scale_up.latency.value = nanoseconds(300);
  m.scale_out.topology = std::move(out);
  m.scale_out.nics_per_node = nics_per_node;
  m.scale_out.port_rate.value = gigabytes_per_second(50);
  m.scale_out.nic_latency.value = nanoseconds(1000);
  m.scale_out.hop_latency.value = nanoseconds(400);
  m.scale_out.mtu_bytes.value = 4096;
  return m;
}

/// 8 nodes of 4 GPUs and 4 NICs on leaves of 4 ports: 8 leaves with 4 spines over all (rails: 2 groups of 4
/// leaves).
inline Machine two_tiers(bool rails, int32_t nodes = 8) {
  Machine m = machine_of(8, SwitchedDomain{.ranks = 4, .planes = 2},
                         FatTree{.down = {4, 8}, .up = {4, 0}, .radix = 8, .rail_optimized = rails}, 4);
  m.nodes = nodes;
  return m;
}

/// As two_tiers(), but 2 pods of 4 nodes: 4 leaves and 2 spines a pod (2 cables each), 2 planes of 4 core
/// switches.
inline Machine three_tiers(bool rails) {
  FatTree tree = {.down = {4, 8, 4}, .up = {4, 8, 0}, .radix = 16, .rail_optimized = rails, .pod_nodes = 4};
  return machine_of(8, SwitchedDomain{.ranks = 4, .planes = 2}, tree, 4);
}

/// 5 groups of 3 routers of 2 NICs: 30 NICs; 6 global cables a group over 4 peers: 1 to each and a ring of
/// chords.
inline Machine dragonfly() {
  return machine_of(15, SwitchedDomain{.ranks = 2, .planes = 1},
                    Dragonfly{.groups = 5, .routers = 3, .endpoints = 2, .global_cables = 2, .radix = 8}, 2);
}

inline Machine planes(int32_t nodes = 3) {
  return machine_of(nodes, SwitchedDomain{.ranks = 4, .planes = 3}, Planes{.planes = 3, .l2_switches = 2}, 0);
}

inline Machine mesh(int32_t nodes = 6) {
  Machine m = machine_of(6, MeshDomain{.dimensions = {3, 2}, .cables = {1, 2}},
                         Mesh{.dimensions = {2, 3}, .cables = {1, 1}}, 0);
  m.nodes = nodes;
  return m;
}

/// Eight GPUs as in a hybrid cube mesh: 6 cables each, to 4 peers with 1 or 2 (V100 boards of 2017).
inline PairList cube_mesh() {
  return {.ranks = 8,
          .cables = {{0, 1, 1},
                     {0, 2, 1},
                     {0, 3, 2},
                     {0, 4, 2},
                     {1, 2, 2},
                     {1, 3, 1},
                     {1, 5, 2},
                     {2, 3, 2},
                     {2, 6, 1},
                     {3, 7, 1},
                     {4, 5, 1},
                     {4, 6, 1},
                     {4, 7, 2},
                     {5, 6, 2},
                     {5, 7, 1},
                     {6, 7, 2}}};
}

inline double rate_out(const Fabric& fabric, NodeId node, Link network) {
  double sum = 0;
  for (LinkId l : fabric.out_links(node))
    if (fabric.links()[l].network == network) sum += fabric.links()[l].rate.value;
  return sum;
}

inline int32_t count_switches(const Fabric& fabric, NodeKind kind, int32_t tier) {
  return static_cast<int32_t>(std::count_if(fabric.nodes().begin(), fabric.nodes().end(),
                                            [&](const auto& n) { return n.kind == kind && n.tier == tier; }));
}

}  // namespace plumb

// Small fabrics for tests of the simulator, built link by link.
#pragma once

#include <cstdint>
#include <vector>

#include "model/error.h"
#include "model/fabric.h"

namespace plumb::sim {

/// The rates and latencies of a test fabric: 50 GB/s is 20 ps per byte exactly.
struct Wire {
  BytesPerSecond rate = gigabytes_per_second(50);
  Seconds latency = nanoseconds(300);
};

inline FabricLink cable(Wire wire) {
  return {.network = Link::scale_out, .rate = wire.rate, .latency = wire.latency};
}

inline NodeId add_gpu(FabricBuilder& b, Rank rank) {
  return b.add_node({.kind = NodeKind::gpu, .rank = rank, .name = fmt::format("gpu {}", rank)});
}

inline NodeId add_switch(FabricBuilder& b, int16_t tier, std::string name) {
  return b.add_node({.kind = NodeKind::scale_out_switch, .tier = tier, .name = std::move(name)});
}

/// All ranks on one switch.
inline Fabric star(Rank ranks, Wire wire = {}) {
  FabricBuilder b;
  for (Rank r = 0; r < ranks; ++r) add_gpu(b, r);
  const NodeId hub = add_switch(b, 1, "switch");
  for (Rank r = 0; r < ranks; ++r) b.add_cable(r, hub, cable(wire));
  return std::move(b).finish();
}

struct LeafSpine {
  Rank ranks = 64;
  int32_t down = 8;  // ranks per leaf; the last leaf may be partly filled
  int32_t spines = 8;
  Wire wire{};
};

inline Fabric leaf_spine(const LeafSpine& shape) {
  FabricBuilder b;
  for (Rank r = 0; r < shape.ranks; ++r) add_gpu(b, r);
  std::vector<NodeId> leaves;
  for (Rank r = 0; r < shape.ranks; ++r) {
    if (r % shape.down == 0) leaves.push_back(add_switch(b, 1, fmt::format("leaf {}", r / shape.down)));
    b.add_cable(r, leaves.back(), cable(shape.wire));
  }
  if (leaves.size() == 1) return std::move(b).finish();
  for (int32_t s = 0; s < shape.spines; ++s) {
    const NodeId spine = add_switch(b, 2, fmt::format("spine {}", s));
    for (NodeId leaf : leaves) b.add_cable(leaf, spine, cable(shape.wire));
  }
  return std::move(b).finish();
}

/// Three tiers of switches with `radix` ports each, radix^3 / 4 ranks, full bisection (Al-Fares et al.,
/// 2008).
inline Fabric fat_tree(int32_t radix, Wire wire = {}) {
  FabricBuilder b;
  const int32_t half = radix / 2;
  for (Rank r = 0; r < radix * half * half; ++r) add_gpu(b, r);
  std::vector<NodeId> cores;
  for (int32_t c = 0; c < half * half; ++c) cores.push_back(add_switch(b, 3, fmt::format("core {}", c)));
  for (int32_t pod = 0; pod < radix; ++pod) {
    std::vector<NodeId> spines;
    for (int32_t s = 0; s < half; ++s) {
      spines.push_back(add_switch(b, 2, fmt::format("spine {}.{}", pod, s)));
      for (int32_t c = 0; c < half; ++c) b.add_cable(spines.back(), cores[s * half + c], cable(wire));
    }
    for (int32_t l = 0; l < half; ++l) {
      const NodeId leaf = add_switch(b, 1, fmt::format("leaf {}.{}", pod, l));
      for (int32_t i = 0; i < half; ++i) b.add_cable((pod * half + l) * half + i, leaf, cable(wire));
      for (NodeId spine : spines) b.add_cable(leaf, spine, cable(wire));
    }
  }
  return std::move(b).finish();
}

/// Switches in a ring, one rank on each; `both_ways` false: links go clockwise only.
inline Fabric ring(int32_t switches, bool both_ways, Wire wire = {}) {
  FabricBuilder b;
  std::vector<NodeId> nodes;
  for (Rank r = 0; r < switches; ++r) add_gpu(b, r);
  for (Rank r = 0; r < switches; ++r) {
    nodes.push_back(add_switch(b, 1, fmt::format("switch {}", r)));
    b.add_cable(r, nodes.back(), cable(wire));
  }
  for (int32_t s = 0; s < switches; ++s) {
    FabricLink link = cable(wire);
    link.from = nodes[s];
    link.to = nodes[(s + 1) % switches];
    b.add_link(link);
    if (!both_ways) continue;
    std::swap(link.from, link.to);
    b.add_link(link);
  }
  return std::move(b).finish();
}

struct SmallDragonfly {
  int32_t groups = 5;
  int32_t routers = 4;  // per group
  int32_t ranks = 2;    // per router
  Wire wire{};
};

/// Routers of a group are fully meshed; one cable between each two groups, spread over the routers.
inline Fabric dragonfly(const SmallDragonfly& shape) {
  FabricBuilder b;
  const int32_t routers = shape.groups * shape.routers;
  for (Rank r = 0; r < routers * shape.ranks; ++r) add_gpu(b, r);
  std::vector<NodeId> nodes;
  for (int32_t i = 0; i < routers; ++i) {
    nodes.push_back(add_switch(b, 1, fmt::format("router {}.{}", i / shape.routers, i % shape.routers)));
    for (int32_t e = 0; e < shape.ranks; ++e)
      b.add_cable(i * shape.ranks + e, nodes.back(), cable(shape.wire));
  }
  std::vector<int32_t> next(shape.groups, 0);
  auto router = [&](int32_t group) { return nodes[group * shape.routers + next[group]++ % shape.routers]; };
  for (int32_t g = 0; g < shape.groups; ++g) {
    for (int32_t i = 0; i < shape.routers; ++i)
      for (int32_t j = i + 1; j < shape.routers; ++j)
        b.add_cable(nodes[g * shape.routers + i], nodes[g * shape.routers + j], cable(shape.wire));
    for (int32_t h = g + 1; h < shape.groups; ++h) {
      const NodeId from = router(g);
      b.add_cable(from, router(h), cable(shape.wire));
    }
  }
  return std::move(b).finish();
}

}  // namespace plumb::sim

// Graphs, routes and loads of fabrics: against brute force, against closed forms, and the shapes that builders make.
#include "model/fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "model/error.h"
#include "model/machine.h"

namespace plumb {
namespace {

Machine machine_of(int32_t nodes, decltype(ScaleUp::topology) up, decltype(ScaleOut::topology) out,
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

/// 8 nodes of 4 GPUs and 4 NICs on leaves of 4 ports: 8 leaves with 4 spines over all (rails: 2 groups of 4 leaves).
Machine two_tiers(bool rails, int32_t nodes = 8) {
  Machine m = machine_of(8, SwitchedDomain{.ranks = 4, .planes = 2},
                         FatTree{.down = {4, 8}, .up = {4, 0}, .radix = 8, .rail_optimized = rails}, 4);
  m.nodes = nodes;
  return m;
}

/// As two_tiers(), but 2 pods of 4 nodes: 4 leaves and 2 spines a pod (2 cables each), 2 planes of 4 core switches.
Machine three_tiers(bool rails) {
  FatTree tree = {.down = {4, 8, 4}, .up = {4, 8, 0}, .radix = 16, .rail_optimized = rails, .pod_nodes = 4};
  return machine_of(8, SwitchedDomain{.ranks = 4, .planes = 2}, tree, 4);
}

/// 5 groups of 3 routers of 2 NICs: 30 NICs; 6 global cables a group over 4 peers: 1 to each and a ring of chords.
Machine dragonfly() {
  return machine_of(15, SwitchedDomain{.ranks = 2, .planes = 1},
                    Dragonfly{.groups = 5, .routers = 3, .endpoints = 2, .global_cables = 2, .radix = 8}, 2);
}

Machine planes(int32_t nodes = 3) {
  return machine_of(nodes, SwitchedDomain{.ranks = 4, .planes = 3}, Planes{.planes = 3, .l2_switches = 2}, 0);
}

Machine mesh(int32_t nodes = 6) {
  Machine m = machine_of(6, MeshDomain{.dimensions = {3, 2}, .cables = {1, 2}},
                         Mesh{.dimensions = {2, 3}, .cables = {1, 1}}, 0);
  m.nodes = nodes;
  return m;
}

/// Eight GPUs as in a hybrid cube mesh: 6 cables each, to 4 peers with 1 or 2 (V100 boards of 2017).
PairList cube_mesh() {
  return {.ranks = 8, .cables = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
                                 {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}}};
}

/// A graph of no particular shape: 6 switches, some links one-way, 8 GPUs with one to three NICs of which some are
/// shared, and some GPUs directly on switches.
Fabric random_fabric(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&random](uint64_t n) { return static_cast<int32_t>(random() % n); };
  FabricBuilder builder;
  const FabricLink link = {.network = Link::scale_out, .rate = gigabytes_per_second(50), .latency = nanoseconds(100)};
  for (Rank r = 0; r < 8; ++r) builder.add_node({.rank = r, .name = fmt::format("gpu {}", r)});
  for (int32_t n = 0; n < 10; ++n) builder.add_node({.kind = NodeKind::nic, .name = fmt::format("nic {}", n)});
  for (int32_t s = 0; s < 6; ++s) builder.add_node({.kind = NodeKind::scale_out_switch, .tier = 1, .name = "switch"});
  const NodeId nic = 8, sw = 18;
  for (Rank r = 0; r < 8; ++r) {
    std::set<int32_t> own;
    for (int32_t i = 0; i <= below(3); ++i) own.insert(below(10));
    for (int32_t n : own) builder.add_cable(r, nic + n, link);
    if (below(4) == 0) builder.add_cable(r, sw + below(6), link);
  }
  for (int32_t n = 0; n < 10; ++n) {
    builder.add_cable(nic + n, sw + below(6), link);
    if (below(3) == 0) builder.add_cable(nic + n, sw + below(6), link);  // two ports, perhaps on one switch
  }
  for (int32_t s = 0; s < 6; ++s) builder.add_cable(sw + s, sw + (s + 1) % 6, link);  // a ring: all reachable
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t a = below(6), b = (a + 2 + below(3)) % 6;
    FabricLink one_way = link;
    one_way.from = sw + a;
    one_way.to = sw + b;
    builder.add_link(one_way);
  }
  return std::move(builder).finish();
}

/// Hops by breadth-first search under the rules in words: switches pass traffic on; a NIC passes it from a GPU to
/// anything, or from a switch to the destination; a GPU never does.
int32_t searched_distance(const Fabric& fabric, Link network, Rank src, Rank dst) {
  std::map<std::pair<NodeId, bool>, int32_t> hops;  // node, and whether a GPU stands right before it
  std::vector<std::pair<NodeId, bool>> queue = {{fabric.endpoint(src), false}};
  hops[queue[0]] = 0;
  for (size_t head = 0; head < queue.size(); ++head) {
    const auto [node, after_gpu] = queue[head];
    const int32_t here = hops[queue[head]];
    if (node == fabric.endpoint(dst)) return here;
    const NodeKind kind = fabric.nodes()[node].kind;
    if (kind == NodeKind::gpu && node != fabric.endpoint(src)) continue;
    for (LinkId l : fabric.out_links(node)) {
      const FabricLink& link = fabric.links()[l];
      if (link.network != network) continue;
      if (kind == NodeKind::nic && !after_gpu && link.to != fabric.endpoint(dst)) continue;
      const std::pair<NodeId, bool> next = {link.to, kind == NodeKind::gpu};
      if (hops.try_emplace(next, here + 1).second) queue.push_back(next);
    }
  }
  return -1;
}

std::vector<Demand> random_demands(const Fabric& fabric, Link network, int32_t block, int32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Demand> result;
  for (int32_t i = 0; i < count; ++i) {
    const Rank src = static_cast<Rank>(random() % static_cast<uint64_t>(fabric.ranks()));
    const Rank dst = src / block * block + static_cast<Rank>(random() % static_cast<uint64_t>(block));
    result.push_back({src, dst, network, static_cast<int64_t>(random() % 100'000)});
  }
  return result;
}

/// Checks loads() against the sum over all enumerated paths, and that what leaves and enters each rank is its demand.
void expect_loads_equal_paths(const Fabric& fabric, const std::vector<Demand>& demands) {
  std::vector<double> expected(fabric.links().size(), 0);
  std::vector<double> sent(fabric.ranks(), 0), received(fabric.ranks(), 0);
  double total = 0;
  for (const Demand& d : demands) {
    for (const Path& path : fabric.routes(d.network, d.src, d.dst, 1 << 20)) {
      EXPECT_EQ(static_cast<int32_t>(path.links.size()), fabric.distance(d.network, d.src, d.dst));
      for (LinkId l : path.links) expected[l] += path.share * static_cast<double>(d.bytes);
    }
    if (d.src == d.dst) continue;
    sent[d.src] += static_cast<double>(d.bytes);
    received[d.dst] += static_cast<double>(d.bytes);
    total += static_cast<double>(d.bytes);
  }
  const std::vector<double> loads = fabric.loads(demands);
  ASSERT_EQ(loads.size(), expected.size());
  for (size_t l = 0; l < loads.size(); ++l) EXPECT_NEAR(loads[l], expected[l], 1e-9 * total) << "link " << l;
  for (Rank r = 0; r < fabric.ranks(); ++r) {
    double balance = 0;  // bytes passed on cancel: out - in = sent - received
    for (size_t l = 0; l < loads.size(); ++l) {
      if (fabric.links()[l].from == fabric.endpoint(r)) balance += loads[l];
      if (fabric.links()[l].to == fabric.endpoint(r)) balance -= loads[l];
    }
    EXPECT_NEAR(balance, sent[r] - received[r], 1e-9 * total) << "rank " << r;
  }
}

double rate_out(const Fabric& fabric, NodeId node, Link network) {
  double sum = 0;
  for (LinkId l : fabric.out_links(node))
    if (fabric.links()[l].network == network) sum += fabric.links()[l].rate.value;
  return sum;
}

int32_t count_switches(const Fabric& fabric, NodeKind kind, int32_t tier) {
  return static_cast<int32_t>(std::count_if(fabric.nodes().begin(), fabric.nodes().end(),
                                            [&](const auto& n) { return n.kind == kind && n.tier == tier; }));
}

std::string error_of(const Machine& m) {
  try {
    build_fabric(m);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return "";
}

TEST(Fabric, LoadsEqualTheSumOverAllPaths) {
  for (const Machine& m : {two_tiers(true), two_tiers(false), three_tiers(true), three_tiers(false), dragonfly(),
                           planes(), mesh(), mesh(2)}) {
    const Fabric fabric = build_fabric(m);
    auto demands = random_demands(fabric, Link::scale_out, fabric.ranks(), 300, 1);
    const auto up = random_demands(fabric, Link::scale_up, m.ranks_per_node(), 100, 2);
    demands.insert(demands.end(), up.begin(), up.end());
    expect_loads_equal_paths(fabric, demands);
  }
}

TEST(Fabric, LoadsEqualTheSumOverAllPathsOnRandomGraphs) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Fabric fabric = random_fabric(seed);
    expect_loads_equal_paths(fabric, random_demands(fabric, Link::scale_out, fabric.ranks(), 100, seed));
  }
}

TEST(Fabric, DistancesEqualASearchOfTheGraph) {
  std::vector<Fabric> fabrics;
  for (uint64_t seed = 0; seed < 20; ++seed) fabrics.push_back(random_fabric(seed));
  fabrics.push_back(build_fabric(three_tiers(true)));
  fabrics.push_back(build_fabric(dragonfly()));
  for (const Fabric& fabric : fabrics)
    for (Rank src = 0; src < fabric.ranks(); ++src)
      for (Rank dst = 0; dst < fabric.ranks(); ++dst)
        ASSERT_EQ(fabric.distance(Link::scale_out, src, dst), searched_distance(fabric, Link::scale_out, src, dst))
            << src << " -> " << dst;
}

TEST(Fabric, NetworksDoNotCross) {
  const Fabric fabric = build_fabric(two_tiers(true));
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 3), 2);    // GPU, switch, GPU
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 4), -1);   // another domain
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 4), 4);   // same rail: GPU, NIC, leaf, NIC, GPU
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 5), 6);   // other rail: by leaf, spine, leaf; never over GPU 1 or 4
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 0), 0);
  EXPECT_EQ(fabric.distance(Link::local, 0, 1), -1);
  EXPECT_EQ(fabric.unreachable(Link::scale_out), "");
  EXPECT_EQ(fabric.unreachable(Link::scale_up), "scale_up: no path from rank 0 to rank 4");
  std::vector<LinkId> next = {7};
  fabric.next_links(Link::scale_out, fabric.endpoint(5), 5, next);
  EXPECT_TRUE(next.empty());
}

TEST(Fabric, LatencyAddsSwitchesAndNics) {
  // Three tiers, other pod: NIC 1000 + 5 switches x 400 + NIC 1000 ns. In a domain: one switch, 300 ns.
  const Fabric fabric = build_fabric(three_tiers(true));
  EXPECT_NEAR(fabric.latency(Link::scale_out, 0, 31).value, 4000e-9, 1e-15);
  EXPECT_NEAR(fabric.latency(Link::scale_out, 0, 4).value, 2400e-9, 1e-15);
  EXPECT_NEAR(fabric.latency(Link::scale_up, 0, 1).value, 300e-9, 1e-15);
  EXPECT_EQ(fabric.latency(Link::scale_up, 1, 1).value, 0);
  EXPECT_THROW(fabric.latency(Link::scale_up, 0, 4), Error);
}

TEST(Fabric, RoutesKeepTheirLimitAndStaySpread) {
  // Rank 0 to 31 in three tiers, plain: 2 spines x 4 cores on the way up, one way down: 8 paths of 1/8.
  const Fabric fabric = build_fabric(three_tiers(false));
  const auto all = fabric.routes(Link::scale_out, 0, 31);
  ASSERT_EQ(all.size(), 8u);
  for (const Path& path : all) EXPECT_DOUBLE_EQ(path.share, 0.125);
  const auto two = fabric.routes(Link::scale_out, 0, 31, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_DOUBLE_EQ(two[0].share + two[1].share, 1);
  EXPECT_NE(two[0].links[2], two[1].links[2]);  // they part at the leaf, not only at the spine
  EXPECT_TRUE(fabric.routes(Link::scale_out, 3, 3).empty());
  try {
    fabric.routes(Link::scale_up, 0, 31);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no scale_up path from rank 0 to rank 31");
  }
}

TEST(Fabric, RefusesWrongRanksLinksAndDemands) {
  auto finish = [](Rank a, Rank b, NodeId to, double rate) {
    FabricBuilder builder;
    builder.add_node({.rank = a, .name = "gpu a"});
    builder.add_node({.rank = b, .name = "gpu b"});
    builder.add_link({.from = 0, .to = to, .rate = {rate}});
    try {
      std::move(builder).finish();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(finish(0, 1, 1, 1e9), "");
  EXPECT_EQ(finish(1, 1, 1, 1e9), "fabric: rank 1 stands twice");
  EXPECT_EQ(finish(0, 2, 1, 1e9), "fabric: gpu b has rank 2, allowed are 0 to 1");
  EXPECT_EQ(finish(0, 1, 2, 1e9), "fabric: a link from node 0 to node 2, nodes are 0 to 1");
  EXPECT_EQ(finish(0, 1, 1, 0), "fabric: link gpu a -> gpu b has rate 0, 1 cables, latency 0");

  const Fabric fabric = build_fabric(two_tiers(true));
  const Demand outside = {0, 32, Link::scale_out, 1}, apart = {1, 5, Link::scale_up, 1};
  EXPECT_THROW(fabric.loads(std::span(&outside, 1)), Error);
  try {
    fabric.loads(std::span(&apart, 1));
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no scale_up path from rank 1 to rank 5");
  }
}

TEST(Fabric, ANicNeverJoinsTwoSwitches) {
  // Two leaves whose only common neighbour is the NIC of GPU 1, which has a port on each.
  FabricBuilder builder;
  const FabricLink link = {.network = Link::scale_out, .rate = gigabytes_per_second(50)};
  for (Rank r = 0; r < 3; ++r) builder.add_node({.rank = r, .name = fmt::format("gpu {}", r)});
  for (Rank r = 0; r < 3; ++r) builder.add_node({.kind = NodeKind::nic, .rank = r, .name = fmt::format("nic {}", r)});
  for (int32_t s = 0; s < 2; ++s)
    builder.add_node({.kind = NodeKind::scale_out_switch, .tier = 1, .name = fmt::format("leaf {}", s)});
  for (Rank r = 0; r < 3; ++r) builder.add_cable(r, 3 + r, link);
  builder.add_cable(3, 6, link);
  builder.add_cable(4, 6, link);
  builder.add_cable(4, 7, link);
  builder.add_cable(5, 7, link);
  const Fabric fabric = std::move(builder).finish();
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 1), 4);
  EXPECT_EQ(fabric.distance(Link::scale_out, 1, 2), 4);
  EXPECT_EQ(fabric.unreachable(Link::scale_out), "scale_out: no path from rank 0 to rank 2");
}

TEST(FatTree, ShapesFollowPortsAndUse) {
  // Rails, complete: 32 NICs on leaves of 4; 8 leaves x 4 up / 8 down = 4 spines with one cable each.
  const Fabric full = build_fabric(two_tiers(true));
  EXPECT_EQ(count_switches(full, NodeKind::scale_out_switch, 1), 8);
  EXPECT_EQ(count_switches(full, NodeKind::scale_out_switch, 2), 4);
  // Two of eight nodes: the four rails of the first group, and all spines, which are there anyway.
  const Fabric part = build_fabric(two_tiers(true, 2));
  EXPECT_EQ(part.ranks(), 8);
  EXPECT_EQ(count_switches(part, NodeKind::scale_out_switch, 1), 4);
  EXPECT_EQ(count_switches(part, NodeKind::scale_out_switch, 2), 4);
  EXPECT_EQ(part.unreachable(Link::scale_out), "");
  // Plain, one node: its four NICs fill one leaf, so there is nothing above.
  const Fabric one = build_fabric(two_tiers(false, 1));
  EXPECT_EQ(count_switches(one, NodeKind::scale_out_switch, 1), 1);
  EXPECT_EQ(count_switches(one, NodeKind::scale_out_switch, 2), 0);
  EXPECT_EQ(one.unreachable(Link::scale_out), "");
  // Three tiers: one pod in use needs no core.
  Machine m = three_tiers(true);
  EXPECT_EQ(count_switches(build_fabric(m), NodeKind::scale_out_switch, 3), 8);
  m.nodes = 4;
  EXPECT_EQ(count_switches(build_fabric(m), NodeKind::scale_out_switch, 2), 2);
  EXPECT_EQ(count_switches(build_fabric(m), NodeKind::scale_out_switch, 3), 0);
}

TEST(FatTree, BisectionIsFull) {
  // 1:1 tree: every switch below the top sends up what comes from below, so an even all-to-all of rate-filling
  // demands loads no link above its rate. Each rank sends 50 GB/s over 31 peers.
  for (bool rails : {true, false}) {
    const Fabric fabric = build_fabric(three_tiers(rails));
    std::vector<Demand> demands;
    for (Rank a = 0; a < 32; ++a)
      for (Rank b = 0; b < 32; ++b) demands.push_back({a, b, Link::scale_out, 1000});
    const auto loads = fabric.loads(demands);
    for (size_t l = 0; l < loads.size(); ++l)
      EXPECT_LE(loads[l] * (50e9 / 31e3), fabric.links()[l].rate.value * (1 + 1e-12)) << fabric.links()[l].from;
  }
}

TEST(FatTree, Ep2048IsSmallAndConservesBytes) {
  FatTree tree = {.down = {32, 32, 64}, .up = {32, 32, 0}, .radix = 64, .rail_optimized = true, .pod_nodes = 32};
  const Machine m = machine_of(256, SwitchedDomain{.ranks = 8, .planes = 4}, tree);
  const Fabric fabric = build_fabric(m);
  EXPECT_EQ(fabric.ranks(), 2048);
  EXPECT_LT(fabric.memory_bytes(), 50 << 20);
  std::vector<Demand> demands;
  for (Rank a = 0; a < 2048; ++a)
    for (Rank b = a % 4; b < 2048; b += 4) demands.push_back({a, b, Link::scale_out, 7392});
  const auto loads = fabric.loads(demands);
  // Rank 1 has demands for every fourth rank from 1 on, itself included: 511 rows cross its NIC.
  for (LinkId l : fabric.out_links(fabric.endpoint(1)))
    if (fabric.links()[l].network == Link::scale_out) EXPECT_NEAR(loads[l], 511 * 7392.0, 1e-3);
}

TEST(FieldCases, B25_NvswitchPlanesAddUp) {
  // Four switches: each cable has a quarter of the rate and carries a quarter of the bytes.
  const Fabric fabric = build_fabric(machine_of(1, SwitchedDomain{.ranks = 8, .planes = 4}, NoScaleOut{}));
  EXPECT_EQ(count_switches(fabric, NodeKind::scale_up_switch, 1), 4);
  EXPECT_DOUBLE_EQ(rate_out(fabric, fabric.endpoint(1), Link::scale_up), 400e9);
  const Demand demand = {0, 7, Link::scale_up, 4000};
  const auto loads = fabric.loads(std::span(&demand, 1));
  ASSERT_EQ(fabric.out_links(fabric.endpoint(0)).size(), 4u);
  for (LinkId l : fabric.out_links(fabric.endpoint(0))) EXPECT_DOUBLE_EQ(loads[l], 1000);
}

TEST(Dragonfly, GlobalCablesAreSpreadEvenly) {
  const Fabric fabric = build_fabric(dragonfly());
  EXPECT_EQ(fabric.unreachable(Link::scale_out), "");
  // 6 global cables a group for 4 peers: each pair of groups has 1 or 2, and each router its 2.
  std::map<std::pair<int32_t, int32_t>, int32_t> pairs;
  std::map<NodeId, int32_t> of_router;
  NodeId first = 0;
  while (fabric.nodes()[first].kind != NodeKind::scale_out_switch) ++first;
  for (const FabricLink& link : fabric.links()) {
    if (link.from < first || link.to < first) continue;
    const int32_t a = (link.from - first) / 3, b = (link.to - first) / 3;
    if (a == b) continue;
    ++pairs[{a, b}];
    ++of_router[link.from];
  }
  EXPECT_EQ(pairs.size(), 20u);
  for (const auto& [pair, count] : pairs) EXPECT_TRUE(count == 1 || count == 2) << pair.first << pair.second;
  EXPECT_EQ(of_router.size(), 15u);
  for (const auto& [router, count] : of_router) EXPECT_EQ(count, 2) << router;
}

TEST(FieldCases, B27_DragonflyCornerSizes) {
  auto build = [](Dragonfly d, int32_t nodes) {
    return machine_of(nodes, SwitchedDomain{.ranks = 2, .planes = 1}, d, 2);
  };
  // More groups than routers in a group, a single group, a single router: all work.
  for (const Dragonfly& d : {Dragonfly{.groups = 3, .routers = 2, .endpoints = 2, .global_cables = 1},
                             Dragonfly{.groups = 1, .routers = 6, .endpoints = 2, .global_cables = 1},
                             Dragonfly{.groups = 1, .routers = 1, .endpoints = 12, .global_cables = 0},
                             Dragonfly{.groups = 6, .routers = 1, .endpoints = 2, .global_cables = 5}}) {
    const Fabric fabric = build_fabric(build(d, 6));
    EXPECT_EQ(fabric.ranks(), 12);
    EXPECT_EQ(fabric.unreachable(Link::scale_out), "");
  }
  EXPECT_EQ(error_of(build({.groups = 6, .routers = 2, .endpoints = 1, .global_cables = 2}, 6)),
            "machine test does not add up:\n  scale_out.global_cables: 2 routers x 2 global cables = 4 per group, but 6 "
            "groups need 5 to reach each other");
  EXPECT_EQ(error_of(build({.groups = 2, .routers = 2, .endpoints = 4, .global_cables = 1}, 6)),
            "machine test does not add up:\n  scale_out.endpoints: 2 groups x 2 routers x 4 endpoints = 16 places for the "
            "12 NICs of 6 nodes");
  EXPECT_EQ(error_of(build({.groups = 1, .routers = 2, .endpoints = 6, .radix = 6}, 6)),
            "machine test does not add up:\n  scale_out.radix: tier 1: 6 endpoint ports + 1 local + 0 global = 7 ports in "
            "use, radix 6");
}

TEST(Planes, ScaleOutUsesTheScaleUpSwitches) {
  const Fabric fabric = build_fabric(planes());
  EXPECT_EQ(count_switches(fabric, NodeKind::scale_up_switch, 1), 9);
  EXPECT_EQ(count_switches(fabric, NodeKind::scale_out_switch, 2), 6);
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 3), 2);
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 3), 2);   // the L1 switches do
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 11), 4);  // L1, L2, L1
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 4), -1);
  EXPECT_EQ(fabric.routes(Link::scale_out, 0, 11).size(), 6u);  // planes x L2 switches
  // A node of its own needs no L2 switches.
  EXPECT_EQ(count_switches(build_fabric(planes(1)), NodeKind::scale_out_switch, 2), 0);
  EXPECT_EQ(build_fabric(planes(1)).unreachable(Link::scale_out), "");
}

TEST(Mesh, RoutesAnyDifferingDimensionFirst) {
  const Fabric fabric = build_fabric(mesh());
  ASSERT_EQ(fabric.ranks(), 36);
  // Rank 0 = (0,0,0,0); rank 35 = (2,1,1,2) in the dimensions [3,2] inside and [2,3] between domains.
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 35), 4);
  EXPECT_EQ(fabric.routes(Link::scale_out, 0, 35).size(), 24u);  // 4! orders
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 5), 2);
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 6), -1);
  EXPECT_EQ(fabric.unreachable(Link::scale_up), "scale_up: no path from rank 0 to rank 6");
  EXPECT_EQ(fabric.unreachable(Link::scale_out), "");
  // Inside: 2 peers x 1 cable + 1 peer x 2 cables share 400 GB/s: 100 each; outside 3 peers x 50.
  EXPECT_DOUBLE_EQ(rate_out(fabric, 7, Link::scale_up), 400e9);
  EXPECT_DOUBLE_EQ(rate_out(fabric, 7, Link::scale_out), 150e9);
}

TEST(Mesh, NodesFillWholeRows) {
  EXPECT_EQ(build_fabric(mesh(4)).distance(Link::scale_out, 0, 23), 4);
  EXPECT_EQ(error_of(mesh(3)),
            "machine test does not add up:\n  nodes: 3 nodes do not fill whole rows of the mesh [2, 3]; allowed are 1, 2, "
            "4, 6");
}

TEST(FieldCases, B16_NicRatePerGpu) {
  // Two bonded 400 Gb/s ports per GPU: 100 GB/s.
  Machine bonded = machine_of(2, SwitchedDomain{.ranks = 8, .planes = 4},
                              FatTree{.down = {32}, .up = {0}, .radix = 64, .rail_optimized = false});
  bonded.scale_out.ports_per_nic = 2;
  EXPECT_DOUBLE_EQ(bonded.scale_out_rate().value, 100e9);
  EXPECT_DOUBLE_EQ(rate_out(build_fabric(bonded), 3, Link::scale_out), 100e9);
  // Eight GPUs on four ports: 25 GB/s each; the NIC itself, not its cable to the GPU, is the narrow place.
  const Machine shared = machine_of(2, SwitchedDomain{.ranks = 8, .planes = 4},
                                    FatTree{.down = {8}, .up = {0}, .radix = 64, .rail_optimized = false}, 4);
  EXPECT_DOUBLE_EQ(shared.scale_out_rate().value, 25e9);
  const Fabric fabric = build_fabric(shared);
  const std::vector<Demand> both = {{0, 8, Link::scale_out, 500}, {1, 9, Link::scale_out, 500}};
  const auto loads = fabric.loads(both);
  double slowest = 0;  // seconds of the slowest link
  for (size_t l = 0; l < loads.size(); ++l) slowest = std::max(slowest, loads[l] / fabric.links()[l].rate.value);
  EXPECT_DOUBLE_EQ(slowest, 500 / 25e9);
  // Ranks 0 and 1 share a NIC: between them it turns traffic round itself.
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 1), 2);
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 2), 4);
  // Two NICs per GPU carry half each.
  const Machine two = machine_of(2, SwitchedDomain{.ranks = 4, .planes = 4},
                                 FatTree{.down = {16}, .up = {0}, .radix = 64, .rail_optimized = false});
  EXPECT_DOUBLE_EQ(two.scale_out_rate().value, 100e9);
  const Fabric split = build_fabric(two);
  const Demand one = {0, 5, Link::scale_out, 1000};
  const auto halves = split.loads(std::span(&one, 1));
  for (LinkId l : split.out_links(split.endpoint(0)))
    if (split.links()[l].network == Link::scale_out) EXPECT_DOUBLE_EQ(halves[l], 500);
  // No NIC count that fits: an error, not a rate of 0.
  EXPECT_EQ(error_of(machine_of(2, SwitchedDomain{.ranks = 8, .planes = 4}, FatTree{.down = {6}, .up = {0}}, 3)),
            "machine test does not add up:\n  scale_out.nics_per_node: 3 NICs cannot be shared equally by the 8 ranks of a "
            "node: one number must divide the other");
}

TEST(FieldCases, B25_PortsThatDoNotAddUp) {
  // Leaves with 12 ports down and 10 hosts (of one NIC) in a pod.
  Machine pod = machine_of(20, SwitchedDomain{.ranks = 1, .planes = 1},
                           FatTree{.down = {12, 24, 2}, .up = {12, 12, 0}, .radix = 64, .rail_optimized = false, .pod_nodes = 10}, 1);
  EXPECT_EQ(error_of(pod),
            "machine test does not add up:\n  scale_out.down: tier 1: down 12 ports per leaf, but 10 nodes under one group "
            "bring 10 NIC ports: no multiple");
  Machine radix = two_tiers(true);
  std::get<FatTree>(radix.scale_out.topology).radix = 7;
  EXPECT_EQ(error_of(radix),
            "machine test does not add up:\n  scale_out.radix: tier 1: down 4 + up 4 = 8 ports in use, radix 7");
  Machine bundle = two_tiers(true);
  std::get<FatTree>(bundle.scale_out.topology).down = {4, 6};
  EXPECT_EQ(error_of(bundle),
            "machine test does not add up:\n  scale_out.down: tier 2: down 6 ports per spine is no multiple of the 8 leaf "
            "switches under it");
  Machine cores = three_tiers(true);
  std::get<FatTree>(cores.scale_out.topology).down = {4, 8, 3};
  EXPECT_EQ(error_of(cores),
            "machine test does not add up:\n  scale_out.down: tier 3: down 3 ports per core switch is no multiple of the 2 "
            "pods");
  Machine lonely = two_tiers(true);
  std::get<FatTree>(lonely.scale_out.topology) = {.down = {4}, .up = {0}, .radix = 8};
  EXPECT_EQ(error_of(lonely),
            "machine test does not add up:\n  scale_out.down: tier 1: 8 leaf switches but no tier 2 to join them");
}

TEST(FieldCases, B25_SwitchlessMeshWithUnequalCables) {
  const Fabric fabric = build_fabric(machine_of(1, cube_mesh(), NoScaleOut{}));
  // 6 cables share 400 GB/s; 0-3 has two of them.
  for (Rank r = 0; r < 8; ++r) EXPECT_NEAR(rate_out(fabric, r, Link::scale_up), 400e9, 1) << r;
  for (const FabricLink& link : fabric.links()) EXPECT_NEAR(link.rate.value, link.cables * 400e9 / 6, 1);
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 3), 1);
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 7), 2);  // over 3 or 4
  EXPECT_EQ(fabric.unreachable(Link::scale_up), "");
  expect_loads_equal_paths(fabric, random_demands(fabric, Link::scale_up, 8, 100, 3));
}

TEST(FieldCases, B25_UnreachableHostIsNamed) {
  const PairList pairs = {.ranks = 4, .cables = {{0, 1, 1}, {1, 3, 2}}};
  EXPECT_EQ(error_of(machine_of(1, pairs, NoScaleOut{})),
            "machine test does not add up:\n  scale_up.cables: no path from rank 0 to rank 2 of a domain");
}

TEST(FieldCases, B55_SwitchesAreNoRanks) {
  // 16 GPUs, 2 NVSwitches, 4 leaves (and 4 spines over them).
  const Machine m = machine_of(2, SwitchedDomain{.ranks = 8, .planes = 1},
                               FatTree{.down = {4, 4}, .up = {4, 0}, .radix = 8, .rail_optimized = false});
  const Fabric fabric = build_fabric(m);
  EXPECT_EQ(m.ranks(), 16);
  EXPECT_EQ(fabric.ranks(), 16);
  EXPECT_EQ(m.grouping().nodes() * m.grouping().scaleup, 16);
  EXPECT_EQ(count_switches(fabric, NodeKind::scale_up_switch, 1), 2);
  EXPECT_EQ(count_switches(fabric, NodeKind::scale_out_switch, 1), 4);
  EXPECT_EQ(fabric.nodes().size(), 16u + 16 + 2 + 4 + 4);
  const Demand from_a_switch = {17, 0, Link::scale_out, 1};
  EXPECT_THROW(fabric.loads(std::span(&from_a_switch, 1)), Error);
}

}  // namespace
}  // namespace plumb

// The fabrics that are built from machines: shapes, rates, and what does not add up.
#include <gtest/gtest.h>

#include <map>

#include "model/error.h"
#include "tests/model/fabric_machines.h"

namespace plumb {
namespace {

std::string error_of(const Machine& m) {
  try {
    build_fabric(m);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return "";
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
            "machine test does not add up:\n  scale_out.global_cables: 2 routers x 2 global cables = 4 per "
            "group, but 6 "
            "groups need 5 to reach each other");
  EXPECT_EQ(error_of(build({.groups = 2, .routers = 2, .endpoints = 4, .global_cables = 1}, 6)),
            "machine test does not add up:\n  scale_out.endpoints: 2 groups x 2 routers x 4 endpoints = 16 "
            "places for the "
            "12 NICs of 6 nodes");
  EXPECT_EQ(error_of(build({.groups = 1, .routers = 2, .endpoints = 6, .radix = 6}, 6)),
            "machine test does not add up:\n  scale_out.radix: tier 1: 6 endpoint ports + 1 local + 0 global "
            "= 7 ports in "
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
            "machine test does not add up:\n  nodes: 3 nodes do not fill whole rows of the mesh [2, 3]; "
            "allowed are 1, 2, "
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
  for (size_t l = 0; l < loads.size(); ++l)
    slowest = std::max(slowest, loads[l] / fabric.links()[l].rate.value);
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
    if (split.links()[l].network == Link::scale_out) {
      EXPECT_DOUBLE_EQ(halves[l], 500);
    }
  // No NIC count that fits: an error, not a rate of 0.
  EXPECT_EQ(
      error_of(machine_of(2, SwitchedDomain{.ranks = 8, .planes = 4}, FatTree{.down = {6}, .up = {0}}, 3)),
      "machine test does not add up:\n  scale_out.nics_per_node: 3 NICs cannot be shared equally by the 8 "
      "ranks of a "
      "node: one number must divide the other");
}

TEST(FieldCases, B25_PortsThatDoNotAddUp) {
  // Leaves with 12 ports down and 10 hosts (of one NIC) in a pod.
  Machine pod = machine_of(
      20, SwitchedDomain{.ranks = 1, .planes = 1},
      FatTree{.down = {12, 24, 2}, .up = {12, 12, 0}, .radix = 64, .rail_optimized = false, .pod_nodes = 10},
      1);
  EXPECT_EQ(error_of(pod),
            "machine test does not add up:\n  scale_out.down: tier 1: down 12 ports per leaf, but 10 nodes "
            "under one group "
            "bring 10 NIC ports: no multiple");
  Machine radix = two_tiers(true);
  std::get<FatTree>(radix.scale_out.topology).radix = 7;
  EXPECT_EQ(
      error_of(radix),
      "machine test does not add up:\n  scale_out.radix: tier 1: down 4 + up 4 = 8 ports in use, radix 7");
  Machine bundle = two_tiers(true);
  std::get<FatTree>(bundle.scale_out.topology).down = {4, 6};
  EXPECT_EQ(error_of(bundle),
            "machine test does not add up:\n  scale_out.down: tier 2: down 6 ports per spine is no multiple "
            "of the 8 leaf "
            "switches under it");
  Machine cores = three_tiers(true);
  std::get<FatTree>(cores.scale_out.topology).down = {4, 8, 3};
  EXPECT_EQ(error_of(cores),
            "machine test does not add up:\n  scale_out.down: tier 3: down 3 ports per core switch is no "
            "multiple of the 2 "
            "pods");
  Machine lonely = two_tiers(true);
  std::get<FatTree>(lonely.scale_out.topology) = {.down = {4}, .up = {0}, .radix = 8};
  EXPECT_EQ(
      error_of(lonely),
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

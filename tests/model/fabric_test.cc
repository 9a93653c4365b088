// Graphs, routes and loads of fabrics, against brute force.
#include "model/fabric.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "model/error.h"
#include "tests/model/fabric_machines.h"

namespace plumb {
namespace {

/// A graph of no particular shape: 6 switches, some links one-way, 8 GPUs with one to three NICs of which
/// some are shared, and some GPUs directly on switches.
Fabric random_fabric(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&random](uint64_t n) { return static_cast<int32_t>(random() % n); };
  FabricBuilder builder;
  const FabricLink link = {
      .network = Link::scale_out, .rate = gigabytes_per_second(50), .latency = nanoseconds(100)};
  for (Rank r = 0; r < 8; ++r) builder.add_node({.rank = r, .name = fmt::format("gpu {}", r)});
  for (int32_t n = 0; n < 10; ++n)
    builder.add_node({.kind = NodeKind::nic, .name = fmt::format("nic {}", n)});
  for (int32_t s = 0; s < 6; ++s)
    builder.add_node({.kind = NodeKind::scale_out_switch, .tier = 1, .name = "switch"});
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

/// Hops by breadth-first search under the rules in words: switches pass traffic on; a NIC passes it from a
/// GPU to anything, or from a switch to the destination; a GPU never does.
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

std::vector<Demand> random_demands(const Fabric& fabric, Link network, int32_t block, int32_t count,
                                   uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Demand> result;
  for (int32_t i = 0; i < count; ++i) {
    const Rank src = static_cast<Rank>(random() % static_cast<uint64_t>(fabric.ranks()));
    const Rank dst = src / block * block + static_cast<Rank>(random() % static_cast<uint64_t>(block));
    result.push_back({src, dst, network, static_cast<int64_t>(random() % 100'000)});
  }
  return result;
}

/// Checks loads() against the sum over all enumerated paths, and that what leaves and enters each rank is its
/// demand.
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

TEST(Fabric, LoadsEqualTheSumOverAllPaths) {
  for (const Machine& m :
       {two_tiers(true), two_tiers(false), three_tiers(true), three_tiers(false), dragonfly(), planes(),
        mesh(), mesh(2), machine_of(1, cube_mesh(), NoScaleOut{})}) {
    const Fabric fabric = build_fabric(m);
    const bool has_out = !std::holds_alternative<NoScaleOut>(m.scale_out.topology);
    auto demands = random_demands(fabric, Link::scale_out, fabric.ranks(), has_out ? 300 : 0, 1);
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
        ASSERT_EQ(fabric.distance(Link::scale_out, src, dst),
                  searched_distance(fabric, Link::scale_out, src, dst))
            << src << " -> " << dst;
}

TEST(Fabric, NetworksDoNotCross) {
  const Fabric fabric = build_fabric(two_tiers(true));
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 3), 2);   // GPU, switch, GPU
  EXPECT_EQ(fabric.distance(Link::scale_up, 0, 4), -1);  // another domain
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 4), 4);  // same rail: GPU, NIC, leaf, NIC, GPU
  EXPECT_EQ(fabric.distance(Link::scale_out, 0, 5),
            6);  // other rail: by leaf, spine, leaf; never over GPU 1 or 4
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
  for (Rank r = 0; r < 3; ++r)
    builder.add_node({.kind = NodeKind::nic, .rank = r, .name = fmt::format("nic {}", r)});
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

TEST(FatTree, BisectionIsFull) {
  // 1:1 tree: every switch below the top sends up what comes from below, so an even all-to-all of
  // rate-filling demands loads no link above its rate. Each rank sends 50 GB/s over 31 peers.
  for (bool rails : {true, false}) {
    const Fabric fabric = build_fabric(three_tiers(rails));
    std::vector<Demand> demands;
    for (Rank a = 0; a < 32; ++a)
      for (Rank b = 0; b < 32; ++b) demands.push_back({a, b, Link::scale_out, 1000});
    const auto loads = fabric.loads(demands);
    for (size_t l = 0; l < loads.size(); ++l)
      EXPECT_LE(loads[l] * (50e9 / 31e3), fabric.links()[l].rate.value * (1 + 1e-12))
          << fabric.links()[l].from;
  }
}

TEST(FatTree, Ep2048IsSmallAndConservesBytes) {
  FatTree tree = {
      .down = {32, 32, 64}, .up = {32, 32, 0}, .radix = 64, .rail_optimized = true, .pod_nodes = 32};
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
    if (fabric.links()[l].network == Link::scale_out) {
      EXPECT_NEAR(loads[l], 511 * 7392.0, 1e-3);
    }
}

}  // namespace
}  // namespace plumb

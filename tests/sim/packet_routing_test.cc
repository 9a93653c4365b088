// Routes: candidates, policies, order of arrival, detours.
#include <set>

#include <gtest/gtest.h>

#include "model/machine.h"
#include "sim/packet_network.h"
#include "sim/route_table.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

/// Links from leaf to spine that carried something.
int used_uplinks(const Fabric& fabric, const PacketNetwork& network) {
  int used = 0;
  for (const LinkUse& use : network.link_use()) {
    const FabricLink& link = fabric.links()[use.link];
    used += use.packet_bytes > 0 && fabric.nodes()[link.from].tier == 1 && fabric.nodes()[link.to].tier == 2;
  }
  return used;
}

struct Outcome {
  Ps end = 0;
  int uplinks = 0;
  int64_t out_of_order = 0;
};

/// One flow of 1 MiB between two leaves with eight spines, beside others of the same leaf when `busy`.
Outcome one_flow(RoutePolicy policy, bool adaptive_level = true) {
  Script traffic;
  traffic.add({.src = 0, .dst = 12, .bytes = 1 << 20, .cookie = 1});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = policy;
  settings.lanes.adaptive[0] = adaptive_level;
  const Fabric fabric = leaf_spine({.ranks = 16, .down = 8, .spines = 8});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  return {traffic.arrival(1), used_uplinks(fabric, network), network.counts().out_of_order};
}

TEST(RouteTable, GroupsDestinationsByLeaf) {
  const Fabric fabric = leaf_spine({.ranks = 20, .down = 8, .spines = 4});
  const ChannelGraph graph(fabric);
  const RouteTable table(fabric, graph, Link::scale_out);
  EXPECT_EQ(table.num_groups(), 3u);
  const Vertex leaf0 = graph[graph.out_begin(0)].to;
  EXPECT_EQ(table.candidates(leaf0, 19).size(), 4u);                           // all spines
  EXPECT_EQ(graph[table.candidates(leaf0, 3)[0]].to, static_cast<Vertex>(3));  // its own rank
  EXPECT_EQ(table.hops(0, 19), 4);
  EXPECT_EQ(table.hops(0, 1), 2);
}

TEST(RouteTable, LosesPathsThroughAFailedLink) {
  const Fabric fabric = leaf_spine({.ranks = 16, .down = 8, .spines = 4});
  const ChannelGraph graph(fabric);
  std::vector<uint8_t> down(graph.channels().size(), 0);
  const Vertex leaf1 = graph[graph.out_begin(8)].to;
  Vertex spine = 0;
  for (Channel c = 0; c < down.size(); ++c)
    if (graph[c].to == leaf1 && !graph.is_endpoint(graph[c].from)) {
      down[c] = 1;  // one spine can no longer reach leaf 1 ...
      spine = graph[c].from;
      break;
    }
  const RouteTable table(fabric, graph, Link::scale_out, down);
  const Vertex leaf0 = graph[graph.out_begin(0)].to;
  EXPECT_EQ(table.candidates(leaf0, 8).size(), 3u);  // ... so leaf 0 no longer sends there over it
  for (Channel c : table.candidates(leaf0, 8)) EXPECT_NE(graph[c].to, spine);
}

TEST(PassThroughNic, CostsNoEventAndNoTime) {
  // GPU - NIC - switch with equal rates is one channel: same end, two hops less per packet, bytes on all four
  // links.
  FabricBuilder b;
  add_gpu(b, 0);
  add_gpu(b, 1);
  const NodeId hub = add_switch(b, 1, "switch");
  for (Rank r = 0; r < 2; ++r) {
    const NodeId nic = b.add_node({.kind = NodeKind::nic, .rank = r, .name = fmt::format("nic {}", r)});
    b.add_cable(r, nic, cable({.latency = nanoseconds(500)}));
    b.add_cable(nic, hub, cable({.latency = nanoseconds(300)}));
  }
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = 4 << 20, .cookie = 1});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  // 1024 packets back to back, though the NIC's 500 ns lie beyond the credit loop of the cable.
  EXPECT_EQ(traffic.arrival(1), ((4 << 20) + 42 + 1023 * 26) * Ps{20} + 1'600'000);
  EXPECT_EQ(network.counts().packet_hops, 2 * 1024);
  int used = 0;
  for (const LinkUse& use : network.link_use()) used += use.packet_bytes > 0;
  EXPECT_EQ(used, 4);
}

TEST(RoutePolicies, StaticPathsKeepOrder) {
  for (RoutePolicy policy : {RoutePolicy::by_destination, RoutePolicy::by_flow}) {
    const Outcome outcome = one_flow(policy);
    EXPECT_EQ(outcome.uplinks, 1);
    EXPECT_EQ(outcome.out_of_order, 0);
  }
}

TEST(RoutePolicies, ByDestinationDealsTheRanksOfARailOutOverAllSpines) {
  // Rail-optimized: ranks 1, 9, 17 ... hang on the leaf of rail 1. Eight senders of rail 0 to eight of rail
  // 1, four spines: two destinations each, though all their rank numbers are 1 modulo 4.
  const Fabric fabric = build_fabric(read_machine(PLUMB_SOURCE_DIR "/topologies/h200-cx7.yaml", 8));
  Script traffic;
  for (Rank r = 0; r < 64; r += 8) traffic.add({.src = r, .dst = (r + 8) % 64 + 1, .bytes = 1 << 20});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = RoutePolicy::by_destination;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(used_uplinks(fabric, network), 4);
  for (const LinkUse& use : network.link_use()) {
    const FabricLink& link = fabric.links()[use.link];
    if (fabric.nodes()[link.from].tier == 1 && fabric.nodes()[link.to].tier == 2 && use.packet_bytes > 0) {
      EXPECT_EQ(use.packet_bytes, 2 * ((1 << 20) + 42 + 255 * 26));  // 256 packets and their headers
    }
  }
}

TEST(RoutePolicies, SpreadUsesEveryPath) { EXPECT_EQ(one_flow(RoutePolicy::spread).uplinks, 8); }

TEST(RoutePolicies, AdaptiveOnlyWhereTheLevelMay) {
  EXPECT_GT(one_flow(RoutePolicy::adaptive).uplinks, 1);
  EXPECT_EQ(one_flow(RoutePolicy::adaptive, false).uplinks, 1);
}

TEST(RoutePolicies, AdaptiveBeatsHashOnAPermutation) {
  auto end = [](RoutePolicy policy) {
    Script traffic;
    for (Rank r = 0; r < 64; ++r) traffic.add({.src = r, .dst = (r * 11 + 17) % 64, .bytes = 512 << 10});
    PacketSettings settings = packet_settings();
    settings.networks[1].policy = policy;
    const Fabric fabric = leaf_spine({.ranks = 64, .down = 8, .spines = 8});
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    return network.now();
  };
  // A hash puts two or more flows on some uplink: at least twice the time. Per packet, all uplinks share the
  // load.
  EXPECT_GT(end(RoutePolicy::by_flow), 1.9 * 512 * 1024 * 20);
  EXPECT_LT(static_cast<double>(end(RoutePolicy::adaptive)), 1.3 * 512 * 1024 * 20);
}

/// Bytes on each link of 8 GPUs and 4 NVSwitches after 16 messages of 16 packets for every pair.
std::vector<int64_t> nvlink_bytes(RoutePolicy policy, bool with_fault = false) {
  const Fabric fabric = build_fabric(read_machine(PLUMB_SOURCE_DIR "/topologies/h800-cx7.yaml", 1));
  Script traffic;
  for (int message = 0; message < 16; ++message)
    for (Rank r = 0; r < 8; ++r)
      for (Rank step = 1; step < 8; ++step)
        traffic.add({.src = r, .dst = (r + step) % 8, .network = Link::scale_up, .bytes = 16 * 4096});
  PacketSettings settings = packet_settings();
  settings.networks[0].policy = policy;
  settings.networks[0].first_header_bytes = settings.networks[0].next_header_bytes;
  PacketNetwork network(fabric, settings, traffic);
  if (with_fault) network.add_fault({.at = 0, .kind = FaultKind::link_down, .link = 0});
  network.wake_all();
  network.run();
  std::vector<int64_t> bytes;
  for (const LinkUse& use : network.link_use())
    if (fabric.links()[size_t(use.link)].network == Link::scale_up) bytes.push_back(use.packet_bytes);
  return bytes;
}

TEST(RoutePolicies, EvenGivesEveryNvswitchTheSamePartOfEveryPair) {
  // 7 pairs x 16 x 16 packets / 4 = 448 packets on every link, give or take two of each pair at the end.
  const auto even = nvlink_bytes(RoutePolicy::even);
  ASSERT_EQ(even.size(), 2u * 8 * 4);
  for (const int64_t bytes : even)
    EXPECT_NEAR(static_cast<double>(bytes), 448 * (4096 + 26), 2 * 7 * (4096 + 26));
  // The least loaded link out of a GPU says nothing of the link into the other.
  const auto adaptive = nvlink_bytes(RoutePolicy::adaptive);
  EXPECT_GT(*std::max_element(adaptive.begin(), adaptive.end()), (448 + 2 * 7) * (4096 + 26));
}

TEST(RoutePolicies, EvenGoesOverTheOtherLinksWhenOneIsDown) {
  const auto bytes = nvlink_bytes(RoutePolicy::even, true);
  EXPECT_EQ(bytes.at(0), 0);
  int64_t all = 0;
  for (const int64_t b : bytes) all += b;
  EXPECT_EQ(all, 2 * 8 * 7 * 16 * 16 * (4096 + 26));
}

TEST(RoutePolicies, SeveralPortsOfARankAddUp) {
  // Four planes of one switch each, as UnifiedBus planes: a rank sends over all of them at once.
  FabricBuilder b;
  for (Rank r = 0; r < 2; ++r) add_gpu(b, r);
  for (int plane = 0; plane < 4; ++plane) {
    const NodeId hub = add_switch(b, 1, fmt::format("plane {}", plane));
    for (Rank r = 0; r < 2; ++r) b.add_cable(r, hub, cable({}));
  }
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (int i = 0; i < 16; ++i) traffic.add({.src = 0, .dst = 1, .bytes = 256 << 10});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  const double bytes = 16 * (262144 + 42 + 63 * 26);
  EXPECT_NEAR(static_cast<double>(network.now()), bytes * 20 / 4 + 600'000, 0.01 * bytes * 20 / 4);
}

TEST(RoutePolicies, ValiantSpreadsAdversarialTrafficOfADragonfly) {
  // All ranks of a group send to the next group: minimal paths share one global cable.
  auto run = [](RoutePolicy policy) {
    const SmallDragonfly shape = {.groups = 5, .routers = 4, .ranks = 2};
    const int32_t group = shape.routers * shape.ranks, ranks = shape.groups * group;
    Script traffic;
    for (Rank r = 0; r < ranks; ++r) traffic.add({.src = r, .dst = (r + group) % ranks, .bytes = 256 << 10});
    PacketSettings settings = packet_settings();
    settings.networks[1].policy = policy;
    const Fabric fabric = dragonfly(shape);
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    EXPECT_EQ(traffic.arrivals.size(), static_cast<size_t>(ranks));
    return std::pair(network.now(), network.counts().detours);
  };
  const auto minimal = run(RoutePolicy::adaptive), valiant = run(RoutePolicy::valiant),
             ugal = run(RoutePolicy::ugal);
  // Minimal: eight ranks' traffic over one cable takes eight times a rank's own. A detour uses two of the
  // five global cables of each group's pair on average: about 8 x 2 / 4 = 4 times.
  EXPECT_GT(static_cast<double>(minimal.first), 7.9 * 262144 * 20);
  EXPECT_EQ(minimal.second, 0);
  EXPECT_LT(valiant.first, minimal.first * 8 / 10);
  EXPECT_GT(valiant.second, 0);
  EXPECT_LT(ugal.first, minimal.first * 8 / 10);
}

TEST(RoutePolicies, UgalStaysMinimalWithoutLoad) {
  Script traffic;
  traffic.add({.src = 0, .dst = 39, .bytes = 4096, .cookie = 1});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = RoutePolicy::ugal;
  const Fabric fabric = dragonfly({});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(network.counts().detours, 0);
}

TEST(RoutePolicies, DetoursOverAMeshReachTheirDestination) {
  // The random GPU may be the one that the packet is at (one in 27), and the way to it may lead over the
  // destination: both happen often with 256 packets of each rank. Three digits differ: detours start one hop
  // from the source, and only where more than one is left.
  FabricBuilder b;
  for (Rank r = 0; r < 27; ++r) add_gpu(b, r);
  for (Rank r = 0; r < 27; ++r)
    for (Rank stride : {1, 3, 9})
      for (Rank s = r + stride; s / (3 * stride) == r / (3 * stride); s += stride)
        b.add_cable(r, s, cable({}));
  b.set_mesh(Link::scale_out, {3, 3, 3});
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (Rank r = 0; r < 27; ++r) traffic.add({.src = r, .dst = (r + 13) % 27, .bytes = 1 << 20});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = RoutePolicy::valiant;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(traffic.arrivals.size(), 27u);
  EXPECT_GT(network.counts().detours, 0);
}

}  // namespace
}  // namespace plumb::sim

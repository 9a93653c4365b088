// Links and switches that fail or slow down.
#include <gtest/gtest.h>

#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr int64_t kBytes = 8 << 20;
constexpr Ps kAlone = (kBytes + 42 + 2047 * 26) * Ps{20} + 4 * 300'000;  // leaf to leaf

const LeafSpine kTwoLeaves = {.ranks = 16, .down = 8, .spines = 4};

LinkId uplink(const Fabric& fabric, int32_t spine) {
  for (size_t l = 0; l < fabric.links().size(); ++l)
    if (fabric.nodes()[fabric.links()[l].from].name == "leaf 0" &&
        fabric.nodes()[fabric.links()[l].to].name == fmt::format("spine {}", spine))
      return static_cast<LinkId>(l);
  return kNone;
}

NodeId node(const Fabric& fabric, const std::string& name) {
  for (size_t n = 0; n < fabric.nodes().size(); ++n)
    if (fabric.nodes()[n].name == name) return static_cast<NodeId>(n);
  return kNone;
}

/// Rank 0 to rank 8 + spine: by destination its traffic takes that spine (12 % 4 = 0 and so on).
Ps transfer(const Fabric& fabric, RoutePolicy policy, std::vector<Fault> faults, Seconds reroute = {1}) {
  Script traffic;
  traffic.add({.src = 0, .dst = 8, .bytes = kBytes, .cookie = 1});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = policy;
  settings.reroute_delay = reroute;
  PacketNetwork network(fabric, settings, traffic);
  for (const Fault& fault : faults) network.add_fault(fault);
  network.wake_all();
  network.run();
  return traffic.arrival(1);
}

TEST(Faults, StaticRouteWaitsForItsLink) {
  const Fabric fabric = leaf_spine(kTwoLeaves);
  const LinkId link = uplink(fabric, 0);  // 8 % 4 = 0
  EXPECT_EQ(transfer(fabric, RoutePolicy::by_destination, {}), kAlone);
  const Ps outage = 260'000'000;
  const Ps end = transfer(fabric, RoutePolicy::by_destination,
                          {{.at = 40'000'000, .kind = FaultKind::link_down, .link = link},
                           {.at = 40'000'000 + outage, .kind = FaultKind::link_up, .link = link}});
  // The outage, give or take the packet on the wire when it begins.
  EXPECT_NEAR(static_cast<double>(end), static_cast<double>(kAlone + outage), 100'000);
}

TEST(Faults, AdaptiveRouteGoesRound) {
  const Fabric fabric = leaf_spine(kTwoLeaves);
  const Ps end = transfer(fabric, RoutePolicy::adaptive,
                          {{.at = 40'000'000, .kind = FaultKind::link_down, .link = uplink(fabric, 0)}});
  EXPECT_LT(end, kAlone + 1'000'000);
}

TEST(Faults, NewTablesFreeTheStaticRoute) {
  // The table changes 10 us after the failure, for good: the transfer loses those 10 us.
  const Fabric fabric = leaf_spine(kTwoLeaves);
  const Ps end = transfer(fabric, RoutePolicy::by_destination,
                          {{.at = 40'000'000, .kind = FaultKind::link_down, .link = uplink(fabric, 0)}},
                          microseconds(10));
  EXPECT_NEAR(static_cast<double>(end), static_cast<double>(kAlone + 10'000'000), 200'000);
}

TEST(Faults, SwitchDownTakesAllItsLinks) {
  const Fabric fabric = leaf_spine(kTwoLeaves);
  const Ps end =
      transfer(fabric, RoutePolicy::by_destination,
               {{.at = 40'000'000, .kind = FaultKind::switch_down, .node = node(fabric, "spine 0")},
                {.at = 300'000'000, .kind = FaultKind::switch_up, .node = node(fabric, "spine 0")}});
  // What is inside the dead switch stays there, and goes on when it is back.
  EXPECT_NEAR(static_cast<double>(end), static_cast<double>(kAlone + 260'000'000), 2'000'000);
}

TEST(Faults, SlowLinkSlowsByItsFactor) {
  const Fabric fabric = leaf_spine(kTwoLeaves);
  const Ps end =
      transfer(fabric, RoutePolicy::by_destination,
               {{.at = 0, .kind = FaultKind::link_rate, .link = uplink(fabric, 0), .factor = 0.25}});
  EXPECT_NEAR(static_cast<double>(end), 4.0 * static_cast<double>(kAlone - 1'200'000) + 1'200'000, 1000);
}

TEST(Faults, LinkThatStaysDownIsNamed) {
  const Fabric fabric = star(2);
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = kBytes});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.add_fault({.at = 10'000'000, .kind = FaultKind::link_down, .link = 3});  // switch -> gpu 1
  network.wake_all();
  try {
    network.run();
    FAIL() << "landed over a dead link";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("switch -> gpu 1"), std::string::npos) << error.what();
  }
}

TEST(Faults, SourceWithoutAWayGoesOnWhenTheLinkIsBack) {
  // Three GPUs, fully meshed; the only minimal way from 0 to 1 is down from 0 to 30 us. New tables 10 us
  // later: the message of 20 us leaves at 40 us, takes (4096 + 42) x 20 ps and 300 ns.
  FabricBuilder b;
  for (Rank r = 0; r < 3; ++r) add_gpu(b, r);
  b.add_cable(0, 1, cable({}));  // link 0 leads from 0 to 1
  b.add_cable(0, 2, cable({}));
  b.add_cable(1, 2, cable({}));
  b.set_mesh(Link::scale_out, {3});
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = 4096, .cookie = 1});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.add_fault({.at = 0, .kind = FaultKind::link_down, .link = 0});
  network.add_fault({.at = 30'000'000, .kind = FaultKind::link_up, .link = 0});
  network.wake(0, Link::scale_out, 0, 20'000'000);
  network.run();
  EXPECT_EQ(traffic.arrival(1), 40'000'000 + 4138 * 20 + 300'000);
}

TEST(Faults, BadOnesAreRefused) {
  const Fabric fabric = star(2);
  Script traffic;
  PacketNetwork network(fabric, packet_settings(), traffic);
  EXPECT_THROW(network.add_fault({.kind = FaultKind::link_down, .link = 99}), Error);
  EXPECT_THROW(network.add_fault({.kind = FaultKind::switch_down, .node = -5}), Error);
  EXPECT_THROW(network.add_fault({.kind = FaultKind::link_rate, .link = 0, .factor = 0}), Error);
}

}  // namespace
}  // namespace plumb::sim

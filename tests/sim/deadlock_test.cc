// Deadlock: refused beforehand where routes and lanes allow it, named when it happens.
#include <gtest/gtest.h>

#include "sim/channel_dependency.h"
#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

/// Each of four ranks on a clockwise ring sends two switches further.
Script two_hops_clockwise() {
  Script traffic;
  for (Rank r = 0; r < 4; ++r) traffic.add({.src = r, .dst = (r + 2) % 4, .bytes = 4 << 20});
  return traffic;
}

LinkId link_between(const Fabric& fabric, const std::string& from, const std::string& to) {
  for (size_t l = 0; l < fabric.links().size(); ++l)
    if (fabric.nodes()[fabric.links()[l].from].name == from &&
        fabric.nodes()[fabric.links()[l].to].name == to)
      return static_cast<LinkId>(l);
  return kNone;
}

TEST(FieldCases, B28_RingWithOneLaneIsRefusedWithItsCycle) {
  Script traffic = two_hops_clockwise();
  PacketSettings settings = packet_settings();
  settings.hop_classes.count = 1;
  const Fabric fabric = ring(4, false);
  try {
    PacketNetwork network(fabric, settings, traffic);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    const std::string text = error.what();
    for (const char* channel :
         {"switch 0 -> switch 1", "switch 1 -> switch 2", "switch 2 -> switch 3", "switch 3 -> switch 0"})
      EXPECT_NE(text.find(channel), std::string::npos) << text;
  }
}

TEST(FieldCases, B28_RingWithOneLaneDeadlocksAndTheRunNamesTheCycle) {
  Script traffic = two_hops_clockwise();
  PacketSettings settings = packet_settings();
  settings.hop_classes.count = 1;
  settings.check_deadlock = false;
  // Two packets per buffer: all four ranks fill the buffer ahead before anyone's transit packet can move on.
  settings.fit_buffers = false;
  settings.lanes.buffer.value = {2 * 65 * 64};
  for (InputQueues queues : {InputQueues::per_output, InputQueues::fifo}) {
    settings.input_queues = queues;
    Script messages = traffic;
    const Fabric fabric = ring(4, false);
    PacketNetwork network(fabric, settings, messages);
    network.wake_all();
    try {
      network.run();
      FAIL() << "no deadlock";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::mismatch);
      const std::string text = error.what();
      EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
      EXPECT_NE(text.find("switch 3 -> switch 0"), std::string::npos) << text;
    }
    EXPECT_LT(messages.arrivals.size(), 4u);
  }
}

TEST(FieldCases, B28_DatelineWithTwoLanesPasses) {
  Script traffic = two_hops_clockwise();
  PacketSettings settings = packet_settings();
  const Fabric fabric = ring(4, false);
  settings.hop_classes = {.count = 2, .datelines = {link_between(fabric, "switch 3", "switch 0")}};
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(traffic.arrivals.size(), 4u);
  EXPECT_EQ(network.stuck_report(), "");
}

TEST(ChannelDependency, TreesNeedOneClass) {
  const Fabric fabric = leaf_spine({.ranks = 64, .down = 8, .spines = 8});
  Script traffic;
  EXPECT_EQ(PacketNetwork(fabric, packet_settings(), traffic).hop_classes(), 1);
}

TEST(ChannelDependency, ArrivedPacketsWaitForNothing) {
  // Two GPUs with a cable: what arrives leaves the network, though the only link from there leads back.
  FabricBuilder b;
  add_gpu(b, 0);
  add_gpu(b, 1);
  b.let_gpus_forward(Link::scale_out);
  b.add_cable(0, 1, cable({}));
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  EXPECT_EQ(PacketNetwork(fabric, packet_settings(), traffic).hop_classes(), 1);
}

TEST(ChannelDependency, PairsOfGpusWithoutAWayOutAreSafe) {
  // Two pairs of GPUs with a cable each. Nothing leads from one to the other, so nothing may be sent to and
  // fro between the two of a pair either: one class does, and the unreachable rank is named.
  FabricBuilder b;
  for (Rank r = 0; r < 4; ++r) add_gpu(b, r);
  b.let_gpus_forward(Link::scale_out);
  b.add_cable(0, 1, cable({}));
  b.add_cable(2, 3, cable({}));
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = 4096});
  traffic.add({.src = 0, .dst = 3, .bytes = 4096});
  PacketNetwork network(fabric, packet_settings(), traffic);
  EXPECT_EQ(network.hop_classes(), 1);
  network.wake_all();
  try {
    network.run();
    FAIL() << "sent to where nothing leads";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("from rank 0 to rank 3"), std::string::npos) << error.what();
  }
}

TEST(ChannelDependency, DragonflyClassesGrowWithDetours) {
  // Minimal paths are local, global, local. By hop number two classes suffice: the second local hop may not
  // wait for a first one. Detours join two such paths.
  const Fabric fabric = dragonfly({});
  Script traffic;
  PacketSettings settings = packet_settings();
  const int32_t minimal = PacketNetwork(fabric, settings, traffic).hop_classes();
  settings.networks[1].policy = RoutePolicy::valiant;
  const int32_t detours = PacketNetwork(fabric, settings, traffic).hop_classes();
  EXPECT_GE(minimal, 2);
  EXPECT_LE(minimal, 3);
  EXPECT_GT(detours, minimal);
  EXPECT_LE(detours, 6);  // at most one class per switch-to-switch hop
}

TEST(ChannelDependency, DatelinesThatCutNothingAreRefused) {
  PacketSettings settings = packet_settings();
  const Fabric fabric = ring(4, false);
  settings.hop_classes.datelines = {link_between(fabric, "gpu 0", "switch 0")};
  Script traffic;
  EXPECT_THROW(PacketNetwork(fabric, settings, traffic), Error);
}

TEST(ChannelDependency, FullMeshOfGpusIsSafeWithTheClassesChosen) {
  // 4 x 4 mesh: GPUs forward; routes may turn either way, so one class would not do.
  FabricBuilder b;
  for (Rank r = 0; r < 16; ++r) add_gpu(b, r);
  for (Rank r = 0; r < 16; ++r)
    for (Rank s = r + 1; s < 16; ++s)
      if (r / 4 == s / 4 || r % 4 == s % 4) b.add_cable(r, s, cable({}));
  b.set_mesh(Link::scale_out, {4, 4});
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (Rank r = 0; r < 16; ++r)
    for (Rank s = 0; s < 16; ++s)
      if (s != r) traffic.add({.src = r, .dst = s, .bytes = 65536});
  PacketNetwork network(fabric, packet_settings(), traffic);
  EXPECT_EQ(network.hop_classes(), 2);
  network.wake_all();
  network.run();
  EXPECT_EQ(traffic.arrivals.size(), 240u);
}

}  // namespace
}  // namespace plumb::sim

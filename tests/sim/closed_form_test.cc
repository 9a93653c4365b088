// The packet network against closed forms. Links of 50 GB/s (20 ps per byte) and 300 ns; packets of 4096
// bytes payload with 42 (first) or 26 (others) bytes of header, so 4122 bytes or 82.44 ns in a long message.
#include <numeric>

#include <gtest/gtest.h>

#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr Ps kLatency = 300'000;
constexpr Ps kPsPerByte = 20;

Ps wire(int64_t bytes) { return bytes * kPsPerByte; }

TEST(ClosedForm, SingleFlowIsExact) {
  // 1 MiB = 256 packets over two links: all packets one after the other, then two latencies.
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = 1 << 20, .cookie = 1});
  const Fabric fabric = star(2);
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(traffic.arrival(1), wire((1 << 20) + 42 + 255 * 26) + 2 * kLatency);
  EXPECT_EQ(network.counts().packets, 256);
  EXPECT_EQ(network.counts().packet_hops, 512);
  EXPECT_EQ(network.counts().payload_bytes, 1 << 20);
}

TEST(ClosedForm, SlowFirstLinkSetsThePace) {
  // 25 GB/s into the switch, 50 GB/s out of it: the fast link may not start before it can send without a gap,
  // so the tail leaves with the slow link's tail: 2 x the bytes plus two latencies.
  FabricBuilder b;
  add_gpu(b, 0);
  add_gpu(b, 1);
  const NodeId hub = add_switch(b, 1, "switch");
  b.add_cable(0, hub, cable({.rate = gigabytes_per_second(25)}));
  b.add_cable(1, hub, cable({}));
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .bytes = 65536, .cookie = 1});
  traffic.add({.src = 1, .dst = 0, .bytes = 65536, .cookie = 2});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  const int64_t bytes = 65536 + 42 + 15 * 26;
  EXPECT_NEAR(static_cast<double>(traffic.arrival(1)), static_cast<double>(2 * wire(bytes) + 2 * kLatency),
              100);
  // The other way the slow link is the last: its first packet starts two... one latency after the source's.
  EXPECT_NEAR(static_cast<double>(traffic.arrival(2)), static_cast<double>(2 * wire(bytes) + 2 * kLatency),
              100);
}

TEST(ClosedForm, IncastIsBoundByTheLastLink) {
  // 16 senders of 1 MiB each into one link.
  Script traffic;
  for (Rank r = 1; r <= 16; ++r) traffic.add({.src = r, .dst = 0, .bytes = 1 << 20});
  const Fabric fabric = star(17);
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  const double ideal = static_cast<double>(16 * wire((1 << 20) + 42 + 255 * 26) + 2 * kLatency);
  EXPECT_NEAR(static_cast<double>(network.now()), ideal, ideal * 0.01);
  // Fair: each sender's last packet comes in the last round of 16.
  for (const auto& arrival : traffic.arrivals)
    EXPECT_GT(arrival.at, network.now() - 17 * wire(4138)) << "rank " << arrival.message.src;
}

TEST(ClosedForm, PermutationWithAdaptiveRoutingIsNearLineRate) {
  // 64 ranks, full bisection, everyone sends 1 MiB eight ranks further: by hash several flows share an
  // uplink, with a choice per packet they do not.
  Script traffic;
  for (Rank r = 0; r < 64; ++r) traffic.add({.src = r, .dst = (r + 8) % 64, .bytes = 1 << 20});
  const Fabric fabric = leaf_spine({.ranks = 64, .down = 8, .spines = 8});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  const double ideal = static_cast<double>(wire((1 << 20) + 42 + 255 * 26) + 4 * kLatency);
  EXPECT_GE(static_cast<double>(network.now()), ideal);
  EXPECT_LE(static_cast<double>(network.now()), ideal * 1.15);
}

TEST(ClosedForm, PermutationByDestinationIsExactlyLineRate) {
  // dst % 8 spreads the eight flows of a leaf over its eight uplinks, one each: no queue anywhere.
  Script traffic;
  for (Rank r = 0; r < 64; ++r) traffic.add({.src = r, .dst = (r + 8) % 64, .bytes = 1 << 20});
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = RoutePolicy::by_destination;
  const Fabric fabric = leaf_spine({.ranks = 64, .down = 8, .spines = 8});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(network.now(), wire((1 << 20) + 42 + 255 * 26) + 4 * kLatency);
  EXPECT_EQ(network.counts().out_of_order, 0);
}

TEST(ClosedForm, UniformAllToAllFillsTheLinks) {
  // Everyone to everyone, 16 packets a pair, in shifted order so that no destination is hit twice at once.
  constexpr Rank kRanks = 32;
  Script traffic;
  for (Rank r = 0; r < kRanks; ++r)
    for (Rank d = 1; d < kRanks; ++d) traffic.add({.src = r, .dst = (r + d) % kRanks, .bytes = 65536});
  PacketSettings settings = packet_settings();
  settings.networks[1].injection.queue_pairs = 1;
  settings.networks[1].policy = RoutePolicy::by_destination;
  const Fabric fabric = leaf_spine({.ranks = kRanks, .down = 8, .spines = 8});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  const double ideal = static_cast<double>((kRanks - 1) * wire(65536 + 42 + 15 * 26) + 4 * kLatency);
  EXPECT_GE(static_cast<double>(network.now()), ideal * 0.999);
  EXPECT_LE(static_cast<double>(network.now()), ideal * 1.01);
}

TEST(ClosedForm, ParkingLotHalvesAtEachMerge) {
  // Four switches in a line, a sender on each, all to a receiver behind the last. Every merge serves its two
  // inputs in turn: 1/2 for the nearest, then 1/4, 1/8, 1/8.
  FabricBuilder b;
  for (Rank r = 0; r < 5; ++r) add_gpu(b, r);
  std::vector<NodeId> line;
  for (Rank r = 0; r < 4; ++r) {
    line.push_back(add_switch(b, 1, fmt::format("switch {}", r)));
    b.add_cable(r, line.back(), cable({}));
    if (r > 0) b.add_cable(line[r - 1], line[r], cable({}));
  }
  b.add_cable(4, line.back(), cable({}));
  const Fabric fabric = std::move(b).finish();
  Endless traffic;
  for (Rank r = 0; r < 4; ++r) traffic.flows.push_back({.src = r, .dst = 4});
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.advance(500'000'000);
  const auto before = traffic.bytes_from;
  network.advance(8'500'000'000);
  const double total = 8e-3 * 50e9 * 65536 / (65536 + 42 + 15 * 26);
  const double share[] = {0.125, 0.125, 0.25, 0.5};
  for (Rank r = 0; r < 4; ++r)
    EXPECT_NEAR(static_cast<double>(traffic.bytes_from[r] - before.at(r)), share[r] * total,
                0.01 * share[r] * total)
        << "rank " << r;
}

TEST(ClosedForm, CreditRoundTripLimitsThroughput) {
  // A buffer of B bytes on a link whose credits take 2 x 2 us: rate = B / (round trip + packet) when that is
  // below the link. 65536 B = 1024 credits hold 15 packets of 65 credits; round trip: packet out 82.44 ns + 2
  // us + the packet's way out of the buffer 82.44 ns (cut-through: it leaves as it comes, done a packet time
  // after its head) + 2 us back.
  FabricBuilder b;
  add_gpu(b, 0);
  add_gpu(b, 1);
  const NodeId hub = add_switch(b, 1, "switch");
  b.add_cable(0, hub, cable({.latency = microseconds(2)}));
  b.add_cable(1, hub, cable({.latency = nanoseconds(100)}));
  const Fabric fabric = std::move(b).finish();
  for (bool fit : {false, true}) {
    Script traffic;
    traffic.add({.src = 0, .dst = 1, .bytes = 64 << 20, .cookie = 1});
    PacketSettings settings = packet_settings();
    settings.lanes.buffer.value = {65536};
    settings.fit_buffers = fit;
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    const double packets = 16384;
    const double cycle = 4e-6 + 82.44e-9;  // of 15 packets
    const double expected = fit ? packets * 82.44e-9 : packets / 15 * cycle;
    EXPECT_NEAR(static_cast<double>(traffic.arrival(1)) * 1e-12, expected, 0.01 * expected);
    const auto use = network.lane_use();
    EXPECT_EQ(use[0].stalled > 0, !fit);
  }
}

}  // namespace
}  // namespace plumb::sim

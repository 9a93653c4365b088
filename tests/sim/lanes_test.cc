// Virtual lanes in the network: shares, priority, isolation of victims, head-of-line blocking.
#include <gtest/gtest.h>

#include "sim/credit_lists.h"
#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

/// GB/s of payload from each rank between two dates.
std::map<Rank, double> rates(const Fabric& fabric, const PacketSettings& settings,
                             std::vector<Endless::Flow> flows, Ps warm_up = 400'000'000,
                             Ps span = 2'000'000'000) {
  Endless traffic;
  traffic.flows = std::move(flows);
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.advance(warm_up);
  const auto before = traffic.bytes_from;
  network.advance(warm_up + span);
  std::map<Rank, double> result;
  for (const auto& [rank, bytes] : traffic.bytes_from) {
    const auto it = before.find(rank);
    result[rank] =
        static_cast<double>(bytes - (it == before.end() ? 0 : it->second)) / static_cast<double>(span) * 1e3;
  }
  return result;
}

PacketSettings two_lanes() {
  PacketSettings settings = packet_settings();
  settings.num_classes = 2;
  settings.lanes.count = 2;
  settings.lanes.sl_to_vl[1] = 1;
  return settings;
}

/// 21 senders on leaves 0..2 of four to rank 24 on leaf 3; one victim on each of those leaves to ranks 25,
/// 26, 27.
std::vector<Endless::Flow> incast_and_victims(uint8_t victim_class) {
  std::vector<Endless::Flow> flows;
  for (Rank r = 0; r < 24; ++r) {
    const bool is_victim = r % 8 == 0;
    flows.push_back({.src = r,
                     .dst = is_victim ? 25 + r / 8 : 24,
                     .traffic_class = is_victim ? victim_class : uint8_t{0}});
  }
  return flows;
}

const LeafSpine kFourLeaves = {.ranks = 32, .down = 8, .spines = 8};

TEST(LanesInNetwork, WeightsShareALinkExactly) {
  // Two senders on two lanes of weights 3 : 1 into one receiver: 37.5 and 12.5 GB/s less 1.4 % headers... of
  // packets.
  PacketSettings settings = two_lanes();
  settings.lanes.low = {{0, 192}, {1, 64}};
  const auto rate =
      rates(star(3), settings, {{.src = 1, .dst = 0}, {.src = 2, .dst = 0, .traffic_class = 1}});
  const double payload = 50.0 * 65536 / (65536 + 42 + 15 * 26);
  EXPECT_NEAR(rate.at(1), 0.75 * payload, 0.01 * payload);
  EXPECT_NEAR(rate.at(2), 0.25 * payload, 0.01 * payload);
}

TEST(LanesInNetwork, EachCableOfALinkHasABufferOfItsOwn) {
  // Eight senders to one receiver behind a link of four cables: what waits there fills the input buffers of
  // all four ports, less what holds no whole packet.
  FabricBuilder b;
  for (Rank r = 0; r < 9; ++r) add_gpu(b, r);
  const NodeId near = add_switch(b, 1, "near"), far = add_switch(b, 1, "far");
  for (Rank r = 0; r < 8; ++r) b.add_cable(r, near, cable({}));
  b.add_cable(8, far, cable({}));
  FabricLink four = cable({.rate = gigabytes_per_second(200)});
  four.cables = 4;
  b.add_cable(near, far, four);
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (Rank r = 0; r < 8; ++r) traffic.add({.src = r, .dst = 8, .bytes = 1 << 20});
  PacketSettings settings = packet_settings();
  settings.fit_buffers = false;
  settings.lanes.buffer.value = Bytes{16384};
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  int64_t peak = 0;
  for (const LaneUse& use : network.lane_use())
    if (fabric.links()[size_t(use.link)].cables == 4) peak = std::max(peak, use.peak_buffer);
  EXPECT_GT(peak, 4 * 16384 - 4224);
  EXPECT_LE(peak, 4 * 16384);
}

TEST(LanesInNetwork, HighPriorityLaneTakesWhatItWants) {
  PacketSettings settings = two_lanes();
  settings.lanes.high = {{1, 64}};
  settings.lanes.low = {{0, 64}};
  const auto rate =
      rates(star(3), settings, {{.src = 1, .dst = 0}, {.src = 2, .dst = 0, .traffic_class = 1}});
  EXPECT_GT(rate.at(2), 49);
  EXPECT_EQ(rate.count(1) ? rate.at(1) : 0, 0);
}

TEST(LanesInNetwork, SharedLaneMakesVictims) {
  // Congestion spreads back from rank 24's link over all spines: the victims' links are idle and yet they get
  // little.
  const auto rate = rates(leaf_spine(kFourLeaves), packet_settings(), incast_and_victims(0));
  for (Rank r : {0, 8, 16}) EXPECT_LT(rate.at(r), 5) << "rank " << r;
}

TEST(LanesInNetwork, OwnLaneFreesTheVictim) {
  const auto rate = rates(leaf_spine(kFourLeaves), two_lanes(), incast_and_victims(1));
  for (Rank r : {0, 8, 16}) EXPECT_NEAR(rate.at(r), 49.4, 0.5) << "rank " << r;
}

TEST(LanesInNetwork, StrictInputQueuesBlockAtTheHead) {
  // Rank 0 sends to 2 and 3 in turn, rank 1 to 2 alone. With queues per output, 0 gets its half of the link
  // to 2 and as much to 3. With one queue per input the packets to 3 stand behind those to 2: still equal, as
  // the source alternates; a third rank that keeps 2 busy makes it worse for 3 by the same factor.
  std::vector<Endless::Flow> flows = {{.src = 1, .dst = 2}, {.src = 4, .dst = 2}, {.src = 0, .dst = 3}};
  PacketSettings fifo = packet_settings();
  fifo.input_queues = InputQueues::fifo;
  const auto rate = rates(star(5), fifo, flows);
  EXPECT_NEAR(rate.at(0), 49.3, 0.5);  // nobody in front of it
  // Now the same rank also feeds the congested output, on the same lane.
  Script mixed;
  for (int i = 0; i < 64; ++i) {
    mixed.add({.src = 0, .dst = i % 2 == 0 ? 2 : 3, .bytes = 4096, .cookie = static_cast<uint64_t>(i)});
    mixed.add({.src = 1, .dst = 2, .bytes = 4096, .cookie = 1000});
    mixed.add({.src = 4, .dst = 2, .bytes = 4096, .cookie = 1000});
  }
  auto last_to_3 = [&](InputQueues queues) {
    Script traffic = mixed;
    PacketSettings settings = packet_settings();
    settings.input_queues = queues;
    const Fabric fabric = star(5);
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    EXPECT_EQ(traffic.arrivals.size(), 192u);
    return traffic.arrival(63);
  };
  // 32 packets to 3 leave rank 0 with 32 to 2 between them: 64 packet times, if nothing blocks, and a few
  // more for the input buffer, which those to 2 fill. Behind the head they wait for rank 2's link, of which
  // rank 0 has a third: 3 x 32 packet times.
  const double packet = 4138 * 20;
  EXPECT_LT(static_cast<double>(last_to_3(InputQueues::per_output)), 72 * packet + 600'000);
  EXPECT_GT(static_cast<double>(last_to_3(InputQueues::fifo)), 85 * packet);
}

TEST(LanesInNetwork, PerLaneBytesAreCounted) {
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .traffic_class = 1, .bytes = 4096});
  const Fabric fabric = star(2);
  PacketNetwork network(fabric, two_lanes(), traffic);
  network.wake_all();
  network.run();
  int lanes = 0;
  for (const LaneUse& use : network.lane_use()) {
    EXPECT_EQ(use.virtual_lane, 1);
    EXPECT_EQ(use.packet_bytes, 4138);
    ++lanes;
  }
  EXPECT_EQ(lanes, 2);  // up and down
  EXPECT_EQ(network.hot_links(1)[0].packet_bytes, 4138);
}

TEST(LanesInNetwork, LevelWithoutLaneIsRefused) {
  PacketSettings settings = two_lanes();
  settings.lanes.sl_to_vl[1] = 5;
  Script traffic;
  const Fabric fabric = star(2);
  EXPECT_THROW(PacketNetwork(fabric, settings, traffic), Error);
}

TEST(CreditLists, ComeByDateInWhateverOrderTheyWereGiven) {
  CreditLists lists;
  Lane lane;
  EXPECT_TRUE(lists.add(lane, 500, 1));
  EXPECT_FALSE(lists.add(lane, 700, 2));
  EXPECT_FALSE(lists.add(lane, 600, 4));  // between the two
  EXPECT_FALSE(lists.add(lane, 500, 8));  // with the first, after it
  EXPECT_TRUE(lists.add(lane, 400, 16));  // before all
  EXPECT_EQ(lists.next_time(lane), 400);
  EXPECT_EQ(lists.collect(lane, 399), 0);
  EXPECT_EQ(lists.collect(lane, 500), 16 + 1 + 8);
  EXPECT_EQ(lists.next_time(lane), 600);
  EXPECT_TRUE(lists.add(lane, 550, 32));  // before what is left
  EXPECT_EQ(lists.collect(lane, 650), 32 + 4);
  EXPECT_EQ(lists.collect(lane, 700), 2);
  EXPECT_TRUE(lists.is_empty(lane));
  EXPECT_TRUE(lists.add(lane, 800, 1));
}

}  // namespace
}  // namespace plumb::sim

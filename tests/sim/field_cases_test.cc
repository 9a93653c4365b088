// Mistakes that other simulators were reported for, as far as the packet network could make them.
#include <string>

#include <gtest/gtest.h>

#include "model/random.h"
#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"
#include "tests/sim/site.h"

namespace plumb::sim {
namespace {

Ps one_message(const Fabric& fabric, PacketSettings settings, Message message, Ps start = 0) {
  Script traffic;
  message.cookie = 1;
  traffic.add(message);
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all(start);
  network.run();
  EXPECT_EQ(network.counts().payload_bytes, message.src == message.dst ? 0 : message.bytes);
  return traffic.arrival(1) - start;
}

TEST(FieldCases, B20_TimeNeverFallsAsSizeGrows) {
  const Fabric fabric = star(2);
  Ps before = 0;
  for (int64_t bytes : {0, 1, 15, 16, 17, 4095, 4096, 4097}) {
    const Ps time = one_message(fabric, packet_settings(), {.src = 0, .dst = 1, .bytes = bytes});
    // A header of 42 bytes and the payload; the 4097th byte needs a second packet with 26.
    EXPECT_EQ(time, (bytes + 42 + (bytes > 4096 ? 26 : 0)) * 20 + 600'000);
    EXPECT_GT(time, before);
    before = time;
  }
}

TEST(FieldCases, B21_MessageToItselfTouchesNoLink) {
  const Fabric fabric = star(2);
  PacketSettings settings = packet_settings();
  settings.local.rate = gigabytes_per_second(1000);
  settings.local.latency = nanoseconds(500);
  Script traffic;
  traffic.add({.src = 0, .dst = 0, .bytes = 1'000'000, .cookie = 1});
  PacketNetwork packets(fabric, settings, traffic);
  packets.wake_all();
  packets.run();
  EXPECT_EQ(traffic.arrival(1), 1'000'000 + 500'000);  // 1 ps per byte, and the latency
  for (const LinkUse& use : packets.link_use()) EXPECT_EQ(use.packet_bytes, 0);
  EXPECT_EQ(packets.counts().local_messages, 1);
  EXPECT_LT(1'500'000, one_message(fabric, settings, {.src = 0, .dst = 1, .bytes = 1'000'000}));
}

TEST(FieldCases, B24_EveryNumberOfRanksRuns) {
  for (Rank ranks : {1, 2, 3, 5, 6, 7, 12, 24, 36, 48, 72, 160, 192, 320, 2048}) {
    for (int32_t down : {1, 3, 4, 8, 72}) {
      if (ranks > 192 && down < 8) continue;  // thousands of leaves add time and nothing else
      Script traffic;
      int64_t bytes = 0;
      for (Rank r = 0; r < ranks; ++r)
        for (Rank step : {0, 1, 5, 31}) {
          traffic.add({.src = r, .dst = (r + step) % ranks, .bytes = 1000 + r});
          if (step % ranks != 0) bytes += 1000 + r;
        }
      const Fabric fabric = leaf_spine({.ranks = ranks, .down = down, .spines = 3});
      PacketNetwork network(fabric, packet_settings(), traffic);
      network.wake_all();
      network.run();
      EXPECT_EQ(traffic.arrivals.size(), static_cast<size_t>(ranks) * 4);
      EXPECT_EQ(network.counts().payload_bytes, bytes);
    }
  }
}

TEST(FieldCases, B31_LargeAndTinyMessagesAreExact) {
  // Whole messages: 5 GB in packets of 1 MB, 1 TB in packets of 64 MB, 1 byte; from the start and after 10^6
  // s.
  const Fabric fabric = star(2);
  struct Case {
    int64_t bytes;
    int32_t packet;
  };
  for (Case c : {Case{5'000'000'000, 1'000'000}, Case{1'000'000'000'000, 64'000'000}, Case{1, 4096}}) {
    PacketSettings settings = packet_settings();
    settings.networks[1].mtu_bytes = c.packet;  // buffers grow to two packets
    for (Ps start : {Ps{0}, Ps{1'000'000'000'000'000'000}}) {
      const int64_t packets = (c.bytes + c.packet - 1) / c.packet;
      const Ps time = one_message(fabric, settings, {.src = 0, .dst = 1, .bytes = c.bytes}, start);
      EXPECT_EQ(time, (c.bytes + 42 + (packets - 1) * 26) * 20 + 600'000);
    }
  }
}

TEST(FieldCases, B31_NoRateDrifts) {
  // 46.566 GiB/s is no whole number of picoseconds per byte; the error of 10^5 packets in a row stays below
  // one packet's rounding: 1e-9 of the time.
  const double rate = 46.566 * 1073741824.0;
  const Fabric fabric = star(2, {.rate = {rate}});
  const int64_t bytes = 100'000 * int64_t{4096};
  const double time =
      static_cast<double>(one_message(fabric, packet_settings(), {.src = 0, .dst = 1, .bytes = bytes}));
  const double expected = static_cast<double>(bytes + 42 + 99'999 * 26) / rate * 1e12 + 600'000;
  EXPECT_NEAR(time, expected, 1e-9 * expected + 2);
}

TEST(FieldCases, B31_ManyMessagesInARow) {
  // 10^5 messages of one byte, one at a time: no drift, no negative step.
  const Fabric fabric = star(2);
  Script traffic;
  for (int i = 0; i < 100'000; ++i) traffic.add({.src = 0, .dst = 1, .bytes = 1});
  PacketSettings settings = packet_settings();
  settings.networks[1].injection.queue_pairs = 1;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(network.now(), 100'000 * 43 * Ps{20} + 600'000);
  Ps before = 0;
  for (const auto& arrival : traffic.arrivals) {
    ASSERT_GT(arrival.at, before);
    before = arrival.at;
  }
}

TEST(FieldCases, B34_LongPathGetsItsShare) {
  // Two flows into one link, over 1 us and 21 us: ports serve inputs in turn and know no round trip. Both of
  // 200 MB end near 8 ms; shares by inverse latency would end the near one at 4.2 ms.
  FabricBuilder b;
  for (Rank r = 0; r < 3; ++r) add_gpu(b, r);
  const NodeId hub = add_switch(b, 1, "switch");
  b.add_cable(0, hub, cable({.latency = microseconds(0.5)}));
  b.add_cable(1, hub, cable({.latency = microseconds(20.5)}));
  b.add_cable(2, hub, cable({.latency = microseconds(0.5)}));
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (Rank r = 0; r < 2; ++r)
    traffic.add({.src = r,
                 .dst = 2,
                 .bytes = 200'000'000,
                 .packet_bytes = 65536,
                 .cookie = static_cast<uint64_t>(r)});
  PacketSettings settings = packet_settings();
  settings.networks[1].mtu_bytes = 65536;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_NEAR(static_cast<double>(traffic.arrival(0)), 8.0e9, 0.01 * 8e9);
  EXPECT_NEAR(static_cast<double>(traffic.arrival(1)), 8.0e9, 0.01 * 8e9);
}

TEST(FieldCases, B37_EveryKnobActsAsMuchAsItShould) {
  const Message message = {.src = 0, .dst = 1, .bytes = 1 << 20};
  const Ps base = one_message(star(2), packet_settings(), message);
  const Ps payload = base - 600'000;
  EXPECT_EQ(one_message(star(2, {.rate = gigabytes_per_second(25), .latency = nanoseconds(300)}),
                        packet_settings(), message),
            2 * payload + 600'000);
  EXPECT_EQ(one_message(star(2, {.rate = gigabytes_per_second(50), .latency = nanoseconds(600)}),
                        packet_settings(), message),
            payload + 1'200'000);
  // The speed of a link that nobody uses changes nothing.
  FabricBuilder b;
  for (Rank r = 0; r < 3; ++r) add_gpu(b, r);
  const NodeId hub = add_switch(b, 1, "switch");
  for (Rank r = 0; r < 3; ++r)
    b.add_cable(r, hub, cable(r < 2 ? Wire{} : Wire{.rate = gigabytes_per_second(1), .latency = {}}));
  EXPECT_EQ(one_message(std::move(b).finish(), packet_settings(), message), base);
}

std::string digest_of_run(uint64_t seed, RoutePolicy policy) {
  Script traffic;
  Random random(3, RandomStream::test);
  for (int i = 0; i < 2000; ++i) {
    const Rank src = static_cast<Rank>(random.below(32));
    traffic.add({.src = src,
                 .dst = static_cast<Rank>(random.below(32)),
                 .bytes = static_cast<int64_t>(random.below(30000)),
                 .cookie = static_cast<uint64_t>(i)});
  }
  PacketSettings settings = packet_settings();
  settings.seed = seed;
  settings.networks[1].policy = policy;
  settings.congestion.kind = CongestionKind::dcqcn;
  const Fabric fabric = leaf_spine({.ranks = 32, .down = 8, .spines = 8});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  std::string text;
  for (const auto& a : traffic.arrivals) text += fmt::format("{} {} ", a.message.cookie, a.at);
  for (const LaneUse& use : network.lane_use())
    text += fmt::format("{} {} {} {} ", use.packet_bytes, use.peak_waiting, use.peak_buffer, use.stalled);
  return text + fmt::format("{}", network.counts().events);
}

TEST(FieldCases, B35_SameSeedSameBytes) {
  const std::string first = digest_of_run(1, RoutePolicy::adaptive);
  EXPECT_EQ(first, digest_of_run(1, RoutePolicy::adaptive));
  EXPECT_NE(first, digest_of_run(2, RoutePolicy::adaptive));
}

TEST(FieldCases, B35_StepsDoNotChangeTheRun) {
  // Under another clock the network advances in steps: same dates as in one go.
  auto run = [](Ps step) {
    Script traffic;
    for (Rank r = 0; r < 32; ++r)
      for (Rank d = 1; d < 32; ++d) traffic.add({.src = r, .dst = (r + d) % 32, .bytes = 9000});
    const Fabric fabric = leaf_spine({.ranks = 32, .down = 8, .spines = 8});
    PacketNetwork network(fabric, packet_settings(), traffic);
    network.wake_all();
    for (Ps until = step; network.advance(until); until = step == kNever ? kNever : until + step) {
    }
    std::vector<Ps> dates;
    for (const auto& a : traffic.arrivals) dates.push_back(a.at);
    return dates;
  };
  const auto whole = run(kNever);
  EXPECT_EQ(whole.size(), 32u * 31u);
  EXPECT_EQ(whole, run(12'345));
}

/// Two spines of 1 and 10 us between two leaves. Rank 0 sends data and a signal to rank 2, many times; a
/// random path for every packet lets some signals overtake.
PacketCounts signals(Order order, std::vector<Ps>* data_dates = nullptr,
                     std::vector<Ps>* signal_dates = nullptr) {
  FabricBuilder b;
  for (Rank r = 0; r < 4; ++r) add_gpu(b, r);
  const NodeId left = add_switch(b, 1, "leaf 0"), right = add_switch(b, 1, "leaf 1");
  for (Rank r = 0; r < 4; ++r) b.add_cable(r, r < 2 ? left : right, cable({}));
  for (int slow = 0; slow < 2; ++slow) {
    const NodeId spine = add_switch(b, 2, fmt::format("spine {}", slow));
    b.add_cable(left, spine, cable({.latency = microseconds(slow == 1 ? 10 : 1)}));
    b.add_cable(right, spine, cable({}));
  }
  const Fabric fabric = std::move(b).finish();
  Script traffic;
  for (uint64_t i = 0; i < 20; ++i) {
    traffic.add({.src = 0, .dst = 2, .order = Order::data, .bytes = 4096, .cookie = 2 * i});
    traffic.add({.src = 0, .dst = 2, .order = order, .bytes = 0, .cookie = 2 * i + 1});
  }
  PacketSettings settings = packet_settings();
  settings.networks[1].policy = RoutePolicy::spread;
  settings.networks[1].injection.queue_pairs = 2;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  for (uint64_t i = 0; i < 20; ++i) {
    if (data_dates != nullptr) data_dates->push_back(traffic.arrival(2 * i));
    if (signal_dates != nullptr) signal_dates->push_back(traffic.arrival(2 * i + 1));
  }
  EXPECT_EQ(traffic.arrivals.size(), 40u);
  return network.counts();
}

TEST(FieldCases, B30_RacingFlagOvertakesItsDataAndIsSeen) {
  EXPECT_GT(signals(Order::racing).order_violations, 0);
}

TEST(FieldCases, B30_CountedSignalWaitsForItsData) {
  std::vector<Ps> data, signal;
  const PacketCounts counts = signals(Order::counted, &data, &signal);
  EXPECT_EQ(counts.order_violations, 0);
  EXPECT_GT(counts.held_signals, 0);
  Ps all_so_far = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    all_so_far = std::max(all_so_far, data[i]);
    EXPECT_GE(signal[i], all_so_far);
  }
}

TEST(FieldCases, B30_FencedSignalCostsARoundTrip) {
  std::vector<Ps> data, signal;
  const PacketCounts counts = signals(Order::fenced, &data, &signal);
  EXPECT_EQ(counts.order_violations, 0);
  EXPECT_EQ(counts.held_signals, 0);
  // After its data landed: the acknowledgement's way back and the signal's own way, at least the short path's
  // twice.
  for (size_t i = 0; i < data.size(); ++i) EXPECT_GE(signal[i], data[i] + 2 * 1'900'000);
}

/// 16 ranks on 2 nodes, all of whose 2304 tokens choose the experts of rank 0.
Plan all_to_one_rank() {
  Shape shape = shape_of(16, 2304, 16);
  shape.topk = 8;
  shape.hidden = 256;
  std::vector<int32_t> table;
  for (int64_t row = 0; row < shape.total_tokens(); ++row)
    for (int32_t k = 0; k < shape.topk; ++k) table.push_back(k);
  const Routing routing = Routing::from_table(shape, std::move(table));
  const Program program{.kind = ProgramKind::dispatch, .mode = Mode::direct, .num_sms = 12};
  return build_plan({.shape = shape, .routing = routing, .program = program, .grouping = {16, 8}});
}

TEST(FieldCases, B38_AHotExpertFillsItsLinkWhateverTheQueueDepth) {
  const Site site(machine_of(2, SwitchedDomain{.ranks = 8, .planes = 1},
                             FatTree{.down = {8, 2}, .up = {8, 0}, .radix = 16, .rail_optimized = false}, 8));
  const Plan plan = all_to_one_rank();
  const PhaseId remote = *plan.find_phase("remote"), near = *plan.find_phase("dispatch");
  int64_t rows = 0, bytes = 0;  // bytes from the other node
  for (const Op& op : plan.ops()) {
    if (op.phase != remote && op.phase != near) continue;
    EXPECT_EQ(op.dst, 0);
    rows += op.rows;
    if (op.phase == remote) bytes += op.bytes;
  }
  EXPECT_EQ(rows, 16 * 2304);
  for (const int32_t depth : {1, 128, 1024}) {
    SimOptions options;
    options.queue_pairs = depth;
    const Trace trace = site.run(plan, options);
    EXPECT_EQ(difference(plan, account(plan), trace.ledger), "") << depth;
    // At least a header of 26 bytes on each packet of 4096 that reaches rank 0's NIC of 50 GB/s; the packets
    // of a chunk's end are shorter, and the first chunk is staged before.
    const double floor = static_cast<double>(bytes) * (1 + 26.0 / 4096) / 50e9;
    EXPECT_GE(trace.phase_times[remote].time.value, floor) << depth;
    EXPECT_LE(trace.phase_times[remote].time.value, floor * 1.04) << depth;
  }
}

TEST(FieldCases, B39_MoreMessagesThanTheQueueHoldsArriveInOrder) {
  const Fabric fabric = star(2);
  for (const int32_t depth : {1, 128, 256, 65535, 65536}) {
    Script traffic;
    int64_t bytes = 0;
    for (uint64_t i = 0; i < 300; ++i) {
      traffic.add({.src = 0, .dst = 1, .bytes = 3 * 4096, .cookie = i});
      bytes += 3 * 4096;
    }
    PacketSettings settings = packet_settings();
    settings.networks[1].injection.queue_pairs = depth;
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    EXPECT_EQ(network.counts().payload_bytes, bytes);
    ASSERT_EQ(traffic.arrivals.size(), 300u) << depth;
    for (uint64_t i = 0; i < 300; ++i) EXPECT_EQ(traffic.arrivals[i].message.cookie, i) << depth;
  }
}

TEST(FieldCases, B39_AQueueOfNoDepthIsRefused) {
  Script traffic;
  PacketSettings settings = packet_settings();
  settings.networks[1].injection.queue_pairs = 0;
  const Fabric fabric = star(2);
  EXPECT_EQ(error_of([&] { PacketNetwork(fabric, settings, traffic); }),
            "packet network: 0 queue pairs; allowed: 1 or more");
}

}  // namespace
}  // namespace plumb::sim

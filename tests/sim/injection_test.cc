// What limits a source: queue pairs, message rate, the share of one queue pair, the window; and what it
// hears.
#include <gtest/gtest.h>

#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

struct Outcome {
  Ps end = 0;
  std::vector<Script::Arrival> arrivals, sent;
  std::vector<std::pair<int64_t, Ps>> chunks;
};

Outcome run(const Injection& injection, const std::vector<Message>& messages) {
  Script traffic;
  for (const Message& m : messages) traffic.add(m);
  PacketSettings settings = packet_settings();
  settings.networks[1].injection = injection;
  const Fabric fabric = star(4);
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  return {network.now(), traffic.arrivals, traffic.sent, traffic.chunks};
}

TEST(Injection, MessageRateSpacesSmallMessages) {
  // 1 M messages/s: the 100th starts after 99 us, however small.
  std::vector<Message> messages(100, {.src = 0, .dst = 1, .bytes = 8});
  EXPECT_EQ(run({.message_rate = {1e6}}, messages).arrivals.back().at,
            99 * Ps{1'000'000} + 50 * 20 + 600'000);
}

TEST(Injection, OneQueuePairFillsItsShare) {
  // 0.7 of the link with one message at a time, all of it with two.
  const int64_t bytes = 1 << 20;
  const double alone = static_cast<double>(bytes + 42 + 255 * 26) * 20;
  const Message m = {.src = 0, .dst = 1, .bytes = bytes};
  auto end = [](int32_t pairs, const std::vector<Message>& messages) {
    return static_cast<double>(run({.queue_pairs = pairs, .queue_pair_share = 0.7}, messages).end - 600'000);
  };
  EXPECT_NEAR(end(1, {m}), alone / 0.7, 0.01 * alone);
  EXPECT_NEAR(end(2, {m, m}), 2 * alone, 0.01 * alone);
}

TEST(Injection, WindowLimitsToBytesPerRoundTrip) {
  // 16 KiB not yet acknowledged: four packets per round trip of 600 ns out, 600 ns back and a packet time or
  // so.
  const Outcome outcome = run({.outstanding_bytes = 16384}, {{.src = 0, .dst = 1, .bytes = 4 << 20}});
  const double rounds = 1024 / 4.0;
  EXPECT_NEAR(static_cast<double>(outcome.end), rounds * (1'200'000 + 4122 * 20), rounds * 4122 * 20);
  EXPECT_GT(static_cast<double>(outcome.end), rounds * 1'200'000);
}

TEST(Injection, MessagesInWorkTakeTurns) {
  // Two equal messages on two queue pairs end together, on one queue pair one after the other.
  const std::vector<Message> messages(2, {.src = 0, .dst = 1, .bytes = 1 << 20});
  const Outcome together = run({.queue_pairs = 2}, messages), apart = run({.queue_pairs = 1}, messages);
  EXPECT_EQ(together.end, apart.end);
  EXPECT_LT(together.arrivals[1].at - together.arrivals[0].at, 2 * 4138 * 20);
  EXPECT_GT(apart.arrivals[1].at - apart.arrivals[0].at, 20'000'000);
}

TEST(Injection, SentComesWhenTheLastByteHasLeft) {
  const Outcome outcome = run({}, {{.src = 0, .dst = 1, .report_sent = true, .bytes = 8192}});
  ASSERT_EQ(outcome.sent.size(), 1u);
  EXPECT_EQ(outcome.sent[0].at, (8192 + 42 + 26) * Ps{20});
  EXPECT_EQ(outcome.arrivals[0].at, outcome.sent[0].at + 600'000);
}

TEST(Injection, ChunksAreReportedAsTheyLand) {
  // Ten packets in chunks of four: after 4, 8 and 10.
  const Outcome outcome = run({}, {{.src = 0, .dst = 1, .bytes = 40000, .chunk_packets = 4}});
  ASSERT_EQ(outcome.chunks.size(), 3u);
  EXPECT_EQ(outcome.chunks[0], (std::pair<int64_t, Ps>(16384, (16384 + 42 + 3 * 26) * 20 + 600'000)));
  EXPECT_EQ(outcome.chunks[1].first, 32768);
  EXPECT_EQ(outcome.chunks[2].first, 40000);
}

TEST(Injection, TokenRowsTravelAsOnePacket) {
  // One packet per row of 7408 bytes instead of two of the MTU: 42 bytes of header instead of 68.
  const Outcome outcome = run({}, {{.src = 0, .dst = 1, .bytes = 7408, .packet_bytes = 7408}});
  EXPECT_EQ(outcome.end, (7408 + 42) * 20 + 600'000);
}

TEST(Injection, ImpossibleMessagesAreRefused) {
  EXPECT_THROW(run({}, {{.src = 0, .dst = 9, .bytes = 8}}), Error);
  EXPECT_THROW(run({}, {{.src = 0, .dst = 1, .bytes = -8}}), Error);
  EXPECT_THROW(run({}, {{.src = 0, .dst = 1, .bytes = 1 << 20, .packet_bytes = 1 << 20}}),
               Error);  // no buffer holds it
}

TEST(Injection, RankWithoutPathIsNamed) {
  Script traffic;
  traffic.add({.src = 0, .dst = 1, .network = Link::scale_up, .bytes = 8});
  FabricBuilder b;
  for (Rank r = 0; r < 4; ++r) add_gpu(b, r);
  for (int island = 0; island < 2; ++island) {
    const NodeId hub =
        b.add_node({.kind = NodeKind::scale_up_switch, .tier = 1, .name = fmt::format("island {}", island)});
    for (Rank r = island; r < 4; r += 2)
      b.add_cable(r, hub, {.rate = gigabytes_per_second(450), .latency = {}});
  }
  const Fabric fabric = std::move(b).finish();
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  try {
    network.run();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("from rank 0 to rank 1"), std::string::npos) << error.what();
  }
}

TEST(Injection, TimersAndStopWork) {
  class Stopper : public Script {
   public:
    PacketNetwork* network = nullptr;
    void on_timer(uint32_t id, Ps at) override {
      timers.push_back({id, at});
      if (id == 7) network->stop();
    }
    std::vector<std::pair<uint32_t, Ps>> timers;
  } traffic;
  const Fabric fabric = star(2);
  PacketNetwork network(fabric, packet_settings(), traffic);
  traffic.network = &network;
  network.call_at(5000, 7);
  network.call_at(6000, 8);
  EXPECT_EQ(network.next_event(), 5000);
  EXPECT_TRUE(network.advance(10'000));
  EXPECT_EQ(network.now(), 5000);
  EXPECT_FALSE(network.advance(10'000));
  EXPECT_EQ(network.now(), 10'000);
  ASSERT_EQ(traffic.timers.size(), 2u);
  EXPECT_EQ(traffic.timers[1], (std::pair<uint32_t, Ps>(8, 6000)));
}

}  // namespace
}  // namespace plumb::sim

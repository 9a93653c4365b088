// Large runs in small: time and memory follow packets in flight, never the number of messages or pairs.
#include <gtest/gtest.h>

#include "sim/packet_network.h"
#include "tests/sim/expert_traffic.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr Rank kRanks = 512;
constexpr int32_t kQueuePairs = 32;

/// A dispatch that counts the messages which were asked for and have not left their source.
class Watched : public Dispatch {
 public:
  using Dispatch::Dispatch;
  bool next(Rank src, Link network, uint8_t traffic_class, Message& message) override {
    if (!Dispatch::next(src, network, traffic_class, message)) return false;
    message.report_sent = true;
    // A queue pair whose last packet has not ended on the wire may take the next message already.
    ++open_;
    most_open = std::max(most_open, open_);
    return true;
  }
  void on_sent(const Message&, Ps) override { --open_; }

  int64_t most_open = 0;

 private:
  int64_t open_ = 0;
};

struct Decoded {
  int64_t messages = 0;
  int64_t most_open = 0;
  int64_t memory_bytes = 0;
};

Decoded decode(int32_t tokens) {
  Watched traffic({.ranks = kRanks, .tokens = tokens, .topk = 8});
  const Fabric fabric = leaf_spine({.ranks = kRanks, .down = 16, .spines = 16});
  PacketSettings settings = packet_settings();
  settings.networks[1].injection.queue_pairs = kQueuePairs;
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  EXPECT_EQ(traffic.arrived, traffic.drawn);
  EXPECT_EQ(traffic.drawn, int64_t{kRanks} * tokens * 8);
  return {traffic.drawn, traffic.most_open, network.memory_bytes()};
}

TEST(FieldCases, B36_Ep512IsPulledLazilyInLittleMemory) {
  const Decoded some = decode(16), many = decode(48);
  EXPECT_EQ(many.messages, 3 * some.messages);
  // Of 196 608 messages each of 512 ranks has 32 in work, and two more may wait for and be on the wire. A
  // network that took all at once would have them all.
  EXPECT_LE(many.most_open, kRanks * (kQueuePairs + 2));
  EXPECT_LT(many.most_open, many.messages / 8);
  // Three times the messages: the same number in flight.
  EXPECT_LE(static_cast<double>(many.memory_bytes), 1.1 * static_cast<double>(some.memory_bytes));
  EXPECT_LE(many.memory_bytes, 8 << 20);
}

}  // namespace
}  // namespace plumb::sim

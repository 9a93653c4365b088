// Congestion control: what the modules do to an incast and its victims. Absolute figures depend on parameters
// that nobody has calibrated; the tests hold directions and conservation.
#include "sim/congestion.h"

#include <gtest/gtest.h>

#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

struct Outcome {
  double victim = 0;  // GB/s each
  double incast = 0;  // GB/s in all
  PacketCounts counts;
};

/// 21 senders to rank 24 and three victims to its neighbours, all on one lane; four leaves of eight, eight
/// spines.
Outcome incast(const CongestionSettings& congestion) {
  Endless traffic;
  for (Rank r = 0; r < 24; ++r) traffic.flows.push_back({.src = r, .dst = r % 8 == 0 ? 25 + r / 8 : 24});
  PacketSettings settings = packet_settings();
  settings.networks[1].injection.queue_pairs = 8;
  settings.congestion = congestion;
  const Fabric fabric = leaf_spine({.ranks = 32, .down = 8, .spines = 8});
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.advance(1'000'000'000);
  const auto before = traffic.bytes_from;
  network.advance(3'000'000'000);
  Outcome outcome;
  for (const auto& [rank, bytes] : traffic.bytes_from) {
    const double rate = static_cast<double>(bytes - before.at(rank)) / 2e9 * 1e3;
    (rank % 8 == 0 ? outcome.victim : outcome.incast) += rank % 8 == 0 ? rate / 3 : rate;
  }
  outcome.counts = network.counts();
  return outcome;
}

TEST(Congestion, WithoutControlVictimsStarve) {
  const Outcome outcome = incast({});
  EXPECT_LT(outcome.victim, 5);
  EXPECT_NEAR(outcome.incast, 49.4, 0.5);
  EXPECT_EQ(outcome.counts.marks, 0);
}

TEST(Congestion, EachSchemeFreesVictims) {
  for (CongestionKind kind : {CongestionKind::infiniband, CongestionKind::dcqcn, CongestionKind::caqm}) {
    CongestionSettings settings = {.kind = kind};
    // The table's default timer of 154 us per step lets a flow that was marked by mistake recover within 20
    // ms only.
    settings.infiniband.ccti_timer = microseconds(10.24);
    const Outcome outcome = incast(settings);
    EXPECT_GT(outcome.victim, 8) << static_cast<int>(kind);
    EXPECT_GT(outcome.incast, 20) << static_cast<int>(kind);
    EXPECT_GT(outcome.counts.marks, 0) << static_cast<int>(kind);
    EXPECT_GT(outcome.counts.echoes, 0) << static_cast<int>(kind);
  }
}

TEST(Congestion, InfinibandMarksRootsUnlessVictimsToo) {
  CongestionSettings settings = {.kind = CongestionKind::infiniband};
  const int64_t roots = incast(settings).counts.marks;
  settings.infiniband.mark_victims = true;
  EXPECT_GT(incast(settings).counts.marks, roots);
}

TEST(Congestion, SilentOnAnUncongestedFlow) {
  for (CongestionKind kind : {CongestionKind::infiniband, CongestionKind::dcqcn, CongestionKind::caqm}) {
    Script traffic;
    traffic.add({.src = 0, .dst = 1, .bytes = 8 << 20, .cookie = 1});
    PacketSettings settings = packet_settings();
    settings.congestion.kind = kind;
    const Fabric fabric = star(2);
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    // C-AQM marks a lone flow too, once its window asks for more than the link can take.
    EXPECT_EQ(network.counts().marks > 0, kind == CongestionKind::caqm);
    // Nothing held back. A window of ten packets is less than the 1.2 us round trip at 50 GB/s needs, and
    // must grow.
    EXPECT_LT(static_cast<double>(traffic.arrival(1)), ((8 << 20) + 2048.0 * 26) * 20 * 1.02 + 1e6)
        << static_cast<int>(kind);
  }
}

TEST(Congestion, FlowsAreForgottenWhenTheyAreDone) {
  // Each scheme ends with nothing under way and the run ends: no timer keeps it alive for ever.
  for (CongestionKind kind : {CongestionKind::infiniband, CongestionKind::dcqcn, CongestionKind::caqm}) {
    Script traffic;
    for (Rank r = 1; r < 16; ++r) traffic.add({.src = r, .dst = 0, .bytes = 1 << 20});
    PacketSettings settings = packet_settings();
    settings.congestion.kind = kind;
    const Fabric fabric = star(16);
    PacketNetwork network(fabric, settings, traffic);
    network.wake_all();
    network.run();
    EXPECT_EQ(traffic.arrivals.size(), 15u);
    EXPECT_LT(network.now(), 1'000'000'000'000) << static_cast<int>(kind);  // 1 s
  }
}

TEST(Congestion, CaqmGrantsNoMoreThanTheOutputTakes) {
  // One output, one period of 500 ns at 50 GB/s: 25000 bytes and a target queue of ten MTU, of which half is
  // handed out when nothing was sent: (25000 + 40960) / 2 = 32980 bytes, i.e. eight requests of 4096 bytes;
  // the ninth is refused or marked.
  const Fabric fabric = star(2);
  const ChannelGraph graph(fabric);
  const auto caqm = make_caqm({}, graph, 1);
  caqm->open(0, {.round_trip = 1'200'000, .ps_per_byte = uint64_t{20} << 32, .mtu_bytes = 4096});
  int granted = 0;
  for (int i = 0; i < 12; ++i) {
    uint16_t field = caqm->send(0, 4138, 0);
    const uint16_t asked = field;
    caqm->at_queue({.channel = 0, .waiting_bytes = 4138, .packet_bytes = 4138, .now = 1'000'000}, field);
    if (field != asked) break;
    ++granted;
  }
  EXPECT_EQ(granted, 8);
}

}  // namespace
}  // namespace plumb::sim

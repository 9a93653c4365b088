// Textbook cases as plans, in both fidelities: the executor adds nothing to and takes nothing from what the
// networks do. Links of 50 GB/s (20 ps per byte) and 300 ns; an op moves in messages of 64 KiB, i.e. of 16
// packets of 4096 bytes with 42 (first) or 26 bytes of header.
#include <numeric>

#include <gtest/gtest.h>

#include "tests/sim/fabrics.h"
#include "tests/sim/site.h"

namespace plumb::sim {
namespace {

constexpr double kHop = 300e-9;

/// Seconds of payload with its headers on one link.
double wire(int64_t bytes) {
  const int64_t messages = (bytes + 65535) / 65536, packets = (bytes + 4095) / 4096;
  return static_cast<double>(bytes + 42 * messages + 26 * (packets - messages)) / 50e9;
}

/// A machine whose network is the given one, whatever the machine says.
Site site_on(Fabric fabric) {
  Site site(machine_of(1, SwitchedDomain{.ranks = fabric.ranks(), .planes = 1}, NoScaleOut{}, 0));
  site.machine.scale_out.mtu_bytes.value = 4096;
  site.fabric = std::move(fabric);
  return site;
}

struct Transfer {
  Rank src = 0;
  Rank dst = 0;
  int64_t bytes = 0;
  uint8_t traffic_class = 0;
};

/// Each source also waits, in a phase of its own, until what it sends has left.
Plan plan_of(int32_t ranks, const std::vector<Transfer>& transfers) {
  Plan plan({}, {ranks, 1});
  plan.add_phase(phase("send"));
  plan.add_phase(phase("sent"));
  for (const Transfer& t : transfers) {
    Op op = put(0, t.src, t.dst, Link::scale_out, t.bytes);
    op.traffic_class = t.traffic_class;
    const OpId id = plan.add(op);
    plan.add(local(OpKind::wait, 1, t.src), {{.op = id, .on = On::sent}});
  }
  return plan;
}

/// When the last byte of a source left it.
double end_of(const Trace& trace, Rank rank) {
  for (const Span& span : trace.spans)
    if (span.rank == rank && span.phase == 1) return static_cast<double>(span.end_ns) * 1e-9;
  ADD_FAILURE() << "rank " << rank << " sent nothing";
  return 0;
}

class EachFidelity : public testing::TestWithParam<Fidelity> {
 protected:
  SimOptions options() const {
    SimOptions o;
    o.fidelity = GetParam();
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Plans, EachFidelity, testing::Values(Fidelity::packet, Fidelity::flow),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST_P(EachFidelity, IncastIsBoundByTheLastLink) {
  const Site site = site_on(star(9));
  std::vector<Transfer> all;
  for (Rank r = 1; r < 9; ++r) all.push_back({.src = r, .dst = 0, .bytes = 1 << 20});
  const double expected = 8 * wire(1 << 20) + 2 * kHop;
  EXPECT_NEAR(site.run(plan_of(9, all), options()).total.value, expected, 0.01 * expected);
}

TEST_P(EachFidelity, PermutationRunsAtLineRate) {
  const Site site = site_on(star(8));
  std::vector<Transfer> all;
  for (Rank r = 0; r < 8; ++r) all.push_back({.src = r, .dst = (r + 3) % 8, .bytes = 1 << 20});
  EXPECT_NEAR(site.run(plan_of(8, all), options()).total.value, wire(1 << 20) + 2 * kHop, 1e-9);
}

TEST_P(EachFidelity, UniformAllToAllFillsAFullBisection) {
  const Site site = site_on(leaf_spine({.ranks = 32, .down = 8, .spines = 8}));
  std::vector<Transfer> all;
  for (Rank step = 1; step < 32; ++step)
    for (Rank r = 0; r < 32; ++r) all.push_back({.src = r, .dst = (r + step) % 32, .bytes = 65536});
  SimOptions o = options();
  o.queue_pairs = 1;
  // Static paths do not collide in this order. Flows split: they need not choose.
  if (GetParam() == Fidelity::packet) o.routing[1] = RoutePolicy::by_destination;
  const double expected = 31 * wire(65536) + 4 * kHop;
  EXPECT_NEAR(site.run(plan_of(32, all), o).total.value, expected, 0.01 * expected);
}

TEST_P(EachFidelity, ParkingLotServesPortsOrFlows) {
  // Senders on four switches in a line with 1/8, 1/8, 1/4 and 1/2 of S = 64 MiB to a receiver behind the
  // last.
  FabricBuilder b;
  for (Rank r = 0; r < 5; ++r) add_gpu(b, r);
  std::vector<NodeId> line;
  for (Rank r = 0; r < 4; ++r) {
    line.push_back(add_switch(b, 1, fmt::format("switch {}", r)));
    b.add_cable(r, line.back(), cable({}));
    if (r > 0) b.add_cable(line[line.size() - 2], line.back(), cable({}));
  }
  b.add_cable(4, line.back(), cable({}));
  const Site site = site_on(std::move(b).finish());
  const int64_t all = 64 << 20;
  const Trace trace =
      site.run(plan_of(5, {{0, 4, all / 8, 0}, {1, 4, all / 8, 0}, {2, 4, all / 4, 0}, {3, 4, all / 2, 0}}),
               options());
  const double whole = wire(all);
  EXPECT_NEAR(trace.total.value, whole, 0.01 * whole);
  // Each merge of packets serves its two ports in turn: shares are those of the sizes and all end together,
  // but for what the buffers on the way hold, up to four of 64 KiB: 3 % of the smallest part. Flows get a
  // quarter each: the small ones end at 4 x 1/8, then the third, with 1/8 left at half the rate, at 3/4.
  const bool is_packet = GetParam() == Fidelity::packet;
  const double margin = (is_packet ? 0.04 : 0.01) * whole;
  const double expected[] = {is_packet ? 1 : 0.5, is_packet ? 1 : 0.5, is_packet ? 1 : 0.75, 1};
  for (Rank r = 0; r < 4; ++r) EXPECT_NEAR(end_of(trace, r), expected[r] * whole, margin) << "rank " << r;
}

/// Two senders of the classes 0 and 1 to rank 0, on two lanes.
struct TwoLanes {
  explicit TwoLanes(std::vector<LaneWeight> high, std::vector<LaneWeight> low) {
    options.lanes = Lanes{};
    options.lanes->count = 2;
    options.lanes->sl_to_vl[1] = 1;
    options.lanes->high = std::move(high);
    options.lanes->low = std::move(low);
  }
  Trace run(int64_t first, int64_t second) const {
    return site_on(star(3)).run(plan_of(3, {{1, 0, first, 0}, {2, 0, second, 1}}), options);
  }
  SimOptions options;
};

TEST(PlanLanes, WeightsShareALink) {
  // 3 : 1 for three and one part of the bytes: both end with the link's last byte. What waits in the buffer
  // of the switch (64 KiB) has left its source.
  const TwoLanes lanes({}, {{0, 192}, {1, 64}});
  const double whole = wire(16 << 20);
  const Trace trace = lanes.run(12 << 20, 4 << 20);
  EXPECT_NEAR(trace.total.value, whole + 2 * kHop, 0.001 * whole);
  EXPECT_NEAR(end_of(trace, 1), whole, 0.02 * whole);
  EXPECT_NEAR(end_of(trace, 2), whole, 0.02 * whole);
  // With equal weights the small one has half of the link and ends at half of the time.
  EXPECT_NEAR(end_of(TwoLanes({}, {{0, 64}, {1, 64}}).run(12 << 20, 4 << 20), 2), whole / 2, 0.02 * whole);
}

TEST(PlanLanes, HighPriorityGoesFirst) {
  const Trace trace = TwoLanes({{1, 64}}, {{0, 64}}).run(4 << 20, 4 << 20);
  EXPECT_NEAR(end_of(trace, 2), wire(4 << 20), 0.01 * wire(4 << 20));
  EXPECT_NEAR(trace.total.value, wire(8 << 20) + 2 * kHop, 0.01 * wire(8 << 20));
}

TEST(PlanLanes, AVictimIsFreeOnItsOwnLaneOnly) {
  // 21 senders on leaves 0 .. 2 to rank 24; one victim on each of these leaves to a rank of its own.
  const Site site = site_on(leaf_spine({.ranks = 32, .down = 8, .spines = 8}));
  const auto victim = [&](uint8_t traffic_class) {
    std::vector<Transfer> all;
    for (Rank r = 0; r < 24; ++r) {
      const bool is_victim = r % 8 == 0;
      all.push_back({.src = r,
                     .dst = is_victim ? 25 + r / 8 : 24,
                     .bytes = 2 << 20,
                     .traffic_class = is_victim ? traffic_class : uint8_t{0}});
    }
    SimOptions o;
    o.lanes = Lanes{};
    o.lanes->count = 2;
    o.lanes->sl_to_vl[1] = 1;
    o.lanes->adaptive.fill(true);
    const Trace trace = site.run(plan_of(32, all), o);
    // Whatever the victims do, the hot link carries 21 messages.
    EXPECT_NEAR(trace.total.value, 21 * wire(2 << 20), 0.02 * 21 * wire(2 << 20));
    return end_of(trace, 8);
  };
  const double alone = wire(2 << 20);
  EXPECT_NEAR(victim(1), alone, 0.02 * alone);
  EXPECT_GT(victim(0), 5 * alone);
}

TEST_P(EachFidelity, B20_TimeNeverFallsAsSizeGrows) {
  const Site site = site_on(star(2));
  double before = 0;
  for (const int64_t bytes : {0, 1, 15, 16, 17, 4095, 4096, 4097}) {
    const double time = site.run(plan_of(2, {{0, 1, bytes, 0}}), options()).total.value;
    EXPECT_NEAR(time, static_cast<double>(bytes + 42 + (bytes > 4096 ? 26 : 0)) / 50e9 + 2 * kHop, 1e-12);
    EXPECT_GT(time, before);
    before = time;
  }
}

TEST_P(EachFidelity, B21_BytesToItselfTouchNoLink) {
  const Site site = site_on(star(2));
  Plan plan({}, {2, 1});
  plan.add_phase(phase("send"));
  plan.add(local(OpKind::copy, 0, 0, 1'000'000));
  SimExecutor executor(site.machine, site.fabric, {}, options());
  // The memory engine reads and writes them at 4000 GB/s.
  EXPECT_NEAR(executor.run(plan).total.value, 2e6 / 4000e9, 1e-9);
  for (const LinkUse& use : executor.report().links) EXPECT_EQ(use.packet_bytes, 0);
  EXPECT_EQ(executor.report().counts.packets, 0);
  EXPECT_LT(2e6 / 4000e9, site.run(plan_of(2, {{0, 1, 1'000'000, 0}}), options()).total.value);
}

TEST_P(EachFidelity, B31_LargeMessagesAreExact) {
  // 5 GB in 76 294 messages, and 1 TB in ten of 100 GB; to 1e-9 of the time. As flows, 32 messages at once
  // end on whole picoseconds, 2385 times: up to 2.4 ns.
  const Site site = site_on(star(2));
  const int64_t five = 5'000'000'000;
  EXPECT_NEAR(site.run(plan_of(2, {{0, 1, five, 0}}), options()).total.value, wire(five) + 2 * kHop,
              GetParam() == Fidelity::flow ? 2.4e-9 : 1e-10);
  Plan plan({}, {2, 1});
  Phase p = phase("send");
  p.chunk_rows = 1;
  plan.add_phase(p);
  plan.add(put(0, 0, 1, Link::scale_out, 1'000'000'000'000, 10));
  SimOptions o = options();
  o.packet = Bytes{1 << 24};
  o.queue_pairs = 1;
  // 100 GB are 5961 packets of 16 MiB, the last one not full.
  const double bytes = 1e12 + 10 * (42 + 5960 * 26);
  EXPECT_NEAR(site.run(plan, o).total.value / (bytes / 50e9 + 2 * kHop), 1, 1e-9);
}

TEST_P(EachFidelity, B34_ALongPathGetsItsShare) {
  // 200 MB over 1 us and over 21 us into one link: both end near 8 ms.
  FabricBuilder b;
  for (Rank r = 0; r < 3; ++r) add_gpu(b, r);
  const NodeId hub = add_switch(b, 1, "switch");
  for (Rank r = 0; r < 3; ++r) b.add_cable(r, hub, cable({.latency = microseconds(r == 1 ? 20.5 : 0.5)}));
  const Site site = site_on(std::move(b).finish());
  const Trace trace = site.run(plan_of(3, {{0, 2, 200'000'000, 0}, {1, 2, 200'000'000, 0}}), options());
  const double both = wire(400'000'000);
  for (Rank r = 0; r < 2; ++r) EXPECT_NEAR(end_of(trace, r), both, 0.01 * both) << "rank " << r;
}

TEST(PlanSeeds, B35_AnotherSeedChangesAdaptiveChoicesOnly) {
  const Site site(two_tiers(false, 8));
  const Plan plan = build(ProgramKind::dispatch, shape_of(32, 24), site.machine.grouping());
  const auto run = [&](RoutePolicy policy, uint64_t seed) {
    SimOptions o;
    o.routing = {policy, policy};
    o.seed = seed;
    return site.run(plan, o);
  };
  const Trace one = run(RoutePolicy::spread, 1), two = run(RoutePolicy::spread, 2);
  EXPECT_NE(one.spans, two.spans);
  EXPECT_EQ(one.ledger, two.ledger);
  EXPECT_EQ(one.header.plan, two.header.plan);
  EXPECT_EQ(run(RoutePolicy::by_destination, 1).spans, run(RoutePolicy::by_destination, 2).spans);
}

TEST_P(EachFidelity, B37_RateActsOnThePayloadAndLatencyOnTheSteps) {
  const auto time = [&](double rate, double hop, const auto& plan) {
    Machine m = two_tiers(false, 4);
    m.scale_up.rate.value = gigabytes_per_second(400 * rate);
    m.scale_out.port_rate.value = gigabytes_per_second(50 * rate);
    m.scale_up.latency.value = nanoseconds(300 * hop);
    m.scale_out.nic_latency.value = nanoseconds(1000 * hop);
    m.scale_out.hop_latency.value = nanoseconds(400 * hop);
    return Site(std::move(m)).run(plan, options()).total.value;
  };
  Plan one({}, {16, 4});
  one.add_phase(phase("send"));
  one.add(put(0, 0, 15, Link::scale_out, 1 << 20));
  // One message: rate x 1/2 doubles all but the latency (3 switches, 2 NICs), and only that doubles with the
  // latencies.
  const double latency = 3 * 400e-9 + 2 * 1000e-9;
  const double base = time(1, 1, one);
  EXPECT_NEAR(time(0.5, 1, one), 2 * (base - latency) + latency, 1e-9);
  EXPECT_NEAR(time(1, 2, one), base + latency, 1e-9);
  for (const Mode mode : {Mode::direct, Mode::hybrid}) {
    Program program;
    program.mode = mode;
    const Plan plan = build(ProgramKind::round_trip, shape_of(16, 24), {16, 4}, program);
    const double whole = time(1, 1, plan), slow = time(0.5, 1, plan), far = time(1, 2, plan);
    EXPECT_GE(slow, whole);
    EXPECT_LE(slow, 2 * whole);
    EXPECT_GE(far, whole);
    EXPECT_LE(far - whole, 2 * static_cast<double>(plan.phases().size()) * latency);
  }
}

TEST_P(EachFidelity, B37_TheSpeedOfAnIdleLinkChangesNothing) {
  const auto spans = [&](double rate) {
    FabricBuilder b;
    for (Rank r = 0; r < 4; ++r) add_gpu(b, r);
    const NodeId hub = add_switch(b, 1, "switch");
    for (Rank r = 0; r < 4; ++r)
      b.add_cable(r, hub, cable({.rate = gigabytes_per_second(r < 3 ? 50 : rate)}));
    return site_on(std::move(b).finish())
        .run(plan_of(4, {{0, 1, 1 << 20, 0}, {1, 2, 1 << 19, 0}, {2, 0, 1 << 18, 0}}), options())
        .spans;
  };
  EXPECT_EQ(spans(50), spans(1));
  // Packets wait before a switch so long that its fastest link would not run dry (docs/simulator.md).
  if (GetParam() == Fidelity::flow) {
    EXPECT_EQ(spans(50), spans(400));
  }
}

}  // namespace
}  // namespace plumb::sim

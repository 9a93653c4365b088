// Plans on the simulated network: closed forms, what a rank does beside the network, faults, and that every
// builder's plan ends with its own ledger.
#include <gtest/gtest.h>

#include "model/analytic.h"
#include "tests/sim/site.h"

namespace plumb::sim {
namespace {

TEST(PlanPlayer, OnePutTakesItsBytesAndTheLatency) {
  Plan plan = empty_plan();
  plan.add_phase(phase("send"));
  plan.add(put(0, 0, 1, Link::scale_up, 1 << 20));
  const Trace trace = node().run(plan);
  EXPECT_NEAR(trace.total.value, up_seconds(1 << 20) + node().latency(Link::scale_up, 0, 1), 1e-9);
  EXPECT_EQ(trace.ledger, account(plan));
  EXPECT_EQ(trace.header.clock, "simulated");
}

TEST(PlanPlayer, TwoNicsOfAGpuOnOneLeafSendAndReceiveTogether) {
  // 8 NICs a node for 4 GPUs, all on one leaf: 2 x 50 GB/s each way.
  const Site site(machine_of(2, SwitchedDomain{.ranks = 4, .planes = 1},
                             FatTree{.down = {8, 2}, .up = {8, 0}, .radix = 16, .rail_optimized = false}, 8));
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    Plan plan = empty_plan(8);
    plan.add_phase(phase("send"));
    plan.add(put(0, 0, 4, Link::scale_out, 8 << 20));
    SimOptions options;
    options.fidelity = fidelity;
    // 26 bytes of header on each 4096; two packets may end on one NIC.
    const double wire = (8 << 20) * (1 + 26.0 / 4096) / 100e9;
    EXPECT_NEAR(site.run(plan, options).total.value, wire + site.latency(Link::scale_out, 0, 4), 0.7e-6);
  }
}

TEST(PlanPlayer, AGetPaysTheRequestToo) {
  Plan plan = empty_plan();
  plan.add_phase(phase("fetch"));
  Op get = put(0, 0, 1, Link::scale_up, 1 << 16);
  get.kind = OpKind::get;
  plan.add(get);
  EXPECT_NEAR(node().run(plan).total.value, up_seconds(1 << 16) + 2 * node().latency(Link::scale_up, 0, 1),
              1e-9);
  // It is work of the rank that fetches.
  int64_t fetched = 0;
  for (const Span& span : node().run(plan).spans)
    if (span.rank == 1) fetched += span.bytes;
  EXPECT_EQ(fetched, 1 << 16);
}

/// 160 rows of 1 KiB in chunks of 16, to the next rank.
Plan rows_of_two_sms() {
  Plan plan = empty_plan();
  Phase p = phase("send", Engine::sm, 2);
  p.chunk_rows = 16;
  p.row_bytes = 1024;
  plan.add_phase(p);
  plan.add(put(0, 0, 1, Link::scale_up, 160 * 1024, 160));
  return plan;
}

TEST(PlanPlayer, SmsPaceAndTheLastChunkCrossesTheNetworkAlone) {
  // 160 rows of 1 KiB in chunks of 16; 2 SMs of 50 GB/s: 1.64 us, slower than the wire. The last chunk of
  // 16 KiB then takes 16388 B / 400 GB/s and the latency.
  const Plan plan = rows_of_two_sms();
  EXPECT_NEAR(node().run(plan).total.value,
              160 * 1024 / 100e9 + up_seconds(16 * 1024) + node().latency(Link::scale_up, 0, 1), 1e-9);
}

TEST(PlanPlayer, SmsFeedALinkAtARateOfTheirNumber) {
  // 160 rows of 1 KiB in chunks of 16; 2 of 2 + 6 SMs use a quarter of 400 GB/s: 1.6384 us. The last chunk
  // then crosses the network. Own rows of as many bytes take 1.6384 us of 2 SMs of 50 GB/s, with half of
  // which they hold up the others if a phase copies rows on; the estimate knows no last chunk.
  Costs costs;
  costs.fill_links = {};
  costs.sm.links = {Link::local};
  costs.sm.feeds = {{.phases = {"send"},
                     .share = {.value = 1, .source = ""},
                     .half_sms = {.value = 6, .source = ""},
                     .own_rows = {.value = 0.5, .source = ""}}};
  Plan plan = rows_of_two_sms();
  const double last = up_seconds(16 * 1024) + node().latency(Link::scale_up, 0, 1);
  const auto estimated = [&] {
    return AnalyticExecutor(node().machine, node().fabric, costs).estimate(plan).total.value;
  };
  EXPECT_NEAR(node().run(plan, {}, costs).total.value, 160 * 1024 / 100e9 + last, 1e-9);
  EXPECT_NEAR(estimated(), 160 * 1024 / 100e9, 1e-12);
  plan.add(local(OpKind::copy, 0, 0, 160 * 1024, 160));
  EXPECT_NEAR(node().run(plan, {}, costs).total.value, 160 * 1024 / 100e9 + last, 1e-9);
  plan.add_phase(phase("copy", Engine::sm, 2));
  EXPECT_NEAR(node().run(plan, {}, costs).total.value, 1.5 * 160 * 1024 / 100e9 + last, 1e-9);
  EXPECT_NEAR(estimated(), 1.5 * 160 * 1024 / 100e9, 1e-12);
  EXPECT_EQ(node().run(plan, {}, costs).bottleneck, "scale_up feed");
}

TEST(PlanPlayer, AStreamFollowsOneChunkBehind) {
  // A copy of 64 rows in chunks of 8 reads and writes at 4000 GB/s; a put follows chunk by chunk. The wire is
  // slower, so the end is the first chunk's copy plus all bytes on the wire.
  Plan plan = empty_plan();
  for (const char* name : {"stage", "send"}) {
    Phase p = phase(name);
    p.chunk_rows = 8;
    p.row_bytes = 4096;
    plan.add_phase(p);
  }
  const OpId copy = plan.add(local(OpKind::copy, 0, 0, 64 * 4096, 64));
  plan.add(put(1, 0, 1, Link::scale_up, 64 * 4096, 64), {{.op = copy, .on = On::stream}});
  EXPECT_NEAR(node().run(plan).total.value,
              2 * 8 * 4096 / 4000e9 + up_seconds(64 * 4096) + node().latency(Link::scale_up, 0, 1), 1e-9);
}

TEST(PlanPlayer, PhasesShareAnEngineInTurn) {
  // Two phases of equal work on the memory engine end together, one chunk apart.
  Plan plan = empty_plan();
  for (const char* name : {"a", "b"}) {
    Phase p = phase(name);
    p.chunk_rows = 1;
    plan.add_phase(p);
  }
  plan.add(local(OpKind::copy, 0, 0, 100 * 4000, 100));
  plan.add(local(OpKind::copy, 1, 0, 100 * 4000, 100));
  const Trace trace = node().run(plan);
  const double chunk = 2 * 4000 / 4000e9;
  EXPECT_NEAR(trace.phase_times[0].time.value, 199 * chunk, 1e-12);
  EXPECT_NEAR(trace.phase_times[1].time.value, 200 * chunk, 1e-12);
}

TEST(PlanPlayer, TheEndOfAPipelineGoesFirst) {
  // 100 rows of a and of b in turn; c follows each row at once. So a row of c stands behind each of theirs:
  // the last of a is chunk 397 of the engine, that of b 399, that of c 400.
  Plan plan = empty_plan();
  for (const char* name : {"a", "b", "c"}) {
    Phase p = phase(name);
    p.chunk_rows = 1;
    plan.add_phase(p);
  }
  const OpId a = plan.add(local(OpKind::copy, 0, 0, 100 * 4000, 100));
  const OpId b = plan.add(local(OpKind::copy, 1, 0, 100 * 4000, 100));
  plan.add(local(OpKind::copy, 2, 0, 200 * 4000, 200),
           {{.op = a, .on = On::stream}, {.op = b, .on = On::stream}});
  const Trace trace = node().run(plan);
  const double chunk = 2 * 4000 / 4000e9;
  std::vector<double> ends(3);
  for (const Span& span : trace.spans) ends[size_t(span.phase)] = static_cast<double>(span.end_ns) * 1e-9;
  EXPECT_NEAR(ends[0], 397 * chunk, 1e-9);
  EXPECT_NEAR(ends[1], 399 * chunk, 1e-9);
  EXPECT_NEAR(ends[2], 400 * chunk, 1e-9);
}

TEST(PlanPlayer, ASignalWhoseTimeIsLeftOutDoesNotOvertakeItsData) {
  // 1 us fixed, 1 MiB on the wire and its latency; only then the flag is seen and 4 MB are read and written.
  Plan plan = empty_plan();
  for (const char* name : {"send", "signal", "seen", "use"}) plan.add_phase(phase(name));
  const OpId data = plan.add(put(0, 0, 1, Link::scale_up, 1 << 20));
  const OpId flag = plan.add(put(1, 0, 1, Link::scale_up, 8), {{.op = data, .on = On::sent}});
  const OpId seen = plan.add(local(OpKind::wait, 2, 1), {{.op = flag, .on = On::arrived}});
  plan.add(local(OpKind::copy, 3, 1, 4'000'000), {{.op = seen, .on = On::arrived}});
  Costs costs;
  FixedCost fixed;
  fixed.phases = {"send"};
  fixed.covers = {"signal", "seen"};
  fixed.time.value = microseconds(1);
  costs.fixed = {fixed};
  const double copy = 2 * 4e6 / 4000e9;
  EXPECT_NEAR(node().run(plan, {}, costs).total.value,
              1e-6 + up_seconds(1 << 20) + node().latency(Link::scale_up, 0, 1) + copy, 2e-9);
}

TEST(PlanPlayer, AFixedTimeHoldsTheLongestOfItsHiddenLatencies) {
  // One phase over both networks: the path between nodes is in the 10 us, that over NVLink beside it is not
  // taken out as well.
  Plan plan = empty_plan(8);
  plan.add_phase(phase("send"));
  plan.add(put(0, 0, 1, Link::scale_up, 4096));
  plan.add(put(0, 0, 4, Link::scale_out, 4096));
  Costs costs;
  costs.fill_links = {};
  FixedCost fixed;
  fixed.phases = {"send"};
  fixed.time.value = microseconds(10);
  costs.fixed = {fixed};
  EXPECT_NEAR(rails().run(plan, {}, costs).total.value, 10e-6 + (4096 + 42) / 50e9, 2e-9);
}

TEST(PlanPlayer, MembersOfABarrierEndTogetherAfterTheLastPlusItsCost) {
  Plan plan = empty_plan();
  plan.add_phase(phase("send"));
  plan.add_phase(phase("join"));
  plan.add_barrier({.link = Link::scale_up, .members = 2});
  const OpId sent = plan.add(put(0, 0, 1, Link::scale_up, 1 << 20));
  plan.add(local(OpKind::barrier, 1, 0), {{.op = sent, .on = On::sent}});
  plan.add(local(OpKind::barrier, 1, 1));
  Costs costs;
  costs.scale_up_barrier.value = microseconds(2);
  const Trace trace = node().run(plan, {}, costs);
  // What rank 0 had sent has arrived before the barrier ends.
  EXPECT_NEAR(trace.total.value, up_seconds(1 << 20) + node().latency(Link::scale_up, 0, 1) + 2e-6, 1e-9);
}

TEST(PlanPlayer, ComputeGetsTheSmsThatCommunicationLeaves) {
  // 100 SMs; a kernel of 40 SMs sends for 4 us (8 MB at 40 x 50 GB/s); a GEMM of 10 us on all SMs runs at
  // 60 % meanwhile: 10 + 0.4 x 4 = 11.6 us.
  Plan plan = empty_plan();
  Phase send = phase("send", Engine::sm, 40);
  send.chunk_rows = 1;
  plan.add_phase(send);
  Phase gemm = phase("gemm", Engine::sm);
  gemm.duration = microseconds(10);
  plan.add_phase(gemm);
  plan.add(local(OpKind::copy, 0, 0, 8'000'000, 1000));
  plan.add(local(OpKind::compute, 1, 0));
  EXPECT_NEAR(node().run(plan).phase_times[1].time.value, 11.6e-6, 0.01e-6);
  Plan alone = empty_plan();
  alone.add_phase(gemm);
  alone.add(local(OpKind::compute, 0, 0));
  EXPECT_NEAR(node().run(alone).total.value, 10e-6, 1e-12);
}

TEST(PlanPlayer, AFixedTimeIsPaidOnceAndCoversItsPhases) {
  Plan plan = empty_plan();
  plan.add_phase(phase("notify"));
  plan.add_phase(phase("send"));
  const OpId note = plan.add(put(0, 0, 1, Link::scale_up, 4096));
  plan.add(local(OpKind::wait, 1, 1), {{.op = note, .on = On::arrived}});
  plan.add(put(1, 0, 1, Link::scale_up, 1 << 20));
  Costs costs;
  costs.fixed.push_back(
      {.phases = {"send"}, .covers = {"notify"}, .time = {microseconds(7), "test"}, .per_doubling = {}});
  EXPECT_NEAR(node().run(plan, {}, costs).total.value,
              7e-6 + up_seconds(1 << 20) + node().latency(Link::scale_up, 0, 1), 1e-9);
}

TEST(PlanPlayer, SharesOfTheNominalRateAreOfPayload) {
  Plan plan = empty_plan();
  plan.add_phase(phase("send"));
  plan.add(put(0, 0, 1, Link::scale_up, 4096 * 1000));
  Costs costs;
  costs.scale_up_share.value = 0.5;
  EXPECT_NEAR(node().run(plan, {}, costs).total.value,
              4096 * 1000 / 200e9 + node().latency(Link::scale_up, 0, 1), 1e-10);
}

TEST(PlanPlayer, EveryBuilderEndsWithItsLedgerAndNoFasterThanTheLowerBound) {
  for (int kind = 0; kind <= static_cast<int>(ProgramKind::background); ++kind)
    for (const Mode mode : {Mode::direct, Mode::hybrid}) {
      const Shape shape = shape_of(8, 40);
      Program program;
      program.mode = mode;
      const Plan plan = build(static_cast<ProgramKind>(kind), shape, rails().machine.grouping(), program);
      for (const auto& [fidelity, policy] : {std::pair(Fidelity::packet, RoutePolicy::adaptive),
                                             std::pair(Fidelity::packet, RoutePolicy::by_flow),
                                             std::pair(Fidelity::flow, RoutePolicy::adaptive)}) {
        SimOptions options;
        options.fidelity = fidelity;
        options.routing = {policy, policy};
        SCOPED_TRACE(to_string(plan.program()));
        const Trace trace = rails().run(plan, options);
        EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
        const Estimate estimate = AnalyticExecutor(rails().machine, rails().fabric, {}).estimate(plan);
        EXPECT_GE(trace.total.value, estimate.lower.value * (1 - 1e-9));
        EXPECT_LE(trace.total.value, estimate.total.value * 2 + 1e-5);
      }
    }
}

TEST(FieldCases, B24_EveryProgramRunsOnOddNumbersOfRanks) {
  for (const int32_t ranks : {1, 2, 3, 5, 6, 7, 12})
    for (const ProgramKind kind :
         {ProgramKind::dispatch, ProgramKind::combine, ProgramKind::low_latency_dispatch,
          ProgramKind::all_to_all, ProgramKind::all_gather}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, to_string(kind)));
      const Site site(machine_of(1, SwitchedDomain{.ranks = ranks, .planes = 2}, NoScaleOut{}, 0));
      const Plan plan = build(kind, shape_of(ranks, 9), {ranks, ranks});
      EXPECT_EQ(site.run(plan).ledger, account(plan));
    }
}

TEST(PlanPlayer, LowLatencySignalsWaitForTheirDataUnlessTheyRace) {
  // Two paths of different length cannot be had in these trees; with spread routing over a loaded one packets
  // pass each other all the same.
  const Site site(two_tiers(false, 8));
  const Plan plan = build(ProgramKind::low_latency_dispatch, shape_of(32, 32), site.machine.grouping());
  SimOptions options;
  options.routing = {RoutePolicy::spread, RoutePolicy::spread};
  int64_t violations = 0, held = 0;
  std::array<double, 3> times{};
  for (const SignalOrder order : {SignalOrder::racing, SignalOrder::counted, SignalOrder::fenced}) {
    options.signals = order;
    SimExecutor executor(site.machine, site.fabric, {}, options);
    times[static_cast<size_t>(order)] = executor.run(plan).total.value;
    if (order == SignalOrder::racing) violations = executor.report().counts.order_violations;
    if (order == SignalOrder::counted) held = executor.report().counts.held_signals;
    if (order != SignalOrder::racing) {
      EXPECT_EQ(executor.report().counts.order_violations, 0);
    }
  }
  EXPECT_GT(violations, 0);
  EXPECT_GT(held, 0);
  EXPECT_LE(times[0], times[1]);
  EXPECT_LT(times[1], times[2]);
}

TEST(PlanPlayer, TheSameSeedGivesTheSameTraceAndProgressChangesNothing) {
  const Site site(two_tiers(false, 8));
  const Plan plan = build(ProgramKind::dispatch, shape_of(32, 32), site.machine.grouping());
  SimOptions options;
  options.routing[1] = RoutePolicy::spread;
  SimExecutor a(site.machine, site.fabric, {}, options), b(site.machine, site.fabric, {}, options);
  int told = 0;
  b.set_progress([&](double done, Seconds) {
    ++told;
    EXPECT_GE(done, 0);
    EXPECT_LE(done, 1);
  });
  const Trace x = a.run(plan), y = b.run(plan);
  EXPECT_EQ(x.spans, y.spans);
  EXPECT_EQ(x.total.value, y.total.value);
  options.seed = 2;
  EXPECT_NE(site.run(plan, options).total.value, x.total.value);
}

TEST(PlanPlayer, LookingAtLinksChangesNoDate) {
  const Plan plan = build(ProgramKind::dispatch, shape_of(8, 100), rails().machine.grouping());
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    SimOptions options;
    options.fidelity = fidelity;
    SimExecutor plain(rails().machine, rails().fabric, {}, options),
        seen(rails().machine, rails().fabric, {}, options);
    plain.set_driver([](Network& network, Ps limit) {
      while (network.advance(limit)) {
      }
    });
    seen.set_driver([](Network& network, Ps) {
      while (network.advance(network.now() + 1000)) network.link_use();
    });
    const Trace a = plain.run(plan), b = seen.run(plan), sampled = rails().run(plan, options);
    EXPECT_EQ(a.spans, b.spans);
    EXPECT_EQ(a.total.value, b.total.value);
    EXPECT_EQ(a.total.value, sampled.total.value);
  }
}

TEST(PlanPlayer, SlowRanksAndSlowLinksAreFoundInTheWaits) {
  const Site site(machine_of(1, SwitchedDomain{.ranks = 8, .planes = 1}, NoScaleOut{}, 0));
  Program program;
  program.placement = RowPlacement::direct;
  const Plan plan = build(ProgramKind::dispatch, shape_of(8, 256), {8, 8}, program);
  const auto findings = [&](SimEvent event) {
    SimOptions options;
    options.events = {event};
    SimExecutor executor(site.machine, site.fabric, {}, options);
    executor.run(plan);
    return diagnose(*executor.report().waits);
  };
  using Kind = SimEvent::Kind;
  const auto slow = findings({.kind = Kind::rank_speed, .at = {}, .target = "", .rank = 3, .factor = 0.1});
  ASSERT_FALSE(slow.empty());
  EXPECT_EQ(slow[0].cause, WaitCause::slow_sender);
  EXPECT_EQ(slow[0].source, 3);
  const std::string into_5 = fmt::format("{} -> gpu 5", site.fabric.nodes().back().name);
  const auto path =
      findings({.kind = Kind::link_rate, .at = {}, .target = into_5, .rank = kNone, .factor = 0.05});
  ASSERT_FALSE(path.empty());
  EXPECT_EQ(path[0].cause, WaitCause::slow_receiver);
  EXPECT_EQ(path[0].destination, 5);
}

TEST(FieldCases, B22_AMissingBarrierMemberIsNamedAndTheResultIsIncomplete) {
  Plan plan = empty_plan();
  plan.add_phase(phase("send"));
  plan.add_phase(phase("join"));
  plan.add_barrier({.link = Link::scale_up, .members = 3});
  const OpId sent = plan.add(put(0, 0, 1, Link::scale_up, 4096));
  const OpId join = plan.add(local(OpKind::barrier, 1, 0), {{.op = sent, .on = On::sent}});
  plan.add(local(OpKind::barrier, 1, 1));
  plan.add(local(OpKind::wait, 1, 0), {{.op = join, .on = On::arrived}});
  SimExecutor executor(node().machine, node().fabric, {}, {});
  const std::string text = error_of([&] { executor.run(plan); });
  EXPECT_NE(text.find("2 of 3 members"), std::string::npos) << text;
  EXPECT_NE(text.find("phase join at rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("waits for"), std::string::npos) << text;
  EXPECT_FALSE(executor.partial().header.complete);
  EXPECT_EQ(executor.partial().ledger, account(plan));  // the put did arrive
}

TEST(PlanPlayer, ADeadRankIsNamedAtEachPhase) {
  const Plan plan = build(ProgramKind::dispatch, shape_of(8, 64), rails().machine.grouping());
  const double whole = rails().run(plan).total.value;
  for (const double part : {0.0, 0.2, 0.5, 0.9}) {
    SimOptions options;
    options.events = {{.kind = SimEvent::Kind::rank_dead,
                       .at = Seconds{whole * part},
                       .target = "",
                       .rank = 2,
                       .factor = 1}};
    SimExecutor executor(rails().machine, rails().fabric, {}, options);
    const std::string text = error_of([&] { executor.run(plan); });
    EXPECT_NE(text.find("rank 2 is dead since"), std::string::npos) << part << text;
    EXPECT_FALSE(executor.partial().header.complete);
  }
}

TEST(PlanPlayer, AKilledLinkIsAvoidedOrNamedAtEachPhase) {
  const Plan plan = build(ProgramKind::dispatch, shape_of(8, 64), rails().machine.grouping());
  const double whole = rails().run(plan).total.value;
  const auto killed = [&](const std::string& link, double part) {
    SimOptions options;
    options.events = {{.kind = SimEvent::Kind::link_down,
                       .at = Seconds{whole * part},
                       .target = link,
                       .rank = kNone,
                       .factor = 1}};
    return rails().run(plan, options);
  };
  for (const double part : {0.0, 0.2, 0.5, 0.8}) {
    // One of two NVSwitch planes: the other takes over.
    EXPECT_EQ(killed("gpu 0 -> scale-up switch 0.1", part).ledger, account(plan));
    // The only cable of a NIC: nothing can, while there is something to send.
    const std::string text = error_of([&] { killed("nic 0.1 -> leaf 0.1", part); });
    EXPECT_EQ(text.find("leaf 0.1 is down") != std::string::npos, part < 0.4) << part << text;
    EXPECT_EQ(text.empty(), part > 0.4) << text;
  }
}

TEST(PlanPlayer, AWrongEventOrLimitIsRefusedByName) {
  Plan plan = empty_plan();
  plan.add_phase(phase("send"));
  plan.add(put(0, 0, 1, Link::scale_up, 1 << 20));
  const auto with = [&](SimEvent event) {
    SimOptions options;
    options.events = {event};
    return error_of([&] { node().run(plan, options); });
  };
  using Kind = SimEvent::Kind;
  EXPECT_NE(with({.kind = Kind::link_down, .at = {}, .target = "gpu 9 -> moon", .rank = kNone, .factor = 1})
                .find("no link 'gpu 9 -> moon'"),
            std::string::npos);
  EXPECT_NE(with({.kind = Kind::node_down, .at = {}, .target = "moon", .rank = kNone, .factor = 1})
                .find("no node 'moon'"),
            std::string::npos);
  EXPECT_NE(with({.kind = Kind::rank_dead, .at = {}, .target = "", .rank = 4, .factor = 1})
                .find("rank 4, the plan has 4"),
            std::string::npos);
  SimOptions limited;
  limited.time_limit = microseconds(1);
  EXPECT_NE(error_of([&] { node().run(plan, limited); }).find("time_limit passed"), std::string::npos);
  const Plan outside = build(ProgramKind::dispatch, shape_of(8, 4), {8, 4});
  EXPECT_NE(error_of([&] { node().run(outside); }).find("8 ranks, machine 'test' has 4"), std::string::npos);
}

TEST(PlanPlayer, SmSweepFollowsTheModelToItsKnee) {
  // Simulated and estimated times of a direct dispatch agree within 5 % at every SM count, so their knees do.
  const Site site(machine_of(1, SwitchedDomain{.ranks = 8, .planes = 1}, NoScaleOut{}, 0));
  for (const int32_t sms : {2, 4, 6, 8, 10, 16, 24}) {
    Program program;
    program.num_sms = sms;
    const Plan plan = build(ProgramKind::dispatch, shape_of(8, 2048), {8, 8}, program);
    const double simulated = site.run(plan).total.value;
    const double estimated = AnalyticExecutor(site.machine, site.fabric, {}).estimate(plan).total.value;
    EXPECT_NEAR(simulated / estimated, 1, 0.05) << sms;
  }
}

}  // namespace
}  // namespace plumb::sim

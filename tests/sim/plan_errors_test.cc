// Requests that cannot be met: what a user is told, and what is kept of a run that did not end.
#include <gtest/gtest.h>

#include "tests/sim/fabrics.h"
#include "tests/sim/site.h"

namespace plumb::sim {
namespace {

Plan one_put(Link link, int64_t bytes, uint8_t traffic_class = 0) {
  Plan plan({}, {4, 4});
  plan.add_phase(phase("send"));
  Op op = put(0, 0, 1, link, bytes);
  op.traffic_class = traffic_class;
  plan.add(op);
  return plan;
}

/// The error of a run; `kind` as expected.
std::string refusal(const Site& site, const Plan& plan, const SimOptions& options,
                    ErrorKind kind = ErrorKind::usage) {
  try {
    site.run(plan, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "it ran";
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

SimOptions with(Fidelity fidelity) {
  SimOptions options;
  options.fidelity = fidelity;
  return options;
}

TEST(PlanErrors, AnUnreachablePairIsNamed) {
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    const std::string text = refusal(node(), one_put(Link::scale_out, 4096), with(fidelity));
    EXPECT_HAS(text, "rank 0");
    EXPECT_HAS(text, "rank 1");
    EXPECT_HAS(text, "scale_out");
  }
}

TEST(PlanErrors, ABufferThatHoldsNoPacketIsRefused) {
  SimOptions options;
  options.lanes = Lanes{};
  options.lanes->buffer.value = Bytes{65536};
  const Plan plan = one_put(Link::scale_up, 1 << 20);
  options.packet = Bytes{65535};  // one header byte more
  EXPECT_EQ(node().run(plan, options).ledger, account(plan));
  options.packet = Bytes{65536};
  const std::string text = refusal(node(), plan, options);
  EXPECT_HAS(text, "machine 'test' is 65536 B");
  EXPECT_HAS(text, "65537 B");
  EXPECT_HAS(text, "lanes.buffer");
  options.fidelity = Fidelity::flow;  // flows have no buffers
  EXPECT_EQ(node().run(plan, options).ledger, account(plan));
}

TEST(PlanErrors, AServiceLevelWithoutItsLaneIsNamed) {
  SimOptions options;
  options.lanes = Lanes{};
  options.lanes->count = 2;
  options.lanes->sl_to_vl[3] = 5;
  EXPECT_HAS(refusal(node(), one_put(Link::scale_up, 4096, 3), options),
             "service level 3 maps to lane 5, there are 2 lanes");
}

TEST(PlanErrors, AClassBeyondTheServiceLevelsIsRefused) {
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    const std::string text = error_of([&] { node().run(one_put(Link::scale_up, 4096, 16), with(fidelity)); });
    EXPECT_HAS(text, "16");
  }
}

TEST(PlanErrors, TheSmallestAndTheLargestPacketsRun) {
  // A put of 64 KiB in 1024 packets of 64 B, or in one (16 MiB are more than a message has); the NVLink
  // header is 1 B.
  const double latency = node().latency(Link::scale_up, 0, 1);
  const Plan plan = one_put(Link::scale_up, 65536);
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow})
    for (const auto& [packet, headers] : {std::pair<int64_t, int64_t>(64, 1024), {1 << 24, 1}}) {
      SimOptions options = with(fidelity);
      options.packet = Bytes{packet};
      const Trace trace = node().run(plan, options);
      EXPECT_NEAR(trace.total.value, static_cast<double>(65536 + headers) / kUpRate + latency, 1e-10);
      EXPECT_EQ(trace.ledger, account(plan));
    }
}

TEST(PlanErrors, ARunThatALinkStopsNamesLinkPairAndPhase) {
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    SimOptions options = with(fidelity);
    options.events = {{.kind = SimEvent::Kind::link_down,
                       .at = microseconds(1),
                       .target = "gpu 0 -> scale-up switch 0.0",
                       .rank = kNone,
                       .factor = 1}};
    SimExecutor executor(node().machine, node().fabric, {}, options);
    const Plan plan = one_put(Link::scale_up, 1 << 20);
    const std::string text = error_of([&] { executor.run(plan); });
    EXPECT_HAS(text, "gpu 0 -> scale-up switch 0.0 is down");
    EXPECT_HAS(text, "phase send");
    EXPECT_HAS(text, "rank 0");
    EXPECT_HAS(text, "rank 1");
    EXPECT_FALSE(executor.partial().header.complete);
    EXPECT_NE(executor.partial().ledger, account(plan));
  }
}

TEST(PlanErrors, OptionsAreCheckedWithoutAPlan) {
  const Site& site = node();
  const auto check = [&](const SimOptions& options) {
    return error_of([&] { check_sim_options(site.machine, site.fabric, options, 4); });
  };
  SimOptions options;
  EXPECT_EQ(check(options), "");
  using Kind = SimEvent::Kind;
  options.events = {{.kind = Kind::node_down, .at = {}, .target = "moon", .rank = kNone, .factor = 1}};
  EXPECT_HAS(check(options), "no node 'moon'");
  options.events = {{.kind = Kind::link_up, .at = {}, .target = "a -> b", .rank = kNone, .factor = 1}};
  EXPECT_HAS(check(options), "no link 'a -> b'");
  options.events = {{.kind = Kind::rank_speed, .at = {}, .target = "", .rank = 4, .factor = 1}};
  EXPECT_HAS(check(options), "rank 4");
  options.events.clear();
  options.lanes = Lanes{};
  options.lanes->buffer.value = Bytes{1024};
  EXPECT_HAS(check(options), "would never fit");
}

TEST(FieldCases, B36_ATooCostlyRunIsRefusedWithItsEstimate) {
  const Site site(two_tiers(true, 8));
  const Plan plan = build(ProgramKind::dispatch, shape_of(32, 64), site.machine.grouping());
  SimExecutor executor(site.machine, site.fabric, {}, {});
  executor.run(plan);
  const auto events = static_cast<double>(executor.report().counts.events);
  const RunCost cost = executor.cost(plan);
  // Timers of the plan come on top of the packets' events, small ops make packets that are not full.
  EXPECT_NEAR(cost.events / events, 1, 0.5);
  EXPECT_NEAR(cost.packets / static_cast<double>(executor.report().counts.packets), 1, 0.1);
  SimOptions options;
  options.max_events = static_cast<int64_t>(cost.events) - 1;
  const std::string text = refusal(site, plan, options);
  EXPECT_HAS(text, to_string(cost));
  EXPECT_HAS(text, "sim.max_events");
  EXPECT_HAS(text, "sim.fidelity: flow");
  options.max_events += 2;
  EXPECT_EQ(site.run(plan, options).ledger, account(plan));
  options.max_events = 1;
  options.fidelity = Fidelity::flow;
  EXPECT_EQ(site.run(plan, options).ledger, account(plan));
}

}  // namespace
}  // namespace plumb::sim

// The analytic executor: closed forms of small plans, options of costs, and lower bound <= estimate on any
// plan.
#include "model/analytic.h"

#include <gtest/gtest.h>

#include "fabric_machines.h"
#include "model/error.h"
#include "model/plans/builders.h"
#include "model/random.h"

namespace plumb {
namespace {

constexpr double kUpRate = 400e9, kOutRate = 50e9;  // of the test machines, bytes per second
const std::string kCosts = PLUMB_SOURCE_DIR "/topologies/costs";

/// Nodes of 4 GPUs, rails, two tiers.
struct Site {
  explicit Site(Machine m) : machine(std::move(m)), fabric(build_fabric(machine)) {}
  Machine machine;
  Fabric fabric;
  Estimate estimate(const Plan& plan, const Costs& costs = {}) const {
    return AnalyticExecutor(machine, fabric, costs).estimate(plan);
  }
  double latency(Link link, Rank a, Rank b) const { return fabric.latency(link, a, b).value; }
};

Machine with_gpu(Machine m) {
  m.gpu.name = "Test GPU";
  m.gpu.sms.value = 100;
  m.gpu.hbm_rate.value = gigabytes_per_second(4000);
  m.gpu.sm_write_rate.value = gigabytes_per_second(50);
  m.gpu.copy_engine_rate.value = gigabytes_per_second(2000);
  return m;
}

const Site& site() {
  static const Site the_site(with_gpu(two_tiers(true, 2)));
  return the_site;
}

Op put(PhaseId phase, Rank src, Rank dst, Link link, int64_t bytes, int32_t rows = 1) {
  return {.kind = OpKind::put,
          .link = link,
          .phase = phase,
          .src = src,
          .dst = dst,
          .messages = rows,
          .rows = rows,
          .bytes = bytes};
}

Op local(OpKind kind, PhaseId phase, Rank r, int64_t bytes = 0, int32_t rows = 0) {
  return {.kind = kind, .phase = phase, .src = r, .dst = r, .rows = rows, .bytes = bytes};
}

Plan empty_plan(int32_t ranks = 8) { return Plan({}, {ranks, std::min(ranks, 4)}); }

Phase sm_phase(std::string name, int32_t sms = 0) {
  return {.name = std::move(name), .engine = Engine::sm, .sms = sms};
}

void expect_seconds(Seconds found, double expected) {
  EXPECT_NEAR(found.value, expected, 1e-9 * std::max(expected, 1e-6));
}

TEST(Analytic, OnePutTakesBytesOverRatePlusLatency) {
  // 4 MB at 400 GB/s are 10 us, 5 MB at 50 GB/s are 100 us; nothing else moves, so bound and estimate agree.
  for (const auto& [link, dst, bytes, seconds] :
       {std::tuple{Link::scale_up, 1, 4'000'000, 10e-6}, std::tuple{Link::scale_out, 4, 5'000'000, 100e-6}}) {
    Plan plan = empty_plan();
    plan.add_phase({.name = "send", .engine = Engine::nic});
    plan.add(put(0, 0, dst, link, bytes));
    const Estimate found = site().estimate(plan);
    expect_seconds(found.total, seconds + site().latency(link, 0, dst));
    expect_seconds(found.lower, seconds + site().latency(link, 0, dst));
    EXPECT_EQ(found.bottleneck, link == Link::scale_up ? "scale_up" : "scale_out nic");
  }
}

TEST(Analytic, ArrivedPhasesAddAndStreamedPhasesOverlap) {
  // 5 MB from rank 0 to rank 4 of the other node (100 us), then to rank 5 (12.5 us). Rows of 50 kB, chunks of
  // 2: a chunk takes 2 us on the network, which is all that a streamed second hop waits for.
  const double out = site().latency(Link::scale_out, 0, 4), up = site().latency(Link::scale_up, 4, 5);
  for (const On on : {On::arrived, On::stream}) {
    Plan plan = empty_plan();
    plan.add_phase({.name = "rail", .engine = Engine::nic, .chunk_rows = 2, .row_bytes = 50'000});
    plan.add_phase({.name = "forward", .engine = Engine::nic, .chunk_rows = 2, .row_bytes = 50'000});
    const OpId first = plan.add(put(0, 0, 4, Link::scale_out, 5'000'000));
    plan.add(put(1, 4, 5, Link::scale_up, 5'000'000), {{first, on}});
    const Estimate found = site().estimate(plan);
    if (on == On::arrived) {
      expect_seconds(found.total, 112.5e-6 + out + up);
      expect_seconds(found.lower, 112.5e-6 + out + up);
    } else {
      expect_seconds(found.total, 100e-6 + 2e-6 + out + up);
      // The last byte still has to arrive at rank 4 before it can be passed on.
      expect_seconds(found.lower, 100e-6 + out);
    }
    EXPECT_EQ(found.pipelines.size(), on == On::arrived ? 2u : 1u);
  }
}

TEST(Analytic, TheBusiestRankSetsTheTime) {
  // Ranks 1, 2, 3 send 1, 2, 3 MB to rank 0: its port takes 6 MB / 400 GB/s = 15 us, while no sender needs
  // more than 7.5 us.
  Plan plan = empty_plan();
  plan.add_phase({.name = "send", .engine = Engine::nic});
  for (Rank s = 1; s <= 3; ++s) plan.add(put(0, s, 0, Link::scale_up, s * 1'000'000));
  const Estimate found = site().estimate(plan);
  expect_seconds(found.total, 15e-6 + site().latency(Link::scale_up, 1, 0));
  expect_seconds(found.lower, 15e-6 + site().latency(Link::scale_up, 1, 0));
  EXPECT_LT(found.pipelines[0].end[1], 5e-6);  // rank 1 is done with its 1 MB: 2.5 us and latency
}

TEST(Analytic, AGetPaysTheRequestToo) {
  Plan plan = empty_plan();
  plan.add_phase({.name = "fetch", .engine = Engine::nic});
  Op op = put(0, 1, 0, Link::scale_up, 4'000'000);
  op.kind = OpKind::get;
  plan.add(op);
  expect_seconds(site().estimate(plan).total, 10e-6 + 2 * site().latency(Link::scale_up, 1, 0));
  expect_seconds(site().estimate(plan).lower, 10e-6 + 2 * site().latency(Link::scale_up, 1, 0));
}

TEST(Analytic, EmptyPlansAndSingleRanksTakeNoTime) {
  const Estimate nothing = site().estimate(empty_plan());
  EXPECT_EQ(nothing.total.value, 0);
  EXPECT_EQ(nothing.lower.value, 0);
  Plan alone = empty_plan(1);
  alone.add_phase({.name = "enter"});
  alone.add_phase({.name = "joined"});
  const int32_t barrier = alone.add_barrier({.link = Link::scale_up, .members = 1});
  const OpId op = alone.add(local(OpKind::barrier, 0, 0, 0, barrier));
  alone.add(local(OpKind::wait, 1, 0), {{op, On::arrived}});
  EXPECT_EQ(site().estimate(alone).total.value, 0);
}

TEST(Analytic, RefusesACoarsePlan) {
  Plan coarse = empty_plan();
  coarse.set_ranks_per_op(4);
  EXPECT_THROW(site().estimate(coarse), Error);
}

TEST(Analytic, ABarrierPlanCostsTheBarrier) {
  Plan plan = empty_plan();
  plan.add_phase({.name = "enter"});
  const int32_t barrier = plan.add_barrier({.link = Link::scale_out, .members = 8});
  for (Rank r = 0; r < 8; ++r) plan.add(local(OpKind::barrier, 0, r, 0, barrier));
  // At the least a signal has to cross the network once; an implementation may say more.
  const double cross = site().latency(Link::scale_out, 0, 4);
  expect_seconds(site().estimate(plan).lower, cross);
  expect_seconds(site().estimate(plan).total, cross);
  Costs costs;
  costs.scale_out_barrier.value = microseconds(16.7);
  expect_seconds(site().estimate(plan, costs).total, 16.7e-6);
  EXPECT_EQ(site().estimate(plan, costs).bottleneck, "latency");
}

TEST(Analytic, PhasesThatDoNotWaitForEachOtherShareTheRank) {
  // Two independent phases of 4 MB each on the same port: 20 us together, in the bound too.
  Plan plan = empty_plan();
  for (const PhaseId p : {PhaseId{0}, PhaseId{1}}) {
    plan.add_phase({.name = p == 0 ? "ours" : "theirs", .engine = Engine::nic});
    plan.add(put(p, 0, 1, Link::scale_up, 4'000'000));
  }
  EXPECT_GE(site().estimate(plan).total.value, 20e-6);
  EXPECT_GE(site().estimate(plan).lower.value, 20e-6);
}

TEST(Analytic, NamesTheSharedLinkThatIsTooThin) {
  // Ranks 0 and 1 on one switch, 2 and 3 on another, one 100 GB/s cable between: 2 x 1 MB need 20 us on it,
  // and 2.5 us at 400 GB/s on each rank's own cable.
  FabricBuilder builder;
  const auto rate = [](double gbs) { return gigabytes_per_second(gbs); };
  const NodeId left =
      builder.add_node({.kind = NodeKind::scale_up_switch, .tier = 1, .rank = kNone, .name = "left"});
  const NodeId right =
      builder.add_node({.kind = NodeKind::scale_up_switch, .tier = 1, .rank = kNone, .name = "right"});
  for (Rank r = 0; r < 4; ++r) {
    const NodeId gpu =
        builder.add_node({.kind = NodeKind::gpu, .tier = 0, .rank = r, .name = fmt::format("gpu {}", r)});
    builder.add_cable(gpu, r < 2 ? left : right, {.rate = rate(400), .latency = nanoseconds(100)});
  }
  builder.add_cable(left, right, {.rate = rate(100), .latency = nanoseconds(100)});
  const Fabric fabric = std::move(builder).finish();
  Plan plan({}, {4, 4});
  plan.add_phase({.name = "send", .engine = Engine::nic});
  plan.add(put(0, 0, 2, Link::scale_up, 1'000'000));
  plan.add(put(0, 1, 3, Link::scale_up, 1'000'000));
  const Estimate found = AnalyticExecutor(site().machine, fabric, {}).estimate(plan);
  EXPECT_EQ(found.bottleneck, "link left -> right");
  expect_seconds(found.total, 20e-6 + 300e-9);
  EXPECT_GE(found.lower.value, 20e-6);
}

TEST(Analytic, SmTimeIsRowsTimesRowTimePlusBytesOverRate) {
  // 1000 rows of 7520 B, 0.2 us a row and 20 GB/s: 1000 (0.2 + 0.376) us / 4 SMs = 144 us.
  Costs costs;
  costs.sm.row_time.value = microseconds(0.2);
  costs.sm.rates.push_back({.gpus = {"Test"}, .rate = {.value = gigabytes_per_second(20), .source = ""}});
  costs.fill_links = {};
  Plan plan = empty_plan();
  plan.add_phase(sm_phase("dispatch", 4));
  plan.add(put(0, 0, 1, Link::scale_up, 7'520'000, 1000));
  plan.add(local(OpKind::copy, 0, 0, 7'520'000, 1000));
  // The rank's own rows pass through its SMs as well ...
  expect_seconds(site().estimate(plan, costs).total, 288e-6);
  EXPECT_EQ(site().estimate(plan, costs).bottleneck, "sm");
  // ... unless the implementation says that they are free, or its factor says otherwise.
  costs.sm.links = {Link::scale_up};
  expect_seconds(site().estimate(plan, costs).total, 144e-6);
  costs.sm.factors.push_back({.phases = {"disp*"}, .gpus = {}, .factor = {.value = 1.5, .source = ""}});
  expect_seconds(site().estimate(plan, costs).total, 216e-6);
  costs.sm.free_phases = {"dispatch"};
  EXPECT_EQ(site().estimate(plan, costs).bottleneck, "scale_up");
}

TEST(Analytic, SmsFeedALinkAtARateOfTheirNumber) {
  // 8 MB at 400 GB/s take 20 us. 2 of 2 + 2 SMs reach half of that rate: 40 us.
  Costs costs;
  costs.fill_links = {};
  costs.sm.links = {Link::local};
  Plan plan = empty_plan();
  plan.add_phase(sm_phase("dispatch", 2));
  plan.add(put(0, 0, 1, Link::scale_up, 8'000'000));
  costs.sm.feeds = {{.phases = {"other"}, .half_sms = {.value = 2, .source = ""}}};
  expect_seconds(site().estimate(plan, costs).total, 20.3e-6);  // of another phase; the path's 0.3 us
  costs.sm.feeds[0].phases = {"disp*"};
  expect_seconds(site().estimate(plan, costs).total, 40e-6);
  EXPECT_EQ(site().estimate(plan, costs).bottleneck, "scale_up feed");
  plan.add(local(OpKind::copy, 0, 0, 8'000'000));
  costs.sm.rates.push_back({.gpus = {}, .rate = {.value = gigabytes_per_second(200), .source = ""}});
  costs.sm.feeds[0].own_rows.value = 0.5;
  expect_seconds(site().estimate(plan, costs).total, 40e-6);  // there is no phase copy
  plan.add_phase(sm_phase("copy", 2));
  // At 200 GB/s an SM: 20 us for own rows, half of them adds 10 us.
  expect_seconds(site().estimate(plan, costs).total, 50e-6);
  costs.sm.feeds[0] = {
      .phases = {"dispatch"}, .share = {.value = 0.8, .source = ""}, .half_sms = {}, .own_rows = {}};
  costs.sm.rates.clear();
  costs.sm.links = {};
  expect_seconds(site().estimate(plan, costs).total, 25e-6);  // 20 us / 0.8
}

TEST(Analytic, RowsOfACombineThatArePushedHaveAFeedOfTheirOwn) {
  // From 48 SMs and 32 rows an SM on: 1536 rows, two ranks.
  Costs costs;
  costs.fill_links = {};
  costs.sm.links = {};
  costs.sm.feeds = {{.phases = {"up"}, .share = {.value = 0.8, .source = ""}, .pushed = true},
                    {.phases = {"up"}, .share = {.value = 0.5, .source = ""}}};
  const auto time_of = [&](int32_t ranks, int32_t sms, int32_t rows, const Program& program = {}) {
    Plan plan(program, {ranks, ranks});
    plan.add_phase(sm_phase("up", sms));
    plan.add(put(0, 0, 1, Link::scale_up, 8'000'000, rows));
    return site().estimate(plan, costs).total;
  };
  expect_seconds(time_of(2, 48, 1536), 25e-6);  // 20 us / 0.8
  expect_seconds(time_of(2, 48, 1535), 40e-6);
  expect_seconds(time_of(2, 47, 4096), 40e-6);
  expect_seconds(time_of(4, 64, 4096), 40e-6);
  // A row for each selection is read.
  expect_seconds(time_of(2, 64, 4096, {.expand = true, .multiple_reduction = true}), 25e-6);
  expect_seconds(time_of(2, 64, 4096, {.expand = true, .multiple_reduction = false}), 40e-6);
}

TEST(Analytic, CopiesAndSumsUseMemory) {
  // A copy of 40 MB reads and writes 80 MB: 20 us at 4000 GB/s, 25 us at 80 % of it. A sum reads 40 MB and
  // writes 10 rows of 1 MB.
  Costs costs;
  costs.memory_share.value = 0.8;
  costs.sm.links = {};
  for (const OpKind kind : {OpKind::copy, OpKind::reduce}) {
    Plan plan = empty_plan();
    Phase phase = sm_phase("move");
    phase.row_bytes = 1'000'000;
    plan.add_phase(phase);
    Op op = local(kind, 0, 3, 40'000'000, 40);
    op.messages = kind == OpKind::reduce ? 10 : 0;
    plan.add(op);
    expect_seconds(site().estimate(plan, costs).total, kind == OpKind::copy ? 25e-6 : 15.625e-6);
    expect_seconds(site().estimate(plan, costs).lower, kind == OpKind::copy ? 20e-6 : 12.5e-6);
    EXPECT_EQ(site().estimate(plan, costs).bottleneck, "hbm");
  }
}

TEST(Analytic, FixedTimesArePaidOnceAndCoverTheirPhases) {
  // Barrier, then two phases of 10 us each. 30 us are paid once, and the barrier of 5 us is in them.
  Plan plan = empty_plan();
  plan.add_phase({.name = "enter"});
  plan.add_phase({.name = "one", .engine = Engine::nic});
  plan.add_phase({.name = "two", .engine = Engine::nic});
  const int32_t barrier = plan.add_barrier({.link = Link::scale_up, .members = 2});
  const OpId enter = plan.add(local(OpKind::barrier, 0, 0, 0, barrier));
  plan.add(local(OpKind::barrier, 0, 1, 0, barrier));
  const OpId one = plan.add(put(1, 0, 1, Link::scale_up, 4'000'000), {{enter, On::arrived}});
  plan.add(put(2, 1, 0, Link::scale_up, 4'000'000), {{one, On::arrived}});
  Costs costs;
  costs.fill_links = {};
  costs.scale_up_barrier.value = microseconds(5);
  expect_seconds(site().estimate(plan, costs).total, 25e-6);
  costs.fixed.push_back({.phases = {"one", "two"},
                         .covers = {"enter"},
                         .time = {.value = microseconds(30), .source = ""},
                         .per_doubling = {.value = microseconds(2), .source = ""},
                         .base_ranks = 2,
                         .per_sm = {}});
  // 8 ranks are two doublings of 2: 4 us more.
  expect_seconds(site().estimate(plan, costs).total, 54e-6);
}

TEST(Analytic, AnotherNumberOfSmsIsAnotherKernel) {
  Plan plan = empty_plan();
  plan.add_phase(sm_phase("send", 8));
  plan.add_phase(sm_phase("copy", 0));
  const OpId sent = plan.add(put(0, 0, 1, Link::scale_up, 4'000'000));
  plan.add(local(OpKind::copy, 1, 1, 4'000'000, 1), {{sent, On::arrived}});
  Costs costs;
  costs.sm.links = {};
  const double without = site().estimate(plan, costs).total.value;
  costs.kernel_gap.value = microseconds(4.5);
  expect_seconds(site().estimate(plan, costs).total, without + 4.5e-6);
}

TEST(Analytic, ARingPaysALatencyForEachStep) {
  // 4 ranks pass 400 kB three times: each port sends 1.2 MB (3 us), and the last shard crossed three hops.
  Plan plan = empty_plan(4);
  plan.add_phase({.name = "ring", .engine = Engine::nic});
  std::vector<OpId> last(4, kNone);
  for (int step = 0; step < 3; ++step) {
    std::vector<OpId> now(4);
    for (Rank r = 0; r < 4; ++r) {
      std::vector<Dep> deps;
      if (step > 0) deps.push_back({last[static_cast<size_t>((r + 3) % 4)], On::arrived});
      now[static_cast<size_t>(r)] = plan.add(put(0, r, (r + 1) % 4, Link::scale_up, 400'000), deps);
    }
    last = now;
  }
  const double hop = site().latency(Link::scale_up, 0, 1);
  expect_seconds(site().estimate(plan).total, 3e-6 + 3 * hop);
  expect_seconds(site().estimate(plan).lower, 3e-6 + 3 * hop);
}

TEST(Analytic, SignalsDoNotOvertakeTheRowsBeforeThem) {
  // Ranks 1..3 send 4 MB each to rank 0 and a flag behind them, once the rows have left. Rank 0 has
  // everything after 12 MB / 400 GB/s = 30 us, although each sender's own rows took only 10 us.
  Plan plan = empty_plan();
  plan.add_phase({.name = "rows", .engine = Engine::nic});
  plan.add_phase({.name = "flag", .engine = Engine::nic});
  plan.add_phase({.name = "arrived"});
  std::vector<Dep> flags;
  for (Rank s = 1; s <= 3; ++s) {
    const OpId rows = plan.add(put(0, s, 0, Link::scale_up, 4'000'000));
    flags.push_back({plan.add(put(1, s, 0, Link::scale_up, 8), {{rows, On::sent}}), On::arrived});
  }
  plan.add(local(OpKind::wait, 2, 0), flags);
  const Estimate found = site().estimate(plan);
  EXPECT_GE(found.pipelines.back().end[0], 30e-6);
  EXPECT_LT(found.pipelines[1].sent[1], 12e-6);
}

TEST(Analytic, RefusesAPlanThatDoesNotFit) {
  Plan plan({}, {16, 4});
  EXPECT_THROW(site().estimate(plan), Error);
}

/// A plan of random ops and of edges that hardware can see.
Plan random_plan(uint64_t seed) {
  Random random(seed, RandomStream::test);
  const auto below = [&random](uint64_t n) { return static_cast<int32_t>(random.below(n)); };
  Plan plan = empty_plan();
  const int32_t phases = 1 + below(6);
  for (int32_t p = 0; p < phases; ++p)
    plan.add_phase({.name = fmt::format("p{}", p),
                    .engine = static_cast<Engine>(below(5)),
                    .sms = below(40),
                    .chunk_rows = below(8),
                    .row_bytes = below(20'000),
                    .duration = microseconds(below(10))});
  for (int i = 0, ops = below(40); i < ops; ++i) {
    const auto kind = static_cast<OpKind>(below(7));
    Op op{.kind = kind,
          .phase = static_cast<PhaseId>(below(static_cast<uint64_t>(phases))),
          .src = below(8),
          .dst = 0};
    op.dst = op.src;
    if (kind == OpKind::put || kind == OpKind::get) {
      op.dst = (op.src + 1 + below(7)) % 8;
      op.link = plan.grouping().is_local(op.src, op.dst) && below(4) > 0 ? Link::scale_up : Link::scale_out;
      op.messages = op.rows = below(100);
    }
    op.bytes = below(3) == 0 ? 0 : below(10'000'000);
    if (kind == OpKind::reduce) op.messages = below(50);
    if (kind == OpKind::barrier)
      op.rows = plan.add_barrier({.link = Link::scale_out, .members = 1 + below(3)});
    std::vector<Dep> deps;
    for (OpId d = 0; d < static_cast<OpId>(plan.ops().size()); ++d) {
      const Op& earlier = plan.ops()[static_cast<size_t>(d)];
      if (below(4) != 0) continue;
      if (target(earlier) == issuer(op))
        deps.push_back({d, below(2) == 0 ? On::arrived : On::stream});
      else if (earlier.kind != OpKind::get && issuer(earlier) == issuer(op))
        deps.push_back({d, On::sent});
    }
    plan.add(op, deps);
  }
  return plan;
}

TEST(Analytic, ARankAloneMayUseTheUplinksOfItsNode) {
  // 4 ranks on 3 planes with 2 uplinks of 50 GB/s each: 300 GB/s out of the node, 75 GB/s a rank when all
  // send. 3 MB of one rank need 10 us at least, 3 MB of each of them 40 us.
  const Machine machine = planes(2);
  const Fabric fabric = build_fabric(machine);
  const auto lower = [&](Rank senders) {
    Plan plan({}, machine.grouping());
    plan.add_phase({.name = "send", .engine = Engine::nic});
    for (Rank r = 0; r < senders; ++r) plan.add(put(0, r, 4 + r, Link::scale_out, 3'000'000));
    return AnalyticExecutor(machine, fabric, {}).estimate(plan).lower.value;
  };
  const double latency = fabric.latency(Link::scale_out, 0, 4).value;
  EXPECT_GE(lower(1), 10e-6);
  EXPECT_LE(lower(1), 10e-6 + latency);
  EXPECT_GE(lower(4), 40e-6);
}

TEST(Analytic, TheBoundLetsAFollowerStartWithTheFirstOfItsStreams) {
  // Rank 4 sends on what rank 5 sends it and what it has itself: its own rows need no latency of the domain.
  Plan plan = empty_plan();
  plan.add_phase({.name = "node", .engine = Engine::nic, .chunk_rows = 2, .row_bytes = 50'000});
  plan.add_phase({.name = "rail", .engine = Engine::nic, .chunk_rows = 2, .row_bytes = 50'000});
  const OpId own = plan.add(local(OpKind::copy, 0, 4, 50'000, 1));
  const OpId peer = plan.add(put(0, 5, 4, Link::scale_up, 50'000));
  plan.add(put(1, 4, 0, Link::scale_out, 5'000'000, 100), {{own, On::stream}, {peer, On::stream}});
  expect_seconds(site().estimate(plan).lower, 100e-6 + site().latency(Link::scale_out, 4, 0));
}

TEST(Analytic, LowerBoundIsNeverAboveTheEstimate) {
  std::vector<Costs> all = {{}};
  for (const char* name : {"deepep_v1", "deepep_v1_low_latency", "deepep_v2", "cann", "hybrid_ep", "plumb"})
    all.push_back(load_costs(kCosts, name));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Plan plan = random_plan(seed);
    for (const Costs& costs : all) {
      const Estimate found = site().estimate(plan, costs);
      EXPECT_LE(found.lower.value, found.total.value) << seed << " " << costs.name;
      EXPECT_TRUE(std::isfinite(found.total.value)) << seed;
      for (size_t p = 0; p < found.phases.size(); ++p)
        EXPECT_LE(found.phases[p].lower.value, found.phases[p].time.value) << seed << " phase " << p;
    }
  }
}

TEST(Analytic, EveryProgramHasABoundAnEstimateAndABottleneck) {
  Shape shape = uniform_shape(8, 32, 4, 64, 512);
  const Routing routing = Routing::generate(shape, {});
  for (int kind = 0; kind <= static_cast<int>(ProgramKind::background); ++kind) {
    Program program;
    program.kind = static_cast<ProgramKind>(kind);
    program.mode = Mode::hybrid;
    program.num_sms = 8;
    program.message = {1 << 20};
    program.fetches = 2;
    program.table_rows = 1000;
    const Plan plan = build_plan({shape, routing, program, site().machine.grouping(), false});
    const Costs costs = load_costs(kCosts, default_costs(program.kind));
    const Estimate found = site().estimate(plan, costs);
    EXPECT_GT(found.lower.value, 0) << to_string(program.kind);
    EXPECT_GE(found.total.value, found.lower.value) << to_string(program.kind);
    EXPECT_FALSE(found.bottleneck.empty()) << to_string(program.kind);
  }
}

TEST(Analytic, TraceCarriesTheLedgerAndDigestOfThePlan) {
  Shape shape = uniform_shape(8, 32, 4, 64, 512);
  const Routing routing = Routing::generate(shape, {});
  Program program;
  program.mode = Mode::hybrid;
  program.num_sms = 8;
  const Plan plan = build_plan({shape, routing, program, site().machine.grouping(), false});
  AnalyticExecutor executor(site().machine, site().fabric, load_costs(kCosts, "plumb"));
  const Trace trace = executor.run(plan);
  EXPECT_EQ(trace.header.plan, plan.digest());
  EXPECT_EQ(trace.ledger, account(plan));
  EXPECT_EQ(trace.phase_times.size(), plan.phases().size());
  // Spans hold what each rank issued: their bytes are those of the ledger.
  int64_t bytes = 0, last = 0;
  for (const Span& span : trace.spans) {
    bytes += span.bytes;
    last = std::max(last, span.end_ns);
  }
  EXPECT_EQ(bytes, trace.ledger.total().bytes);
  EXPECT_EQ(last, std::llround(trace.total.value * 1e9));
  EXPECT_EQ(executor.run(plan).spans, trace.spans);
}

TEST(Analytic, WorkedNumberOfV1DispatchBetweenTwoNodes) {
  // H800, 2 nodes of 8, 4096 tokens, fp8, 24 SMs: t = 6.52328 rows a token (uniform gate) of 7520 B. NVLink
  // carries 7/8 of them at 0.692 x 200 GB/s: 1270.3 us. One chunk of 16 rows at 45 GB/s and 8.35 us
  // before, 58.8 us fixed: 1340.1 us. The busiest of 16 ranks has up to 1.5 % more rows than the mean.
  const Site h800(read_machine(PLUMB_SOURCE_DIR "/topologies/h800-cx7.yaml", 2));
  const Shape shape = uniform_shape(16, 256, 8, 4096, 7168);
  Program program;
  program.kind = ProgramKind::v1_dispatch;
  program.mode = Mode::hybrid;
  program.num_sms = 24;
  program.chunk_rows = 16;
  const Plan plan =
      build_plan({shape, Routing::generate(shape, {}), program, h800.machine.grouping(), false});
  const Estimate found = h800.estimate(plan, load_costs(kCosts, "deepep_v1"));
  EXPECT_GE(found.total.value, 1340.1e-6);
  EXPECT_LE(found.total.value, 1340.1e-6 * 1.015);
  EXPECT_EQ(found.bottleneck, "scale_up");
}

}  // namespace
}  // namespace plumb

// Random programs on random small machines in both fidelities: every run ends, moves what the plan says, is
// no faster than the lower bound, and flows are hardly slower than packets. PLUMB_CROSS_CHECK=FIRST:COUNT
// runs other seeds than those of the test suite and prints what it saw.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include "model/analytic.h"
#include "model/random.h"
#include "tests/sim/site.h"

namespace plumb::sim {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed, RandomStream::test) {}
  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random_.below(static_cast<uint64_t>(high - low + 1)));
  }
  bool coin() { return between(0, 1) == 1; }
  template <class T, size_t N>
  T of(const T (&values)[N]) {
    return values[static_cast<size_t>(between(0, static_cast<int32_t>(N) - 1))];
  }

 private:
  Random random_;
};

Machine random_tree(Draw& draw) {
  const int32_t gpus = draw.of({1, 2, 3, 4, 8}), leaf = draw.between(1, 4);
  const FatTree tree = {.down = {leaf, draw.between(1, 8)},
                        .up = {draw.between(1, 4), 0},
                        .radix = 16,
                        .rail_optimized = draw.coin()};
  return machine_of(draw.between(1, 6), SwitchedDomain{.ranks = gpus, .planes = draw.between(1, 2)}, tree,
                    gpus);
}

Machine random_dragonfly(Draw& draw) {
  const int32_t gpus = draw.between(1, 2);
  const Dragonfly topology = {.groups = draw.between(1, 5),
                              .routers = draw.between(1, 3),
                              .endpoints = gpus * draw.between(1, 2),
                              .global_cables = draw.between(1, 3),
                              .radix = 16};
  const int32_t nics = topology.groups * topology.routers * topology.endpoints;
  return machine_of(std::max(1, nics / gpus), SwitchedDomain{.ranks = gpus, .planes = 1}, topology, gpus);
}

Machine random_machine(Draw& draw) {
  switch (draw.between(0, 6)) {
    case 0:
      return random_dragonfly(draw);
    case 1: {
      const int32_t planes = draw.between(1, 4);
      return machine_of(draw.between(1, 4), SwitchedDomain{.ranks = draw.between(1, 4), .planes = planes},
                        Planes{.planes = planes, .l2_switches = draw.between(1, 3)}, 0);
    }
    case 2: {
      const std::vector<int32_t> inside = {draw.between(1, 3), draw.between(1, 3)};
      const std::vector<int32_t> outside = {draw.between(1, 3), draw.between(1, 2)};
      const std::vector<int32_t> cables = {draw.between(1, 2), draw.between(1, 2)};
      return machine_of(outside[0] * outside[1], MeshDomain{.dimensions = inside, .cables = cables},
                        Mesh{.dimensions = outside, .cables = cables}, 0);
    }
    case 3:
      return machine_of(1, SwitchedDomain{.ranks = draw.between(1, 9), .planes = draw.between(1, 3)},
                        NoScaleOut{}, 0);
    case 4:
      return draw.coin() ? machine_of(1, cube_mesh(), NoScaleOut{}, 0) : three_tiers(draw.coin());
    default:
      return random_tree(draw);
  }
}

Program random_program(Draw& draw) {
  Program p;
  p.kind = static_cast<ProgramKind>(draw.between(0, static_cast<int32_t>(ProgramKind::background)));
  p.mode = draw.coin() ? Mode::hybrid : Mode::direct;
  p.placement = draw.coin() ? RowPlacement::direct : RowPlacement::staged;
  p.cached = draw.between(0, 4) == 0;
  p.expand = draw.between(0, 3) == 0;
  p.num_sms = draw.between(1, 24);
  p.num_qps = draw.between(0, 2);
  p.chunk_rows = draw.of({1, 6, 32});
  p.message = Bytes{draw.of({1, 1000, 30'000, 100'000})};
  p.pattern = static_cast<Pattern>(draw.between(0, 2));
  p.fetches = draw.between(1, 3);
  p.seed = static_cast<uint64_t>(draw.between(1, 1000));
  return p;
}

Shape random_shape(Draw& draw, int32_t ranks) {
  Shape s;
  s.ranks = ranks;
  s.experts = ranks * draw.between(1, 4);
  s.topk = draw.between(1, std::min(6, s.experts));
  s.hidden = draw.of({128, 512, 2048});
  for (Rank r = 0; r < ranks; ++r) s.tokens.push_back(draw.between(0, 3) == 0 ? 0 : draw.between(0, 32));
  s.max_tokens = *std::max_element(s.tokens.begin(), s.tokens.end());
  return s;
}

SimOptions random_options(Draw& draw) {
  SimOptions o;
  constexpr RoutePolicy kPolicies[] = {RoutePolicy::adaptive, RoutePolicy::by_destination,
                                       RoutePolicy::by_flow,  RoutePolicy::spread,
                                       RoutePolicy::valiant,  RoutePolicy::ugal};
  o.routing = {draw.of(kPolicies), draw.of(kPolicies)};
  o.queue_pairs = draw.of({1, 8, 32});
  o.packet = Bytes{draw.of({256, 1024, 4096, 4096})};
  o.packet_per_row = draw.between(0, 4) == 0;
  o.signals = static_cast<SignalOrder>(draw.between(0, 2));
  o.input_queues = draw.coin() ? InputQueues::fifo : InputQueues::per_output;
  o.seed = static_cast<uint64_t>(draw.between(1, 1000));
  return o;
}

struct Seen {
  int64_t runs = 0;
  int64_t refused = 0;  // programs that contradict themselves
  int64_t compared = 0;
  double slowest = 0;     // flow time / packet time of these
  double tightest = 1e9;  // simulated time / lower bound
};

/// Where flows know all that makes packets faster or slower, but for waiting. They do not where GPUs forward
/// and on dragonflies (packets split unequally), with few queue pairs (packets wait in buffers, not in their
/// queue pair), on detours, and where a path goes by destination (flows draw another).
bool is_comparable(const Machine& machine, const SimOptions& o) {
  const auto same = [](RoutePolicy p) {
    return p == RoutePolicy::adaptive || p == RoutePolicy::spread || p == RoutePolicy::by_flow;
  };
  return std::holds_alternative<SwitchedDomain>(machine.scale_up.topology) &&
         !std::holds_alternative<Dragonfly>(machine.scale_out.topology) && o.queue_pairs == 32 &&
         same(o.routing[0]) && same(o.routing[1]);
}

bool is_by_hand() { return std::getenv("PLUMB_CROSS_CHECK") != nullptr; }

std::string describe(uint64_t seed, const Machine& machine, const Plan& plan, const SimOptions& o) {
  static constexpr const char* kUp[] = {"switch", "mesh", "pairs"};
  static constexpr const char* kOut[] = {"none", "tree", "dragonfly", "planes", "mesh"};
  return fmt::format(
      "seed {}, {} x {} ranks, {} and {}, {}, {} and {}, {} queue pairs, packets of {} B{}: {}", seed,
      machine.nodes, machine.ranks_per_node(), kUp[machine.scale_up.topology.index()],
      kOut[machine.scale_out.topology.index()], to_string(o.fidelity), to_string(o.routing[0]),
      to_string(o.routing[1]), o.queue_pairs, o.packet.count, o.packet_per_row ? " or a row" : "",
      to_string(plan.program()));
}

void check(uint64_t seed, Seen& seen) {
  Draw draw(seed);
  Machine machine = random_machine(draw);
  while (!check_ports(machine).empty()) machine = random_machine(draw);
  const Site site(machine);
  const Shape shape = random_shape(draw, site.machine.ranks());
  Program program = random_program(draw);
  program.table_rows = 16 * shape.ranks;
  const SimOptions options = random_options(draw);
  std::optional<Plan> built;
  try {
    const Routing routing = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = seed});
    built = build_plan(
        {.shape = shape, .routing = routing, .program = program, .grouping = site.machine.grouping()});
  } catch (const Error& e) {
    ASSERT_EQ(e.kind(), ErrorKind::usage) << seed;
    ++seen.refused;
    return;
  }
  const Plan& plan = *built;
  const double lower = AnalyticExecutor(site.machine, site.fabric, {}).estimate(plan).lower.value;
  std::array<double, 2> times{};
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow}) {
    SimOptions o = options;
    o.fidelity = fidelity;
    SCOPED_TRACE(describe(seed, site.machine, plan, o));
    try {
      const Trace trace = site.run(plan, o);
      EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
      EXPECT_GE(trace.total.value, lower * (1 - 1e-9));
      if (lower > 0) seen.tightest = std::min(seen.tightest, trace.total.value / lower);
      times[static_cast<size_t>(fidelity)] = trace.total.value;
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
      return;
    }
  }
  ++seen.runs;
  if (times[0] <= 0) return;
  const double ratio = times[1] / times[0];
  if (is_comparable(site.machine, options)) {
    EXPECT_LE(ratio, 1.08) << describe(seed, site.machine, plan, options);
    seen.slowest = std::max(seen.slowest, ratio);
    ++seen.compared;
  }
  if (is_by_hand())
    std::puts(fmt::format("{:.4f} flow / packet, {:.3f} us: {}", ratio, times[0] * 1e6,
                          describe(seed, site.machine, plan, options))
                  .c_str());
}

TEST(CrossCheck, RandomProgramsOnRandomMachines) {
  uint64_t first = 1, count = 150;
  if (const char* range = std::getenv("PLUMB_CROSS_CHECK")) {
    unsigned long long a = 0, n = 0;
    ASSERT_EQ(std::sscanf(range, "%llu:%llu", &a, &n), 2) << "PLUMB_CROSS_CHECK is FIRST:COUNT";
    first = a, count = n;
  }
  Seen seen;
  for (uint64_t seed = first; seed < first + count; ++seed) check(seed, seen);
  EXPECT_GT(seen.runs, seen.refused);  // else the draws are worth little
  EXPECT_GT(seen.compared, 0);
  std::puts(fmt::format(
                "{} runs, {} refused; flow / packet time up to {:.3f} in {}; time / lower bound from {:.6f}",
                seen.runs, seen.refused, seen.slowest, seen.compared, seen.tightest)
                .c_str());
}

}  // namespace
}  // namespace plumb::sim

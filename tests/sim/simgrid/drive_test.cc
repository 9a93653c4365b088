// Plans in SimGrid's clock: the same traces as in the simulator's own, for both fidelities, with faults, and
// the same errors.
#include <sstream>

#include <gtest/gtest.h>

#include "model/error.h"
#include "model/plans/builders.h"
#include "sim/sim_executor.h"
#include "sim/simgrid/child.h"
#include "sim/simgrid/drive.h"
#include "tests/model/fabric_machines.h"

namespace plumb::sim {
namespace {

struct Site {
  Machine machine = two_tiers(true, 4);
  Fabric fabric = build_fabric(machine);
};

Plan low_latency(const Site& site) {
  Shape shape;
  shape.ranks = 16;
  shape.experts = 32;
  shape.topk = 4;
  shape.hidden = 1024;
  shape.tokens.assign(16, 48);
  shape.max_tokens = 48;
  const Routing routing = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = 3});
  Program program;
  program.kind = ProgramKind::low_latency_dispatch;
  program.num_sms = 8;
  const Grouping grouping = site.machine.grouping();
  return build_plan({.shape = shape, .routing = routing, .program = program, .grouping = grouping});
}

std::string play(const SimOptions& options, bool under_simgrid) {
  const Site site;
  SimExecutor executor(site.machine, site.fabric, {}, options);
  if (under_simgrid) executor.set_driver(drive_under_simgrid);
  std::ostringstream text;
  write_csv(text, executor.run(low_latency(site)));
  return text.str();
}

TEST(DriveUnderSimGrid, GivesTheTraceOfTheOwnClock) {
  using Kind = SimEvent::Kind;
  for (const Fidelity fidelity : {Fidelity::packet, Fidelity::flow})
    for (const bool has_fault : {false, true}) {
      SimOptions options;
      options.fidelity = fidelity;
      if (has_fault)
        options.events = {
            {.kind = Kind::link_down,
             .at = microseconds(3),
             .target = "gpu 1 -> scale-up switch 0.0",
             .rank = kNone,
             .factor = 1},
            {.kind = Kind::rank_speed, .at = microseconds(2), .target = "", .rank = 5, .factor = 0.5}};
      const std::string own = play(options, false);
      EXPECT_EQ(run_in_child([&] { return play(options, true); }), own);
    }
}

TEST(DriveUnderSimGrid, ADeadRankIsTheSameError) {
  SimOptions options;
  options.events = {
      {.kind = SimEvent::Kind::rank_dead, .at = microseconds(1), .target = "", .rank = 2, .factor = 1}};
  const auto error_of = [&](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string own = error_of([&] { play(options, false); });
  const std::string coupled = error_of([&] { run_in_child([&] { return play(options, true); }); });
  EXPECT_NE(own.find("rank 2 is dead since"), std::string::npos);
  EXPECT_NE(coupled.find("rank 2 is dead since"), std::string::npos) << coupled;
}

}  // namespace
}  // namespace plumb::sim

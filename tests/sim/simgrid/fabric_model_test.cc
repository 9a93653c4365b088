// A packet network in SimGrid's clock: the same dates as alone, and the traps of stepping it.
#include <string>

#include <gtest/gtest.h>
#include <simgrid/kernel/ProfileBuilder.hpp>

#include "model/random.h"
#include "sim/simgrid/compat.h"
#include "tests/sim/simgrid/coupled.h"

namespace plumb::sim {
namespace {

namespace s4u = simgrid::s4u;
using simgrid::kernel::profile::ProfileBuilder;

/// Each rank sends a few messages to others at random, with reports and chunks.
Scenario random_messages(Rank ranks, uint64_t seed) {
  Scenario s{.fabric = leaf_spine({.ranks = ranks, .down = 4, .spines = 2})};
  Random random(seed, RandomStream::test, 0);
  uint64_t cookie = 0;
  for (Rank r = 0; r < ranks; ++r)
    for (int i = 0; i < 12; ++i)
      s.messages.push_back({.src = r,
                            .dst = static_cast<Rank>(random.below(static_cast<uint64_t>(ranks))),
                            .report_sent = i % 3 == 0,
                            .bytes = static_cast<int64_t>(random.below(60'000)),
                            .chunk_packets = i % 4 == 0 ? 3 : 0,
                            .cookie = ++cookie});
  return s;
}

LinkId link_between(const Fabric& fabric, const std::string& from, const std::string& to) {
  for (size_t l = 0; l < fabric.links().size(); ++l)
    if (fabric.nodes()[static_cast<size_t>(fabric.links()[l].from)].name == from &&
        fabric.nodes()[static_cast<size_t>(fabric.links()[l].to)].name == to)
      return static_cast<LinkId>(l);
  return kNone;
}

TEST(FabricModel, SecondsSaturate) {
  EXPECT_EQ(saturating_ps(1e9), kNever);  // a "never" of SimGrid; in picoseconds 10^21
  EXPECT_EQ(saturating_ps(9.2e6), kNever);
  EXPECT_EQ(saturating_ps(9.1e6), Ps{9'100'000} * 1'000'000'000'000);
  EXPECT_EQ(saturating_ps(-1), 0);
  EXPECT_EQ(saturating_ps(1e-12 * 0.6), 1);
}

TEST(FabricModel, EveryQuantumGivesTheDatesOfTheNetworkAlone) {
  const Scenario s = random_messages(16, 3);
  const std::string alone = play_alone(s);
  EXPECT_NE(alone.find("arrived 192 "), std::string::npos);  // 16 ranks x 12
  for (Ps quantum : {Ps{1}, Ps{777}, Ps{100'000}, Ps{1'000'000}, Ps{1'000'000'000}, kNever / 2})
    EXPECT_EQ(play_coupled(s, {.model = {.quantum = quantum}}), alone) << quantum;
}

TEST(FabricModel, StepsOfOthersChangeNoDate) {
  const Scenario s = random_messages(16, 4);
  // Dates of SimGrid between, on and off whole picoseconds, and one long after the last event.
  EXPECT_EQ(play_coupled(s, {.sleeps = {1e-6, 1e-9, 0.3e-12, 1.7e-12, 2e-6, 0, 1e-7 / 3, 1}}), play_alone(s));
}

TEST(FabricModel, StopsOfTheTrafficChangeNoDate) {
  Scenario s = random_messages(16, 5);
  const std::string alone = play_alone(s);
  s.stop_every = 1;
  EXPECT_EQ(play_coupled(s), alone);
  s.stop_every = 3;
  EXPECT_EQ(play_coupled(s, {.model = {.quantum = 5000}, .sleeps = {3e-6}}), alone);
}

TEST(FabricModel, CongestionControlKeepsItsDates) {
  Scenario s{.fabric = star(9)};
  s.settings.congestion.kind = CongestionKind::dcqcn;
  for (Rank r = 1; r < 9; ++r)
    s.messages.push_back({.src = r, .dst = 0, .bytes = 400'000, .cookie = static_cast<uint64_t>(r)});
  const std::string alone = play_alone(s);
  EXPECT_EQ(play_coupled(s), alone);
  EXPECT_EQ(play_coupled(s, {.model = {.quantum = 3000}, .sleeps = {1e-5, 1.23456e-5}}), alone);
}

TEST(FabricModel, FaultsAndTimersKeepTheirDates) {
  Scenario s{.fabric = leaf_spine({.ranks = 8, .down = 4, .spines = 2})};
  s.settings.networks[1].policy = RoutePolicy::by_destination;
  s.settings.reroute_delay = {1};
  s.messages = {{.src = 0, .dst = 4, .bytes = 2'000'000, .cookie = 1},
                {.src = 0, .dst = 5, .bytes = 2'000'000, .cookie = 2},
                {.src = 1, .dst = 5, .bytes = 300'000, .cookie = 3}};
  // Both uplinks of leaf 0 are away from 40 to 300 us: nothing moves and no event is left but the repair.
  for (const char* spine : {"spine 0", "spine 1"}) {
    const LinkId link = link_between(s.fabric, "leaf 0", spine);
    s.faults.push_back({.at = 20'000'000, .kind = FaultKind::link_rate, .link = link, .factor = 0.25});
    s.faults.push_back({.at = 40'000'000, .kind = FaultKind::link_down, .link = link});
    s.faults.push_back({.at = 300'000'001, .kind = FaultKind::link_up, .link = link});
  }
  s.timers = {10'000'000, 41'000'000};
  const std::string alone = play_alone(s);
  EXPECT_NE(alone.find("0 under way"), std::string::npos);
  EXPECT_EQ(play_coupled(s), alone);
  EXPECT_EQ(play_coupled(s, {.model = {.quantum = 70'000'000}, .sleeps = {39e-6, 2e-6}}), alone);
}

TEST(FabricModel, ThousandsOfEventsRunInATurn) {
  const Scenario s = random_messages(64, 6);
  const std::string turns = run_in_child([&] {
    int64_t count = 0;
    play(s, [&](Network& network) {
      Simulation simulation(1, {});
      const FabricModel model(network, {.quantum = 1'000'000'000});
      simulation.run();
      count = model.turns();
      if (model.stops() != 0) count = 1'000'000;
    });
    return std::to_string(count);
  });
  // Ask, step of one quantum (longer than all of it), idle, end; a useless tick may be one more.
  EXPECT_LE(std::stoi(turns), 5);
}

/// A link of SimGrid that stands for links of the fabric: its profile is the fault schedule.
void add_ghost(Simulation& simulation, const char* profile) {
  s4u::Link* ghost = compat::add_link(simulation.host(0)->get_englobing_zone(), "ghost", 1e9);
  ghost->set_state_profile(ProfileBuilder::from_string("schedule", profile, -1));
  ghost->seal();
}

/// One 2 MB message over two links of 50 GB/s; the second is down as the ghost's profile says. Returns the
/// signals and the arrival.
std::string run_with_profile(const char* profile, FabricModelSettings settings, Seconds reroute_delay = {1}) {
  return run_in_child([&] {
    Scenario s{.fabric = star(2)};
    s.settings.reroute_delay = reroute_delay;
    s.messages = {{.src = 0, .dst = 1, .bytes = 2'000'000, .cookie = 1}};
    std::string signals;
    const LinkId down = link_between(s.fabric, "switch", "gpu 1");
    return play(s,
                [&](Network& network) {
                  Simulation simulation(1, {});
                  const FabricModel model(network, settings);
                  add_ghost(simulation, profile);
                  compat::on_link_state([&](const s4u::Link& link) {
                    signals +=
                        fmt::format("{} at {}, network at or before: {}\n", link.is_on() ? "on" : "off",
                                    model.clock(), network.now() <= model.clock());
                    network.add_fault({.at = model.clock(),
                                       .kind = link.is_on() ? FaultKind::link_up : FaultKind::link_down,
                                       .link = down});
                  });
                  simulation.run();
                }) +
           signals;
  });
}

// 2 MB in 489 packets: (2e6 + 42 + 488 x 26) x 20 ps + 2 x 300 ns.
constexpr Ps kTwoMegabytes = (2'000'000 + 42 + 488 * 26) * Ps{20} + 600'000;

TEST(FabricModel, ProfileEventsComeOnTheirDateInOpenSteps) {
  // Nobody but the network has dates here: SimGrid does not limit such a step by its profiles. The link is
  // down for 8.75 us; nothing starts on it in between, what is on the wire lands. The packet that was being
  // sent at 5.25 us ends later, the next one starts at 14 us.
  for (Ps quantum : {Ps{1'000'000}, Ps{1'000'000'000}}) {
    const std::string text = run_with_profile("5.25e-6 0\n14e-6 1\n", {.quantum = quantum});
    EXPECT_NE(text.find("off at 5250000, network at or before: true"), std::string::npos) << text;
    EXPECT_NE(text.find("on at 14000000, network at or before: true"), std::string::npos) << text;
    const Ps arrival = std::stoll(text.substr(text.find("arrived 1 ") + 10));
    EXPECT_GT(arrival, kTwoMegabytes + 8'750'000 - 4122 * 20);  // part of a packet may pass in the outage
    EXPECT_LE(arrival, kTwoMegabytes + 8'750'000);
  }
}

TEST(FabricModel, StuckNetworkWaitsForARepairByAProfile) {
  // The outage outlives every packet on the way and the new tables: no event, no action of SimGrid, only a
  // profile event to come.
  const char* profile = "5e-6 0\n2e-3 1\n";
  const std::string text = run_with_profile(profile, {.keep_alive = 3'000'000'000}, microseconds(1));
  EXPECT_NE(text.find("on at 2000000000"), std::string::npos) << text;
  EXPECT_NE(text.find("0 under way"), std::string::npos) << text;
  // Without, SimGrid stops: said by who drives it (Session, or the plan player), not silently right.
  const std::string stopped = run_with_profile(profile, {}, microseconds(1));
  EXPECT_NE(stopped.find("1 under way"), std::string::npos) << stopped;
}

/// What constructing a model throws.
std::string refusal(Network& network) {
  try {
    const FabricModel model(network);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(FabricModel, OneModelPerEngine) {
  const std::string text = run_in_child([] {
    const Fabric fabric = star(2);
    Script traffic;
    PacketNetwork one(fabric, packet_settings(), traffic), two(fabric, packet_settings(), traffic);
    std::string refusals = refusal(one) + "\n";
    const Simulation simulation(1, {});
    refusals += refusal(two) + "\n";  // fine, and gone again
    const FabricModel model(one);
    return refusals + refusal(two);
  });
  EXPECT_EQ(text,
            "a network needs SimGrid's engine first\n"
            "none\n"
            "the engine already has the model 'plumb network 1', which moves on its own; only one such is "
            "possible");
}

TEST(FabricModel, ErrorsOfTheTrafficLeaveTheRun) {
  class Broken : public Script {
    void on_arrived(const Message&, Ps) override { fail_usage("the traffic is broken"); }
  };
  try {
    run_in_child([] {
      const Fabric fabric = star(2);
      Broken traffic;
      traffic.add({.src = 0, .dst = 1, .bytes = 1});
      PacketNetwork network(fabric, packet_settings(), traffic);
      network.wake_all();
      Simulation simulation(1, {});
      const FabricModel model(network);
      simulation.run();
      return std::string();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(), "the traffic is broken");
  }
}

}  // namespace
}  // namespace plumb::sim

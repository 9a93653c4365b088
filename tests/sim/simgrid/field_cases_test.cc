// Mistakes that simulators on SimGrid were reported for.
#include <string>

#include <gtest/gtest.h>

#include "sim/simgrid/reference_network.h"
#include "sim/simgrid/session.h"
#include "tests/sim/simgrid/coupled.h"

namespace plumb::sim {
namespace {

TEST(FieldCases, B21_MessageToItselfTouchesNoLinkUnderSimGrid) {
  const std::string text = run_in_child([] {
    const Fabric fabric = star(2);
    PacketSettings settings = packet_settings();
    settings.local = {.rate = gigabytes_per_second(1000), .latency = nanoseconds(500)};
    Simulation simulation(2, {});
    Session session(2);
    PacketNetwork network(fabric, settings, session);
    session.couple(network, simulation);
    std::string dates;
    simulation.add_actor(0, "rank", [&] {
      session.wait(session.send(0, {.dst = 0, .bytes = 1'000'000}));
      for (const LinkUse& use : network.link_use())
        PLUMB_CHECK(use.packet_bytes == 0, "{} bytes on link {}", use.packet_bytes, use.link);
      dates += fmt::format("{} ", session.model().clock());
      session.wait(session.send(0, {.dst = 1, .bytes = 1'000'000}));
      dates += fmt::format("{}", session.model().clock());
    });
    simulation.run();
    return dates;
  });
  // 1 ps per byte and the latency: 1.5 us; then to the neighbour at 20 ps per byte, 245 packets, 2 links.
  EXPECT_EQ(text, fmt::format("1500000 {}", 1'500'000 + (1'000'000 + 42 + 244 * 26) * Ps{20} + 600'000));
}

TEST(FieldCases, B21_MessageToItselfTouchesNoLinkInTheReference) {
  // SimGrid's hidden loop-back of 10 GB/s would give 100 us. The flow to the neighbour is not slowed down.
  const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 0, .bytes = 1'000'000},
                                            {.src = 0, .dst = 1, .bytes = 1'000'000}};
  const std::vector<Seconds> ends =
      run_reference_network(star(2), flows, {.local_rate = gigabytes_per_second(1000), .local_latency = {}});
  EXPECT_NEAR(ends[0].value, 1e-6, 1e-12);
  EXPECT_NEAR(ends[1].value, 20.6e-6, 1e-10);
}

/// Ranks 0 and 1, each with an actor that may send first and then waits for the other one. Returns the error.
std::string hang(bool first_sends, bool first_waits) {
  try {
    run_in_child([&] {
      const Fabric fabric = star(2);
      Simulation simulation(2, {});
      Session session(2);
      PacketNetwork network(fabric, packet_settings(), session);
      session.couple(network, simulation);
      simulation.add_actor(0, "gpu 0", [&] {
        if (first_sends) session.send(0, {.dst = 1, .tag = 7, .bytes = 10});
        if (first_waits) session.wait_arrived(0, {.tag = 8, .bytes = 5, .what = "combine from rank 1"});
      });
      simulation.add_actor(1, "gpu 1", [&] {
        session.wait_arrived(1, {.tag = 7, .messages = 2, .what = "dispatch from rank 0"});
        session.send(1, {.dst = 0, .tag = 8, .bytes = 5});
      });
      simulation.run();
      return std::string();
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);  // exit code 1
    return error.what();
  }
  return "none";
}

TEST(FieldCases, B22_UnmatchedWaitIsAnErrorThatNamesTheRank) {
  // The clock goes on to the end of the quantum of 1 us in which the message has landed.
  EXPECT_EQ(hang(true, false),
            "the simulation stopped before all was done, at 1.000000 us\n"
            "actor 'gpu 1' on rank 1 waits for ever\n"
            "rank 1 (actor 'gpu 1') waits for 2 messages and 0 bytes with tag 7, 1 and 10 have arrived: "
            "dispatch from rank 0\n");
}

TEST(FieldCases, B22_CycleOfWaitsNamesAllRanksOfIt) {
  EXPECT_EQ(hang(false, true),
            "the simulation stopped before all was done, at 0.000000 us\n"
            "actor 'gpu 0' on rank 0 waits for ever\n"
            "actor 'gpu 1' on rank 1 waits for ever\n"
            "rank 0 (actor 'gpu 0') waits for 0 messages and 5 bytes with tag 8, 0 and 0 have arrived: "
            "combine from rank 1\n"
            "rank 1 (actor 'gpu 1') waits for 2 messages and 0 bytes with tag 7, 0 and 0 have arrived: "
            "dispatch from rank 0\n");
}

TEST(FieldCases, B22_MessagesThatNeverLandAreAnErrorWithoutAnyWait) {
  try {
    run_in_child([] {
      const Fabric fabric = star(2);
      Simulation simulation(2, {});
      Session session(2);
      PacketNetwork network(fabric, packet_settings(), session);
      session.couple(network, simulation);
      network.add_fault({.kind = FaultKind::link_down, .link = 0});
      simulation.add_actor(0, "gpu 0", [&] { session.send(0, {.dst = 1, .bytes = 10}); });
      simulation.run();
      return std::string();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);
    EXPECT_NE(std::string(error.what()).find("1 messages are under way"), std::string::npos) << error.what();
  }
}

TEST(FieldCases, B32_ReferenceLinkGives21Microseconds) {
  EXPECT_NEAR(check_reference_network().value, 21e-6, 21e-9);
  // What SimGrid does unless told otherwise is refused, and the keys are named.
  for (const std::string key :
       {"network/model:LV08", "network/bandwidth-factor:0.97", "network/crosstraffic:1"}) {
    std::vector<std::string> keys = reference_keys();
    if (key.find("model") != std::string::npos) keys.clear();
    keys.push_back(key);
    try {
      check_reference_network(keys);
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::environment);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
    const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 1, .bytes = 1}};
    EXPECT_THROW(run_reference_network(star(2), flows, {.keys = keys}), Error) << key;
  }
}

/// Ranks 0 and 1 reach rank 2 over one 50 GB/s link; rank 1 is `far` away.
Fabric near_and_far(Seconds far) {
  FabricBuilder b;
  for (Rank r = 0; r < 3; ++r) add_gpu(b, r);
  const NodeId hub = add_switch(b, 1, "switch");
  b.add_cable(0, hub, cable({.latency = nanoseconds(500)}));
  b.add_cable(1, hub, cable({.latency = far}));
  b.add_cable(2, hub, cable({.latency = nanoseconds(500)}));
  return std::move(b).finish();
}

TEST(FieldCases, B34_SharesDoNotDependOnLatency) {
  // 1 us and 21 us of path. The near flow is alone for 20 us and 1 MB; then both have 25 GB/s. The near one
  // ends 999 MB / 25 GB/s = 39.96 ms later, at 39.981 ms; the link is busy until 1 us + 2 GB / 50 GB/s =
  // 40.001 ms. (Weights of inverse latency would end the near one at 20.95 ms.)
  const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 2, .bytes = 1'000'000'000},
                                            {.src = 1, .dst = 2, .bytes = 1'000'000'000}};
  const std::vector<Seconds> ends = run_reference_network(near_and_far(nanoseconds(20'500)), flows);
  EXPECT_NEAR(ends[0].value, 39.981e-3, 1e-8);
  EXPECT_NEAR(ends[1].value, 40.001e-3, 1e-8);
  // Neutral: with equal latencies both end as late as the far one, to 0.05 %.
  for (Seconds end : run_reference_network(near_and_far(nanoseconds(500)), flows))
    EXPECT_NEAR(end.value, ends[1].value, 5e-4 * ends[1].value);
}

}  // namespace
}  // namespace plumb::sim

// Actors that send and wait.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <simgrid/s4u.hpp>

#include "sim/simgrid/session.h"
#include "tests/sim/simgrid/coupled.h"

namespace plumb::sim {
namespace {

/// A star of ranks with a session; `log` of a test is what its process returns.
struct World {
  explicit World(Rank ranks, FabricModelSettings model = {})
      : fabric(star(ranks)),
        simulation(ranks, {}),
        session(ranks),
        network(fabric, packet_settings(), session) {
    session.couple(network, simulation, model);
  }
  void note(const std::string& what) {
    log += fmt::format("{} {}\n", what, saturating_ps(Simulation::now().value));
  }
  Fabric fabric;
  Simulation simulation;
  Session session;
  PacketNetwork network;
  std::string log;
};

std::string failure(const std::function<std::string()>& body) {
  try {
    return "none: " + run_in_child(body);
  } catch (const Error& error) {
    return error.what();
  }
}

// 1 MB in 245 packets, over 2 links of 300 ns and 20 ps per byte; it has left when its last byte has.
constexpr Ps kLeft = (1'000'000 + 42 + 244 * 26) * Ps{20};
constexpr Ps kLanded = kLeft + 600'000;

TEST(Session, WaitsEndAtTheDatesOfTheNetwork) {
  const std::string log = run_in_child([] {
    World w(2);
    w.simulation.add_actor(0, "sender", [&] {
      const Transfer transfer = w.session.send(0, {.dst = 1, .tag = 4, .bytes = 1'000'000}, true);
      w.session.wait_sent(transfer);
      w.note("sent");
      w.session.wait(transfer);
      w.note("landed");
      w.session.wait(transfer);  // long complete
      w.session.wait_sent(transfer);
      w.note("still");
    });
    w.simulation.add_actor(1, "receiver", [&] {
      w.session.wait_arrived(1, {.tag = 4, .messages = 1});
      w.note("arrived");
      w.session.wait_arrived(1, {.tag = 4, .bytes = 1'000'000});  // has come
      w.note("bytes");
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, fmt::format("sent {0}\narrived {1}\nbytes {1}\nlanded {1}\nstill {1}\n", kLeft, kLanded));
}

TEST(Session, CountsPerRankAndTag) {
  const std::string log = run_in_child([] {
    World w(3);
    w.simulation.add_actor(0, "sender", [&] {
      for (uint32_t tag : {9u, 2u, 9u, 5u, 2u}) w.session.send(0, {.dst = 1, .tag = tag, .bytes = 100 * tag});
      w.session.send(0, {.dst = 2, .tag = 9, .bytes = 7});
    });
    w.simulation.run();
    for (uint32_t tag : {2u, 5u, 9u, 1u}) {
      const Arrived a = w.session.arrived(1, tag);
      w.log += fmt::format("{}: {} {}\n", tag, a.messages, a.bytes);
    }
    w.session.forget(1, 9);
    w.log += fmt::format("{} {}", w.session.arrived(1, 9).messages, w.session.arrived(2, 9).bytes);
    return w.log;
  });
  EXPECT_EQ(log, "2: 2 400\n5: 1 500\n9: 2 1800\n1: 0 0\n0 7");
}

TEST(Session, SeveralActorsOfARankWaitForTheSameTag) {
  // 3 messages of 4096 B follow each other at 4138 x 20 ps; each waiter goes at its own count, in any order
  // of asking, and one that asks for bytes as well as messages waits for both.
  const std::string log = run_in_child([] {
    World w(2);
    const std::vector<Expect> wanted = {
        {.messages = 3}, {.messages = 1}, {.bytes = 2 * 4096}, {.messages = 1, .bytes = 3 * 4096}};
    for (size_t i = 0; i < wanted.size(); ++i)
      w.simulation.add_actor(1, fmt::format("receiver {}", i), [&, i] {
        w.session.wait_arrived(1, wanted[i]);
        w.log += fmt::format("{} after {} messages\n", i, w.session.arrived(1, 0).messages);
      });
    w.simulation.add_actor(0, "sender", [&] {
      for (int i = 0; i < 3; ++i) w.session.send(0, {.dst = 1, .bytes = 4096});
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_NE(log.find("1 after 1 messages\n2 after 2 messages\n"), std::string::npos) << log;
  EXPECT_NE(log.find("0 after 3 messages\n"), std::string::npos) << log;
  EXPECT_NE(log.find("3 after 3 messages\n"), std::string::npos) << log;
}

TEST(Session, ListsAreMadeWhenTheNicCanStartOneMore) {
  // 1000 messages of 4096 B: with 32 queue pairs far fewer than all have been asked for after 10 us (some 121
  // of 4122 B at 20 ps have left), and each wait is one wake.
  const std::string log = run_in_child([] {
    World w(2);
    int32_t made = 0;
    w.simulation.add_actor(0, "sender", [&] {
      const Transfer transfer = w.session.send(0, SendList{.report_sent = true, .next = [&](Send& send) {
                                                             if (made == 1000) return false;
                                                             ++made;
                                                             send = {.dst = 1, .tag = 1, .bytes = 4096};
                                                             return true;
                                                           }});
      Simulation::sleep(microseconds(10));
      w.log += made < 121 + 40 ? "lazy\n" : "eager\n";
      w.session.wait_sent(transfer);
      w.note("sent");
      w.session.wait(transfer);
      w.note("landed");
    });
    w.simulation.add_actor(1, "receiver", [&] {
      w.session.wait_arrived(1, {.tag = 1, .messages = 1000});
      w.note("arrived");
    });
    w.simulation.run();
    return w.log + std::to_string(w.session.model().stops());
  });
  // A packet of 4096 + 42 bytes per message.
  const Ps left = 1000 * Ps{4138} * 20;
  EXPECT_EQ(log, fmt::format("lazy\nsent {0}\narrived {1}\nlanded {1}\n2", left, left + 600'000));
}

TEST(Session, AnEmptyListIsComplete) {
  const std::string log = run_in_child([] {
    World w(2);
    w.simulation.add_actor(0, "sender", [&] {
      w.session.wait(w.session.send(0, SendList{.next = [](Send&) { return false; }}));
      w.note("done");
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, "done 0\n");
}

TEST(Session, ActorsActAfterAllEventsOfTheirDate) {
  // Ranks 1 and 2 send 1 MB at the same date to ranks 3 and 4: both land at one date. The actor of rank 3,
  // woken by one of them, sees the other one whatever the order of events.
  const std::string log = run_in_child([] {
    World w(5);
    for (Rank r : {1, 2})
      w.simulation.add_actor(r, "sender", [&, r] { w.session.send(r, {.dst = r + 2, .bytes = 1'000'000}); });
    for (Rank r : {3, 4})
      w.simulation.add_actor(r, "receiver", [&, r] {
        w.session.wait_arrived(r, {.messages = 1});
        w.note(std::to_string(w.session.arrived(r == 3 ? 4 : 3, 0).messages));
      });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, fmt::format("1 {0}\n1 {0}\n", kLanded));
}

TEST(Session, ChainOfWaitsHasTheDatesOfACallbackChain) {
  // Rank 0 -> 1 -> 2 -> ... each sends when it has received; an actor elsewhere makes odd steps.
  const std::string log = run_in_child([] {
    World w(6, {.quantum = 1234});
    for (Rank r = 0; r < 6; ++r)
      w.simulation.add_actor(r, "hop", [&, r] {
        if (r > 0) w.session.wait_arrived(r, {.messages = 1});
        if (r < 5) w.session.send(r, {.dst = r + 1, .bytes = 1'000'000});
        if (r == 5) w.note("end");
      });
    w.simulation.add_actor(0, "sleeper", [] {
      for (int i = 0; i < 50; ++i) Simulation::sleep({1e-6 / 3});
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, fmt::format("end {}\n", 5 * kLanded));
}

TEST(Session, EndlessBackgroundDoesNotTrapTheEngine) {
  const std::string log = run_in_child([] {
    World w(4, {.ends_with_actors = true});
    w.simulation.add_actor(2, "background", [&] {
      w.session.send(2, SendList{.next = [](Send& send) {
                       send = {.dst = 3, .tag = 1, .bytes = 65536};
                       return true;
                     }});
    });
    w.simulation.add_actor(0, "sender", [&] {
      w.session.wait(w.session.send(0, {.dst = 1, .bytes = 1'000'000}));
      w.note("landed");
      Simulation::sleep(microseconds(50));
      w.note("slept");
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, fmt::format("landed {}\nslept {}\n", kLanded, kLanded + 50'000'000));
}

TEST(Session, KilledAndDisturbedWaitersLeaveCleanly) {
  const std::string log = run_in_child([] {
    World w(2);
    const auto victim = [&] {
      w.session.wait_arrived(1, {.messages = 1});
      w.note("never said by the killed one");
    };
    w.simulation.add_actor(1, "victim", victim);
    w.simulation.add_actor(1, "disturbed", [&] {
      w.session.wait_arrived(1, {.messages = 1});
      w.note("arrived");
    });
    w.simulation.add_actor(0, "sender", [&] {
      for (const auto& actor : w.simulation.host(1)->get_all_actors()) {
        if (actor->get_name() == "victim") actor->kill();
        if (actor->get_name() == "disturbed") actor->resume();
      }
      Simulation::sleep(microseconds(1));
      w.session.send(0, {.dst = 1, .bytes = 1'000'000});
    });
    w.simulation.run();
    return w.log;
  });
  EXPECT_EQ(log, fmt::format("arrived {}\n", kLanded + 1'000'000));
}

TEST(Session, RefusesWhatMakesNoSense) {
  EXPECT_EQ(failure([] {
              World w(2);
              w.session.wait_arrived(0, {.messages = 1});
              return std::string();
            }),
            "only an actor can wait for messages");
  EXPECT_EQ(failure([] {
              World w(2);
              w.simulation.add_actor(0, "a", [&] { w.session.wait_sent(w.session.send(0, {.dst = 1})); });
              w.simulation.run();
              return std::string();
            }),
            "rank 0 waits until a transfer has left that was sent without report_sent");
  EXPECT_EQ(failure([] {
              World w(2);
              w.session.send(2, {.dst = 1});
              return std::string();
            }),
            "rank 2 of 2, traffic class 0 of 1");
  EXPECT_EQ(failure([] {
              World w(2);
              w.session.send(0, {.dst = 2});
              return std::string();
            }),
            "rank 0 sends 0 bytes to rank 2 of 2");
}

}  // namespace
}  // namespace plumb::sim

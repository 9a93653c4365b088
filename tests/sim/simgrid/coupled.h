// Runs the same messages on a packet network stand-alone and under SimGrid, and writes what happened as text:
// each run is a process of its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/packet_network.h"
#include "sim/simgrid/child.h"
#include "sim/simgrid/fabric_model.h"
#include "sim/simgrid/simulation.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {

/// Writes a line per event; every `stop_every` arrivals it stops the network for no reason.
class Recorder : public Script {
 public:
  int32_t stop_every = 0;
  Network* network = nullptr;
  std::string text;

  void on_sent(const Message& m, Ps at) override { text += fmt::format("sent {} {}\n", m.cookie, at); }
  void on_chunk(const Message& m, int64_t bytes, Ps at) override {
    text += fmt::format("chunk {} {} {}\n", m.cookie, bytes, at);
  }
  void on_arrived(const Message& m, Ps at) override {
    text += fmt::format("arrived {} {}\n", m.cookie, at);
    if (stop_every > 0 && ++arrived_ % stop_every == 0) network->stop();
  }
  void on_timer(uint32_t id, Ps at) override {
    text += fmt::format("timer {} {}\n", id, at);
    network->wake(static_cast<Rank>(id), Link::scale_out, 0, at);
  }

 private:
  int32_t arrived_ = 0;
};

struct Scenario {
  Fabric fabric;
  PacketSettings settings = packet_settings();
  std::vector<Message> messages{};
  std::vector<Fault> faults{};
  std::vector<Ps> timers{};  // timer i asks rank i for messages
  int32_t stop_every = 0;
};

struct Under {
  FabricModelSettings model{};
  std::vector<double> sleeps{};  // of an actor that only makes SimGrid's steps short, in seconds
};

inline std::string play(const Scenario& scenario, const std::function<void(Network&)>& run) {
  Recorder traffic;
  traffic.stop_every = scenario.stop_every;
  for (const Message& message : scenario.messages) traffic.add(message);
  PacketNetwork network(scenario.fabric, scenario.settings, traffic);
  traffic.network = &network;
  network.wake_all();
  for (const Fault& fault : scenario.faults) network.add_fault(fault);
  for (size_t i = 0; i < scenario.timers.size(); ++i)
    network.call_at(scenario.timers[i], static_cast<uint32_t>(i));
  run(network);
  return traffic.text +
         fmt::format("{} events, {} under way\n", network.counts().events, network.messages_under_way());
}

inline std::string play_alone(const Scenario& scenario) {
  return play(scenario, [](Network& network) { network.run(); });
}

inline std::string play_coupled(const Scenario& scenario, const Under& under = {}) {
  return run_in_child([&] {
    return play(scenario, [&](Network& network) {
      Simulation simulation(1, {});
      const FabricModel model(network, under.model);
      if (!under.sleeps.empty())
        simulation.add_actor(0, "sleeper", [&] {
          for (double seconds : under.sleeps) Simulation::sleep({seconds});
        });
      simulation.run();
    });
  });
}

}  // namespace plumb::sim

// One actor keeps SimGrid going as long as the network has events.
#include "sim/simgrid/drive.h"

#include <algorithm>

#include "sim/simgrid/fabric_model.h"
#include "sim/simgrid/simulation.h"

namespace plumb::sim {

namespace {
constexpr Ps kSleep = 1'000'000'000;  // 1 ms
}

void drive_under_simgrid(Network& network, Ps limit) {
  Simulation simulation(1, {});
  FabricModel model(network, {.quantum = 1'000'000, .keep_alive = 0, .ends_with_actors = true});
  simulation.add_actor(0, "plan", [&] {
    // In one sleep the model handles all events until its end.
    while (network.next_event() != kNever && model.clock() < limit)
      Simulation::sleep(to_seconds(std::min<Ps>(limit - model.clock(), kSleep)));
  });
  simulation.run();
}

}  // namespace plumb::sim

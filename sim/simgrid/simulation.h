// A SimGrid platform of ranks: a GPU is a host with one core per SM and a disk for its memory (HBM); actors
// run on it. Includes nothing of SimGrid.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/ids.h"
#include "model/units.h"

namespace simgrid::s4u {
class Disk;
class Host;
}  // namespace simgrid::s4u

namespace plumb::sim {

/// Values of the machine file; equal for all ranks.
struct GpuSettings {
  int32_t sms = 1;
  BytesPerSecond hbm{};  // reads and writes together; 0 = not modelled
};

/// Work of a GPU. It ends when its SM time and its memory traffic have both ended; either takes longer when
/// others share the SMs or the memory.
struct Kernel {
  int32_t sms = 1;        // that it runs on
  Seconds time{};         // with these SMs to itself
  int64_t hbm_bytes = 0;  // read and written, evenly over its time
};

/// A kernel that was started. Destroying it does not end it.
class RunningKernel {
 public:
  /// Blocks the calling actor until the kernel has ended.
  void wait();

 private:
  friend class Simulation;
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

/// Makes SimGrid's engine, unless there is one, and a host per rank. SimGrid's state is process-wide: one
/// Simulation per process (run_in_child() gives more).
class Simulation {
 public:
  /// Throws Error(usage) when the process already had a Simulation or a sealed platform.
  Simulation(Rank ranks, const GpuSettings& gpu);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// `body` may use all of s4u. What it throws ends the simulation and leaves run().
  void add_actor(Rank rank, const std::string& name, std::function<void()> body);
  /// Started by the calling actor on its own GPU. Throws Error(usage) for more SMs than it has.
  RunningKernel start(Rank rank, const Kernel& kernel);
  void execute(Rank rank, const Kernel& kernel) { start(rank, kernel).wait(); }
  /// Blocks the calling actor.
  static void sleep(Seconds time);
  /// The engine's clock.
  static Seconds now();

  /// Its zone is open until run(): more hosts and links, and profiles of this one, may be added.
  simgrid::s4u::Host* host(Rank rank) const;
  simgrid::s4u::Disk* hbm(Rank rank) const;  // null when not modelled

  /// Asked when the run ends or cannot go on: says what is wrong then, "" when nothing is.
  void add_reporter(std::function<std::string()> reporter);

  /// Runs SimGrid until nothing is left. Throws what an actor or a network threw, and Error(mismatch) naming
  /// all actors that wait for ever and what the reporters say: SimGrid itself then only prints a notice,
  /// kills them and returns.
  void run();

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace plumb::sim

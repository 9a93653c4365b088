// Puts a Network under SimGrid's clock: thousands of its events per turn of SimGrid's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "sim/network.h"

namespace plumb::sim {

struct FabricModelSettings {
  /// Longest step while SimGrid itself has nothing to do. No date depends on it, except that the engine's
  /// clock may end up to this much after the last event.
  Ps quantum = 1'000'000;
  /// Until then SimGrid runs on although nothing moves: messages are stuck, and one of its profiles will
  /// repair that. 0: a network that is stuck ends the run. Faults given by Network::add_fault() need none.
  Ps keep_alive = 0;
  /// The run ends with the last actor although the network has events: for endless background traffic.
  bool ends_with_actors = false;
};

/// A model of SimGrid (kernel::resource::Model, not idempotent) that drives one network of either fidelity.
/// Make it after the engine; at most one per engine. The network's clock never passes SimGrid's. What an
/// actor does at a date comes after all events of the network at that date, whatever the steps were: so
/// coupled and stand-alone runs have the same dates. Exact to the picosecond up to 4000 s of simulated time
/// (SimGrid counts in double).
class FabricModel {
 public:
  /// `on_stop` runs in SimGrid's kernel once the engine's clock has reached a requested stop; it may wake
  /// actors. `network` must exist as long as SimGrid runs. Throws Error(usage) without an engine, and beside
  /// another model that is not idempotent (two of them cannot keep together: each runs ahead of the other).
  explicit FabricModel(Network& network, FabricModelSettings settings = {},
                       std::function<void()> on_stop = {});
  ~FabricModel();
  FabricModel(const FabricModel&) = delete;
  FabricModel& operator=(const FabricModel&) = delete;

  /// From a callback of the network: an actor must see this event. All events of the same date still come
  /// first.
  void request_stop();
  /// SimGrid's clock. The date to give to Network::wake(), call_at() and add_fault() from actors. Throws
  /// Error(usage) beyond 9.2e6 s, where picoseconds end.
  Ps clock() const;

  int64_t turns() const;  // questions by SimGrid
  int64_t stops() const;  // turns that ended early, for an actor

 private:
  class Hook;
  std::shared_ptr<Hook> hook_;  // SimGrid's engine holds it, too
};

/// Nearest picosecond; kNever for what does not fit ("never" dates of SimGrid are 1e9 s and more). Negative
/// is 0.
Ps saturating_ps(double seconds);

}  // namespace plumb::sim

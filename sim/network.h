// A simulated network of either fidelity, as whoever drives it sees it: stand-alone, or in steps under
// another clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/faults.h"
#include "sim/statistics.h"
#include "sim/time.h"
#include "sim/traffic.h"

namespace plumb::sim {

/// Carries the messages of a Traffic. Pulls them when a source can start them, and tells it what arrived.
class Network {
 public:
  virtual ~Network() = default;

  /// Has next() asked from `at` on for messages of a rank.
  virtual void wake(Rank rank, Link network, uint8_t traffic_class, Ps at = 0) = 0;
  /// Has on_timer(id) called.
  virtual void call_at(Ps at, uint32_t id) = 0;
  virtual void add_fault(const Fault& fault) = 0;

  virtual Ps now() const = 0;
  /// Date of the next event, kNever when there is none.
  virtual Ps next_event() const = 0;
  /// Handles the events up to and including `until`, less when stop() is called, and moves the clock to
  /// `until` or to the event that stopped it. Returns false when no event is left.
  virtual bool advance(Ps until) = 0;
  /// From a callback: advance() returns after this event.
  virtual void stop() = 0;
  /// Runs until nothing is left. Throws Error(mismatch) with stuck_report() when messages are still under
  /// way.
  void run();

  virtual int64_t messages_under_way() const = 0;
  /// Why what is in the network does not move, e.g. the cycle of lanes that wait for each other, or links
  /// that are down or lead nowhere. Empty when something can still move or nothing is under way.
  virtual std::string stuck_report() const = 0;

  virtual std::vector<LinkUse> link_use() const = 0;
  /// The most used links first, then by id.
  std::vector<LinkUse> hot_links(int32_t count) const;
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace plumb::sim

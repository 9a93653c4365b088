// The packet fidelity: a lossless network of packets with credits, lanes and virtual cut-through, over a
// Fabric. Runs stand-alone or in steps under another clock; includes nothing of SimGrid.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "sim/faults.h"
#include "sim/packet_settings.h"
#include "sim/statistics.h"
#include "sim/time.h"
#include "sim/traffic.h"

namespace plumb::sim {

class PacketEngine;

/// Messages are pulled from a Traffic when a source can start them, cut into packets, and move hop by hop: a
/// packet starts on a link when the whole of it fits the free credits of its lane at the far end, its head
/// goes on after the link's latency while its tail still comes in. Nothing is ever dropped. Memory grows with
/// ports and packets in flight.
class PacketNetwork {
 public:
  /// `fabric` and `traffic` must outlive the network. Throws Error(usage) for settings that contradict each
  /// other, and, naming the cycle, for routes that can deadlock with the lanes given.
  PacketNetwork(const Fabric& fabric, const PacketSettings& settings, Traffic& traffic);
  ~PacketNetwork();

  /// Has next() asked from `at` on for messages of a rank.
  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at = 0);
  /// The same for all ranks, networks and classes.
  void wake_all(Ps at = 0);
  /// Has on_timer(id) called.
  void call_at(Ps at, uint32_t id);
  void add_fault(const Fault& fault);

  Ps now() const;
  /// Date of the next event, kNever when there is none.
  Ps next_event() const;
  /// Handles the events up to and including `until`, less when stop() is called, and moves the clock to
  /// `until` or to the event that stopped it. Returns false when no event is left.
  bool advance(Ps until);
  /// From a callback: advance() returns after this event.
  void stop();
  /// Runs until nothing is left. Throws Error(mismatch) with stuck_report() when messages are still under
  /// way.
  void run();

  int64_t messages_under_way() const;
  /// Why the packets that are in the network do not move: the cycle of lanes that wait for each other, or
  /// links that are down or lead nowhere. Empty when something can still move or nothing is under way.
  std::string stuck_report() const;

  const PacketCounts& counts() const;
  /// Lanes that carried something, in order of channel.
  std::vector<LaneUse> lane_use() const;
  std::vector<LinkUse> link_use() const;
  /// The most used links first, then by id.
  std::vector<LinkUse> hot_links(int32_t count) const;
  int64_t memory_bytes() const;
  int32_t hop_classes() const;
  const ChannelGraph& graph() const;

 private:
  std::unique_ptr<PacketEngine> engine_;
};

}  // namespace plumb::sim

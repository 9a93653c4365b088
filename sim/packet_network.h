// The packet fidelity: a lossless network of packets with credits, lanes and virtual cut-through, over a
// Fabric. Includes nothing of SimGrid.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "sim/network.h"
#include "sim/packet_settings.h"

namespace plumb::sim {

class PacketEngine;

/// Messages are pulled from a Traffic when a source can start them, cut into packets, and move hop by hop: a
/// packet starts on a link when the whole of it fits the free credits of its lane at the far end, its head
/// goes on after the link's latency while its tail still comes in. Nothing is ever dropped. Memory grows with
/// ports and packets in flight.
class PacketNetwork final : public Network {
 public:
  /// `fabric` and `traffic` must outlive the network. Throws Error(usage) for settings that contradict each
  /// other, and, naming the cycle, for routes that can deadlock with the lanes given.
  PacketNetwork(const Fabric& fabric, const PacketSettings& settings, Traffic& traffic);
  ~PacketNetwork() override;

  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at = 0) override;
  /// The same for all ranks, networks and classes.
  void wake_all(Ps at = 0);
  void call_at(Ps at, uint32_t id) override;
  void add_fault(const Fault& fault) override;
  Ps now() const override;
  Ps next_event() const override;
  bool advance(Ps until) override;
  void stop() override;
  int64_t messages_under_way() const override;
  std::string stuck_report() const override;

  const PacketCounts& counts() const;
  /// Lanes that carried something, in order of channel.
  std::vector<LaneUse> lane_use() const;
  std::vector<LinkUse> link_use() const override;
  int64_t memory_bytes() const override;
  int32_t hop_classes() const;
  const ChannelGraph& graph() const;

 private:
  std::unique_ptr<PacketEngine> engine_;
};

}  // namespace plumb::sim

// Congestion control as the packet engine sees it: switches write a field of passing packets, destinations
// return it, sources pace their flows. One file per scheme.
#pragma once

#include <cstdint>
#include <memory>

#include "model/congestion_settings.h"
#include "sim/channels.h"
#include "sim/packet_settings.h"

namespace plumb::sim {

using FlowId =
    uint32_t;  // source, destination, network and class; only while it has messages or is held back

/// The queue of an output lane as a packet joins it.
struct QueueSight {
  Channel channel = 0;
  int64_t waiting_bytes = 0;  // in the queue, this packet included
  bool has_credits = true;    // the lane could send it if the port were free
  int32_t packet_bytes = 0;
  Ps now = 0;
};

/// What a source knows of a flow when it opens.
struct FlowSight {
  Ps round_trip = 0;         // without queues
  uint64_t ps_per_byte = 0;  // of its first link, times 2^32
  int32_t mtu_bytes = 0;
};

class CongestionControl {
 public:
  virtual ~CongestionControl() = default;

  /// A packet joins a queue of a switch; may write its field. Returns true when that is a new mark.
  virtual bool at_queue(const QueueSight& queue, uint16_t& field) = 0;
  /// Whether the destination returns the field of this packet to the source.
  virtual bool is_echoed(uint16_t field) const = 0;

  virtual void open(FlowId flow, const FlowSight& sight) = 0;
  /// True when the flow's state is that of a new one, so that it may be forgotten.
  virtual bool is_neutral(FlowId flow) const = 0;
  /// When the flow may send a packet, `now` or earlier: at once; kNever: not before an echo or a timer.
  virtual Ps may_send(FlowId flow, int32_t bytes) const = 0;
  /// It sends one; returns the field that the packet carries.
  virtual uint16_t send(FlowId flow, int32_t bytes, Ps now) = 0;
  /// A returned field reaches the source. Returns the date of the next timer call, kNever = no change.
  virtual Ps on_echo(FlowId flow, uint16_t field, int32_t bytes, Ps now) = 0;
  /// Returns the date of the next call, kNever = none.
  virtual Ps on_timer(FlowId flow, Ps now) = 0;
};

/// Returns nullptr for CongestionKind::none.
std::unique_ptr<CongestionControl> make_congestion_control(const CongestionSettings& settings,
                                                           const ChannelGraph& graph, uint64_t seed);
std::unique_ptr<CongestionControl> make_infiniband_congestion(const InfinibandCongestion& settings,
                                                              const ChannelGraph& graph);
std::unique_ptr<CongestionControl> make_dcqcn(const Dcqcn& settings, uint64_t seed);
std::unique_ptr<CongestionControl> make_caqm(const Caqm& settings, const ChannelGraph& graph, uint64_t seed);

}  // namespace plumb::sim

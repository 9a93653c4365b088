// Failures: ports that stop, tables that follow after a delay, packets that look for another way.
#include <algorithm>
#include <bit>

#include "model/error.h"
#include "sim/packet_engine.h"

namespace plumb::sim {

void PacketEngine::add_fault(const Fault& fault) {
  check_fault(fault, fabric_);
  faults_.push_back(fault);
  push(std::max(fault.at, now_), EventKind::fault, static_cast<uint32_t>(faults_.size()) - 1);
}

void PacketEngine::apply_fault(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::link_down:
    case FaultKind::link_up:
      set_down(graph_.of(fault.link), fault.kind == FaultKind::link_down);
      break;
    case FaultKind::switch_down:
    case FaultKind::switch_up:
      for (size_t l = 0; l < fabric_.links().size(); ++l) {
        const FabricLink& link = fabric_.links()[l];
        if (link.from == fault.node || link.to == fault.node)
          set_down(graph_.of(static_cast<LinkId>(l)), fault.kind == FaultKind::switch_down);
      }
      break;
    case FaultKind::link_rate: {
      const Channel channel = graph_.of(fault.link);
      const double rate = graph_[channel].rate.value * fault.factor;
      port(channel).ps_per_byte = static_cast<uint64_t>(std::llround(1e12 / rate * 0x1p32));
      set_head_delay(channel);
      for (Channel before = 0; before < num_channels(); ++before)  // what goes on over it
        if (graph_[before].to == graph_[channel].from) set_head_delay(before);
      return;
    }
  }
  push(now_ + to_ps(settings_.reroute_delay), EventKind::reroute, 0);
}

void PacketEngine::set_down(Channel channel, bool down) {
  router_.set_down(channel, down);
  port(channel).is_down = down;
  if (!down) arbitrate(channel);
}

/// New tables without the links that are down. Packets that wait for one of them, or found no way, ask again.
void PacketEngine::reroute() {
  router_.rebuild();
  std::vector<Parked> again;
  std::swap(again, parked_);
  for (Channel c = 0; c < num_channels(); ++c)
    if (router_.is_down(c)) drain(c, again);
  for (const Parked& packet : again) {
    if (packets_[packet.packet].in != kNil) {
      forward(packet.packet, packet.at, packet.slot);
      continue;
    }
    // A source's packet keeps its gate: it is known by the channel that it waits for.
    Source& source = sources_[source_of(messages_[packets_[packet.packet].message])];
    const Packet& p = packets_[packet.packet];
    const auto candidates = router_.candidates(p, packet.at);
    if (candidates.empty()) {
      parked_.push_back(packet);
      continue;
    }
    const Channel channel = candidates.size() == 1
                                ? candidates[0]
                                : router_.choose(candidates, p, contents_[p.message], packet.at);
    source.gates |= uint64_t{1} << gate_of(channel);
    request(packet.packet, channel, packet.slot);
  }
  for (uint32_t i = 0; i < sources_.size(); ++i)  // some had no way until now
    if (sources_[i].ring != kNil) inject(i);
}

/// Takes the packets that wait for a channel out of its queues.
void PacketEngine::drain(Channel channel, std::vector<Parked>& out) {
  Port& port = this->port(channel);
  const Vertex at = graph_[channel].from;
  for (uint64_t waiting = port.waiting_lanes; waiting != 0; waiting &= waiting - 1) {
    const uint32_t lane_index = static_cast<uint32_t>(std::countr_zero(waiting));
    const LaneId id = channel * lanes_per_port_ + lane_index;
    Lane& lane = this->lane(id);
    while (lane.waiting > 0) {
      const uint32_t slot = waiting_.first_slot(lane);
      const uint32_t packet = take(channel, lane_index);
      const Packet& p = packets_[packet];
      router_.add_load(id, -static_cast<int32_t>(p.units));
      if (p.in == kNil) sources_[source_of(messages_[p.message])].gates &= ~(uint64_t{1} << gate_of(channel));
      out.push_back({packet, at, slot});
    }
    lane.is_stalled = false;
  }
}

}  // namespace plumb::sim

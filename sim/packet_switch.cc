// A packet's way through switches: route, queue, arbitration, transmission, credits. The hot loop of the
// engine.
#include <algorithm>
#include <bit>

#include "model/error.h"
#include "sim/packet_engine.h"
#include "sim/prefetch.h"

namespace plumb::sim {

inline void PacketEngine::collect_credits(LaneId id, Lane& lane) {
  const int32_t units = credits_.collect(lane, now_);
  lane.credits += units;
  router_.add_load(id, -units);
}

/// The next packet of a lane, out of its queue.
uint32_t PacketEngine::take(Channel channel, uint32_t lane_index) {
  Lane& from = lane(channel, lane_index);
  const uint32_t packet = waiting_.take(from);
  if (waiting_.is_empty(from)) port(channel).waiting_lanes &= ~(uint64_t{1} << lane_index);
  return packet;
}

void PacketEngine::arrive(uint32_t packet) {
  Packet& p = packets_[packet];
  const Lane& came_over = lane(p.in);
  if (came_over.raises_class && p.hop_class + 1u < classes_) ++p.hop_class;
  if ((p.flags & (kFresh | kDetour)) != 0 && router_.may_detour())
    counts_.detours += router_.consider_detour(p, messages_[p.message].dst, came_over.to);
  if (!fifos_.empty()) return arrive_in_fifo(packet, came_over.to);
  forward(packet, came_over.to, came_over.in_slot);
}

void PacketEngine::forward(uint32_t packet, Vertex at, uint32_t slot) {
  const Packet& p = packets_[packet];
  const auto candidates = router_.candidates(p, at);
  if (candidates.empty()) [[unlikely]] {
    parked_.push_back({packet, at, slot});
    return;
  }
  const bool has_choice = candidates.size() > 1;
  request(packet, has_choice ? router_.choose(candidates, p, contents_[p.message], at) : candidates[0], slot);
}

void PacketEngine::request(uint32_t packet, Channel out, uint32_t slot) {
  Packet& p = packets_[packet];
  Port& port = this->port(out);
  const uint32_t lane_index = lane_of(p);
  const LaneId id = out * lanes_per_port_ + lane_index;
  Lane& lane = this->lane(out, lane_index);
  const int32_t size = static_cast<int32_t>(p.units);
  router_.add_load(id, size);
  if (congestion_ && p.in != kNil) {
    collect_credits(id, lane);
    const QueueSight sight = {.channel = out,
                              .waiting_bytes = int64_t{lane.waiting + size} * credit_unit_,
                              .has_credits = lane.credits >= size,
                              .packet_bytes = static_cast<int32_t>(p.bytes),
                              .now = now_};
    if (congestion_->at_queue(sight, p.congestion)) ++counts_.marks;
  }
  const bool is_idle =
      port.waiting_lanes == 0 && port.busy_until <= now_ && !port.has_done_event && !port.is_down;
  if (is_idle) {
    collect_credits(id, lane);
    if (lane.credits >= size && admit(port, out, p)) return transmit(packet, out, id);
  }
  waiting_.add(lane, packet, slot);
  port.waiting_lanes |= uint64_t{1} << lane_index;
  if (is_idle) {
    starve(id, lane, port);
  } else if (!port.has_done_event) {
    port.busy_until > now_ ? expect_done(port, out) : arbitrate(out);
  }
}

/// Books a packet that finds the port idle; false when no table serves its lane.
inline bool PacketEngine::admit(Port& port, Channel channel, const Packet& p) {
  if (virtual_lanes_ == 1) return true;
  const std::span debts(&debts_[channel * virtual_lanes_], virtual_lanes_);
  if (arbitration_.pick(port.arbitration, debts, 1u << p.virtual_lane) < 0) return false;
  arbitration_.charge(port.arbitration, static_cast<int32_t>(p.bytes));
  return true;
}

inline void PacketEngine::expect_done(Port& port, Channel channel) {
  port.has_done_event = true;
  push(port.busy_until, EventKind::port_done, channel);
}

inline bool PacketEngine::is_ready(LaneId id, Lane& lane) {
  collect_credits(id, lane);
  return lane.credits >= largest_units_ ||
         lane.credits >= static_cast<int32_t>(packets_[waiting_.first(lane)].units);
}

void PacketEngine::arbitrate(Channel channel) {
  Port& port = this->port(channel);
  if (port.waiting_lanes == 0 || port.is_down || port.has_done_event) return;
  if (port.busy_until > now_) return expect_done(port, channel);
  const uint32_t lane_index = pick_lane(port, channel);
  if (lane_index == kNil) {
    ++counts_.starved;
    return;
  }
  const LaneId id = channel * lanes_per_port_ + lane_index;
  transmit(take(channel, lane_index), channel, id);
}

/// Chooses the lane that sends next; kNil when none has credits.
inline uint32_t PacketEngine::pick_lane(Port& port, Channel channel) {
  const LaneId first = channel * lanes_per_port_;
  if (lanes_per_port_ == 1) {
    if (is_ready(first, lane(channel, 0))) return 0;
    starve(first, lane(channel, 0), port);
    return kNil;
  }
  uint64_t ready = 0;
  uint32_t ready_virtual = 0;
  for (uint64_t waiting = port.waiting_lanes; waiting != 0; waiting &= waiting - 1) {
    const uint32_t l = static_cast<uint32_t>(std::countr_zero(waiting));
    if (is_ready(first + l, lane(channel, l))) {
      ready |= uint64_t{1} << l;
      ready_virtual |= 1u << (l / classes_);
    } else {
      starve(first + l, lane(channel, l), port);
    }
  }
  if (ready == 0) return kNil;
  uint32_t virtual_lane = 0;
  if (virtual_lanes_ > 1) {
    const std::span debts(&debts_[channel * virtual_lanes_], virtual_lanes_);
    const int32_t picked = arbitration_.pick(port.arbitration, debts, ready_virtual);
    if (picked < 0) return kNil;
    virtual_lane = static_cast<uint32_t>(picked);
  }
  uint32_t hop_class = port.next_class;
  while ((ready >> (virtual_lane * classes_ + hop_class) & 1) == 0)
    hop_class = hop_class + 1 == classes_ ? 0 : hop_class + 1;
  port.next_class = static_cast<uint8_t>(hop_class + 1 == classes_ ? 0 : hop_class + 1);
  const uint32_t lane_index = virtual_lane * classes_ + hop_class;
  if (virtual_lanes_ > 1)
    arbitration_.charge(port.arbitration,
                        static_cast<int32_t>(packets_[waiting_.first(lane(channel, lane_index))].bytes));
  return lane_index;
}

/// A lane has a packet and no credits for it: note since when, and ask to be woken by the first credits.
inline void PacketEngine::starve(LaneId id, Lane& lane, const Port& port) {
  if (!lane.is_stalled) {
    lane.is_stalled = true;
    stalls_[id].since = now_;
    ++stalls_[id].count;
  }
  if (credits_.is_empty(lane) || lane.has_credit_event || port.is_down) return;
  lane.has_credit_event = true;
  push(credits_.next_time(lane), EventKind::credit, id);
}

void PacketEngine::transmit(uint32_t packet, Channel channel, LaneId id) {
  Packet& p = packets_[packet];
  Port& port = this->port(channel);
  Lane& lane = this->lane(channel, lane_of(p));
  const unsigned __int128 time = static_cast<unsigned __int128>(port.ps_per_byte) * p.bytes + port.fraction;
  port.fraction = static_cast<uint32_t>(time);  // carried over, so that no rate drifts
  const Ps end = now_ + static_cast<Ps>(time >> 32);
  port.busy_until = end;
  lane.credits -= static_cast<int32_t>(p.units);
  lane.least_credits = std::min(lane.least_credits, lane.credits);
  lane.bytes += p.bytes;
  if (lane.is_stalled) {
    lane.is_stalled = false;
    stalls_[id].total += now_ - stalls_[id].since;
  }
  ++counts_.packet_hops;

  if (p.in == kNil) {
    const MessageState& message = messages_[p.message];
    port.feeder = source_of(message);
    if ((p.flags & kLastPacket) != 0 && message.reports_sent) push(end, EventKind::sent, p.message);
  } else {
    if (!fifos_.empty()) {
      InputFifo& fifo = fifos_[p.in];
      fifo.head = fifo.head == fifo.tail ? kNil : fifo_next_[packet];
      if (fifo.head == kNil) fifo.tail = kNil;
      fifo.state = InputFifo::State::sending;
      fifo.output = channel;
      port.feeder = kFifoFeeder | p.in;
    }
    return_credits(p.in, end, static_cast<int32_t>(p.units));
  }
  p.in = id;
  // On a mesh even a detour may lead over the destination.
  const Rank ends = (p.flags & kDetour) == 0 ? p.target : messages_[p.message].dst;
  const bool is_there = port.to == static_cast<Vertex>(ends);
  const Ps moves = is_there ? end : now_ + static_cast<Ps>((uint64_t{port.head_delay} * p.bytes) >> 16);
  if (is_there) {  // deliver() will want them
    prefetch(&messages_[p.message]);
    prefetch(&contents_[p.message]);
  }
  push(moves + port.latency, is_there ? EventKind::deliver : EventKind::arrive, packet);
  if ((port.waiting_lanes != 0 || wants_done(port.feeder)) && !port.has_done_event)
    expect_done(port, channel);
}

/// Whether the source or input that a port's packet came from has something to do when it has left.
bool PacketEngine::wants_done(uint32_t feeder) const {
  if (feeder == kNil) return false;
  return (feeder & kFifoFeeder) == 0 || fifos_[feeder & ~kFifoFeeder].head != kNil;
}

void PacketEngine::port_done(Channel channel) {
  Port& port = this->port(channel);
  const uint32_t feeder = port.feeder;
  port.feeder = kNil;
  if (feeder != kNil) {
    // The port counts as taken while its feeder asks again, so that all who wait for it take part in the
    // arbitration.
    if ((feeder & kFifoFeeder) != 0) {
      const LaneId input = feeder & ~kFifoFeeder;
      fifos_[input].state = InputFifo::State::idle;
      if (fifos_[input].head != kNil) ask_fifo(input, graph_[channel].from);
    } else {
      Source& source = sources_[feeder];
      source.gates &= ~(uint64_t{1} << (source.has_one_channel ? 0 : gate_of(channel)));
      inject(feeder);
    }
  }
  port.has_done_event = false;
  arbitrate(channel);
}

/// The buffer of a lane gets `units` free when a packet has left it; its sender learns that a wire latency
/// later.
void PacketEngine::return_credits(LaneId id, Ps leaves, int32_t units) {
  Lane& lane = this->lane(id);
  const Ps time = leaves + lane.wire_latency;
  const bool is_first = credits_.add(lane, time, units);
  if (lane.waiting == 0 || (lane.has_credit_event && !is_first)) return;
  const Port& port = this->port(lane.channel);
  if (port.has_done_event || port.is_down || port.busy_until > now_) return;  // it will look itself
  lane.has_credit_event = true;
  push(time, EventKind::credit, id);
}

void PacketEngine::arrive_in_fifo(uint32_t packet, Vertex at) {
  const LaneId input = packets_[packet].in;
  InputFifo& fifo = fifos_[input];
  if (fifo_next_.size() <= packet) fifo_next_.resize(packet + 1, kNil);
  fifo_next_[packet] = kNil;
  if (fifo.tail == kNil) {
    fifo.head = packet;
  } else {
    fifo_next_[fifo.tail] = packet;
  }
  fifo.tail = packet;
  if (fifo.state == InputFifo::State::sending) {
    Port& port = this->port(fifo.output);
    const bool still_sends =
        port.feeder == (kFifoFeeder | input) && (port.has_done_event || port.busy_until > now_);
    if (still_sends) {
      if (!port.has_done_event) expect_done(port, fifo.output);
      return;
    }
    fifo.state = InputFifo::State::idle;
  }
  if (fifo.state == InputFifo::State::idle) ask_fifo(input, at);
}

/// The first packet of an input queue asks for an output; those behind it wait for it.
void PacketEngine::ask_fifo(LaneId input, Vertex at) {
  fifos_[input].state = InputFifo::State::asking;
  forward(fifos_[input].head, at, lane(input).in_slot);
}

}  // namespace plumb::sim

// The packets that wait for an output lane: one queue per input, served in turn. Records exist for inputs
// that have packets only, so memory and cache hold what waits and not ports squared.
#pragma once

#include <algorithm>

#include "sim/packet_records.h"
#include "sim/pool.h"

namespace plumb::sim {

class LaneQueues {
 public:
  explicit LaneQueues(Pool<Packet>& packets) : packets_(packets) {}
  /// Some vertex has more than 64 inputs, so that inputs share the bits of Lane::inputs.
  void set_has_wide_vertices(bool has) { has_wide_vertices_ = has; }

  bool is_empty(const Lane& lane) const { return lane.turn == kNil; }

  /// Appends a packet to the queue of an input; a new input comes last in turn.
  void add(Lane& lane, uint32_t packet, uint32_t slot) {
    Packet& p = packets_[packet];
    p.next = kNil;
    lane.waiting += static_cast<int32_t>(p.units);
    lane.peak_waiting = std::max(lane.peak_waiting, lane.waiting);
    const uint64_t bit = uint64_t{1} << (slot % 64);
    if ((lane.inputs & bit) != 0 && append(lane, packet, slot)) return;
    const uint32_t index = queues_.add();
    InputQueue& queue = queues_[index];
    queue.head = queue.tail = packet;
    queue.slot = slot;
    if (lane.turn == kNil) lane.turn = lane.last = index;
    queue.next = lane.turn;
    queues_[lane.last].next = index;
    lane.last = index;
    lane.inputs |= bit;
  }

  /// The packet that take() would return; requires that there is one.
  uint32_t first(const Lane& lane) const { return queues_[lane.turn].head; }
  /// Its input.
  uint32_t first_slot(const Lane& lane) const { return queues_[lane.turn].slot; }

  /// Takes the first packet of the input whose turn it is.
  uint32_t take(Lane& lane) {
    const uint32_t index = lane.turn;
    InputQueue& queue = queues_[index];
    const uint32_t packet = queue.head;
    const Packet& p = packets_[packet];
    lane.waiting -= static_cast<int32_t>(p.units);
    lane.turn = queue.next;
    if (p.next != kNil) {
      queue.head = p.next;
      lane.last = index;
      return packet;
    }
    if (index == lane.last) {
      lane.turn = lane.last = kNil;
      lane.inputs = 0;
    } else {
      queues_[lane.last].next = queue.next;
      if (!has_wide_vertices_)
        lane.inputs &= ~(uint64_t{1} << (queue.slot % 64));  // else it may stand for another
    }
    queues_.remove(index);
    return packet;
  }

  /// For prefetching: the queue that take() will touch.
  const void* first_record(const Lane& lane) const { return queues_.at(lane.turn); }

  /// Calls visit(packet) for all that wait.
  template <class Visit>
  void visit(const Lane& lane, Visit visit) const {
    if (lane.turn == kNil) return;
    uint32_t index = lane.turn;
    do {
      for (uint32_t packet = queues_[index].head; packet != kNil; packet = packets_[packet].next)
        visit(packets_[packet]);
      index = queues_[index].next;
    } while (index != lane.turn);
  }

  int64_t memory_bytes() const { return queues_.memory_bytes(); }

 private:
  /// Packets of one input, as long as there are some; `next` links the ring of inputs.
  struct InputQueue {
    uint32_t head = kNil;
    uint32_t tail = kNil;
    uint32_t next = kNil;
    uint32_t slot = 0;
  };

  bool append(Lane& lane, uint32_t packet, uint32_t slot) {
    uint32_t index = lane.turn;
    do {
      InputQueue& queue = queues_[index];
      if (queue.slot == slot) {
        packets_[queue.tail].next = packet;
        queue.tail = packet;
        return true;
      }
      index = queue.next;
    } while (index != lane.turn);
    return false;
  }

  Pool<Packet>& packets_;
  Pool<InputQueue> queues_;
  bool has_wide_vertices_ = false;
};

}  // namespace plumb::sim

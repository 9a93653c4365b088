// The inside of PacketNetwork; the sources are named at the functions.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/arbitration.h"
#include "sim/channels.h"
#include "sim/congestion.h"
#include "sim/credit_lists.h"
#include "sim/event_queue.h"
#include "sim/lane_queues.h"
#include "sim/order.h"
#include "sim/packet_network.h"
#include "sim/packet_records.h"
#include "sim/pool.h"
#include "sim/port_table.h"
#include "sim/router.h"

namespace plumb::sim {

class PacketEngine {
 public:
  PacketEngine(const Fabric& fabric, const PacketSettings& settings, Traffic& traffic);

  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at);
  void call_at(Ps at, uint32_t id);
  void add_fault(const Fault& fault);
  Ps now() const { return now_; }
  Ps next_event() { return queue_.empty() ? kNever : queue_.next_time(); }
  bool advance(Ps until);
  void stop() { stop_ = true; }

  const PacketSettings& settings() const { return settings_; }
  int64_t under_way() const { return messages_.in_use(); }
  std::string stuck_report() const;
  const PacketCounts& counts() const { return counts_; }
  std::vector<LaneUse> lane_use() const;
  std::vector<LinkUse> link_use() const;
  int64_t memory_bytes() const;
  int32_t hop_classes() const { return static_cast<int32_t>(classes_); }
  const ChannelGraph& graph() const { return graph_; }

 private:
  enum class EventKind : uint32_t {
    arrive,       // packet: its head is ready to leave the vertex it came to
    deliver,      // packet: its tail has landed
    port_done,    // channel: a transmission has ended and somebody waits for that
    credit,       // lane: credits for which it starved have come back
    source_wake,  // source
    sent,         // message: its last byte has left
    local,        // message from a rank to itself has landed
    echo,         // returned congestion field or acknowledgement
    flow_timer,   // flow of congestion control
    fault,
    reroute,
    timer,  // of Traffic
  };

  Port& port(Channel channel) { return ports_.port(channel); }
  const Port& port(Channel channel) const { return ports_.port(channel); }
  Lane& lane(Channel channel, uint32_t index) { return ports_.lane(channel, index); }
  const Lane& lane(Channel channel, uint32_t index) const { return ports_.lane(channel, index); }
  Lane& lane(LaneId id) { return ports_.lane(id); }
  const Lane& lane(LaneId id) const { return ports_.lane(id); }
  uint32_t num_channels() const { return static_cast<uint32_t>(graph_.channels().size()); }
  uint32_t num_lanes() const { return num_channels() * lanes_per_port_; }

  void push(Ps at, EventKind kind, uint32_t index) {
    queue_.push(at, static_cast<uint32_t>(kind) << kIndexBits | index);
  }
  static EventKind kind_of(uint32_t word) { return static_cast<EventKind>(word >> kIndexBits); }
  static uint32_t index_of(uint32_t word) { return word & ((1u << kIndexBits) - 1); }
  void handle(EventKind kind, uint32_t index);
  class Prefetch;
  void prefetch_ahead() const;
  // packet_engine.cc
  void check_settings() const;
  void choose_hop_classes();
  void make_ports();
  void make_sources();
  void shape_queue();
  void set_head_delay(Channel channel);
  int32_t capacity(const ChannelInfo& channel) const;
  int32_t units(int64_t bytes) const {
    return static_cast<int32_t>((bytes + credit_unit_ - 1) / credit_unit_);
  }
  Ps duration(const Port& port, int64_t bytes) const;

  // packet_switch.cc
  void arrive(uint32_t packet);
  void forward(uint32_t packet, Vertex at, uint32_t slot);
  void request(uint32_t packet, Channel out, uint32_t slot);
  bool admit(Port& port, Channel channel, const Packet& packet);
  uint32_t take(Channel channel, uint32_t lane_index);
  void arbitrate(Channel channel);
  uint32_t pick_lane(Port& port, Channel channel);
  bool is_ready(LaneId id, Lane& lane);
  void starve(LaneId id, Lane& lane, const Port& port);
  void transmit(uint32_t packet, Channel channel, LaneId id);
  bool wants_done(uint32_t feeder) const;
  void port_done(Channel channel);
  void collect_credits(LaneId id, Lane& lane);
  void return_credits(LaneId id, Ps leaves, int32_t units);
  void expect_done(Port& port, Channel channel);
  void arrive_in_fifo(uint32_t packet, Vertex at);
  void ask_fifo(LaneId input, Vertex at);
  uint32_t lane_of(const Packet& packet) const { return packet.virtual_lane * classes_ + packet.hop_class; }

  // packet_inject.cc
  void inject(uint32_t source);
  bool pull(uint32_t source);
  void start(uint32_t source, const Message& message);
  uint32_t add_message(const Message& message);
  void add_extra(uint32_t message, uint32_t source);
  void start_local(const Message& message);
  bool send_one(uint32_t source);
  Channel open_gate(const Source& source, uint32_t message);
  bool is_window_full(const Source& source, const MessageState& message) const;
  Ps may_send(uint32_t message) const;
  uint32_t make_packet(uint32_t message, Channel channel);
  void wake_source(uint32_t source, Ps at);
  FlowId open_flow(const Message& message, uint32_t source);
  void close_flow(FlowId flow);
  Ps path_latency(const Message& message) const;
  uint32_t source_of(const MessageState& message) const;
  uint32_t gate_of(Channel channel) const { return channel - graph_.out_begin(graph_[channel].from); }

  // packet_deliver.cc
  void deliver(uint32_t packet);
  void echo_back(const Packet& packet, FlowId flow);
  void on_echo(uint32_t echo);
  void on_flow_timer(FlowId flow);
  void set_flow_timer(FlowId flow, Ps at);
  void note_landed(const Packet& packet);
  int64_t payload_of(const Packet& packet) const;
  void land(uint32_t message);
  void finish(uint32_t message);
  void land_local(uint32_t message);
  void release_signals();

  // packet_faults.cc
  void apply_fault(const Fault& fault);
  void set_down(Channel channel, bool down);
  void reroute();
  void drain(Channel channel, std::vector<Parked>& out);

  // packet_report.cc
  std::vector<uint8_t> find_deadlocked_lanes() const;
  std::string name_lane(LaneId lane) const;
  std::string name_cycle(const std::vector<uint8_t>& deadlocked) const;
  std::string path_of(Channel channel) const;

  static constexpr uint32_t kIndexBits = 28;
  static constexpr uint32_t kFifoFeeder = 0x80000000;

  const Fabric& fabric_;
  PacketSettings settings_;
  Traffic& traffic_;
  ChannelGraph graph_;
  Router router_;
  Arbitration arbitration_;
  EventQueue queue_;
  Ps now_ = 0;
  bool stop_ = false;
  bool exceeds_caches_ = false;  // its records: prefetching pays
  int64_t credit_unit_ = 64;
  uint32_t virtual_lanes_ = 1;
  uint32_t classes_ = 1;  // hop classes
  uint32_t lanes_per_port_ = 1;
  int32_t largest_units_ = 0;  // of a packet so far: lanes with more credits need no closer look
  std::array<int32_t, 2> smallest_buffer_{};
  PortTable ports_;
  std::vector<InputFifo> fifos_;     // [lanes], InputQueues::fifo only
  std::vector<uint32_t> fifo_next_;  // [packets]
  std::vector<int32_t> capacities_;  // [channels] units of each lane's buffer
  std::vector<LaneDebt> debts_;      // [channels][virtual lanes]
  std::vector<Stall> stalls_;        // [lanes]
  LargeVector<Source> sources_;      // [ranks][networks][classes]
  Pool<Packet> packets_;
  LaneQueues waiting_{packets_};
  Pool<MessageState> messages_;
  LargeVector<Message> contents_;     // [messages_]
  std::vector<MessageExtra> extras_;  // [messages_], as far as they have one
  CreditLists credits_;
  Pool<Echo> echoes_;
  Pool<Flow> flows_;
  std::unordered_map<uint64_t, FlowId> flow_index_;  // never iterated
  std::unique_ptr<CongestionControl> congestion_;
  OrderTracker order_;
  std::vector<uint32_t> released_;
  std::vector<Ps> local_busy_;  // [ranks] end of the last copy
  std::vector<Fault> faults_;
  std::vector<Parked> parked_;
  PacketCounts counts_;
};

}  // namespace plumb::sim

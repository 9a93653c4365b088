// Sources: messages are pulled when a queue pair is free, and cut into packets when the first link can take
// one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/error.h"
#include "sim/packet_engine.h"
#include "sim/prefetch.h"

namespace plumb::sim {

uint32_t PacketEngine::source_of(const MessageState& message) const {
  return (static_cast<uint32_t>(message.src) * 2 + message.is_scale_out) *
             static_cast<uint32_t>(settings_.num_classes) +
         message.traffic_class;
}

void PacketEngine::wake_source(uint32_t source, Ps at) {
  if (sources_[source].wake <= at) return;
  sources_[source].wake = at;
  push(at, EventKind::source_wake, source);
}

/// Fills the queue pairs, then puts one packet before each channel where none of this source waits yet.
void PacketEngine::inject(uint32_t source) {
  do {
    while (pull(source)) {
    }
  } while (send_one(source));
}

/// Starts one more message when there is one and a queue pair is free.
bool PacketEngine::pull(uint32_t source) {
  Source& s = sources_[source];
  if (!s.may_have_more || s.active >= s.queue_pairs) return false;
  if (s.next_start > now_) {
    wake_source(source, s.next_start);
    return false;
  }
  Message message;
  if (!traffic_.next(s.rank, s.network, s.traffic_class, message)) {
    s.may_have_more = false;
    return false;
  }
  PLUMB_CHECK(message.src == s.rank && message.traffic_class == s.traffic_class &&
                  (message.network == s.network || message.src == message.dst),
              "rank {} was asked for a message of class {} and gave one of rank {}, class {}", s.rank,
              s.traffic_class, message.src, message.traffic_class);
  if (!s.is_plain && settings_.network(s.network).injection.message_rate.value > 0)
    s.next_start = now_ + to_ps({1 / settings_.network(s.network).injection.message_rate.value});
  start(source, message);
  return true;
}

void PacketEngine::start(uint32_t source, const Message& message) {
  if (message.bytes < 0 || message.dst < 0 || message.dst >= graph_.ranks())
    fail_usage("message of {} bytes from rank {} to rank {} of {}", message.bytes, message.src, message.dst,
               graph_.ranks());
  if (message.dst == message.src) return start_local(message);
  const size_t network = message.network == Link::scale_out ? 1 : 0;
  const NetworkSettings& settings = settings_.networks[network];
  if (!router_.is_connected(network) &&
      router_.table(network).hops(static_cast<Vertex>(message.src), message.dst) < 0 && !router_.any_down())
    fail_usage("no {} path from rank {} to rank {}", to_string(message.network), message.src, message.dst);
  const int64_t packet_bytes = message.packet_bytes > 0 ? message.packet_bytes : settings.mtu_bytes;
  const int64_t packets = std::max<int64_t>(1, (message.bytes + packet_bytes - 1) / packet_bytes);
  if (packets > std::numeric_limits<int32_t>::max())
    fail_usage("a message of {} bytes in packets of {} is {} packets, at most 2^31 - 1 are possible",
               message.bytes, packet_bytes, packets);
  const int32_t largest = units(std::min(message.bytes, packet_bytes) + settings.first_header_bytes);
  largest_units_ = std::max(largest_units_, largest);
  if (largest > smallest_buffer_[network])
    fail_usage(
        "a packet of {} bytes payload takes {} credits, the smallest buffer has {}: larger lanes.buffer or "
        "smaller packets",
        packet_bytes, largest, smallest_buffer_[network]);
  const uint32_t index = add_message(message);
  MessageState& state = messages_[index];
  contents_[index].packet_bytes = static_cast<int32_t>(packet_bytes);
  state.packet_bytes = static_cast<uint32_t>(packet_bytes);
  state.packets_unmade = state.packets_left = static_cast<uint32_t>(packets);
  state.expected = state.next_sequence();
  state.last_bytes = static_cast<uint32_t>(message.bytes - (packets - 1) * packet_bytes);
  if (message.order != Order::unrelated || message.chunk_packets > 0 || congestion_ ||
      settings.injection.queue_pair_share < 1)
    add_extra(index, source);
  Source& s = sources_[source];
  ++s.active;
  if (s.ring == kNil) {
    state.next = s.following = index;
  } else {
    state.next = s.following;
    messages_[s.ring].next = index;
  }
  s.ring = index;  // the last to be served
}

uint32_t PacketEngine::add_message(const Message& message) {
  const uint32_t index = messages_.add();
  if (contents_.size() <= index) contents_.resize(index + 1);
  contents_[index] = message;
  MessageState& state = messages_[index];
  state.src = message.src;
  state.dst = message.dst;
  state.traffic_class = message.traffic_class;
  state.is_scale_out = message.network == Link::scale_out;
  state.reports_sent = message.report_sent;
  return index;
}

void PacketEngine::add_extra(uint32_t index, uint32_t source) {
  if (extras_.size() <= index) extras_.resize(index + 1);
  messages_[index].has_extra = true;
  const Message& message = contents_[index];
  MessageExtra& extra = extras_[index] = {};
  extra.chunk_left = message.chunk_packets;
  if (message.order != Order::unrelated) {
    const auto place = order_.start(message);
    extra.stream = place.stream;
    extra.stream_position = place.position;
    if (message.order == Order::fenced && !order_.is_covered(place)) {
      order_.wait(place, index);
      extra.ready = kNever;
    }
  }
  if (congestion_) extra.flow = open_flow(message, source);
}

/// A rank's copies to itself follow one another and touch no network.
void PacketEngine::start_local(const Message& message) {
  const uint32_t index = add_message(message);
  Ps& busy = local_busy_[message.src];
  busy = std::max(busy, now_) + to_ps(Bytes{message.bytes} / settings_.local.rate);
  push(busy + to_ps(settings_.local.latency), EventKind::local, index);
}

Ps PacketEngine::may_send(uint32_t message) const {
  if (!messages_[message].has_extra) return 0;
  const MessageExtra& extra = extras_[message];
  if (extra.flow == kNil) return extra.ready;
  return std::max(extra.ready, congestion_->may_send(extra.flow, messages_[message].next_bytes()));
}

/// The channel that the message's next packet would take, kNil when a packet of the source waits for it
/// already.
Channel PacketEngine::open_gate(const Source& source, uint32_t message_index) {
  const MessageState& state = messages_[message_index];
  const uint8_t network = state.is_scale_out ? kScaleOut : 0;
  const auto candidates = router_.table(network).candidates(static_cast<Vertex>(state.src), state.dst);
  if (candidates.size() == 1)
    return source.has_one_channel || (source.gates >> gate_of(candidates[0]) & 1) == 0 ? candidates[0] : kNil;
  Channel open[64];
  size_t count = 0;
  for (Channel c : candidates)
    if ((source.gates >> gate_of(c) & 1) == 0) open[count++] = c;
  if (count == 0) return kNil;
  Packet probe;
  probe.message = message_index;
  probe.target = state.dst;
  probe.virtual_lane = static_cast<uint8_t>(settings_.lanes.lane(state.traffic_class));
  probe.flags = network;
  probe.traffic_class = state.traffic_class;
  const Vertex at = static_cast<Vertex>(state.src);
  const Message& message = contents_[message_index];
  if (!router_.is_fixed(network, state.traffic_class))
    return router_.choose({open, count}, probe, message, at);
  const Channel fixed = router_.choose(candidates, probe, message, at);
  return (source.gates >> gate_of(fixed) & 1) == 0 ? fixed : kNil;
}

/// Puts the next packet, round robin over the messages in work, before its channel; false when there is none
/// that may go.
bool PacketEngine::send_one(uint32_t source) {
  Source& s = sources_[source];
  if (s.ring == kNil || s.gates == ~uint64_t{0}) return false;
  Ps earliest = kNever;
  uint32_t previous = s.ring, index = s.following;
  for (int32_t tries = s.active; tries > 0; --tries) {
    const MessageState& state = messages_[index];
    if (!s.is_plain && is_window_full(s, state)) return false;  // an acknowledgement will come
    const Ps when = may_send(index);
    const Channel channel = when <= now_ ? open_gate(s, index) : kNil;
    if (channel != kNil) {
      const uint32_t packet = make_packet(index, channel);
      if (router_.is_even(state.is_scale_out))
        router_.count_even(packets_[packet], static_cast<Vertex>(state.src), channel);
      s.following = state.next;
      s.ring = index;
      if (state.packets_unmade == 0) {  // its queue pair is free
        messages_[previous].next = state.next;
        s.ring = previous == index ? kNil : previous;
        --s.active;
      }
      prefetch(messages_.at(s.following));  // for the next packet
      s.gates |= uint64_t{1} << (s.has_one_channel ? 0 : gate_of(channel));
      request(packet, channel, s.slot);
      return true;
    }
    if (when > now_) earliest = std::min(earliest, when);
    previous = index;
    index = state.next;
  }
  if (earliest != kNever) wake_source(source, earliest);
  return false;
}

bool PacketEngine::is_window_full(const Source& source, const MessageState& message) const {
  const int64_t limit = settings_.network(source.network).injection.outstanding_bytes;
  return limit > 0 && source.outstanding > 0 && source.outstanding + message.next_bytes() > limit;
}

uint32_t PacketEngine::make_packet(uint32_t message, Channel channel) {
  const uint32_t index = packets_.add();
  Packet& p = packets_[index];
  MessageState& state = messages_[message];
  const NetworkSettings& settings = settings_.networks[state.is_scale_out];
  const bool is_first = !state.has_started, is_last = state.packets_unmade == 1;
  const int32_t payload = state.next_bytes();
  p.message = message;
  p.target = state.dst;
  p.bytes =
      static_cast<uint32_t>(payload + (is_first ? settings.first_header_bytes : settings.next_header_bytes));
  p.units = static_cast<uint32_t>(units(p.bytes));
  p.sequence = state.next_sequence();
  p.traffic_class = state.traffic_class;
  p.virtual_lane = static_cast<uint8_t>(settings_.lanes.lane(state.traffic_class));
  p.flags = static_cast<uint8_t>(kFresh | (state.is_scale_out ? kScaleOut : 0) |
                                 (is_first ? kFirstPacket : 0) | (is_last ? kLastPacket : 0));
  state.has_started = true;
  --state.packets_unmade;
  if (settings.injection.outstanding_bytes > 0) sources_[source_of(state)].outstanding += payload;
  if (!state.has_extra) return index;
  MessageExtra& extra = extras_[message];
  if (settings.injection.queue_pair_share < 1) {
    const double gap =
        static_cast<double>(duration(port(channel), p.bytes)) / settings.injection.queue_pair_share;
    extra.ready = now_ + std::llround(gap);
  }
  if (extra.flow != kNil) p.congestion = congestion_->send(extra.flow, static_cast<int32_t>(p.bytes), now_);
  return index;
}

Ps PacketEngine::path_latency(const Message& message) const {
  const RouteTable& table = router_.table(message.network == Link::scale_out ? 1 : 0);
  Ps total = 0;
  for (Vertex at = static_cast<Vertex>(message.src); at != static_cast<Vertex>(message.dst);) {
    const auto next = table.candidates(at, message.dst);
    if (next.empty()) break;
    total += graph_[next[0]].latency;
    at = graph_[next[0]].to;
  }
  return total;
}

FlowId PacketEngine::open_flow(const Message& message, uint32_t source) {
  const auto [it, added] = flow_index_.try_emplace(flow_key(message), 0);
  if (added) {
    it->second = flows_.add();
    Flow& flow = flows_[it->second];
    flow.key = it->first;
    flow.source = source;
    const RouteTable& table = router_.table(message.network == Link::scale_out ? 1 : 0);
    const Channel first = table.candidates(static_cast<Vertex>(message.src), message.dst)[0];
    congestion_->open(it->second, {.round_trip = 2 * path_latency(message),
                                   .ps_per_byte = port(first).ps_per_byte,
                                   .mtu_bytes = settings_.network(message.network).mtu_bytes});
  }
  ++flows_[it->second].users;
  return it->second;
}

void PacketEngine::close_flow(FlowId flow) {
  Flow& f = flows_[flow];
  if (f.users > 0 || f.timer != kNever || !congestion_->is_neutral(flow)) return;
  flow_index_.erase(f.key);
  flows_.remove(flow);
}

}  // namespace plumb::sim

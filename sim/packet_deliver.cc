// Destinations: packets land, messages are complete, signals are released, congestion is reported back.
#include <algorithm>

#include "model/error.h"
#include "sim/packet_engine.h"

namespace plumb::sim {

void PacketEngine::deliver(uint32_t packet) {
  const Packet p = packets_[packet];
  packets_.remove(packet);
  return_credits(p.in, now_, static_cast<int32_t>(p.units));
  note_landed(p);
  if (messages_[p.message].packets_left == 0) land(p.message);
}

void PacketEngine::note_landed(const Packet& p) {
  MessageState& state = messages_[p.message];
  const int64_t payload = payload_of(p);
  ++counts_.packets;
  counts_.payload_bytes += payload;
  --state.packets_left;
  // Modulo 2^16: a packet is late when one that was sent after it is here already.
  if (static_cast<int16_t>(p.sequence - state.expected) < 0) {
    ++counts_.out_of_order;
  } else {
    state.expected = static_cast<uint16_t>(p.sequence + 1);
  }
  const FlowId flow = state.has_extra ? extras_[p.message].flow : kNil;
  if (flow != kNil || settings_.networks[state.is_scale_out].injection.outstanding_bytes > 0)
    echo_back(p, flow);
  if (!state.has_extra || contents_[p.message].chunk_packets == 0) return;
  MessageExtra& extra = extras_[p.message];
  extra.bytes_landed += payload;
  if (--extra.chunk_left > 0 && state.packets_left > 0) return;
  extra.chunk_left = contents_[p.message].chunk_packets;
  traffic_.on_chunk(contents_[p.message], extra.bytes_landed, now_);
}

int64_t PacketEngine::payload_of(const Packet& p) const {
  const NetworkSettings& settings = settings_.networks[p.flags & kScaleOut];
  const bool is_first = (p.flags & kFirstPacket) != 0;
  return p.bytes - static_cast<uint32_t>(is_first ? settings.first_header_bytes : settings.next_header_bytes);
}

/// The acknowledgement takes the way's latency; it does not compete with data.
void PacketEngine::echo_back(const Packet& p, FlowId flow) {
  const bool acknowledges = settings_.networks[p.flags & kScaleOut].injection.outstanding_bytes > 0;
  const bool reports = flow != kNil && congestion_->is_echoed(p.congestion);
  if (!acknowledges && !reports) return;
  const uint32_t index = echoes_.add();
  Echo& echo = echoes_[index];
  echo.source = source_of(messages_[p.message]);
  echo.acknowledged = acknowledges ? payload_of(p) : 0;
  echo.flow = reports ? flow : kNil;
  echo.bytes = static_cast<int32_t>(p.bytes);
  echo.field = p.congestion;
  if (reports) ++flows_[flow].users;  // the echo keeps the flow known
  push(now_ + path_latency(contents_[p.message]), EventKind::echo, index);
}

void PacketEngine::on_echo(uint32_t index) {
  const Echo echo = echoes_[index];
  echoes_.remove(index);
  sources_[echo.source].outstanding -= echo.acknowledged;
  if (echo.flow != kNil) {
    ++counts_.echoes;
    set_flow_timer(echo.flow, congestion_->on_echo(echo.flow, echo.field, echo.bytes, now_));
    --flows_[echo.flow].users;
    close_flow(echo.flow);
  }
  inject(echo.source);
}

void PacketEngine::set_flow_timer(FlowId flow, Ps at) {
  if (at >= flows_[flow].timer) return;
  flows_[flow].timer = at;
  push(at, EventKind::flow_timer, flow);
}

void PacketEngine::on_flow_timer(FlowId flow) {
  if (flows_[flow].timer != now_) return;  // replaced by an earlier one, or of a flow long gone
  flows_[flow].timer = kNever;
  const uint32_t source = flows_[flow].source;
  set_flow_timer(flow, congestion_->on_timer(flow, now_));
  close_flow(flow);
  inject(source);
}

void PacketEngine::land(uint32_t index) {
  const Order order = messages_[index].has_extra ? contents_[index].order : Order::unrelated;
  if (order == Order::racing || order == Order::counted) {
    const OrderTracker::Place place = {extras_[index].stream, extras_[index].stream_position};
    const bool is_early = !order_.is_covered(place);
    if (is_early && order == Order::racing) ++counts_.order_violations;
    if (is_early && order == Order::counted) {
      ++counts_.held_signals;
      order_.wait(place, index);
      return;
    }
  }
  finish(index);
  if (!released_.empty()) release_signals();
}

void PacketEngine::finish(uint32_t index) {
  const Message message = contents_[index];
  const bool has_extra = messages_[index].has_extra;
  messages_.remove(index);
  ++counts_.messages;
  if (has_extra) {
    const MessageExtra extra = extras_[index];
    if (message.order != Order::unrelated)
      order_.finish({extra.stream, extra.stream_position}, message.order, released_);
    if (extra.flow != kNil) {
      --flows_[extra.flow].users;
      close_flow(extra.flow);
    }
  }
  traffic_.on_arrived(message, now_);
}

/// Signals whose data has landed: those at the destination act, those at the source go once they know.
void PacketEngine::release_signals() {
  while (!released_.empty()) {
    const uint32_t index = released_.back();
    released_.pop_back();
    if (contents_[index].order != Order::fenced) {
      finish(index);
      continue;
    }
    Ps& ready = extras_[index].ready;
    ready = now_ + path_latency(contents_[index]);
    wake_source(source_of(messages_[index]), ready);
  }
}

void PacketEngine::land_local(uint32_t index) {
  const Message message = contents_[index];
  messages_.remove(index);
  ++counts_.local_messages;
  if (message.report_sent) traffic_.on_sent(message, now_);
  if (message.chunk_packets > 0) traffic_.on_chunk(message, message.bytes, now_);
  traffic_.on_arrived(message, now_);
}

}  // namespace plumb::sim

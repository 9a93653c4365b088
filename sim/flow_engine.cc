// Messages as flows: set-up, the event loop, sources, destinations.
#include "sim/flow_engine.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

namespace {

constexpr int kQueueWidthBits = 12, kQueueBucketBits = 14;  // 4 ns, 67 us: ends of flows, not of packets

}  // namespace

FlowEngine::FlowEngine(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic)
    : fabric_(fabric),
      settings_(settings),
      traffic_(traffic),
      graph_(fabric),
      routes_(fabric, graph_, {settings.networks[0].policy, settings.networks[1].policy}, settings.seed),
      queue_(kQueueWidthBits, kQueueBucketBits),
      local_busy_(graph_.ranks(), 0) {
  check_settings();
  rates_.set_capacities(routes_.capacities());
  const uint32_t classes = static_cast<uint32_t>(settings_.num_classes);
  sources_.resize(static_cast<size_t>(graph_.ranks()) * 2 * classes);
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    sources_[i].rank = static_cast<Rank>(i / classes / 2);
    sources_[i].network = i / classes % 2 == 0 ? Link::scale_up : Link::scale_out;
    sources_[i].traffic_class = static_cast<uint8_t>(i % classes);
  }
}

void FlowEngine::check_settings() const {
  if (settings_.num_classes < 1 || settings_.num_classes > kServiceLevels)
    fail_usage("flow network: {} traffic classes, allowed are 1 .. {}", settings_.num_classes,
               kServiceLevels);
  if (!(settings_.relative_batch >= 0 && settings_.relative_batch < 1))
    fail_usage("flow network: a relative batch of {}, allowed is 0 (exact) or more, less than 1",
               settings_.relative_batch);
  for (int32_t c = 0; c < settings_.num_classes; ++c)
    if (!(settings_.class_weights[c] > 0 && settings_.class_weights[c] < 1e9))
      fail_usage("flow network: class {} has weight {}, allowed is more than 0, less than 1e9", c,
                 settings_.class_weights[c]);
  for (const FlowNetworkSettings& network : settings_.networks) {
    if (network.mtu_bytes < 1) fail_usage("flow network: an MTU of {} bytes", network.mtu_bytes);
    if (network.first_header_bytes < 1 || network.next_header_bytes < 1)
      fail_usage("flow network: headers of {} and {} bytes; a packet has a header of at least 1 byte",
                 network.first_header_bytes, network.next_header_bytes);
    const Injection& injection = network.injection;
    if (injection.queue_pairs < 1)
      fail_usage("flow network: {} queue pairs; allowed: 1 or more", injection.queue_pairs);
    if (!(injection.queue_pair_share > 0 && injection.queue_pair_share <= 1))
      fail_usage("flow network: a queue pair fills {} of its link, allowed is more than 0, at most 1",
                 injection.queue_pair_share);
  }
}

uint32_t FlowEngine::source_of(const Message& m) const {
  return (static_cast<uint32_t>(m.src) * 2 + (m.network == Link::scale_out)) *
             static_cast<uint32_t>(settings_.num_classes) +
         m.traffic_class;
}

void FlowEngine::wake(Rank rank, Link network, uint8_t traffic_class, Ps at) {
  PLUMB_CHECK(
      rank >= 0 && rank < graph_.ranks() && traffic_class < settings_.num_classes && network != Link::local,
      "wake of rank {}, class {}", rank, traffic_class);
  const uint32_t source = source_of({.src = rank, .network = network, .traffic_class = traffic_class});
  sources_[source].may_have_more = true;
  push(std::max(at, now_), EventKind::source_wake, source);
}

void FlowEngine::call_at(Ps at, uint32_t id) {
  PLUMB_CHECK(id < 1u << kIndexBits, "timer {}", id);
  push(std::max(at, now_), EventKind::timer, id);
}

// The loop.

/// Dates of flows are pushed anew when rates change, and not taken back.
bool FlowEngine::is_stale(const EventQueue::Event& event) const {
  const auto kind = static_cast<EventKind>(event.word >> kIndexBits);
  if (kind == EventKind::window) return horizon_ != event.time;
  if (kind != EventKind::flow) return false;
  const uint32_t position = flows_[event.word & kIndexMask].position;
  return position == kNil || moving_[position].due != event.time;
}

void FlowEngine::drop_stale_events() {
  while (!queue_.empty()) {
    queue_.next_time();  // opens the bucket that peek() looks into
    const EventQueue::Event event = *queue_.peek(0);
    if (!is_stale(event)) return;
    queue_.pop();
    if (static_cast<EventKind>(event.word >> kIndexBits) != EventKind::flow) continue;
    const uint32_t position = flows_[event.word & kIndexMask].position;
    if (position != kNil && moving_[position].pushed == event.time) moving_[position].pushed = kNever;
  }
}

Ps FlowEngine::next_event() {
  drop_stale_events();
  while (wants_settling() && (queue_.empty() || queue_.next_time() > now_)) {
    settle();
    drop_stale_events();
  }
  return queue_.empty() ? kNever : queue_.next_time();
}

bool FlowEngine::advance(Ps until) {
  for (;;) {
    drop_stale_events();
    // Rates wait for all that happens at this date, also when a driver stops here and adds to it.
    const bool is_over = queue_.empty() || queue_.next_time() > now_;
    if (is_over && until > now_ && wants_settling()) {
      settle();
      continue;
    }
    if (queue_.empty() || queue_.next_time() > until) break;
    const EventQueue::Event event = queue_.pop();
    now_ = event.time;
    ++counts_.events;
    handle(static_cast<EventKind>(event.word >> kIndexBits), event.word & kIndexMask);
    if (stop_) {
      stop_ = false;
      return true;
    }
  }
  if (until != kNever) now_ = std::max(now_, until);
  return !queue_.empty() || wants_settling();
}

void FlowEngine::handle(EventKind kind, uint32_t index) {
  switch (kind) {
    case EventKind::flow:
      return on_due(index);
    case EventKind::window:
      window_reached_ = true;
      return;
    case EventKind::chunk:
      return land_chunk(index);
    case EventKind::arrive:
      return land(index);
    case EventKind::release:
      return begin(index);
    case EventKind::source_wake:
      if (sources_[index].wake == now_) sources_[index].wake = kNever;
      return inject(index);
    case EventKind::local: {
      const Message message = flows_[index].message;
      flows_.remove(index);
      ++counts_.local_messages;
      if (message.report_sent) traffic_.on_sent(message, now_);
      if (message.chunk_packets > 0) traffic_.on_chunk(message, message.bytes, now_);
      return traffic_.on_arrived(message, now_);
    }
    case EventKind::fault:
      return apply_fault(faults_[index]);
    case EventKind::reroute:
      return refresh(FlowPolicy::hash);
    case EventKind::timer:
      return traffic_.on_timer(index, now_);
  }
}

// Sources.

void FlowEngine::wake_source(uint32_t source, Ps at) {
  if (sources_[source].wake <= at) return;
  sources_[source].wake = at;
  push(at, EventKind::source_wake, source);
}

void FlowEngine::inject(uint32_t source) {
  FlowSource& s = sources_[source];
  const Injection& injection = settings_.network(s.network).injection;
  while (s.may_have_more && s.active < injection.queue_pairs) {
    if (s.next_start > now_) return wake_source(source, s.next_start);
    Message message;
    if (!traffic_.next(s.rank, s.network, s.traffic_class, message)) {
      s.may_have_more = false;
      return;
    }
    PLUMB_CHECK(message.src == s.rank && message.traffic_class == s.traffic_class &&
                    (message.network == s.network || message.src == message.dst),
                "rank {} was asked for a message of class {} and gave one of rank {}, class {}", s.rank,
                s.traffic_class, message.src, message.traffic_class);
    if (injection.message_rate.value > 0) s.next_start = now_ + to_ps({1 / injection.message_rate.value});
    start(source, message);
  }
}

void FlowEngine::start(uint32_t source, const Message& message) {
  if (message.bytes < 0 || message.dst < 0 || message.dst >= graph_.ranks())
    fail_usage("message of {} bytes from rank {} to rank {} of {}", message.bytes, message.src, message.dst,
               graph_.ranks());
  if (message.dst == message.src) return start_local(message);
  const FlowNetworkSettings& settings = settings_.network(message.network);
  const int64_t packet = message.packet_bytes > 0 ? message.packet_bytes : settings.mtu_bytes;
  const uint32_t index = flows_.add();
  FlowState& flow = flows_[index];
  flow.message = message;
  flow.total = wire_bytes(message, std::max<int64_t>(1, (message.bytes + packet - 1) / packet));
  flow.way = routes_.find(message, uses_);
  if (!flow.way.exists() && !routes_.any_down())
    fail_usage("no {} path from rank {} to rank {}", to_string(message.network), message.src, message.dst);
  ++sources_[source].active;
  if (message.order != Order::unrelated) {
    flow.place = order_.start(message);
    if (message.order == Order::fenced && !order_.is_covered(flow.place))
      return order_.wait(flow.place, index);
  }
  begin(index);
}

/// A rank's copies to itself follow one another and touch no network.
void FlowEngine::start_local(const Message& message) {
  const uint32_t index = flows_.add();
  flows_[index].message = message;
  Ps& busy = local_busy_[message.src];
  busy = std::max(busy, now_) + to_ps(Bytes{message.bytes} / settings_.local.rate);
  push(busy + to_ps(settings_.local.latency), EventKind::local, index);
}

void FlowEngine::begin(uint32_t index) {
  FlowState& flow = flows_[index];
  flow.position = static_cast<uint32_t>(moving_.size());
  moving_.push_back({.left = static_cast<double>(flow.total), .since = now_, .flow = index});
  join(index);
  solve_now_ |= ++started_ > allowed_ || rates_.is_overfull();
  if (solve_now_) return;  // before time goes on
  MovingFlow& m = moving_[flow.position];
  m.rate = rates_.rate(flow.position);
  find_due(m);
  schedule(m);
}

/// Finds the flow's way and gives it to the solver; without a way it stands still.
void FlowEngine::join(uint32_t index) {
  FlowState& flow = flows_[index];
  flow.way = routes_.find(flow.message, uses_);
  FlowDemand demand = {.weight = settings_.class_weights[flow.message.traffic_class]};
  const double share = settings_.network(flow.message.network).injection.queue_pair_share;
  if (share < 1) demand.bound = share * routes_.source_rate(flow.message);
  if (!flow.way.exists()) demand.bound = 0;
  rates_.add(uses_, demand);
}

// Destinations.

void FlowEngine::land_chunk(uint32_t index) {
  FlowState& flow = flows_[index];
  const Message m = flow.message;
  const int64_t packet = m.packet_bytes > 0 ? m.packet_bytes : settings_.network(m.network).mtu_bytes;
  traffic_.on_chunk(m, ++flow.chunks_landed * m.chunk_packets * packet, now_);
}

void FlowEngine::land(uint32_t index) {
  const FlowState& flow = flows_[index];
  const Message message = flow.message;
  if (message.chunk_packets > 0) traffic_.on_chunk(message, message.bytes, now_);
  const bool is_signal = message.order == Order::racing || message.order == Order::counted;
  if (is_signal && !order_.is_covered(flow.place)) {
    ++counts_.held_signals;
    return order_.wait(flow.place, index);
  }
  finish(index);
  while (!released_.empty()) {
    const uint32_t next = released_.back();
    released_.pop_back();
    if (flows_[next].message.order == Order::fenced) {
      push(now_ + std::max<Ps>(0, flows_[next].way.latency), EventKind::release,
           next);  // the acknowledgement
    } else {
      finish(next);
    }
  }
}

void FlowEngine::finish(uint32_t index) {
  const Message message = flows_[index].message;
  const OrderTracker::Place place = flows_[index].place;
  flows_.remove(index);
  ++counts_.messages;
  counts_.payload_bytes += message.bytes;
  if (message.order != Order::unrelated) order_.finish(place, message.order, released_);
  traffic_.on_arrived(message, now_);
}

}  // namespace plumb::sim

// Messages as flows: sources, dates of ends and chunks, signals, faults. Rates come from MaxMin, routes from
// FlowRoutes.
#include "sim/flow_network.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "model/error.h"
#include "sim/event_queue.h"
#include "sim/order.h"
#include "sim/pool.h"

namespace plumb::sim {

namespace {

constexpr int kQueueWidthBits = 12, kQueueBucketBits = 14;  // 4 ns, 67 us: ends of flows, not of packets
constexpr size_t kPairsInReport = 16;

struct Flow {
  Message message;
  uint32_t next = kNil;      // of Pool
  uint32_t position = kNil;  // in moving_; kNil before it starts and after its last byte has left
  int64_t total = 0;         // bytes on the wire
  double accounted = 0;      // of them, on links
  int64_t chunks_sent = 0, chunks_landed = 0;
  FlowRoutes::Way way;
  OrderTracker::Place place;
};

/// A flow whose bytes move, in a dense list of its own: all of them are looked at often.
struct Moving {
  double left = 0;      // bytes on the wire not yet sent, at `since`
  double rate = 0;      // bytes per ps
  double due_left = 0;  // `left` at `due`
  Ps since = 0;
  Ps due = kNever;     // of its end, or of its next chunk
  Ps pushed = kNever;  // its latest date in the queue
  uint32_t flow = 0;
};

struct Source {
  Rank rank = 0;
  Link network = Link::scale_up;
  uint8_t traffic_class = 0;
  bool may_have_more = false;
  int32_t active = 0;  // queue pairs in use
  Ps next_start = 0;   // message rate
  Ps wake = kNever;
};

}  // namespace

class FlowEngine {
 public:
  FlowEngine(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic);

  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at);
  void call_at(Ps at, uint32_t id);
  void add_fault(const Fault& fault);
  Ps now() const { return now_; }
  Ps next_event();
  bool advance(Ps until);
  void stop() { stop_ = true; }
  int64_t under_way() const { return flows_.in_use(); }
  std::string stuck_report();
  std::vector<LinkUse> link_use();
  int64_t memory_bytes() const;
  const FlowCounts& counts() const { return counts_; }
  const FlowSettings& settings() const { return settings_; }
  Rank ranks() const { return graph_.ranks(); }

 private:
  enum class EventKind : uint32_t { flow, window, chunk, arrive, release, source_wake, local, fault, reroute, timer };
  static constexpr uint32_t kIndexBits = 28, kIndexMask = (1u << kIndexBits) - 1;

  void push(Ps at, EventKind kind, uint32_t index) {
    queue_.push(at, static_cast<uint32_t>(kind) << kIndexBits | index);
  }
  void check_settings() const;
  void drop_stale_events();
  bool is_stale(const EventQueue::Event& event) const;
  void handle(EventKind kind, uint32_t index);
  uint32_t source_of(const Message& message) const;

  // Sources.
  void inject(uint32_t source);
  void wake_source(uint32_t source, Ps at);
  void start(uint32_t source, const Message& message);
  void start_local(const Message& message);
  void begin(uint32_t flow);
  void join(uint32_t flow);

  // Progress.
  int64_t wire_bytes(const Message& message, int64_t packets) const;
  void progress(Moving& m);
  void find_due(Moving& m);
  void schedule(Moving& m);
  void on_due(uint32_t flow);
  void find_date(Moving& m);
  void account(const Moving& m);
  bool wants_settling() const { return solve_now_ || window_reached_; }
  void settle();
  void solve();
  void open_window(bool was_early);

  // Destinations.
  void land_chunk(uint32_t flow);
  void land(uint32_t flow);
  void finish(uint32_t flow);

  // Faults.
  void apply_fault(const Fault& fault);
  void refresh(FlowPolicy policy);
  void account_all();

  const Fabric& fabric_;
  FlowSettings settings_;
  Traffic& traffic_;
  ChannelGraph graph_;
  FlowRoutes routes_;
  MaxMin rates_;
  OrderTracker order_;
  EventQueue queue_;
  Pool<Flow> flows_;
  std::vector<Moving> moving_;  // in the order of rates_
  std::vector<Source> sources_;
  std::vector<Ps> local_busy_;  // [ranks]
  std::vector<Fault> faults_;
  std::vector<ResourceUse> uses_;
  std::vector<uint32_t> released_;
  FlowCounts counts_;
  Ps now_ = 0;
  bool stop_ = false;
  // The batch: ends and starts since the last solution, how many may pass, and the window for which dates of
  // flows are in the queue.
  int64_t ended_ = 0, started_ = 0, allowed_ = 0;
  bool solve_now_ = false, window_reached_ = false;
  Ps window_begin_ = 0, horizon_ = kNever;
  double width_ = 0;
};

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
    fail_usage("flow network: {} traffic classes, allowed are 1 .. {}", settings_.num_classes, kServiceLevels);
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
    if (injection.queue_pairs < 1) fail_usage("flow network: {} queue pairs", injection.queue_pairs);
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
  Source& s = sources_[source];
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

int64_t FlowEngine::wire_bytes(const Message& m, int64_t packets) const {
  const FlowNetworkSettings& settings = settings_.network(m.network);
  const int64_t packet = m.packet_bytes > 0 ? m.packet_bytes : settings.mtu_bytes;
  return std::min(m.bytes, packets * packet) + settings.first_header_bytes +
         (packets - 1) * settings.next_header_bytes;
}

void FlowEngine::start(uint32_t source, const Message& message) {
  if (message.bytes < 0 || message.dst < 0 || message.dst >= graph_.ranks())
    fail_usage("message of {} bytes from rank {} to rank {} of {}", message.bytes, message.src, message.dst,
               graph_.ranks());
  if (message.dst == message.src) return start_local(message);
  const FlowNetworkSettings& settings = settings_.network(message.network);
  const int64_t packet = message.packet_bytes > 0 ? message.packet_bytes : settings.mtu_bytes;
  const uint32_t index = flows_.add();
  Flow& flow = flows_[index];
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
  Flow& flow = flows_[index];
  flow.position = static_cast<uint32_t>(moving_.size());
  moving_.push_back({.left = static_cast<double>(flow.total), .since = now_, .flow = index});
  join(index);
  solve_now_ |= ++started_ > allowed_ || rates_.is_overfull();
  if (solve_now_) return;  // before time goes on
  Moving& m = moving_[flow.position];
  m.rate = rates_.rate(flow.position);
  find_due(m);
  schedule(m);
}

/// Finds the flow's way and gives it to the solver; without a way it stands still.
void FlowEngine::join(uint32_t index) {
  Flow& flow = flows_[index];
  flow.way = routes_.find(flow.message, uses_);
  FlowDemand demand = {.weight = settings_.class_weights[flow.message.traffic_class]};
  const double share = settings_.network(flow.message.network).injection.queue_pair_share;
  if (share < 1) demand.bound = share * routes_.source_rate(flow.message);
  if (!flow.way.exists()) demand.bound = 0;
  rates_.add(uses_, demand);
}

// Progress.

void FlowEngine::progress(Moving& m) {
  m.left = std::max(0.0, m.left - m.rate * static_cast<double>(now_ - m.since));
  m.since = now_;
}

void FlowEngine::find_due(Moving& m) {
  const Flow& flow = flows_[m.flow];
  m.due_left = 0;
  if (flow.message.chunk_packets > 0) {
    const int64_t packets = (flow.chunks_sent + 1) * flow.message.chunk_packets;
    m.due_left = static_cast<double>(std::max<int64_t>(0, flow.total - wire_bytes(flow.message, packets)));
  }
  find_date(m);
}

void FlowEngine::find_date(Moving& m) {
  const double time = std::max(0.0, m.left - m.due_left) / m.rate;
  // 10^18 ps are 11 days: a rate of nothing, or nearly.
  m.due = time < 1e18 ? m.since + std::llround(time) : kNever;
}

void FlowEngine::schedule(Moving& m) {
  if (m.due > horizon_ || m.due == kNever || m.pushed == m.due) return;
  m.pushed = m.due;
  push(m.due, EventKind::flow, m.flow);
}

/// Puts what has moved since the last time on the links.
void FlowEngine::account(const Moving& m) {
  Flow& flow = flows_[m.flow];
  const double done = static_cast<double>(flow.total) - m.left;
  if (flow.way.exists())
    routes_.account(flow.message, flow.way, done - flow.accounted, rates_.weighted_uses(flow.position),
                    rates_.weight(flow.position));
  flow.accounted = done;
}

/// A chunk, or the last byte, has left the source.
void FlowEngine::on_due(uint32_t index) {
  Flow& flow = flows_[index];
  Moving& m = moving_[flow.position];
  const Ps latency = flow.way.latency;
  m.pushed = kNever;
  if (m.due_left > 0) {
    progress(m);
    ++flow.chunks_sent;
    push(now_ + latency, EventKind::chunk, index);
    find_due(m);
    return schedule(m);
  }
  m.left = 0;
  account(m);
  rates_.remove(flow.position);
  m = moving_.back();
  flows_[m.flow].position = flow.position;
  moving_.pop_back();
  flow.position = kNil;
  solve_now_ |= ++ended_ > allowed_;
  push(now_ + latency, EventKind::arrive, index);
  const uint32_t source = source_of(flow.message);
  --sources_[source].active;
  if (flow.message.report_sent) {
    const Message message = flow.message;
    traffic_.on_sent(message, now_);
  }
  inject(source);
}

void FlowEngine::settle() {
  const bool is_early = !window_reached_;
  window_reached_ = false;
  if (ended_ + started_ > 0) {
    solve();
  } else {
    solve_now_ = false;
  }
  open_window(is_early);
}

void FlowEngine::solve() {
  rates_.solve();
  ++counts_.solutions;
  for (uint32_t i = 0; i < moving_.size(); ++i) {
    Moving& m = moving_[i];
    const double rate = rates_.rate(i);
    if (rate == m.rate && m.due != kNever) continue;
    const bool is_new = m.due == kNever;
    progress(m);
    m.rate = rate;
    is_new ? find_due(m) : find_date(m);
  }
}

/// Puts the dates of the coming window into the queue. Its width follows the rate of ends, so that few dates
/// are pushed in vain, and is at most the time after which rates count as old.
void FlowEngine::open_window(bool was_early) {
  double left = 0, rate = 0;
  Ps first = kNever;
  for (const Moving& m : moving_) {
    first = std::min(first, m.due);
    left += m.left;
    rate += m.rate;
  }
  const double longest = rate > 0 ? 2 * settings_.relative_batch * left / rate : 0;
  if (was_early && now_ - window_begin_ < static_cast<Ps>(width_ / 2)) width_ /= 2;
  if (!was_early && ended_ < allowed_ / 2) width_ *= 2;
  width_ = std::min(std::max(width_, longest / 64), longest);
  ended_ = started_ = 0;
  solve_now_ = false;
  allowed_ = static_cast<int64_t>(settings_.relative_batch * static_cast<double>(moving_.size()));
  window_begin_ = now_;
  horizon_ = kNever;
  if (first == kNever) return;
  horizon_ = std::max(first, now_ + static_cast<Ps>(std::min(width_, 1e17)));
  for (Moving& m : moving_) schedule(m);
  push(horizon_, EventKind::window, 0);
}

// Destinations.

void FlowEngine::land_chunk(uint32_t index) {
  Flow& flow = flows_[index];
  const Message m = flow.message;
  const int64_t packet = m.packet_bytes > 0 ? m.packet_bytes : settings_.network(m.network).mtu_bytes;
  traffic_.on_chunk(m, ++flow.chunks_landed * m.chunk_packets * packet, now_);
}

void FlowEngine::land(uint32_t index) {
  const Flow& flow = flows_[index];
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
      push(now_ + std::max<Ps>(0, flows_[next].way.latency), EventKind::release, next);  // the acknowledgement
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

// Faults.

void FlowEngine::add_fault(const Fault& fault) {
  const bool of_node = fault.kind == FaultKind::switch_down || fault.kind == FaultKind::switch_up;
  if (of_node && (fault.node < 0 || fault.node >= static_cast<NodeId>(fabric_.nodes().size())))
    fail_usage("fault: node {} of {}", fault.node, fabric_.nodes().size());
  if (!of_node && (fault.link < 0 || fault.link >= static_cast<LinkId>(fabric_.links().size())))
    fail_usage("fault: link {} of {}", fault.link, fabric_.links().size());
  if (fault.kind == FaultKind::link_rate && !(fault.factor > 0 && fault.factor <= 1))
    fail_usage(
        "fault: a link rate of {} times its own, allowed is more than 0, at most 1; link_down stops it",
        fault.factor);
  faults_.push_back(fault);
  push(std::max(fault.at, now_), EventKind::fault, static_cast<uint32_t>(faults_.size()) - 1);
}

/// What is split moves to other links at once, as adaptive routing does; hashes wait for new tables.
void FlowEngine::apply_fault(const Fault& fault) {
  account_all();
  const bool goes_down = fault.kind == FaultKind::link_down || fault.kind == FaultKind::switch_down;
  switch (fault.kind) {
    case FaultKind::link_rate:
      routes_.set_factor(graph_.of(fault.link), fault.factor);
      break;
    case FaultKind::link_down:
    case FaultKind::link_up:
      routes_.set_down(graph_.of(fault.link), goes_down);
      break;
    case FaultKind::switch_down:
    case FaultKind::switch_up:
      for (size_t l = 0; l < fabric_.links().size(); ++l) {
        const FabricLink& link = fabric_.links()[l];
        if (link.from == fault.node || link.to == fault.node)
          routes_.set_down(graph_.of(static_cast<LinkId>(l)), goes_down);
      }
      break;
  }
  if (fault.kind != FaultKind::link_rate && routes_.has(FlowPolicy::hash))
    push(now_ + to_ps(settings_.reroute_delay), EventKind::reroute, 0);
  refresh(FlowPolicy::split);
}

void FlowEngine::account_all() {
  for (Moving& m : moving_) {
    progress(m);
    account(m);
  }
}

/// New ways for all.
void FlowEngine::refresh(FlowPolicy policy) {
  account_all();
  routes_.rebuild(policy);
  rates_.set_capacities(routes_.capacities());
  for (Moving& m : moving_) {
    m.rate = 0;
    m.due = kNever;
    join(m.flow);
  }
  ++started_;
  solve_now_ = true;
}

// Reports.

std::string FlowEngine::stuck_report() {
  if (flows_.in_use() == 0 || next_event() != kNever) return "";
  std::string result;
  for (Channel c = 0; c < graph_.channels().size(); ++c)
    if (routes_.is_down(c)) result += fmt::format("  {} is down\n", graph_.name_of_channel(c));
  std::map<std::tuple<Link, Rank, Rank>, int64_t> stalled;
  for (const Moving& moving : moving_) {
    const Message& m = flows_[moving.flow].message;
    ++stalled[{m.network, m.src, m.dst}];
  }
  size_t listed = 0;
  for (const auto& [pair, count] : stalled) {
    if (++listed > kPairsInReport) break;
    result += fmt::format("  rank {} to rank {}, {}: {} messages stand still\n", std::get<1>(pair),
                          std::get<2>(pair), to_string(std::get<0>(pair)), count);
  }
  if (stalled.size() > kPairsInReport)
    result += fmt::format("  and {} pairs of ranks more\n", stalled.size() - kPairsInReport);
  return result;
}

std::vector<LinkUse> FlowEngine::link_use() {
  account_all();
  const std::vector<double> bytes = routes_.channel_bytes();
  std::vector<LinkUse> result(fabric_.links().size());
  const double seconds = std::max(to_seconds(now_).value, 1e-12);
  for (size_t l = 0; l < result.size(); ++l) {
    LinkUse& use = result[l];
    use.link = static_cast<LinkId>(l);
    use.packet_bytes = std::llround(bytes[graph_.of(use.link)]);
    use.utilisation = bytes[graph_.of(use.link)] / (fabric_.links()[l].rate.value * seconds);
  }
  return result;
}

int64_t FlowEngine::memory_bytes() const {
  return queue_.memory_bytes() + flows_.memory_bytes() + rates_.memory_bytes() + routes_.memory_bytes() +
         static_cast<int64_t>(moving_.capacity() * sizeof(Moving) + sources_.capacity() * sizeof(Source) + local_busy_.capacity() * sizeof(Ps));
}

// The interface.

FlowSettings flow_settings(const PacketSettings& settings) {
  FlowSettings result;
  for (size_t n = 0; n < 2; ++n) {
    const NetworkSettings& from = settings.networks[n];
    const bool is_fixed = from.policy == RoutePolicy::by_destination || from.policy == RoutePolicy::by_flow;
    result.networks[n] = {.mtu_bytes = from.mtu_bytes,
                          .first_header_bytes = from.first_header_bytes,
                          .next_header_bytes = from.next_header_bytes,
                          .policy = is_fixed ? FlowPolicy::hash : FlowPolicy::split,
                          .injection = from.injection};
  }
  result.num_classes = settings.num_classes;
  result.reroute_delay = settings.reroute_delay;
  result.local = settings.local;
  result.seed = settings.seed;
  return result;
}

FlowNetwork::FlowNetwork(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic)
    : engine_(std::make_unique<FlowEngine>(fabric, settings, traffic)) {}
FlowNetwork::~FlowNetwork() = default;

void FlowNetwork::wake(Rank rank, Link network, uint8_t traffic_class, Ps at) {
  engine_->wake(rank, network, traffic_class, at);
}
void FlowNetwork::wake_all(Ps at) {
  for (Rank r = 0; r < engine_->ranks(); ++r)
    for (Link network : {Link::scale_up, Link::scale_out})
      for (int32_t c = 0; c < engine_->settings().num_classes; ++c) wake(r, network, static_cast<uint8_t>(c), at);
}
void FlowNetwork::call_at(Ps at, uint32_t id) { engine_->call_at(at, id); }
void FlowNetwork::add_fault(const Fault& fault) { engine_->add_fault(fault); }
Ps FlowNetwork::now() const { return engine_->now(); }
Ps FlowNetwork::next_event() const { return engine_->next_event(); }
bool FlowNetwork::advance(Ps until) { return engine_->advance(until); }
void FlowNetwork::stop() { engine_->stop(); }
int64_t FlowNetwork::messages_under_way() const { return engine_->under_way(); }
std::string FlowNetwork::stuck_report() const { return engine_->stuck_report(); }
std::vector<LinkUse> FlowNetwork::link_use() const { return engine_->link_use(); }
int64_t FlowNetwork::memory_bytes() const { return engine_->memory_bytes(); }
const FlowCounts& FlowNetwork::counts() const { return engine_->counts(); }

}  // namespace plumb::sim

// Set-up of the packet engine and its event loop.
#include "sim/packet_engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "model/error.h"
#include "sim/channel_dependency.h"
#include "sim/prefetch.h"

namespace plumb::sim {

namespace {

constexpr double kEventsPerBucket = 8;                       // measured
constexpr std::array<size_t, 3> kPrefetchAhead = {7, 5, 3};  // events, step by step; measured
constexpr size_t kPrefetchNear = 2;                          // events, where the first step is all that pays
constexpr int64_t kCacheBytes = 384 << 10;  // smaller ports and lanes lose by all steps; measured
constexpr int32_t kBits = 64;  // of the masks over the lanes and over the channels of an endpoint

}  // namespace

PacketEngine::PacketEngine(const Fabric& fabric, const PacketSettings& settings, Traffic& traffic)
    : fabric_(fabric),
      settings_(settings),
      traffic_(traffic),
      graph_(fabric),
      router_(fabric, graph_, settings_),
      arbitration_(settings.lanes) {
  check_settings();
  credit_unit_ = settings_.lanes.credit_unit.value.count;
  virtual_lanes_ = static_cast<uint32_t>(settings_.lanes.count);
  choose_hop_classes();
  make_ports();
  make_sources();
  shape_queue();
  local_busy_.assign(graph_.ranks(), 0);
  congestion_ = make_congestion_control(settings_.congestion, graph_, settings_.seed);
}

void PacketEngine::check_settings() const {
  const Lanes& lanes = settings_.lanes;
  if (lanes.credit_unit.value.count < 1)
    fail_usage("packet network: credits of {} bytes", lanes.credit_unit.value.count);
  if (lanes.count < 1 || lanes.count > static_cast<int32_t>(kMaxVirtualLanes))
    fail_usage("packet network: {} lanes, allowed are 1 .. {}", lanes.count, kMaxVirtualLanes);
  if (settings_.num_classes < 1 || settings_.num_classes > kServiceLevels)
    fail_usage("packet network: {} traffic classes, allowed are 1 .. {}", settings_.num_classes,
               kServiceLevels);
  for (int32_t level = 0; level < settings_.num_classes; ++level)
    if (lanes.lane(level) < 0 || lanes.lane(level) >= lanes.count)
      fail_usage("packet network: service level {} maps to lane {}, there are {} lanes", level,
                 lanes.lane(level), lanes.count);
  for (const NetworkSettings& network : settings_.networks) {
    if (network.mtu_bytes < 1) fail_usage("packet network: an MTU of {} bytes", network.mtu_bytes);
    if (network.first_header_bytes < 1 || network.next_header_bytes < 1)
      fail_usage("packet network: headers of {} and {} bytes; a packet has a header of at least 1 byte",
                 network.first_header_bytes, network.next_header_bytes);
    const Injection& injection = network.injection;
    if (injection.queue_pairs < 1)
      fail_usage("packet network: {} queue pairs; allowed: 1 or more", injection.queue_pairs);
    if (!(injection.queue_pair_share > 0 && injection.queue_pair_share <= 1))
      fail_usage("packet network: a queue pair fills {} of its link, allowed is more than 0, at most 1",
                 injection.queue_pair_share);
  }
  for (Vertex v = 0; v < graph_.num_vertices(); ++v)
    if (graph_.num_in(v) > 0xff00)
      fail_usage("packet network: {} has {} links", graph_.name(v), graph_.num_in(v));
  for (Vertex v = 0; v < static_cast<Vertex>(graph_.ranks()); ++v)
    if (graph_.out_end(v) - graph_.out_begin(v) > kBits)
      fail_usage("packet network: {} has {} links, at most {} are possible", graph_.name(v),
                 graph_.out_end(v) - graph_.out_begin(v), kBits);
}

void PacketEngine::choose_hop_classes() {
  ClassRule rule = {.raising = raising_channels(graph_, settings_.hop_classes.datelines),
                    .count = settings_.hop_classes.count,
                    .detours = router_.may_detour()};
  if (rule.count == 0) {
    rule.count = fewest_classes(graph_, router_.tables(), rule);
  } else if (settings_.check_deadlock) {
    const auto cycle = find_cycle(graph_, router_.tables(), rule);
    if (!cycle.empty())
      fail_usage(
          "routes can deadlock with {} hop class(es) per lane; these channels wait for each other:\n{}hint: "
          "more hop classes (count 0 chooses them), or datelines that cut the cycle",
          rule.count, to_string(cycle, graph_));
  }
  classes_ = static_cast<uint32_t>(rule.count);
  lanes_per_port_ = virtual_lanes_ * classes_;
  if (lanes_per_port_ > kBits)
    fail_usage("packet network: {} lanes x {} hop classes are more than {}", virtual_lanes_, classes_, kBits);
  ports_.resize(num_channels(), lanes_per_port_);
  router_.set_lanes(lanes_per_port_, classes_);
  for (Channel c = 0; c < num_channels(); ++c)
    for (uint32_t l = 0; l < lanes_per_port_; ++l) lane(c, l).raises_class = rule.raising[c] != 0;
}

int32_t PacketEngine::capacity(const ChannelInfo& channel) const {
  // Each cable of a link ends in a port of its own.
  int64_t bytes =
      fabric_.links()[static_cast<size_t>(channel.links[0])].cables * settings_.lanes.buffer.value.count;
  const double rate = channel.rate.value * 1e-12;  // bytes per ps
  if (settings_.fit_buffers) {
    const NetworkSettings& network = settings_.network(channel.network);
    const int64_t packet = network.mtu_bytes + network.first_header_bytes;
    bytes = std::max<int64_t>(
        bytes, std::llround(2 * network.round_trips * rate * static_cast<double>(channel.wire_latency)) +
                   2 * packet);
  }
  // A NIC that was taken out holds what is on its way through it; the credits of the wire do not cover that.
  bytes += std::llround(rate * static_cast<double>(channel.latency - channel.wire_latency));
  const int64_t result = bytes / credit_unit_;
  if (result < 1 || result > std::numeric_limits<int32_t>::max())
    fail_usage("packet network: a buffer of {} bytes per lane is {} credits of {} bytes", bytes, result,
               credit_unit_);
  return static_cast<int32_t>(result);
}

void PacketEngine::make_ports() {
  const uint32_t channels = num_channels();
  stalls_.resize(num_lanes());
  debts_.resize(channels * virtual_lanes_);
  if (settings_.input_queues == InputQueues::fifo) fifos_.resize(num_lanes());
  smallest_buffer_.fill(std::numeric_limits<int32_t>::max());
  for (Channel c = 0; c < channels; ++c) {
    const ChannelInfo& info = graph_[c];
    Port& port = this->port(c);
    if (info.latency > std::numeric_limits<uint32_t>::max())
      fail_usage("{}: a latency of {} is above 4.29 ms", graph_.name_of_channel(c),
                 plumb::to_string(to_seconds(info.latency)));
    port.ps_per_byte = static_cast<uint64_t>(std::llround(1e12 / info.rate.value * 0x1p32));
    port.latency = static_cast<uint32_t>(info.latency);
    port.to = info.to;
    port.arbitration = arbitration_.initial();
    const int32_t buffer = capacity(info);
    capacities_.push_back(buffer);
    for (size_t n = 0; n < 2; ++n)
      if (info.carries(n == 0 ? Link::scale_up : Link::scale_out))
        smallest_buffer_[n] = std::min(smallest_buffer_[n], buffer);
    for (uint32_t l = 0; l < lanes_per_port_; ++l) {
      Lane& lane = this->lane(c, l);
      lane.credits = lane.least_credits = buffer;
      lane.channel = c;
      lane.to = info.to;
      lane.in_slot = static_cast<uint16_t>(graph_.in_slot(c));
      lane.wire_latency = static_cast<uint32_t>(info.wire_latency);
    }
  }
  for (Channel c = 0; c < channels; ++c) set_head_delay(c);
  bool has_wide_vertices = false;
  const uint32_t own = 2 * static_cast<uint32_t>(settings_.num_classes);  // a rank's sources are inputs, too
  for (Vertex v = 0; v < graph_.num_vertices(); ++v)
    has_wide_vertices |= graph_.num_in(v) + (graph_.is_endpoint(v) ? own : 0) > 64;
  waiting_.set_has_wide_vertices(has_wide_vertices);
}

/// Buckets of the wheel that hold some eight events each when all links are busy: each packet-hop makes two.
void PacketEngine::shape_queue() {
  double per_ps = 0;
  Ps longest = 1;  // until the end of a packet's hop
  for (Channel c = 0; c < num_channels(); ++c) {
    const NetworkSettings& network = settings_.network(graph_[c].network);
    const Ps packet = std::max<Ps>(1, duration(port(c), network.mtu_bytes + network.first_header_bytes));
    per_ps += 2.0 / static_cast<double>(packet);
    longest = std::max(longest, packet + graph_[c].latency);
  }
  const double width = kEventsPerBucket / std::max(per_ps, 1e-9);
  int width_bits = 0;
  while (width_bits < 20 && static_cast<double>(Ps{2} << width_bits) < width * 1.41) ++width_bits;
  int bucket_bits = 10;
  while (bucket_bits < 16 && Ps{1} << (width_bits + bucket_bits) < 2 * longest) ++bucket_bits;
  exceeds_caches_ = ports_.memory_bytes() > kCacheBytes;
  queue_ = EventQueue(width_bits, bucket_bits, (exceeds_caches_ ? kPrefetchAhead[0] : kPrefetchNear) + 1);
}

void PacketEngine::make_sources() {
  const uint32_t classes = static_cast<uint32_t>(settings_.num_classes);
  sources_.resize(static_cast<size_t>(graph_.ranks()) * 2 * classes);
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.rank = static_cast<Rank>(i / classes / 2);
    source.network = i / classes % 2 == 0 ? Link::scale_up : Link::scale_out;
    source.traffic_class = static_cast<uint8_t>(i % classes);
    const Vertex at = static_cast<Vertex>(source.rank);
    source.slot = graph_.num_in(at) + i % (2 * classes);
    source.has_one_channel = graph_.out_end(at) - graph_.out_begin(at) <= 1;
    if (!source.has_one_channel) source.gates = ~uint64_t{0};
    if (!source.has_one_channel)
      for (Channel c = graph_.out_begin(at); c < graph_.out_end(at); ++c)
        if (graph_[c].carries(source.network)) source.gates &= ~(uint64_t{1} << gate_of(c));
    const Injection& injection = settings_.network(source.network).injection;
    source.queue_pairs = injection.queue_pairs;
    source.is_plain = injection.outstanding_bytes == 0 && injection.message_rate.value <= 0;
  }
}

void PacketEngine::set_head_delay(Channel channel) {
  Port& port = this->port(channel);
  uint64_t fastest = port.ps_per_byte;
  for (Channel next = graph_.out_begin(port.to); next < graph_.out_end(port.to); ++next)
    fastest = std::min(fastest, this->port(next).ps_per_byte);
  if (graph_.is_endpoint(port.to) && !graph_[channel].between_nodes)
    fastest = port.ps_per_byte;  // nothing goes on
  port.head_delay = static_cast<uint32_t>((port.ps_per_byte - fastest + 0xffff) >> 16);
}

Ps PacketEngine::duration(const Port& port, int64_t bytes) const {
  return static_cast<Ps>((static_cast<unsigned __int128>(port.ps_per_byte) * static_cast<uint64_t>(bytes)) >>
                         32);
}

void PacketEngine::wake(Rank rank, Link network, uint8_t traffic_class, Ps at) {
  PLUMB_CHECK(
      rank >= 0 && rank < graph_.ranks() && traffic_class < settings_.num_classes && network != Link::local,
      "wake of rank {}, class {}", rank, traffic_class);
  const uint32_t source =
      source_of({.src = rank, .traffic_class = traffic_class, .is_scale_out = network == Link::scale_out});
  sources_[source].may_have_more = true;
  push(std::max(at, now_), EventKind::source_wake, source);
}

void PacketEngine::call_at(Ps at, uint32_t id) {
  PLUMB_CHECK(id < 1u << kIndexBits, "timer {}", id);
  push(std::max(at, now_), EventKind::timer, id);
}

bool PacketEngine::advance(Ps until) {
  while (!queue_.empty()) {
    if (queue_.next_time() > until) {
      now_ = std::max(now_, until);
      return true;
    }
    const EventQueue::Event event = queue_.pop();
    now_ = event.time;
    ++counts_.events;
    prefetch_ahead();
    handle(kind_of(event.word), index_of(event.word));
    if (stop_) {
      stop_ = false;
      return true;
    }
  }
  if (until != kNever) now_ = std::max(now_, until);
  return false;
}

/// Asks the caches for what an event will touch, each step of a chain of records some events after the one
/// before. The kinds of events follow one another like dice: so the steps select instead of branching, and
/// what is not of the event's kind stands for any record that is there.
class PacketEngine::Prefetch {
 public:
  /// An arrive, deliver or port_done.
  Prefetch(const PacketEngine& engine, uint32_t word)
      : e_(engine),
        kind_(kind_of(word)),
        is_port_(kind_ == EventKind::port_done),
        channel_(static_cast<Channel>(is_port_.select(index_of(word), 0))),
        port_(e_.port(channel_)),
        packet_(*e_.packets_.at(static_cast<uint32_t>(is_port_.select(0, index_of(word))))) {}

  void first() const {
    prefetch(select(&port_, &packet_));
    prefetch(select(&lane(), &packet_));
  }
  void second() const {
    prefetch(select(&feeder(), &in()));
    prefetch(select(e_.waiting_.first_record(lane()), e_.messages_.at(packet_.message)));
    prefetch(select(e_.credits_.first_record(lane()), &in()));
  }
  void third() const {
    prefetch(select(e_.messages_.at(feeder().following), e_.credits_.last_record(in())));
    if (kind_ == EventKind::arrive) {
      const auto candidates = e_.router_.candidates(packet_, in().to);
      if (candidates.empty()) return;
      prefetch(&e_.port(candidates[0]));
      prefetch(&e_.lane(candidates[0], e_.lane_of(packet_)));
    } else {
      prefetch(select(&port_, e_.contents_.data() + packet_.message));
    }
  }

 private:
  const void* select(const void* of_port, const void* of_packet) const {
    return reinterpret_cast<const void*>(
        is_port_.select(reinterpret_cast<uintptr_t>(of_port), reinterpret_cast<uintptr_t>(of_packet)));
  }
  const Lane& lane() const { return e_.lane(channel_, 0); }
  const Source& feeder() const { return e_.sources_[port_.feeder < e_.sources_.size() ? port_.feeder : 0]; }
  const Lane& in() const { return e_.lane(packet_.in == kNil ? 0 : packet_.in); }

  const PacketEngine& e_;
  const EventKind kind_;
  const Selector is_port_;  // else a packet
  const Channel channel_;
  const Port& port_;
  const Packet& packet_;
};

inline void PacketEngine::prefetch_ahead() const {
  const auto ahead = [&](size_t events, void (Prefetch::*step)() const) {
    const EventQueue::Event* event = queue_.peek(events);
    if (event != nullptr && kind_of(event->word) <= EventKind::port_done)
      (Prefetch(*this, event->word).*step)();
  };
  if (!exceeds_caches_) return ahead(kPrefetchNear, &Prefetch::first);
  ahead(kPrefetchAhead[0], &Prefetch::first);
  ahead(kPrefetchAhead[1], &Prefetch::second);
  ahead(kPrefetchAhead[2], &Prefetch::third);
}

void PacketEngine::handle(EventKind kind, uint32_t index) {
  switch (kind) {
    case EventKind::arrive:
      return arrive(index);
    case EventKind::deliver:
      return deliver(index);
    case EventKind::port_done:
      return port_done(index);
    case EventKind::credit:
      lane(index).has_credit_event = false;
      return arbitrate(lane(index).channel);
    case EventKind::source_wake:
      if (sources_[index].wake == now_) sources_[index].wake = kNever;
      return inject(index);
    case EventKind::sent:
      return traffic_.on_sent(contents_[index], now_);
    case EventKind::local:
      return land_local(index);
    case EventKind::echo:
      return on_echo(index);
    case EventKind::flow_timer:
      return on_flow_timer(index);
    case EventKind::fault:
      return apply_fault(faults_[index]);
    case EventKind::reroute:
      return reroute();
    case EventKind::timer:
      return traffic_.on_timer(index, now_);
  }
}

}  // namespace plumb::sim

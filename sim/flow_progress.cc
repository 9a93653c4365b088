// How far flows are, and when they will be done; what failures change, and what is reported.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "model/error.h"
#include "sim/flow_engine.h"

namespace plumb::sim {

namespace {

constexpr size_t kPairsInReport = 16;

}  // namespace

int64_t FlowEngine::wire_bytes(const Message& m, int64_t packets) const {
  const FlowNetworkSettings& settings = settings_.network(m.network);
  const int64_t packet = m.packet_bytes > 0 ? m.packet_bytes : settings.mtu_bytes;
  return std::min(m.bytes, packets * packet) + settings.first_header_bytes +
         (packets - 1) * settings.next_header_bytes;
}

void FlowEngine::progress(MovingFlow& m) {
  m.left = std::max(0.0, m.left - m.rate * static_cast<double>(now_ - m.since));
  m.since = now_;
}

void FlowEngine::find_due(MovingFlow& m) {
  const FlowState& flow = flows_[m.flow];
  m.due_left = 0;
  if (flow.message.chunk_packets > 0) {
    const int64_t packets = (flow.chunks_sent + 1) * flow.message.chunk_packets;
    m.due_left = static_cast<double>(std::max<int64_t>(0, flow.total - wire_bytes(flow.message, packets)));
  }
  find_date(m);
}

void FlowEngine::find_date(MovingFlow& m) {
  const double time = std::max(0.0, m.left - m.due_left) / m.rate;
  // 10^18 ps are 11 days: a rate of nothing, or nearly.
  m.due = time < 1e18 ? m.since + std::llround(time) : kNever;
}

void FlowEngine::schedule(MovingFlow& m) {
  if (m.due > horizon_ || m.due == kNever || m.pushed == m.due) return;
  m.pushed = m.due;
  push(m.due, EventKind::flow, m.flow);
}

/// Puts what has moved since the last time on the links.
void FlowEngine::account(const MovingFlow& m) {
  FlowState& flow = flows_[m.flow];
  const double done = static_cast<double>(flow.total) - m.left;
  if (flow.way.exists())
    routes_.account(flow.message, flow.way, done - flow.accounted, rates_.weighted_uses(flow.position),
                    rates_.weight(flow.position));
  flow.accounted = done;
}

/// A chunk, or the last byte, has left the source.
void FlowEngine::on_due(uint32_t index) {
  FlowState& flow = flows_[index];
  MovingFlow& m = moving_[flow.position];
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
    MovingFlow& m = moving_[i];
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
  for (const MovingFlow& m : moving_) {
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
  for (MovingFlow& m : moving_) schedule(m);
  push(horizon_, EventKind::window, 0);
}

// Faults.

void FlowEngine::add_fault(const Fault& fault) {
  check_fault(fault, fabric_);
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
  for (MovingFlow& m : moving_) {
    progress(m);
    account(m);
  }
}

/// New ways for all.
void FlowEngine::refresh(FlowPolicy policy) {
  account_all();
  routes_.rebuild(policy);
  rates_.set_capacities(routes_.capacities());
  for (MovingFlow& m : moving_) {
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
  for (const MovingFlow& moving : moving_) {
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

/// Works on copies of what moves, so that looking changes no rounding and no date.
std::vector<LinkUse> FlowEngine::link_use() {
  for (MovingFlow m : moving_) {
    progress(m);
    account(m);
  }
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
         static_cast<int64_t>(moving_.capacity() * sizeof(MovingFlow) +
                              sources_.capacity() * sizeof(FlowSource) + local_busy_.capacity() * sizeof(Ps));
}

}  // namespace plumb::sim

// Edges and progress: who waits for what, and what follows when a chunk has moved.
#include "sim/plan_player.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

namespace {

constexpr int64_t kChunkBytes = 65536;  // of ops whose phase has no chunks
constexpr uint32_t kEventShift = 30;    // of an edge in `dependents_`
constexpr uint32_t kOpMask = (1u << kEventShift) - 1;
constexpr size_t kMaxWaitRanks = 1024;  // 8 MB of dates
constexpr int64_t kFraction = 256;      // of a row, in positions among the rows of a stream

__extension__ using Wide = __int128;

bool moves_data(OpKind kind) {
  return kind == OpKind::put || kind == OpKind::get || kind == OpKind::copy || kind == OpKind::reduce;
}

int32_t chunk_count(const Plan& plan, const Op& o) {
  if (!moves_data(o.kind)) return 1;
  const int64_t rows = plan.phases()[o.phase].chunk_rows;
  const int64_t count =
      rows > 0 && o.rows > 0 ? (o.rows + rows - 1) / rows : (o.bytes + kChunkBytes - 1) / kChunkBytes;
  if (count > INT32_MAX) fail_usage("an op of {} bytes in chunks of {} is too long", o.bytes, kChunkBytes);
  return static_cast<int32_t>(std::max<int64_t>(count, 1));
}

}  // namespace

PlanPlayer::PlanPlayer(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs,
                       const SimOptions& options)
    : plan_(plan),
      machine_(machine),
      fabric_(fabric),
      latencies_(fabric),
      costs_(costs),
      options_(options),
      ranks_(static_cast<size_t>(plan.grouping().ranks)) {
  if (plan.ranks_per_op() != 1)
    fail_usage("the plan is coarse ({} ranks per op); simulate the plan it was made of", plan.ranks_per_op());
  if (plan.grouping().ranks > fabric.ranks())
    fail_usage("the plan has {} ranks, machine '{}' has {}", plan.grouping().ranks, machine.name,
               fabric.ranks());
  if (plan.ops().size() > kOpMask) fail_usage("a plan of {} ops is too large to play", plan.ops().size());
  prepare_ops();
  prepare_engines();
  link_dependents();
  mark_signals();
}

void PlanPlayer::prepare_ops() {
  states_.resize(plan_.ops().size());
  unfinished_ = static_cast<int64_t>(states_.size());
  for (size_t i = 0; i < states_.size(); ++i) {
    const Op& o = plan_.ops()[i];
    states_[i].chunks = chunk_count(plan_, o);
    chunks_left_ += states_[i].chunks;
    classes_ = std::max<int32_t>(classes_, o.traffic_class + 1);
    has_compute_ |= o.kind == OpKind::compute;
  }
  uses_.resize(plan_.phases().size() * ranks_);
  if (ranks_ <= kMaxWaitRanks) last_from_.assign(ranks_ * ranks_, -1);
  nic_rings_.resize(ranks_ * 2 * static_cast<size_t>(classes_));
  barriers_.resize(plan_.barriers().size());
}

/// Whether `id` is a put that takes no time, after one of the same pair: it does not overtake it.
bool PlanPlayer::is_free_signal(OpId id, OpId before) const {
  const Op &o = op(id), &data = op(before);
  return starts_[pipeline_of_[o.phase]].is_free && o.kind == OpKind::put && data.kind == OpKind::put &&
         is_network(o) && data.src == o.src && data.dst == o.dst && data.link == o.link;
}

/// Turns the edges around. A barrier says that what was sent before it has arrived, so it waits for that; so
/// does a signal whose time is left out.
void PlanPlayer::link_dependents() {
  const auto count = static_cast<OpId>(states_.size());
  dependent_begin_.assign(states_.size() + 1, 0);
  for (OpId id = 0; id < count; ++id)
    for (const Dep& dep : plan_.deps(id)) ++dependent_begin_[static_cast<size_t>(dep.op) + 1];
  for (size_t i = 1; i < dependent_begin_.size(); ++i) dependent_begin_[i] += dependent_begin_[i - 1];
  dependents_.resize(dependent_begin_.back());
  reports_sent_.assign(states_.size(), 0);
  std::vector<uint32_t> fill(dependent_begin_.begin(), dependent_begin_.end() - 1);
  for (OpId id = 0; id < count; ++id) {
    OpState& s = state(id);
    for (const Dep& dep : plan_.deps(id)) {
      On on = dep.on;
      if (on == On::sent && (op(id).kind == OpKind::barrier || is_free_signal(id, dep.op))) on = On::arrived;
      if (on == On::sent) reports_sent_[static_cast<size_t>(dep.op)] = 1;
      dependents_[fill[static_cast<size_t>(dep.op)]++] = static_cast<uint32_t>(id) | static_cast<uint32_t>(on)
                                                                                         << kEventShift;
      if (on != On::stream) {
        ++s.waiting;
        continue;
      }
      if (s.stream == kNoStream) {
        s.stream = static_cast<int32_t>(streams_.size());
        streams_.emplace_back();
      }
      Stream& stream = streams_[static_cast<size_t>(s.stream)];
      stream.total += op(dep.op).bytes + state(dep.op).chunks;
      stream.rows += op(dep.op).rows;
    }
  }
  for (size_t i = 0; i + 1 < dependent_begin_.size(); ++i)
    stagger(
        std::span(dependents_).subspan(dependent_begin_[i], dependent_begin_[i + 1] - dependent_begin_[i]));
}

/// Ops of a rank that start together go to the next ranks first, so that not all ranks send to rank 0 at
/// once.
void PlanPlayer::stagger(std::span<uint32_t> edges) const {
  const auto ranks = static_cast<Rank>(ranks_);
  std::stable_sort(edges.begin(), edges.end(), [&](uint32_t a, uint32_t b) {
    const Op& x = op(static_cast<OpId>(a & kOpMask));
    const Op& y = op(static_cast<OpId>(b & kOpMask));
    if (x.phase != y.phase) return x.phase < y.phase;
    if (x.src != y.src) return x.src < y.src;
    return (x.dst - x.src + ranks) % ranks < (y.dst - y.src + ranks) % ranks;
  });
}

/// A put that may start once another put of the same pair has left is a signal for its data.
void PlanPlayer::mark_signals() {
  const Order signal = options_.signals == SignalOrder::racing    ? Order::racing
                       : options_.signals == SignalOrder::counted ? Order::counted
                                                                  : Order::fenced;
  for (OpId id = 0; id < static_cast<OpId>(states_.size()); ++id) {
    const Op& o = op(id);
    if (o.kind != OpKind::put || !is_network(o)) continue;
    for (const Dep& dep : plan_.deps(id)) {
      const Op& data = op(dep.op);
      if (dep.on != On::sent || data.kind != OpKind::put || data.src != o.src || data.dst != o.dst ||
          data.link != o.link || data.traffic_class != o.traffic_class)
        continue;
      if (orders_.empty()) orders_.assign(states_.size(), Order::unrelated);
      orders_[static_cast<size_t>(id)] = signal;
      orders_[static_cast<size_t>(dep.op)] = Order::data;
    }
  }
}

void PlanPlayer::start(Network& network) {
  network_ = &network;
  for (size_t i = 0; i < options_.events.size(); ++i) {
    const SimEvent& event = options_.events[i];
    if (event.rank == kNone) continue;
    if (event.rank >= static_cast<Rank>(ranks_))
      fail_usage("sim: an event of rank {}, the plan has {} ranks", event.rank, ranks_);
    schedule(to_ps(event.at), Action::rank_event, static_cast<int32_t>(i));
  }
  std::vector<uint32_t> first;
  for (OpId id = 0; id < static_cast<OpId>(states_.size()); ++id)
    if (state(id).stream == kNoStream && state(id).waiting == 0) first.push_back(static_cast<uint32_t>(id));
  stagger(first);
  for (const uint32_t id : first) release(static_cast<OpId>(id));
}

void PlanPlayer::schedule(Ps at, Action action, int32_t a, int32_t b) {
  const uint32_t timer = agenda_.add();
  agenda_[timer] = {.action = action, .a = a, .b = b};
  network_->call_at(at, timer);
}

void PlanPlayer::on_timer(uint32_t timer, Ps at) {
  now_ = at;
  const Entry entry = agenda_[timer];
  agenda_.remove(timer);
  switch (entry.action) {
    case Action::open_gate: {
      const size_t gate = static_cast<size_t>(entry.a) * ranks_ + static_cast<size_t>(entry.b);
      gates_[gate] = Gate::open;
      for (OpId id; (id = pop(at_gates_[gate], &OpState::next_at_rank)) != kEnd;) run(id);
      break;
    }
    case Action::engine_done:
      engine_done(entry.a, static_cast<EngineKind>(entry.b));
      break;
    case Action::issue:
      issue(entry.a, entry.b);
      break;
    case Action::request:
      to_network(entry.a, entry.b);
      break;
    case Action::landed:
      finish_chunks(entry.a, entry.b);
      break;
    case Action::end_barrier:
      for (OpId id = barriers_[static_cast<size_t>(entry.a)].first; id != kEnd;) {
        const OpId next = state(id).next_at_rank;
        finish_chunks(id, 1);
        id = next;
      }
      break;
    case Action::end_compute:
      end_compute(entry.b, entry.a);
      break;
    case Action::rank_event:
      on_rank_event(static_cast<size_t>(entry.a));
      break;
  }
}

void PlanPlayer::push(Ring& ring, OpId id, OpId OpState::*next) {
  state(id).*next = kEnd;
  if (ring.first == kEnd)
    ring.first = id;
  else
    state(ring.last).*next = id;
  ring.last = id;
}

OpId PlanPlayer::pop(Ring& ring, OpId OpState::*next) {
  const OpId id = ring.first;
  if (id == kEnd) return kEnd;
  ring.first = state(id).*next;
  state(id).*next = kNotListed;
  return id;
}

int64_t PlanPlayer::bytes_before(const Op& o, const OpState& s, int32_t chunk) const {
  const int64_t rows = phase(o).chunk_rows;
  if (rows > 0 && o.rows > 0)
    return static_cast<int64_t>(Wide{o.bytes} * std::min<int64_t>(o.rows, rows * chunk) / o.rows);
  return static_cast<int64_t>(Wide{o.bytes} * chunk / s.chunks);
}

int64_t PlanPlayer::bytes_of(const Op& o, const OpState& s, int32_t chunk, int32_t count) const {
  return bytes_before(o, s, chunk + count) - bytes_before(o, s, chunk);
}

/// Lets an op go on as far as its edges allow.
void PlanPlayer::release(OpId id) {
  OpState& s = state(id);
  if (s.waiting > 0) return;
  const int32_t released = s.stream == kNoStream ? s.chunks : released_by(op(id), s, id);
  if (released <= s.released) return;
  s.released = released;
  run(id);
}

/// Chunks whose rows have come by its streams. Rows of a follower that takes all rows come in order; those of
/// one that takes some are spread evenly, from a first position that differs from op to op.
int32_t PlanPlayer::released_by(const Op& o, const OpState& s, OpId id) const {
  const Stream& stream = streams_[static_cast<size_t>(s.stream)];
  if (stream.arrived >= stream.total) return s.chunks;
  if (!moves_data(o.kind)) return 0;
  const int64_t per_chunk = phase(o).chunk_rows;
  const bool by_rows = per_chunk > 0 && o.rows > 0;
  const int64_t rows = by_rows ? o.rows : s.chunks;
  const bool takes_all = !by_rows || o.rows >= stream.rows;
  const int64_t first = takes_all ? kFraction : 1 + (static_cast<uint32_t>(id) * 0x9E3779B1u >> 24);
  const auto position = static_cast<int64_t>(Wide{stream.arrived} * rows * kFraction / stream.total);
  if (position < first) return 0;
  const int64_t here = (position - first) / kFraction + 1;
  if (here >= rows) return s.chunks;
  return static_cast<int32_t>(by_rows ? here / per_chunk : here);
}

void PlanPlayer::feed_streams(OpId id, int64_t weight) {
  for (uint32_t i = dependent_begin_[static_cast<size_t>(id)];
       i < dependent_begin_[static_cast<size_t>(id) + 1]; ++i) {
    if (dependents_[i] >> kEventShift != static_cast<uint32_t>(On::stream)) continue;
    const auto follower = static_cast<OpId>(dependents_[i] & kOpMask);
    streams_[static_cast<size_t>(state(follower).stream)].arrived += weight;
    release(follower);
  }
}

void PlanPlayer::fire(OpId id, On event) {
  for (uint32_t i = dependent_begin_[static_cast<size_t>(id)];
       i < dependent_begin_[static_cast<size_t>(id) + 1]; ++i) {
    if (dependents_[i] >> kEventShift != static_cast<uint32_t>(event)) continue;
    const auto follower = static_cast<OpId>(dependents_[i] & kOpMask);
    --state(follower).waiting;
    release(follower);
  }
}

/// `count` chunks have settled at the target.
void PlanPlayer::finish_chunks(OpId id, int32_t count) {
  OpState& s = state(id);
  const Op& o = op(id);
  const int64_t bytes = bytes_of(o, s, s.arrived, count);
  PhaseUse& here = use_of(o.phase, issuer(o));
  here.messages +=
      int64_t{o.messages} * (s.arrived + count) / s.chunks - int64_t{o.messages} * s.arrived / s.chunks;
  here.bytes += bytes;
  s.arrived += count;
  chunks_left_ -= count;
  PhaseUse& there = use_of(o.phase, target(o));
  there.begin = std::min(there.begin, now_);
  there.end = std::max(there.end, now_);
  feed_streams(id, bytes + count);
  if (s.arrived < s.chunks) return;
  if (is_network(o)) {
    if (!last_from_.empty()) {
      Ps& wait = last_from_[static_cast<size_t>(o.dst) * ranks_ + static_cast<size_t>(o.src)];
      wait = std::max(wait, now_ - there.begin);
    }
  } else {
    s.sent = s.chunks;
    fire(id, On::sent);
  }
  --unfinished_;
  if (has_compute_) hold_sms(o, -1);
  fire(id, On::arrived);
}

Ring& PlanPlayer::nic_ring(Rank rank, Link network, uint8_t traffic_class) {
  const size_t n = network == Link::scale_out ? 1 : 0;
  return nic_rings_[(static_cast<size_t>(rank) * 2 + n) * static_cast<size_t>(classes_) + traffic_class];
}

/// Chunks are ready in the memory of the source.
void PlanPlayer::to_network(OpId id, int32_t count) {
  OpState& s = state(id);
  const Op& o = op(id);
  s.issued += count;
  if (s.next_at_nic == kNotListed) push(nic_ring(o.src, o.link, o.traffic_class), id, &OpState::next_at_nic);
  network_->wake(o.src, o.link, o.traffic_class, now_);
}

bool PlanPlayer::next(Rank src, Link network, uint8_t traffic_class, Message& message) {
  now_ = network_->now();
  if (traffic_class >= classes_ || src >= static_cast<Rank>(ranks_) ||
      dead_since_[static_cast<size_t>(src)] <= now_)
    return false;
  Ring& ring = nic_ring(src, network, traffic_class);
  const OpId id = pop(ring, &OpState::next_at_nic);
  if (id == kEnd) return false;
  OpState& s = state(id);
  const Op& o = op(id);
  message = {.src = src,
             .dst = o.dst,
             .network = o.link,
             .traffic_class = traffic_class,
             .order = orders_.empty() ? Order::unrelated : orders_[static_cast<size_t>(id)],
             .report_sent = reports_sent_[static_cast<size_t>(id)] != 0,
             .bytes = bytes_of(o, s, s.pulled, 1),
             .packet_bytes = static_cast<int32_t>(options_.packet_per_row ? phase(o).row_bytes : 0),
             .cookie = static_cast<uint64_t>(id)};
  if (++s.pulled < s.issued) push(ring, id, &OpState::next_at_nic);
  return true;
}

void PlanPlayer::on_sent(const Message& message, Ps at) {
  now_ = at;
  const auto id = static_cast<OpId>(message.cookie);
  PhaseUse& here = use_of(op(id).phase, message.src);
  here.end = std::max(here.end, at);
  if (++state(id).sent == state(id).chunks) fire(id, On::sent);
}

void PlanPlayer::on_arrived(const Message& message, Ps at) {
  now_ = at;
  const auto id = static_cast<OpId>(message.cookie);
  const Ps software = software_latency_[static_cast<size_t>(message.network)];
  const Ps path = software > 0 ? latencies_.of(message.network, message.src, message.dst) : 0;
  if (software > path)
    schedule(at + software - path, Action::landed, id, 1);
  else
    finish_chunks(id, 1);
}

}  // namespace plumb::sim

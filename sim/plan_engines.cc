// What a rank does beside the network: SMs, memory, copy engine and NIC work on chunks, one phase in turn
// after the other; barriers join; compute ops share the SMs that communication leaves them.
#include <algorithm>
#include <cmath>

#include "model/error.h"
#include "sim/plan_player.h"

namespace plumb::sim {

void PlanPlayer::prepare_engines() {
  const detail::PlanWork work = detail::measure(plan_, machine_, fabric_, costs_);
  pipelines_ = detail::find_pipelines(work);
  starts_ = detail::pipeline_starts(plan_, work, pipelines_, costs_);
  leave_out_hidden_latency(work);
  rates_ = detail::phase_rates(plan_, machine_, costs_);
  pipeline_of_.resize(plan_.phases().size());
  for (size_t i = 0; i < pipelines_.size(); ++i)
    for (const PhaseId p : pipelines_[i]) pipeline_of_[p] = static_cast<uint16_t>(i);
  for (const Link link : costs_.fill_links)
    software_latency_[static_cast<size_t>(link)] =
        to_ps((link == Link::scale_out ? costs_.scale_out_latency : costs_.scale_up_latency).value);
  gates_.assign(pipelines_.size() * ranks_, Gate::closed);
  at_gates_.resize(pipelines_.size() * ranks_);
  engines_.resize(ranks_ * kEngines);
  rings_.resize(ranks_ * kEngines * plan_.phases().size());
  served_.resize(rings_.size());
  measure_depths(work);
  measure_feeds(work);
  running_.resize(has_compute_ ? ranks_ : 0);
  active_ops_.assign(has_compute_ ? plan_.phases().size() * ranks_ : 0, 0);
  speeds_.assign(ranks_, 1);
  dead_since_.assign(ranks_, kNever);
  computed_.assign(ranks_, 0);
  const auto least = detail::least_latencies(fabric_);
  for (const Barrier& barrier : plan_.barriers()) {
    const bool is_out = barrier.link == Link::scale_out;
    const double cost = (is_out ? costs_.scale_out_barrier : costs_.scale_up_barrier).value.value;
    barrier_costs_.push_back(
        barrier.members < 2 ? 0 : to_ps({std::max(cost, least[detail::network_index(barrier.link)])}));
  }
}

/// Fixed times were fitted with the latency of paths in them that are not on `fill_links`; here the network
/// adds it: once for each hop of a chain of streams.
void PlanPlayer::leave_out_hidden_latency(const detail::PlanWork& work) {
  for (size_t i = 0; i < pipelines_.size(); ++i) {
    std::vector<double> hidden(pipelines_[i].size());
    for (const Link link : {Link::scale_up, Link::scale_out}) {
      if (std::count(costs_.fill_links.begin(), costs_.fill_links.end(), link) > 0) continue;
      for (size_t p = 0; p < hidden.size(); ++p)
        hidden[p] = std::max(hidden[p], work.longest_latency[pipelines_[i][p]][detail::network_index(link)]);
    }
    starts_[i].wait = std::max(0.0, starts_[i].wait - detail::longest_chain(work, pipelines_[i], hidden));
  }
}

/// How far down its pipeline a phase is.
void PlanPlayer::measure_depths(const detail::PlanWork& work) {
  depths_.assign(plan_.phases().size(), 0);
  for (const auto& phases : pipelines_)
    for (size_t round = 1; round < phases.size(); ++round)
      for (const PhaseId a : phases)
        for (const PhaseId b : phases)
          if (a != b && (work.relation(a, b) & detail::kStream) != 0)
            depths_[b] = std::max(depths_[b], std::min(depths_[a] + 1, static_cast<int32_t>(round)));
}

/// Own rows that hold up those for peers do so evenly over the phase, as they are of the same tokens.
void PlanPlayer::measure_feeds(const detail::PlanWork& work) {
  if (costs_.sm.feeds.empty()) return;
  feed_per_byte_.resize(work.work.size());
  for (size_t i = 0; i < work.work.size(); ++i)
    if (work.work[i].fed_bytes > 0)
      feed_per_byte_[i] = work.work[i].feed_seconds / static_cast<double>(work.work[i].fed_bytes);
}

Ps PlanPlayer::scaled(Rank rank, double seconds) const {
  return to_ps({seconds / speeds_[static_cast<size_t>(rank)]});
}

bool PlanPlayer::uses(EngineKind kind, const Op& o) const {
  const detail::PhaseRates& rates = rates_[o.phase];
  const auto link = static_cast<size_t>(o.link);
  switch (kind) {
    case EngineKind::sm:
      return rates.sm_per_row[link] > 0 || rates.sm_per_byte[link] > 0;
    case EngineKind::copy_engine:
      return rates.is_copy_engine && machine_.gpu.copy_engine_rate.value.value > 0;
    case EngineKind::memory:
      return (o.kind == OpKind::copy || o.kind == OpKind::reduce) && machine_.gpu.hbm_rate.value.value > 0;
    case EngineKind::nic:
      return o.link == Link::scale_out && is_network(o) && o.messages > 0 &&
             costs_.message_time.value.value > 0;
    case EngineKind::feed:
      return o.link == Link::scale_up && is_network(o) && !feed_per_byte_.empty() &&
             feed_per_byte_[o.phase * ranks_ + static_cast<size_t>(issuer(o))] > 0;
  }
  return false;
}

std::optional<EngineKind> PlanPlayer::first_engine(const Op& o) const {
  for (const EngineKind kind :
       {EngineKind::sm, EngineKind::copy_engine, EngineKind::memory, EngineKind::nic, EngineKind::feed})
    if (uses(kind, o)) return kind;
  return std::nullopt;
}

double PlanPlayer::chunk_seconds(EngineKind kind, const Op& o, const OpState& s, int32_t chunk) const {
  const auto bytes = static_cast<double>(bytes_of(o, s, chunk, 1));
  const auto part = [&](int64_t whole) {  // of a count that the chunks share
    return static_cast<double>(whole * (chunk + 1) / s.chunks - whole * chunk / s.chunks);
  };
  switch (kind) {
    case EngineKind::sm: {
      const detail::PhaseRates& rates = rates_[o.phase];
      const auto link = static_cast<size_t>(o.link);
      const int64_t rows = phase(o).chunk_rows;
      const double here = rows > 0 && o.rows > 0
                              ? static_cast<double>(std::min<int64_t>(rows, o.rows - rows * chunk))
                              : part(o.rows);
      return rates.sm_per_row[link] * here + rates.sm_per_byte[link] * bytes;
    }
    case EngineKind::copy_engine:
      return bytes / machine_.gpu.copy_engine_rate.value.value;
    case EngineKind::memory: {
      const double moved = o.kind == OpKind::copy
                               ? 2 * bytes
                               : bytes + part(o.messages) * static_cast<double>(phase(o).row_bytes);
      return moved / (machine_.gpu.hbm_rate.value.value * costs_.memory_share.value);
    }
    case EngineKind::nic:
      return part(o.messages) * costs_.message_time.value.value;
    case EngineKind::feed:
      return feed_per_byte_[o.phase * ranks_ + static_cast<size_t>(issuer(o))] * bytes;
  }
  return 0;
}

/// What comes first in a pipeline on a rank pays for its start; all that follows waits for that too.
bool PlanPlayer::pass_gate(OpId id) {
  const Op& o = op(id);
  const Rank rank = issuer(o);
  PhaseUse& use = use_of(o.phase, rank);
  use.begin = std::min(use.begin, now_);
  const uint16_t pipeline = pipeline_of_[o.phase];
  const size_t at = pipeline * ranks_ + static_cast<size_t>(rank);
  if (gates_[at] == Gate::open) return true;
  const Ps wait = scaled(rank, starts_[pipeline].wait);
  if (wait == 0) {
    gates_[at] = Gate::open;
    return true;
  }
  if (state(id).next_at_rank == kNotListed) push(at_gates_[at], id, &OpState::next_at_rank);
  if (gates_[at] == Gate::closed) {
    gates_[at] = Gate::opening;
    schedule(now_ + wait, Action::open_gate, pipeline, rank);
  }
  return false;
}

/// Starts the chunks that are released and not started yet.
void PlanPlayer::run(OpId id) {
  const Op& o = op(id);
  OpState& s = state(id);
  const Rank rank = issuer(o);
  if (dead_since_[static_cast<size_t>(rank)] <= now_ || !pass_gate(id)) return;
  if (has_compute_ && s.started == 0 && s.next_at_rank == kNotListed) hold_sms(o, 1);
  if (o.kind == OpKind::wait || o.kind == OpKind::barrier || o.kind == OpKind::compute) {
    s.started = 1;
    if (o.kind == OpKind::wait) finish_chunks(id, 1);
    if (o.kind == OpKind::barrier) join_barrier(id);
    if (o.kind == OpKind::compute) start_compute(id);
    return;
  }
  if (starts_[pipeline_of_[o.phase]].is_free) {
    const int32_t count = s.released - s.started;
    s.started = s.issued = s.pulled = s.released;
    if (is_network(o)) {
      s.sent = s.released;
      if (s.sent == s.chunks) fire(id, On::sent);
    }
    finish_chunks(id, count);
    return;
  }
  const auto engine = first_engine(o);
  if (!engine) {
    const int32_t count = s.released - s.started;
    s.started = s.released;
    issue(id, count);
    return;
  }
  if (s.next_at_rank != kNotListed || engines_[index(rank, *engine)].current == id) return;
  push(rings_[index(rank, *engine) * plan_.phases().size() + o.phase], id, &OpState::next_at_rank);
  step(rank, *engine);
}

/// The op whose chunk comes next: pipelines take turns; in one the phase furthest down goes first, as bounded
/// buffers between phases make it be, and phases as far down take turns.
OpId PlanPlayer::take_next(size_t engine) {
  EngineState& state = engines_[engine];
  const size_t base = engine * plan_.phases().size();
  for (size_t i = 1; i <= pipelines_.size(); ++i) {
    const size_t turn = (state.turn + i) % pipelines_.size();
    int32_t best = -1;
    for (const PhaseId p : pipelines_[turn]) {
      if (rings_[base + p].first == kEnd) continue;
      const bool is_deeper = best < 0 || depths_[p] > depths_[static_cast<size_t>(best)];
      const bool is_next = best >= 0 && depths_[p] == depths_[static_cast<size_t>(best)] &&
                           served_[base + p] < served_[base + static_cast<size_t>(best)];
      if (is_deeper || is_next) best = p;
    }
    if (best < 0) continue;
    state.turn = static_cast<uint16_t>(turn);
    served_[base + static_cast<size_t>(best)] = ++state.served;
    return pop(rings_[base + static_cast<size_t>(best)], &OpState::next_at_rank);
  }
  return kEnd;
}

void PlanPlayer::step(Rank rank, EngineKind kind) {
  const size_t at = index(rank, kind);
  EngineState& engine = engines_[at];
  if (!engine.is_idle || dead_since_[static_cast<size_t>(rank)] <= now_) return;
  const OpId id = take_next(at);
  if (id == kEnd) return;
  engine.is_idle = false;
  engine.current = id;
  OpState& s = state(id);
  const Ps time = scaled(rank, chunk_seconds(kind, op(id), s, s.started++));
  engine.worked += time;
  engine.free_at = std::max(engine.free_at, now_) + time;
  schedule(engine.free_at, Action::engine_done, rank, static_cast<int32_t>(kind));
}

void PlanPlayer::engine_done(Rank rank, EngineKind kind) {
  const size_t at = index(rank, kind);
  EngineState& engine = engines_[at];
  const OpId id = engine.current;
  engine.current = kEnd;
  engine.is_idle = true;
  if (dead_since_[static_cast<size_t>(rank)] <= now_) return;
  OpState& s = state(id);
  const int32_t chunk = s.started - 1;
  if (s.started < s.released)
    push(rings_[at * plan_.phases().size() + op(id).phase], id, &OpState::next_at_rank);
  second_stage(id, kind, chunk);
  step(rank, kind);
}

/// Behind SMs or copy engine a copy still crosses the memory, a message the NIC's queue, a row for a peer
/// what SMs can feed a link with.
void PlanPlayer::second_stage(OpId id, EngineKind first, int32_t chunk) {
  const Op& o = op(id);
  const Rank rank = issuer(o);
  for (const EngineKind kind : {EngineKind::memory, EngineKind::nic, EngineKind::feed}) {
    if (kind <= first || !uses(kind, o)) continue;
    EngineState& engine = engines_[index(rank, kind)];
    const Ps time = scaled(rank, chunk_seconds(kind, o, state(id), chunk));
    engine.worked += time;
    engine.free_at = std::max(engine.free_at, now_) + time;
    schedule(engine.free_at, Action::issue, id, 1);
    return;
  }
  issue(id, 1);
}

void PlanPlayer::issue(OpId id, int32_t count) {
  const Op& o = op(id);
  if (dead_since_[static_cast<size_t>(issuer(o))] <= now_) return;
  if (!is_network(o)) {
    finish_chunks(id, count);
  } else if (o.kind == OpKind::get) {
    const Ps way =
        std::max(latencies_.of(o.link, o.dst, o.src), software_latency_[static_cast<size_t>(o.link)]);
    schedule(now_ + way, Action::request, id, count);
  } else {
    to_network(id, count);
  }
}

void PlanPlayer::join_barrier(OpId id) {
  const auto number = static_cast<size_t>(op(id).rows);
  BarrierState& barrier = barriers_[number];
  state(id).next_at_rank = barrier.first;
  barrier.first = id;
  if (++barrier.arrived < plan_.barriers()[number].members) return;
  const bool is_free = starts_[pipeline_of_[op(id).phase]].is_free;
  schedule(now_ + (is_free ? 0 : barrier_costs_[number]), Action::end_barrier, op(id).rows);
}

void PlanPlayer::start_compute(OpId id) {
  const Rank rank = op(id).src;
  running_[static_cast<size_t>(rank)].push_back(
      {.op = id, .left = phase(op(id)).duration.value, .share = 0, .since = now_});
  share_sms(rank);
}

/// Compute ops get the SMs that no communication phase in progress holds, at least one, in proportion to what
/// they ask for.
void PlanPlayer::share_sms(Rank rank) {
  auto& running = running_[static_cast<size_t>(rank)];
  if (running.empty()) return;
  const auto device = static_cast<double>(std::max<int64_t>(machine_.gpu.sms.value, 1));
  const auto wanted = [&](const Phase& p) { return p.sms == 0 ? device : std::min<double>(p.sms, device); };
  double held = 0, asked = 0;
  for (size_t p = 0; p < plan_.phases().size(); ++p)
    if (active_ops_[p * ranks_ + static_cast<size_t>(rank)] > 0)
      held = std::max(held, wanted(plan_.phases()[p]));
  for (const Running& r : running) asked += wanted(phase(op(r.op)));
  const double share =
      std::min(1.0, std::max(1.0, device - held) / asked) * speeds_[static_cast<size_t>(rank)];
  for (Running& r : running) {
    r.left -= to_seconds(now_ - r.since).value * r.share;
    r.since = now_;
    r.share = share;
    schedule(now_ + to_ps({std::max(0.0, r.left) / share}), Action::end_compute, r.op, rank);
  }
}

void PlanPlayer::end_compute(Rank rank, OpId id) {
  auto& running = running_[static_cast<size_t>(rank)];
  const auto at = std::find_if(running.begin(), running.end(), [&](const Running& r) { return r.op == id; });
  if (at == running.end() || dead_since_[static_cast<size_t>(rank)] <= now_) return;
  const double left = at->left - to_seconds(now_ - at->since).value * at->share;
  if (left > 1e-12) return;  // its share has changed since this end was foreseen
  running.erase(at);
  computed_[static_cast<size_t>(rank)] += now_ - use_of(op(id).phase, rank).begin;
  share_sms(rank);
  finish_chunks(id, 1);
}

/// Communication on SMs starts or ends on a rank, in a plan that also computes.
void PlanPlayer::hold_sms(const Op& o, int32_t change) {
  if (phase(o).engine != Engine::sm || o.kind == OpKind::compute) return;
  const Rank rank = issuer(o);
  int32_t& active = active_ops_[o.phase * ranks_ + static_cast<size_t>(rank)];
  active += change;
  if (active == 0 || (active == 1 && change > 0)) share_sms(rank);
}

void PlanPlayer::on_rank_event(size_t event) {
  const SimEvent& e = options_.events[event];
  if (e.kind == SimEvent::Kind::rank_dead) {
    dead_since_[static_cast<size_t>(e.rank)] = now_;
    return;
  }
  speeds_[static_cast<size_t>(e.rank)] = e.factor;
  if (has_compute_) share_sms(e.rank);
}

}  // namespace plumb::sim

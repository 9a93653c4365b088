// One pass over a plan for its loads, and the grouping of its phases into pipelines.
#include "model/analytic_work.h"

#include <algorithm>
#include <bitset>
#include <limits>

#include "model/error.h"
#include "model/token_pools.h"

namespace plumb::detail {
namespace {

using PhaseSet = std::bitset<256>;

class Measurer {
 public:
  Measurer(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs)
      : plan_(plan),
        fabric_(fabric),
        rates_(phase_rates(plan, machine, costs)),
        out_(plan),
        sampled_(out_.num_phases) {}

  PlanWork run() {
    for (OpId id = 0; id < static_cast<OpId>(plan_.ops().size()); ++id) {
      const Op& op = plan_.ops()[static_cast<size_t>(id)];
      add_work(op);
      add_relations(id, op);
    }
    return std::move(out_);
  }

 private:
  void add_work(const Op& op) {
    const PhaseRates& rates = rates_[op.phase];
    RankWork& own = out_.at(op.phase, static_cast<size_t>(issuer(op)));
    own.takes_part = own.issues = true;
    switch (op.kind) {
      case OpKind::put:
      case OpKind::get:
        add_transfer(op, own);
        break;
      case OpKind::copy:
      case OpKind::reduce:
        own.memory += memory_bytes(plan_, op);
        break;
      case OpKind::compute:
        own.compute_seconds += plan_.phases()[op.phase].duration.value;
        return;
      case OpKind::barrier:
        out_.barriers[op.phase].push_back({op.src, op.rows});
        return;
      case OpKind::wait:
        return;
    }
    if (rates.is_copy_engine) own.copy_engine += op.bytes;
    const auto link = static_cast<size_t>(op.link);
    own.feed_seconds += rates.feed_per_byte[link] * static_cast<double>(op.bytes);
    if (op.link == Link::scale_up) own.fed_bytes += op.bytes;
    own.sm_seconds +=
        rates.sm_per_row[link] * op.rows + rates.sm_per_byte[link] * static_cast<double>(op.bytes);
    own.issued_messages += op.messages;
    own.issued_bytes += op.bytes;
  }

  void add_transfer(const Op& op, RankWork& own) {
    const size_t network = network_index(op.link);
    RankWork& source = out_.at(op.phase, static_cast<size_t>(op.src));
    RankWork& target = out_.at(op.phase, static_cast<size_t>(op.dst));
    source.takes_part = target.takes_part = true;
    source.sent[network] += op.bytes;
    target.received[network] += op.bytes;
    if (network == kOut) own.messages += op.messages;
    out_.has_network[op.phase][network] = true;
    // Latencies of paths differ by a few hops: a sample at growing distances stands for all.
    const int64_t seen = sampled_[op.phase][network]++;
    if ((seen & (seen - 1)) != 0) return;
    const double trips = op.kind == OpKind::get ? 2 : 1;
    double& longest = out_.longest_latency[op.phase][network];
    longest = std::max(longest, trips * fabric_.latency(op.link, op.src, op.dst).value);
  }

  void add_relations(OpId id, const Op& op) {
    for (const Dep& dep : plan_.deps(id)) {
      const PhaseId from = plan_.ops()[static_cast<size_t>(dep.op)].phase;
      out_.relations[from * out_.num_phases + op.phase] |= dep.on == On::stream ? kStream
                                                           : dep.on == On::sent ? kSent
                                                                                : kArrived;
      if (from == op.phase && dep.on != On::stream) lengthen_chain(dep.op, id, op.phase);
    }
  }

  void lengthen_chain(OpId from, OpId to, PhaseId phase) {
    if (chain_.empty()) chain_.resize(plan_.ops().size());
    int32_t& length = chain_[static_cast<size_t>(to)];
    length = std::max(length, chain_[static_cast<size_t>(from)] + 1);
    out_.chain[phase] = std::max(out_.chain[phase], length);
  }

  const Plan& plan_;
  const Fabric& fabric_;
  const std::vector<PhaseRates> rates_;
  PlanWork out_;
  std::vector<std::array<int64_t, 2>> sampled_;  // [phases][network]: transfers seen
  std::vector<int32_t> chain_;                   // [ops], empty while no phase waits for itself
};

/// The rank whose traffic alone a node carries, kNone when it carries that of several.
Rank sole_rank(const FabricNode& node) {
  return node.kind == NodeKind::gpu || node.kind == NodeKind::nic ? node.rank : kNone;
}

/// True when all bytes of a link are sent or received by one rank: a GPU's cable to a switch or NIC.
bool is_private(const Fabric& fabric, const FabricLink& link) {
  const Rank a = sole_rank(fabric.nodes()[static_cast<size_t>(link.from)]);
  const Rank b = sole_rank(fabric.nodes()[static_cast<size_t>(link.to)]);
  return (a == kNone) != (b == kNone) || (a == b && a != kNone);
}

}  // namespace

void RankWork::add(const RankWork& other) {
  for (size_t n : {kUp, kOut}) {
    sent[n] += other.sent[n];
    received[n] += other.received[n];
  }
  memory += other.memory;
  copy_engine += other.copy_engine;
  messages += other.messages;
  sm_seconds += other.sm_seconds;
  feed_seconds += other.feed_seconds;
  fed_bytes += other.fed_bytes;
  compute_seconds += other.compute_seconds;
  issued_messages += other.issued_messages;
  issued_bytes += other.issued_bytes;
  issues |= other.issues;
  takes_part |= other.takes_part;
}

bool PlanWork::has_ops(PhaseId phase) const {
  for (size_t r = 0; r < ranks; ++r)
    if (at(phase, r).takes_part) return true;
  return false;
}

namespace {

/// Phases that follow another one over a stream edge.
PhaseSet streamed_phases(const Plan& plan) {
  PhaseSet out;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id)
    for (const Dep& dep : plan.deps(id)) {
      const PhaseId phase = plan.ops()[static_cast<size_t>(id)].phase;
      if (dep.on == On::stream && plan.ops()[static_cast<size_t>(dep.op)].phase != phase) out.set(phase);
    }
  return out;
}

/// Phases in which each of two ranks sends the other so many rows that our combine pushes most of them
/// (pushed_rows()), where it reads fewer.
PhaseSet pushed_phases(const Plan& plan) {
  PhaseSet out;
  const Program& program = plan.program();
  if (!are_two_apart(plan.grouping().ranks, true) ||
      !returns_one_row(program.expand, program.multiple_reduction))
    return out;
  for (const Op& op : plan.ops()) {
    const bool is_sent = op.kind == OpKind::put && op.link == Link::scale_up;
    const int32_t sms = plan.phases()[op.phase].sms;
    if (is_sent && sms > 0 && pushed_rows(op.rows, sms) > 0) out.set(op.phase);
  }
  return out;
}

}  // namespace

std::vector<PhaseRates> phase_rates(const Plan& plan, const Machine& machine, const Costs& costs) {
  const bool asks_streams =
      std::any_of(costs.sm.factors.begin(), costs.sm.factors.end(), [](const auto& f) { return f.streamed; });
  const PhaseSet streamed = asks_streams ? streamed_phases(plan) : PhaseSet();
  const PhaseSet pushed = pushed_phases(plan);
  const double usable = machine.scale_up.rate.value.value * costs.scale_up_share.value;
  const BytesPerSecond rate = sm_rate(costs.sm, machine.gpu.name).value_or(machine.gpu.sm_write_rate.value);
  std::vector<PhaseRates> all;
  for (const Phase& phase : plan.phases()) {
    PhaseRates out{.is_copy_engine = phase.engine == Engine::copy_engine};
    if (phase.engine == Engine::sm && !is_listed(costs.sm.free_phases, phase.name)) {
      const auto device = static_cast<int32_t>(machine.gpu.sms.value);
      const double sms = phase.sms == 0 ? device : std::min(phase.sms, device);
      const double factor =
          sm_factor(costs.sm, phase.name, machine.gpu.name, streamed[all.size()]) / std::max(sms, 1.0);
      for (const Link link : costs.sm.links) {
        out.sm_per_row[static_cast<size_t>(link)] = costs.sm.row_time.value.value * factor;
        out.sm_per_byte[static_cast<size_t>(link)] = rate.value > 0 ? factor / rate.value : 0;
      }
      if (const SmFeed* feed = sm_feed(costs.sm, phase.name, pushed[all.size()]);
          feed != nullptr && usable > 0) {
        const auto local = static_cast<size_t>(Link::local);
        out.feed_per_byte[static_cast<size_t>(Link::scale_up)] =
            1 / (part_of_link(*feed, std::max(sms, 1.0)) * usable);
        if (plan.find_phase("copy")) out.feed_per_byte[local] = feed->own_rows.value * out.sm_per_byte[local];
      }
    }
    all.push_back(out);
  }
  return all;
}

int64_t memory_bytes(const Plan& plan, const Op& op) {
  if (op.kind == OpKind::copy) return 2 * op.bytes;
  if (op.kind == OpKind::reduce) return op.bytes + op.messages * plan.phases()[op.phase].row_bytes;
  return 0;
}

PlanWork measure(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs) {
  return Measurer(plan, machine, fabric, costs).run();
}

std::vector<std::vector<PhaseId>> find_pipelines(const PlanWork& work) {
  const size_t n = work.num_phases;
  // reach[a] holds b when b runs after or with a; a stream edge ties both ends, so it leads both ways.
  std::vector<PhaseSet> reach(n);
  for (size_t a = 0; a < n; ++a) {
    reach[a].set(a);
    for (size_t b = 0; b < n; ++b) {
      if (work.relation(a, b) != kNoRelation) reach[a].set(b);
      if (work.relation(b, a) & kStream) reach[a].set(b);
    }
  }
  for (size_t middle = 0; middle < n; ++middle)
    for (size_t a = 0; a < n; ++a)
      if (reach[a][middle]) reach[a] |= reach[middle];
  std::vector<std::vector<PhaseId>> pipelines;
  std::vector<size_t> successors;
  PhaseSet placed;
  for (size_t a = 0; a < n; ++a) {
    if (placed[a]) continue;
    std::vector<PhaseId> members;
    for (size_t b = a; b < n; ++b)
      if (reach[a][b] && reach[b][a]) members.push_back(static_cast<PhaseId>(b));
    for (const PhaseId b : members) placed.set(b);
    pipelines.push_back(std::move(members));
  }
  // What reaches more phases comes earlier; of two that reach equally many, neither reaches the other.
  std::stable_sort(pipelines.begin(), pipelines.end(), [&](const auto& x, const auto& y) {
    return reach[x.front()].count() > reach[y.front()].count();
  });
  return pipelines;
}

namespace {

/// The only switch that a rank hangs on in a network, -1 when there are several or none; NICs are passed.
NodeId sole_switch(const Fabric& fabric, Rank rank, Link network) {
  NodeId found = kNone;
  const auto meet = [&](NodeId node) {
    if (found != kNone && found != node) return false;
    found = node;
    return fabric.nodes()[static_cast<size_t>(node)].kind != NodeKind::gpu;
  };
  for (const LinkId l : fabric.out_links(fabric.endpoint(rank))) {
    const FabricLink& link = fabric.links()[static_cast<size_t>(l)];
    if (link.network != network && !link.shared) continue;
    if (fabric.nodes()[static_cast<size_t>(link.to)].kind != NodeKind::nic) {
      if (!meet(link.to)) return kNone;
      continue;
    }
    for (const LinkId next : fabric.out_links(link.to)) {
      const NodeId to = fabric.links()[static_cast<size_t>(next)].to;
      if (fabric.nodes()[static_cast<size_t>(to)].kind != NodeKind::gpu && !meet(to)) return kNone;
    }
  }
  return found;
}

/// Bytes that must leave or enter a switch, as they are of ranks that hang on it alone, over all that leads
/// from it to other switches or back: whatever way packets take.
double cut_seconds(const std::vector<Demand>& demands, const Fabric& fabric) {
  const auto is_switch = [&](NodeId n) {
    const NodeKind kind = fabric.nodes()[static_cast<size_t>(n)].kind;
    return kind == NodeKind::scale_up_switch || kind == NodeKind::scale_out_switch;
  };
  double longest = 0;
  for (const Link network : {Link::scale_up, Link::scale_out}) {
    std::vector<NodeId> home;
    for (Rank r = 0; r < fabric.ranks(); ++r) home.push_back(sole_switch(fabric, r, network));
    std::vector<double> out(fabric.nodes().size()), in(out), out_rate(out), in_rate(out);
    for (const FabricLink& link : fabric.links()) {
      if ((link.network != network && !link.shared) || !is_switch(link.from) || !is_switch(link.to)) continue;
      out_rate[static_cast<size_t>(link.from)] += link.rate.value;
      in_rate[static_cast<size_t>(link.to)] += link.rate.value;
    }
    for (const Demand& d : demands) {
      if (d.network != network || d.src == d.dst) continue;
      const NodeId from = home[static_cast<size_t>(d.src)], to = home[static_cast<size_t>(d.dst)];
      if (from == to || from == kNone || to == kNone) continue;
      out[static_cast<size_t>(from)] += static_cast<double>(d.bytes);
      in[static_cast<size_t>(to)] += static_cast<double>(d.bytes);
    }
    for (size_t n = 0; n < out.size(); ++n) {
      if (out_rate[n] > 0) longest = std::max(longest, out[n] / out_rate[n]);
      if (in_rate[n] > 0) longest = std::max(longest, in[n] / in_rate[n]);
    }
  }
  return longest;
}

}  // namespace

HotLink hottest_shared_link(const Plan& plan, const std::vector<PhaseId>& phases, const Fabric& fabric,
                            const Costs& costs) {
  PhaseSet wanted;
  for (const PhaseId p : phases) wanted.set(p);
  std::vector<Demand> demands;
  for (const Op& op : plan.ops())
    if (wanted[op.phase] && op.link != Link::local && op.bytes > 0)
      demands.push_back({.src = op.src, .dst = op.dst, .network = op.link, .bytes = op.bytes});
  HotLink hottest;
  if (demands.empty()) return hottest;
  hottest.nominal_seconds = cut_seconds(demands, fabric);
  const std::vector<double> loads = fabric.loads(demands);
  for (size_t l = 0; l < loads.size(); ++l) {
    const FabricLink& link = fabric.links()[l];
    const double nominal = loads[l] / link.rate.value;
    const auto& share = link.network == Link::scale_out ? costs.scale_out_share : costs.scale_up_share;
    if (nominal / share.value <= hottest.seconds || is_private(fabric, link)) continue;
    hottest.link = static_cast<LinkId>(l);
    hottest.seconds = nominal / share.value;
  }
  return hottest;
}

}  // namespace plumb::detail

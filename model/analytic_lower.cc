// The lower bound: no op ends earlier than hardware alone allows. Every edge is followed op by op; beside the
// longest path, the ops that one op waits for share the ports and the memory of its rank, and so do all ops
// of a phase and of the plan; those between nodes share what leads out of each node.
#include <algorithm>
#include <limits>

#include "model/analytic_work.h"

namespace plumb::detail {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kMaxExactLatencies = 20'000;  // transfers; more take the least latency of their network

/// Where bytes pass at a rank.
enum Port : size_t { kUpSent, kUpReceived, kOutSent, kOutReceived, kMemory, kNumPorts };

/// Bytes that must have passed each port, and when the first of them could start.
struct Passing {
  std::array<double, kNumPorts> bytes{};
  std::array<double, kNumPorts> begin;
  Passing() { begin.fill(kNever); }

  void add(Port port, double count, double start) {
    bytes[port] += count;
    begin[port] = std::min(begin[port], start);
  }
};

/// Bytes per second through each port.
using Rates = std::array<double, kNumPorts>;

/// What one rank can send or receive when nobody else does, at least: NICs and uplinks of a node that ranks
/// share count whole.
double most_of_a_rank(const Fabric& fabric, Link network) {
  std::vector<double> out(fabric.nodes().size()), in(fabric.nodes().size());
  for (const FabricLink& link : fabric.links()) {
    if (link.network != network && !(link.shared && network == Link::scale_out)) continue;
    out[static_cast<size_t>(link.from)] += link.rate.value;
    in[static_cast<size_t>(link.to)] += link.rate.value;
  }
  double most = 0;
  for (Rank r = 0; r < fabric.ranks(); ++r) {
    const auto at = static_cast<size_t>(fabric.endpoint(r));
    most = std::max({most, out[at], in[at]});
  }
  return most;
}

/// The two nearest GPUs of a node, with the latency from there.
struct Nearest {
  std::array<double, 2> latency = {kNever, kNever};
  std::array<NodeId, 2> gpu = {kNone, kNone};

  /// Returns whether the offer changed anything.
  bool take(NodeId from, double seconds) {
    if (from == gpu[0] || seconds < latency[0]) {
      if (seconds >= latency[0]) return false;
      if (from != gpu[0]) latency[1] = latency[0], gpu[1] = gpu[0];
      latency[0] = seconds, gpu[0] = from;
      return true;
    }
    if (seconds >= latency[1]) return false;
    latency[1] = seconds, gpu[1] = from;
    return true;
  }
};

/// Shortest latency between any two GPUs of a network, by relaxation of the two nearest GPUs of each node.
double least_latency(const Fabric& fabric, Link network) {
  std::vector<Nearest> nearest(fabric.nodes().size());
  for (Rank r = 0; r < fabric.ranks(); ++r)
    nearest[static_cast<size_t>(fabric.endpoint(r))].take(fabric.endpoint(r), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (const FabricLink& link : fabric.links()) {
      if (link.network != network && !(link.shared && network == Link::scale_out)) continue;
      const Nearest& from = nearest[static_cast<size_t>(link.from)];
      for (size_t i = 0; i < 2; ++i)
        if (from.gpu[i] != kNone)
          changed |=
              nearest[static_cast<size_t>(link.to)].take(from.gpu[i], from.latency[i] + link.latency.value);
    }
  }
  double least = kNever;
  for (Rank r = 0; r < fabric.ranks(); ++r)
    least = std::min(least, nearest[static_cast<size_t>(fabric.endpoint(r))].latency[1]);
  return least == kNever ? 0 : least;
}

class LowerBoundPass {
 public:
  LowerBoundPass(const Plan& plan, const PlanWork& work, const Machine& machine, const Fabric& fabric)
      : plan_(plan),
        work_(work),
        fabric_(fabric),
        ranks_per_node_(machine.ranks_per_node()),
        rates_(rates_of_ranks(machine, fabric)),
        node_rates_{0, 0, machine.scale_out_rate().value * ranks_per_node_,
                    machine.scale_out_rate().value * ranks_per_node_, 0},
        least_(least_latencies(fabric)),
        start_(plan.ops().size()),
        end_(plan.ops().size()),
        joined_(plan.barriers().size()),
        phases_(work.num_phases * work.ranks),
        all_(work.ranks),
        nodes_((work.ranks + static_cast<size_t>(ranks_per_node_) - 1) /
               static_cast<size_t>(ranks_per_node_)) {
    const auto moves = [](const Op& op) { return op.link != Link::local; };
    is_exact_ = std::count_if(plan.ops().begin(), plan.ops().end(), moves) <=
                static_cast<ptrdiff_t>(kMaxExactLatencies);
  }

  LowerBound run() {
    LowerBound out{.total = 0,
                   .phases = std::vector<double>(work_.num_phases),
                   .begin = std::vector<double>(work_.num_phases, kNever)};
    for (size_t id = 0; id < plan_.ops().size(); ++id) visit(id, out);
    for (size_t p = 0; p < work_.num_phases; ++p)
      for (size_t r = 0; r < work_.ranks; ++r) {
        const Passing& passing = phases_[p * work_.ranks + r];
        out.total = std::max(out.total, end_of(passing, rates_));
        double begin = kNever;
        for (const double b : passing.begin) begin = std::min(begin, b);
        if (begin == kNever) continue;
        out.begin[p] = std::min(out.begin[p], begin);
        out.phases[p] = std::max(out.phases[p], end_of(passing, rates_) - begin);
      }
    for (const Passing& passing : all_) out.total = std::max(out.total, end_of(passing, rates_));
    for (const Passing& passing : nodes_) out.total = std::max(out.total, end_of(passing, node_rates_));
    return out;
  }

 private:
  static Rates rates_of_ranks(const Machine& machine, const Fabric& fabric) {
    const double up = machine.scale_up.rate.value.value, out = most_of_a_rank(fabric, Link::scale_out);
    return {up, up, out, out, machine.gpu.hbm_rate.value.value};
  }

  double end_of(const Passing& passing, const Rates& rates) const {
    double end = 0;
    for (size_t port = 0; port < kNumPorts; ++port) {
      if (passing.bytes[port] == 0 || rates[port] <= 0) continue;
      const double latency = port == kUpReceived ? least_[kUp] : port == kOutReceived ? least_[kOut] : 0;
      end = std::max(end, passing.begin[port] + latency + passing.bytes[port] / rates[port]);
    }
    return end;
  }

  double latency_of(const Op& op) const {
    if (op.link == Link::local) return 0;
    const double trip =
        is_exact_ ? fabric_.latency(op.link, op.src, op.dst).value : least_[network_index(op.link)];
    return op.kind == OpKind::get ? 2 * trip : trip;
  }

  /// When the data of `dep` that `rank` waits for has passed.
  void add_to(Passing& passing, size_t dep, Rank rank) const {
    const Op& op = plan_.ops()[dep];
    const auto bytes = static_cast<double>(op.bytes);
    if (op.link == Link::scale_up)
      passing.add(op.dst == rank ? kUpReceived : kUpSent, bytes, start_[dep]);
    else if (op.link == Link::scale_out)
      passing.add(op.dst == rank ? kOutReceived : kOutSent, bytes, start_[dep]);
    else if (const int64_t memory = memory_bytes(plan_, op); memory > 0)
      passing.add(kMemory, static_cast<double>(memory), start_[dep]);
  }

  double seen_at(const Dep& dep) const {
    const Op& op = plan_.ops()[static_cast<size_t>(dep.op)];
    if (op.kind == OpKind::barrier) return joined_[static_cast<size_t>(op.rows)];
    // The source of a put may be reused once it has been read.
    if (dep.on == On::sent) return end_[static_cast<size_t>(dep.op)] - latency_of(op);
    return end_[static_cast<size_t>(dep.op)];
  }

  void visit(size_t id, LowerBound& out) {
    const Op& op = plan_.ops()[id];
    const Rank rank = issuer(op);
    Passing before, beside;
    double start = 0, end = 0, first_rows = kNever;
    for (const Dep& dep : plan_.deps(static_cast<OpId>(id))) {
      const auto from = static_cast<size_t>(dep.op);
      if (dep.on == On::stream) {
        // Its first rows may come from one of the ops that it follows alone.
        first_rows = std::min(first_rows, start_[from] + latency_of(plan_.ops()[from]));
        end = std::max(end, end_[from]);
        add_to(beside, from, rank);
      } else {
        start = std::max(start, seen_at(dep));
        add_to(before, from, rank);
      }
    }
    if (first_rows != kNever) start = std::max(start, first_rows);
    start = std::max(start, end_of(before, rates_));
    end = std::max({end, end_of(beside, rates_), start + alone(op)});
    start_[id] = start;
    end_[id] = end;
    if (op.kind == OpKind::barrier) join(op, start, out);
    count(id, op);
    if (op.kind == OpKind::compute) out.phases[op.phase] = std::max(out.phases[op.phase], alone(op));
    out.total = std::max(out.total, end);
  }

  double alone(const Op& op) const {
    if (op.kind == OpKind::compute) return plan_.phases()[op.phase].duration.value;
    const size_t port = op.link == Link::scale_up ? kUpSent : op.link == Link::scale_out ? kOutSent : kMemory;
    const auto bytes = static_cast<double>(port == kMemory ? memory_bytes(plan_, op) : op.bytes);
    return latency_of(op) + (rates_[port] > 0 ? bytes / rates_[port] : 0);
  }

  void join(const Op& op, double start, LowerBound& out) {
    const Barrier& barrier = plan_.barriers()[static_cast<size_t>(op.rows)];
    const double latency = barrier.members > 1 ? least_[network_index(barrier.link)] : 0;
    double& joined = joined_[static_cast<size_t>(op.rows)];
    joined = std::max(joined, start + latency);
    out.total = std::max(out.total, joined);
    out.phases[op.phase] = std::max(out.phases[op.phase], latency);
  }

  void count(size_t id, const Op& op) {
    const size_t row = op.phase * work_.ranks;
    add_to(phases_[row + static_cast<size_t>(op.dst)], id, op.dst);
    add_to(all_[static_cast<size_t>(op.dst)], id, op.dst);
    if (op.src == op.dst) return;
    const auto from = static_cast<size_t>(op.src / ranks_per_node_);
    const auto to = static_cast<size_t>(op.dst / ranks_per_node_);
    if (op.link == Link::scale_out && from != to) {
      nodes_[from].add(kOutSent, static_cast<double>(op.bytes), start_[id]);
      nodes_[to].add(kOutReceived, static_cast<double>(op.bytes), start_[id]);
    }
    add_to(phases_[row + static_cast<size_t>(op.src)], id, op.src);
    add_to(all_[static_cast<size_t>(op.src)], id, op.src);
  }

  const Plan& plan_;
  const PlanWork& work_;
  const Fabric& fabric_;
  const int32_t ranks_per_node_;
  const Rates rates_;       // of a rank
  const Rates node_rates_;  // of all ranks of a node towards other nodes
  const std::array<double, 2> least_;
  bool is_exact_ = false;
  std::vector<double> start_;    // [ops]
  std::vector<double> end_;      // [ops]
  std::vector<double> joined_;   // [barriers]
  std::vector<Passing> phases_;  // [phases][ranks]
  std::vector<Passing> all_;     // [ranks]
  std::vector<Passing> nodes_;   // traffic with other nodes
};

}  // namespace

std::array<double, 2> least_latencies(const Fabric& fabric) {
  return {least_latency(fabric, Link::scale_up), least_latency(fabric, Link::scale_out)};
}

LowerBound lower_bound(const Plan& plan, const PlanWork& work, const Machine& machine, const Fabric& fabric) {
  return LowerBoundPass(plan, work, machine, fabric).run();
}

}  // namespace plumb::detail

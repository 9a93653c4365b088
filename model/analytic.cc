// The estimate: pipelines in order, each as long as its busiest resource plus what it waits for, rank by
// rank.
#include "model/analytic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "model/analytic_work.h"
#include "model/error.h"

namespace plumb {
namespace {

using detail::HotLink;
using detail::kOut;
using detail::kUp;
using detail::PlanWork;
using detail::RankWork;

/// Usable rates of one rank, bytes per second.
struct UsableRates {
  std::array<double, 2> network{};
  double memory = 0;
  double copy_engine = 0;
};

/// The largest time of a rank's resources.
struct Term {
  double seconds = 0;
  std::string_view name = "latency";
};

class Timeline {
 public:
  Timeline(const Plan& plan, const Machine& machine, const Fabric& fabric, const Costs& costs)
      : plan_(plan),
        machine_(machine),
        fabric_(fabric),
        costs_(costs),
        work_(measured(plan, machine, fabric, costs)),
        is_shared_(std::any_of(fabric.links().begin(), fabric.links().end(),
                               [](const FabricLink& l) { return l.shared; })),
        least_(detail::least_latencies(fabric)) {
    rates_.network = {machine.scale_up.rate.value.value * costs.scale_up_share.value,
                      machine.scale_out_rate().value * costs.scale_out_share.value};
    rates_.memory = machine.gpu.hbm_rate.value.value * costs.memory_share.value;
    rates_.copy_engine = machine.gpu.copy_engine_rate.value.value;
  }

  Estimate run() {
    Estimate out;
    out.phases.resize(work_.num_phases);
    detail::LowerBound lower = detail::lower_bound(plan_, work_, machine_, fabric_);
    std::vector<RankWork> whole(work_.ranks);
    std::vector<std::vector<PhaseId>> pipelines = detail::find_pipelines(work_);
    const auto starts = detail::pipeline_starts(plan_, work_, pipelines, costs_);
    for (size_t i = 0; i < pipelines.size(); ++i) {
      std::vector<PhaseId>& phases = pipelines[i];
      std::vector<RankWork> load(work_.ranks);
      for (const PhaseId p : phases)
        for (size_t r = 0; r < work_.ranks; ++r) load[r].add(work_.at(p, r));
      const HotLink hot = detail::hottest_shared_link(plan_, phases, fabric_, costs_);
      double begin = std::numeric_limits<double>::infinity();
      for (const PhaseId p : phases) begin = std::min(begin, lower.begin[p]);
      if (hot.nominal_seconds > 0) lower.total = std::max(lower.total, begin + hot.nominal_seconds);
      PipelineTime pipeline{
          .phases = std::move(phases), .bottleneck = "", .begin = {}, .sent = {}, .end = {}};
      place(pipeline, starts[i], load, hot, out.pipelines);
      for (size_t r = 0; r < work_.ranks; ++r) whole[r].add(load[r]);
      out.pipelines.push_back(std::move(pipeline));
    }
    finish(out, lower, whole);
    return out;
  }

  const PlanWork& work() const { return work_; }

 private:
  static PlanWork measured(const Plan& plan, const Machine& machine, const Fabric& fabric,
                           const Costs& costs) {
    if (plan.ranks_per_op() != 1)
      fail_usage(
          "the plan is coarse ({} ranks per op): loads of single ranks are not known; estimate the plan it "
          "was made of",
          plan.ranks_per_op());
    if (plan.grouping().ranks > fabric.ranks())
      fail_usage("the plan has {} ranks, machine '{}' has {}", plan.grouping().ranks, machine.name,
                 fabric.ranks());
    return detail::measure(plan, machine, fabric, costs);
  }

  const Phase& phase(PhaseId p) const { return plan_.phases()[p]; }

  /// Of what a rank issues.
  Term largest_issued(const RankWork& load) const {
    Term best = largest_of(load.sent);
    const auto offer = [&best](double seconds, std::string_view name) {
      if (seconds > best.seconds) best = {seconds, name};
    };
    const auto bytes = [](int64_t count) { return static_cast<double>(count); };
    offer(load.compute_seconds, "compute");
    offer(bytes(load.messages) * costs_.message_time.value.value, "messages");
    offer(load.sm_seconds, "sm");
    offer(load.feed_seconds, "scale_up feed");
    if (rates_.memory > 0) offer(bytes(load.memory) / rates_.memory, "hbm");
    if (rates_.copy_engine > 0) offer(bytes(load.copy_engine) / rates_.copy_engine, "copy engine");
    return best;
  }

  /// Of the bytes that a rank sends or receives.
  Term largest_of(const std::array<int64_t, 2>& bytes) const {
    const auto up = static_cast<double>(bytes[kUp] + (is_shared_ ? bytes[kOut] : 0));
    const auto out = static_cast<double>(bytes[kOut]);
    const double up_seconds = rates_.network[kUp] > 0 ? up / rates_.network[kUp] : 0;
    const double out_seconds = rates_.network[kOut] > 0 ? out / rates_.network[kOut] : 0;
    if (up_seconds == 0 && out_seconds == 0) return {};
    return up_seconds > out_seconds ? Term{up_seconds, "scale_up"} : Term{out_seconds, "scale_out nic"};
  }

  Term largest(const RankWork& load) const {
    const Term issued = largest_issued(load), received = largest_of(load.received);
    return received.seconds > issued.seconds ? received : issued;
  }

  void place(PipelineTime& pipeline, const detail::PipelineStart& start, const std::vector<RankWork>& load,
             const HotLink& hot, const std::vector<PipelineTime>& earlier) {
    const bool is_free = start.is_free;
    std::vector<double> behind(work_.ranks);  // receives come in behind those of earlier pipelines
    begin_after(pipeline, load, earlier, behind);
    double latest = 0;
    for (size_t r = 0; r < work_.ranks; ++r)
      if (load[r].issues) latest = std::max(latest, pipeline.begin[r]);
    const double wait = is_free ? 0 : filling_time(pipeline) + start.wait;
    const bool forwards = num_transfer_phases(pipeline) > 1;
    Term worst;
    for (size_t r = 0; r < work_.ranks; ++r) {
      if (!load[r].takes_part) continue;
      Term issued, received;
      if (!is_free) {
        issued = largest_issued(load[r]);
        received = largest_of(load[r].received);
        if (hot.seconds > std::max(issued.seconds, received.seconds) * (1 + 1e-9))
          issued = received = {hot.seconds, link_name(hot.link)};
      }
      const Term& term = received.seconds > issued.seconds ? received : issued;
      if (term.seconds > worst.seconds) worst = term;
      const bool receives = load[r].received[kUp] + load[r].received[kOut] > 0;
      double& sent = pipeline.sent[r];
      double& end = pipeline.end[r];
      sent = pipeline.begin[r] + issued.seconds + wait;
      end = std::max(sent, pipeline.begin[r] + received.seconds + wait);
      if (receives) end = std::max({end, latest + wait, behind[r]});
      if (forwards) sent = end;
    }
    const double joining = join_barriers(pipeline, is_free);
    pipeline.work = {worst.seconds};
    pipeline.wait = {wait + joining};
    pipeline.bottleneck = worst.seconds >= wait + joining ? worst.name : "latency";
  }

  void begin_after(PipelineTime& pipeline, const std::vector<RankWork>& load,
                   const std::vector<PipelineTime>& earlier, std::vector<double>& behind) const {
    pipeline.begin.assign(work_.ranks, 0);
    pipeline.sent.assign(work_.ranks, 0);
    pipeline.end.assign(work_.ranks, 0);
    // A barrier says that what was sent before it has arrived everywhere.
    const bool joins = std::any_of(pipeline.phases.begin(), pipeline.phases.end(),
                                   [&](PhaseId p) { return !work_.barriers[p].empty(); });
    for (const PipelineTime& before : earlier) {
      const uint8_t relation = relation_of(before, pipeline);
      if (relation == detail::kNoRelation) continue;
      const bool only_sent = relation == detail::kSent && !joins;
      for (size_t r = 0; r < work_.ranks; ++r) {
        if (!load[r].takes_part) continue;
        pipeline.begin[r] = std::max(pipeline.begin[r], only_sent ? before.sent[r] : before.end[r]);
        behind[r] = std::max(behind[r], before.end[r]);
      }
    }
  }

  size_t num_transfer_phases(const PipelineTime& pipeline) const {
    return static_cast<size_t>(std::count_if(pipeline.phases.begin(), pipeline.phases.end(), [&](PhaseId p) {
      return work_.has_network[p][kUp] || work_.has_network[p][kOut];
    }));
  }

  uint8_t relation_of(const PipelineTime& before, const PipelineTime& after) const {
    uint8_t relation = detail::kNoRelation;
    for (const PhaseId a : before.phases)
      for (const PhaseId b : after.phases) relation |= work_.relation(a, b);
    return relation;
  }

  /// Latency and first chunks along the longest chain of streams.
  double filling_time(const PipelineTime& pipeline) const {
    const auto& phases = pipeline.phases;
    std::vector<double> fill(phases.size());
    for (size_t i = 0; i < phases.size(); ++i) fill[i] = own_fill(phases[i], phases);
    return detail::longest_chain(work_, phases, fill);
  }

  double own_fill(PhaseId p, const std::vector<PhaseId>& phases) const {
    double fill = 0;
    for (const Link link : costs_.fill_links) {
      if (link == Link::local) continue;
      const size_t n = detail::network_index(link);
      if (!work_.has_network[p][n]) continue;
      const double software = (n == kUp ? costs_.scale_up_latency : costs_.scale_out_latency).value.value;
      double hop = std::max(work_.longest_latency[p][n], software) * (1 + work_.chain[p]);
      const bool is_followed = std::any_of(phases.begin(), phases.end(), [&](PhaseId q) {
        return q != p && (work_.relation(p, q) & detail::kStream);
      });
      if (is_followed && rates_.network[n] > 0)
        hop += static_cast<double>(phase(p).chunk_rows * phase(p).row_bytes) / rates_.network[n];
      fill = std::max(fill, hop);
    }
    return fill;
  }

  /// Lets the members of each barrier end together. Returns the largest cost of one.
  double join_barriers(PipelineTime& pipeline, bool is_free) const {
    double largest_cost = 0;
    std::map<int32_t, double> ends;
    for (const PhaseId p : pipeline.phases)
      for (const auto& member : work_.barriers[p]) {
        double& end = ends[member.barrier];
        end = std::max(end, pipeline.end[static_cast<size_t>(member.rank)]);
      }
    for (auto& [index, end] : ends) {
      const Barrier& barrier = plan_.barriers()[static_cast<size_t>(index)];
      if (is_free || barrier.members < 2) continue;
      const bool is_out = barrier.link == Link::scale_out;
      const double cost = std::max((is_out ? costs_.scale_out_barrier : costs_.scale_up_barrier).value.value,
                                   least_[detail::network_index(barrier.link)]);
      end += cost;
      largest_cost = std::max(largest_cost, cost);
    }
    for (const PhaseId p : pipeline.phases)
      for (const auto& member : work_.barriers[p]) {
        const auto r = static_cast<size_t>(member.rank);
        pipeline.sent[r] = pipeline.end[r] = ends[member.barrier];
      }
    return largest_cost;
  }

  std::string_view link_name(LinkId id) {
    const FabricLink& link = fabric_.links()[static_cast<size_t>(id)];
    const FabricNode& from = fabric_.nodes()[static_cast<size_t>(link.from)];
    const FabricNode& to = fabric_.nodes()[static_cast<size_t>(link.to)];
    if (from.kind == NodeKind::nic || to.kind == NodeKind::nic) return "scale_out nic";
    hot_names_.push_back(std::make_unique<std::string>(fmt::format("link {} -> {}", from.name, to.name)));
    return *hot_names_.back();
  }

  void finish(Estimate& out, const detail::LowerBound& lower, const std::vector<RankWork>& whole) const {
    double total = 0;
    for (const PipelineTime& pipeline : out.pipelines)
      for (const double end : pipeline.end) total = std::max(total, end);
    out.bottleneck = critical_bottleneck(out.pipelines);
    for (const RankWork& load : whole) {
      // Pipelines that do not wait for each other still share the rank.
      const Term term = largest(load);
      if (term.seconds <= total) continue;
      total = term.seconds;
      out.bottleneck = term.name;
    }
    if (out.bottleneck.empty() && lower.total > 0) out.bottleneck = "latency";
    out.total = {std::max(total, lower.total)};
    out.lower = {lower.total};
    for (const PipelineTime& pipeline : out.pipelines) {
      double begin = std::numeric_limits<double>::infinity(), end = 0;
      for (size_t r = 0; r < work_.ranks; ++r) {
        if (pipeline.end[r] == 0) continue;
        begin = std::min(begin, pipeline.begin[r]);
        end = std::max(end, pipeline.end[r]);
      }
      for (const PhaseId p : pipeline.phases) {
        if (!work_.has_ops(p)) continue;
        const double time = end > 0 ? end - begin : 0;
        out.phases[p] = {.time = {time},
                         .lower = {std::min(lower.phases[p], time)},
                         .bottleneck = time > 0 ? pipeline.bottleneck : ""};
      }
    }
  }

  /// Walks back from the last end and adds up what the pipelines on the way were busy with.
  std::string critical_bottleneck(const std::vector<PipelineTime>& pipelines) const {
    std::map<std::string, double> seconds;
    size_t at = pipelines.size();
    double end = 0;
    for (size_t i = 0; i < pipelines.size(); ++i) {
      const double last = *std::max_element(pipelines[i].end.begin(), pipelines[i].end.end());
      if (last > end) end = last, at = i;
    }
    while (at < pipelines.size()) {
      const PipelineTime& pipeline = pipelines[at];
      const std::string_view name = pipeline.bottleneck;
      seconds[std::string(name)] += std::max(pipeline.work.value, pipeline.wait.value);
      if (name != "latency") seconds["latency"] += pipeline.wait.value;
      size_t before = pipelines.size();
      double latest = 0;
      for (size_t i = 0; i < at; ++i) {
        if (relation_of(pipelines[i], pipeline) == detail::kNoRelation) continue;
        const double last = *std::max_element(pipelines[i].end.begin(), pipelines[i].end.end());
        if (last > latest) latest = last, before = i;
      }
      at = before;
    }
    const auto most = std::max_element(seconds.begin(), seconds.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == seconds.end() ? "" : most->first;
  }

  const Plan& plan_;
  const Machine& machine_;
  const Fabric& fabric_;
  const Costs& costs_;
  const PlanWork work_;
  const bool is_shared_;               // scale-up and scale-out use the same cables
  const std::array<double, 2> least_;  // latency of the shortest path, by network
  UsableRates rates_;
  std::vector<std::unique_ptr<std::string>> hot_names_;
};

int64_t nanoseconds_of(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

AnalyticExecutor::AnalyticExecutor(const Machine& machine, const Fabric& fabric, Costs costs)
    : machine_(machine), fabric_(fabric), costs_(std::move(costs)) {}

Estimate AnalyticExecutor::estimate(const Plan& plan) const {
  return Timeline(plan, machine_, fabric_, costs_).run();
}

Trace AnalyticExecutor::run(const Plan& plan) {
  Timeline timeline(plan, machine_, fabric_, costs_);
  const Estimate estimated = timeline.run();
  const PlanWork& work = timeline.work();
  Trace trace;
  trace.header.executor = std::string(name());
  trace.header.plan = plan.digest();
  trace.header.program = to_string(plan.program());
  trace.header.machine = machine_.name;
  trace.header.clock = "model";
  trace.header.note = costs_.name.empty() ? "no costs: ideal hardware" : fmt::format("costs {}", costs_.name);
  for (const Phase& phase : plan.phases()) trace.header.phases.push_back(phase.name);
  for (const PipelineTime& pipeline : estimated.pipelines)
    for (const PhaseId p : pipeline.phases)
      for (size_t r = 0; r < work.ranks; ++r) {
        const RankWork& load = work.at(p, r);
        if (!load.takes_part) continue;
        trace.spans.push_back({.rank = static_cast<Rank>(r),
                               .phase = static_cast<int16_t>(p),
                               .lane = -1,
                               .op = -1,
                               .begin_ns = nanoseconds_of(pipeline.begin[r]),
                               .end_ns = nanoseconds_of(pipeline.end[r]),
                               .messages = load.issued_messages,
                               .bytes = load.issued_bytes});
      }
  trace.phase_times = estimated.phases;
  trace.ledger = account(plan);
  trace.total = estimated.total;
  trace.lower = estimated.lower;
  trace.bottleneck = estimated.bottleneck;
  return trace;
}

}  // namespace plumb

// Sets a network up for a plan, drives it to the end, and turns what happened into a trace.
#include "sim/sim_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "model/error.h"
#include "sim/flow_network.h"
#include "sim/packet_network.h"
#include "sim/plan_player.h"

namespace plumb::sim {
namespace {

/// Low-latency kernels have a queue pair for each expert, all of them at work at once.
int32_t messages_at_once(const Program& program, Link network, const SimOptions& options) {
  const bool is_low_latency =
      program.kind == ProgramKind::low_latency_dispatch || program.kind == ProgramKind::low_latency_combine;
  return is_low_latency && network == Link::scale_out ? std::max(options.queue_pairs, program.num_qps)
                                                      : options.queue_pairs;
}

Lanes single_lane() {
  Lanes lanes;
  lanes.low.push_back({.lane = 0, .weight = 64});
  lanes.adaptive.fill(true);
  return lanes;
}

/// The part of a network's rate that simulated packets may use. The share is of payload: what headers take
/// comes on top, as far as the wire has it.
double usable(const Sourced<double>& share, const NetworkSettings& network) {
  return std::min(1.0, share.value * (1 + double(network.next_header_bytes) / network.mtu_bytes));
}

/// A buffer that is given must hold a packet. (Where links are long, PacketNetwork makes it larger.)
void check_buffers(const PacketSettings& settings, const Machine& machine, const SimOptions& options,
                   const Fabric& fabric) {
  if (!options.lanes && !machine.lanes) return;
  const int64_t buffer = settings.lanes.buffer.value.count;
  for (const Link link : {Link::scale_up, Link::scale_out}) {
    const auto links = fabric.links();
    if (std::none_of(links.begin(), links.end(), [link](const FabricLink& l) { return l.network == link; }))
      continue;
    const NetworkSettings& network = settings.network(link);
    const int64_t packet = int64_t{network.mtu_bytes} + network.first_header_bytes;
    if (packet > buffer)
      fail_usage(
          "sim: a lane's buffer of machine '{}' is {} B, a packet of {} has {} B with its header and would "
          "never fit; smaller sim.packet or larger lanes.buffer",
          machine.name, buffer, to_string(link), packet);
  }
}

LinkId find_link(const Fabric& fabric, const std::string& name) {
  for (size_t l = 0; l < fabric.links().size(); ++l)
    if (name_of_link(fabric, static_cast<LinkId>(l)) == name) return static_cast<LinkId>(l);
  fail_usage(
      "sim: the machine has no link '{}'; one is '{}' (plumb topo MACHINE A B prints those between two "
      "ranks)",
      name,
      fabric.links().empty() ? "" : name_of_link(fabric, static_cast<LinkId>(fabric.links().size()) - 1));
}

NodeId find_node(const Fabric& fabric, const std::string& name) {
  for (size_t n = 0; n < fabric.nodes().size(); ++n)
    if (fabric.nodes()[n].name == name) return static_cast<NodeId>(n);
  fail_usage(
      "sim: the machine has no node '{}'; one is '{}' (plumb topo MACHINE A B prints those between two "
      "ranks)",
      name, fabric.nodes().back().name);
}

Fault fault_of(const SimEvent& event, const Fabric& fabric) {
  using Kind = SimEvent::Kind;
  Fault fault{.at = to_ps(event.at),
              .kind = FaultKind::link_down,
              .link = kNone,
              .node = kNone,
              .factor = event.factor};
  if (event.kind == Kind::node_down || event.kind == Kind::node_up) {
    fault.kind = event.kind == Kind::node_down ? FaultKind::switch_down : FaultKind::switch_up;
    fault.node = find_node(fabric, event.target);
    return fault;
  }
  if (event.kind == Kind::link_up) fault.kind = FaultKind::link_up;
  if (event.kind == Kind::link_rate) fault.kind = FaultKind::link_rate;
  fault.link = find_link(fabric, event.target);
  return fault;
}

/// Steps on so that links are sampled and progress can be told. Steps change no date. Samples end with the
/// plan: what the network still does then, like events far ahead, is no use of it.
void drive(Network& network, const PlanPlayer& player, Ps limit, const SimExecutor::Progress& progress,
           LinkSampler& sampler) {
  using Clock = std::chrono::steady_clock;
  const auto total = static_cast<double>(std::max<int64_t>(player.chunks_left(), 1));
  Ps step = progress ? to_ps(microseconds(10)) : kNever;
  auto told = Clock::now();
  while (true) {
    const Ps told_at = step > limit - network.now() ? limit : network.now() + step;
    const Ps until = player.is_done() ? told_at : std::min(told_at, sampler.next());
    if (!network.advance(until)) return;
    if (network.now() == sampler.next() && !player.is_done()) sampler.sample(network.link_use());
    if (until == limit) return;
    if (!progress) continue;
    const double seconds = std::chrono::duration<double>(Clock::now() - told).count();
    if (seconds < 0.25) {
      step = std::min<Ps>(step * 2, to_ps(Seconds{1}));
      continue;
    }
    if (seconds > 2) step = std::max<Ps>(step / 2, 1000);
    progress(1 - static_cast<double>(player.chunks_left()) / total, to_seconds(network.now()));
    told = Clock::now();
  }
}

int64_t nanoseconds_of(Ps time) { return (time + 500) / 1000; }

/// The resource that worked longest; "latency" when none worked half of the time.
std::string bottleneck(const PlanPlayer& player, const Fabric& fabric, const std::vector<LinkUse>& links,
                       int32_t ranks, Ps end) {
  double most = 0.5;
  std::string name = "latency";
  const auto offer = [&](double part, const auto& text) {
    if (part <= most) return;
    most = part;
    name = text;
  };
  const double whole = std::max(1.0, static_cast<double>(end));
  static constexpr std::array<const char*, kEngines> kNames = {"sm", "copy engine", "hbm", "messages",
                                                               "scale_up feed"};
  for (Rank r = 0; r < ranks; ++r) {
    for (size_t k = 0; k < kEngines; ++k)
      offer(static_cast<double>(player.busy(static_cast<EngineKind>(k), r)) / whole, kNames[k]);
    offer(static_cast<double>(player.computed(r)) / whole, "compute");
  }
  for (const LinkUse& use : links) {
    const FabricLink& link = fabric.links()[static_cast<size_t>(use.link)];
    const NodeKind from = fabric.nodes()[static_cast<size_t>(link.from)].kind;
    const NodeKind to = fabric.nodes()[static_cast<size_t>(link.to)].kind;
    if (from == NodeKind::nic || to == NodeKind::nic)
      offer(use.utilisation, "scale_out nic");
    else if (from == NodeKind::gpu || to == NodeKind::gpu)
      offer(use.utilisation, "scale_up");
    else
      offer(use.utilisation, "link " + name_of_link(fabric, use.link));
  }
  return name;
}

std::string describe(const SimOptions& options, const PacketSettings& settings, const Costs& costs) {
  const std::string start =
      fmt::format("fidelity {}; routing {}; costs {}; seed {}", to_string(options.fidelity),
                  to_string(options.routing[1]), costs.name.empty() ? "none" : costs.name, options.seed);
  if (options.fidelity == Fidelity::flow) return start;
  static constexpr std::array<const char*, 4> kCongestion = {"off", "infiniband", "dcqcn", "caqm"};
  return fmt::format("{}; packets of {}; congestion control {}; {} lanes", start,
                     options.packet_per_row ? "one row" : fmt::format("{} B", settings.networks[1].mtu_bytes),
                     kCongestion[static_cast<size_t>(options.congestion.kind)], settings.lanes.count);
}

void fill_spans(Trace& trace, const Plan& plan, const PlanPlayer& player) {
  const auto ranks = static_cast<size_t>(plan.grouping().ranks);
  trace.phase_times.resize(plan.phases().size());
  for (size_t p = 0; p < plan.phases().size(); ++p) {
    Ps begin = kNever, end = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const PhaseUse& use = player.use(static_cast<PhaseId>(p), static_cast<Rank>(r));
      if (use.begin == kNever) continue;
      const Ps last = std::max(use.end, use.begin);
      begin = std::min(begin, use.begin);
      end = std::max(end, last);
      trace.spans.push_back({.rank = static_cast<Rank>(r),
                             .phase = static_cast<int16_t>(p),
                             .lane = -1,
                             .op = -1,
                             .begin_ns = nanoseconds_of(use.begin),
                             .end_ns = nanoseconds_of(last),
                             .messages = use.messages,
                             .bytes = use.bytes});
      trace.phase_times[p].messages += use.messages;
      trace.phase_times[p].bytes += use.bytes;
    }
    if (begin != kNever) trace.phase_times[p].time = to_seconds(end - begin);
  }
}

}  // namespace

PacketSettings packet_settings(const Machine& machine, const SimOptions& options, const Plan& plan) {
  PacketSettings s;
  const int64_t machine_mtu = machine.scale_out.mtu_bytes.value;
  int64_t packet = options.packet.count > 0 ? options.packet.count
                   : machine_mtu > 0        ? machine_mtu
                                            : s.networks[0].mtu_bytes;
  if (options.packet_per_row)
    for (const Phase& phase : plan.phases()) packet = std::max(packet, phase.row_bytes);
  for (size_t n = 0; n < 2; ++n) {
    NetworkSettings& network = s.networks[n];
    network.mtu_bytes = static_cast<int32_t>(packet);
    const Link link = n == 0 ? Link::scale_up : Link::scale_out;
    const PacketForm form = machine.packet_form(link);
    network.first_header_bytes = static_cast<int32_t>(form.header_bytes.value);
    network.next_header_bytes = static_cast<int32_t>(form.next_header_bytes.value);
    network.round_trips = static_cast<double>(form.buffer_round_trips.value);
    network.policy = options.routing[n];
    network.injection.queue_pairs = messages_at_once(plan.program(), link, options);
  }
  const bool is_switched = std::holds_alternative<SwitchedDomain>(machine.scale_up.topology);
  if (s.networks[0].policy == RoutePolicy::even && (machine.is_unified_bus() || !is_switched))
    s.networks[0].policy = RoutePolicy::adaptive;
  for (const Op& op : plan.ops()) s.num_classes = std::max<int32_t>(s.num_classes, op.traffic_class + 1);
  s.lanes = options.lanes ? *options.lanes : machine.lanes ? *machine.lanes : single_lane();
  s.input_queues = options.input_queues;
  s.congestion = options.congestion;
  s.seed = options.seed;
  return s;
}

void check_sim_options(const Machine& machine, const Fabric& fabric, const SimOptions& options,
                       int32_t ranks) {
  for (const SimEvent& event : options.events)
    if (event.rank == kNone)
      fault_of(event, fabric);
    else if (event.rank >= ranks)
      fail_usage("sim: an event names rank {}, the plan has {}", event.rank, ranks);
  if (options.fidelity == Fidelity::packet)
    check_buffers(packet_settings(machine, options, Plan({}, machine.grouping())), machine, options, fabric);
}

SimExecutor::SimExecutor(const Machine& machine, const Fabric& fabric, Costs costs, SimOptions options)
    : machine_(machine), fabric_(fabric), costs_(std::move(costs)), options_(std::move(options)) {}

RunCost SimExecutor::cost(const Plan& plan) const {
  return run_cost(machine_, fabric_, plan, packet_settings(machine_, options_, plan), options_);
}

Trace SimExecutor::run(const Plan& plan) {
  const PacketSettings settings = packet_settings(machine_, options_, plan);
  if (options_.fidelity == Fidelity::packet) check_buffers(settings, machine_, options_, fabric_);
  PlanPlayer player(plan, machine_, fabric_, costs_, options_);
  if (options_.fidelity == Fidelity::packet) check_run_cost(cost(plan), options_);
  const Fabric fabric = fabric_.with_rates(usable(costs_.scale_up_share, settings.networks[0]),
                                           usable(costs_.scale_out_share, settings.networks[1]));
  std::unique_ptr<Network> network;
  const PacketNetwork* packets = nullptr;
  if (options_.fidelity == Fidelity::packet) {
    auto made = std::make_unique<PacketNetwork>(fabric, settings, player);
    packets = made.get();
    network = std::move(made);
  } else {
    network = std::make_unique<FlowNetwork>(fabric, flow_settings(settings), player);
  }
  for (const SimEvent& event : options_.events)
    if (event.rank == kNone) network->add_fault(fault_of(event, fabric));
  player.start(*network);
  LinkSampler sampler(fabric_);
  const Ps limit = options_.time_limit.value > 0 ? to_ps(options_.time_limit) : kNever;
  if (driver_)
    driver_(*network, limit);
  else
    drive(*network, player, limit, progress_, sampler);

  report_ = {};
  report_.end = player.last_end();
  if (packets != nullptr) {
    report_.counts = packets->counts();
    report_.lanes = packets->lane_use();
  }
  report_.links = network->link_use();
  report_.timeline = sampler.finish(report_.links, report_.end);
  report_.waits = player.waits();
  report_.memory_bytes = network->memory_bytes();
  if (player.is_done()) network.reset();  // it and the ledger are the largest things of a large run
  for (LinkUse& use : report_.links) {
    const double rate = fabric.links()[static_cast<size_t>(use.link)].rate.value;
    use.utilisation =
        report_.end > 0 ? static_cast<double>(use.packet_bytes) / rate / to_seconds(report_.end).value : 0;
  }

  Trace trace;
  trace.header.executor = std::string(name());
  trace.header.plan = plan.digest();
  trace.header.program = to_string(plan.program());
  trace.header.machine = machine_.name;
  trace.header.clock = "simulated";
  trace.header.note = describe(options_, settings, costs_);
  trace.header.complete = player.is_done();
  for (const Phase& phase : plan.phases()) trace.header.phases.push_back(phase.name);
  trace.ledger = player.ledger();
  fill_spans(trace, plan, player);
  trace.total = to_seconds(report_.end);
  trace.bottleneck = bottleneck(player, fabric_, report_.links, plan.grouping().ranks, report_.end);
  if (player.is_done()) return trace;

  const std::string network_report = network->stuck_report();
  const bool is_late = options_.time_limit.value > 0 && network->next_event() != kNever;
  partial_ = std::move(trace);
  throw Error(
      ErrorKind::mismatch,
      fmt::format("the simulated run did not end: {} after {:.3f} us of simulated time\n{}{}",
                  is_late ? "time_limit passed" : "nothing can move any more",
                  to_seconds(network->now()).value * 1e6, player.unfinished_report(), network_report));
}

}  // namespace plumb::sim

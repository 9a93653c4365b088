// Counts packets of a plan and estimates their events.
#include "sim/run_cost.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {
namespace {

constexpr double kEventsPerHop = 2.05;
constexpr double kEventsPerSecond = 5e6;
constexpr size_t kSample = 4096;  // ops whose paths are looked at

}  // namespace

RunCost run_cost(const Machine& machine, const Fabric& fabric, const Plan& plan,
                 const PacketSettings& settings, const SimOptions& options) {
  // Packets pass a NIC without an event where it serves one GPU.
  const int32_t free_links = machine.scale_out.nics_per_node >= machine.ranks_per_node() ? 2 : 0;
  const auto& ops = plan.ops();
  const size_t stride = std::max<size_t>(1, ops.size() / kSample);
  RunCost cost;
  double sampled = 0, hops = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& o = ops[i];
    if (o.link == Link::local || o.src == o.dst) continue;
    const int64_t mtu = settings.network(o.link).mtu_bytes;
    const double packets = options.packet_per_row
                               ? std::max(o.rows, 1)
                               : static_cast<double>(std::max<int64_t>((o.bytes + mtu - 1) / mtu, 1));
    cost.packets += packets;
    if (i % stride != 0) continue;
    const int32_t links = fabric.distance(o.link, o.src, o.dst);
    sampled += packets;
    hops += packets * std::max(1, o.link == Link::scale_out ? links - free_links : links);
  }
  cost.events = sampled > 0 ? cost.packets * kEventsPerHop * hops / sampled : 0;
  cost.cpu = Seconds{cost.events / kEventsPerSecond};
  return cost;
}

std::string to_string(const RunCost& cost) {
  const double seconds = cost.cpu.value;
  const std::string time = seconds < 120    ? fmt::format("{:.1f} s", seconds)
                           : seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60)
                                            : fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("about {:.2g} events ({:.2g} packets), {} of CPU time", cost.events, cost.packets, time);
}

void check_run_cost(const RunCost& cost, const SimOptions& options) {
  if (cost.events <= static_cast<double>(options.max_events)) return;
  fail_usage(
      "sim: the run would take {}; allowed are {:.2g} events (sim.max_events)\nhint: fewer tokens, larger "
      "packets (sim.packet: row), sim.fidelity: flow, or a higher sim.max_events",
      to_string(cost), static_cast<double>(options.max_events));
}

}  // namespace plumb::sim

// Builds the fabric of a machine: GPUs, scale-up network, NICs; the scale-out networks stand in
// fabric_tree.cc and fabric_mesh.cc.
#include "model/fabric_build.h"

#include <algorithm>
#include <variant>

#include "model/error.h"

namespace plumb {

namespace {

/// Calls the one of the functions that takes the alternative at hand.
template <class... Functions>
struct Choose : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Choose(Functions...) -> Choose<Functions...>;

void add_gpus(Assembly& assembly) {
  for (Rank rank = 0; rank < assembly.machine.ranks(); ++rank)
    assembly.builder.add_node(
        {.kind = NodeKind::gpu, .tier = 0, .rank = rank, .name = fmt::format("gpu {}", rank)});
}

void build_switched(Assembly& assembly, const SwitchedDomain& domain, bool shared) {
  const ScaleUp& up = assembly.machine.scale_up;
  const FabricLink link = {
      .shared = shared, .rate = up.rate.value * (1.0 / domain.planes), .latency = up.latency.value};
  for (int32_t node = 0; node < assembly.machine.nodes; ++node) {
    for (int32_t plane = 0; plane < domain.planes; ++plane) {
      const NodeId sw = assembly.add_switch(NodeKind::scale_up_switch, 1,
                                            fmt::format("scale-up switch {}.{}", node, plane));
      assembly.scale_up_switches.push_back(sw);
      for (int32_t local = 0; local < domain.ranks; ++local)
        assembly.to_switch(assembly.gpu(node, local), sw, link, false);
    }
  }
}

void build_pairs(Assembly& assembly, const PairList& pairs) {
  const ScaleUp& up = assembly.machine.scale_up;
  const int32_t most = pair_cables(pairs);
  assembly.builder.let_gpus_forward(Link::scale_up);
  for (int32_t node = 0; node < assembly.machine.nodes; ++node) {
    for (const auto& [a, b, count] : pairs.cables)
      assembly.builder.add_cable(assembly.gpu(node, a), assembly.gpu(node, b),
                                 {.cables = static_cast<int16_t>(count),
                                  .rate = up.rate.value * (static_cast<double>(count) / most),
                                  .latency = up.latency.value});
  }
}

}  // namespace

NodeId Assembly::add_switch(NodeKind kind, int32_t tier, std::string name) {
  return builder.add_node(
      {.kind = kind, .tier = static_cast<int16_t>(tier), .rank = kNone, .name = std::move(name)});
}

void Assembly::to_switch(NodeId a, NodeId b, FabricLink link, bool a_is_switch) {
  link.from = a;
  link.to = b;
  builder.add_link(link);
  std::swap(link.from, link.to);
  if (!a_is_switch) link.latency = {};
  builder.add_link(link);
}

std::vector<NodeId> add_nics(Assembly& assembly) {
  const Machine& m = assembly.machine;
  const ScaleOut& out = m.scale_out;
  const int32_t ranks = m.ranks_per_node();
  const FabricLink link = {.network = Link::scale_out,
                           .rate = out.port_rate.value * out.ports_per_nic,
                           .latency = out.nic_latency.value};
  std::vector<NodeId> nics;
  for (int32_t node = 0; node < m.nodes; ++node) {
    for (int32_t i = 0; i < out.nics_per_node; ++i) {
      const bool own = out.nics_per_node >= ranks;
      const int32_t first = own ? i / (out.nics_per_node / ranks) : i * (ranks / out.nics_per_node);
      const int32_t served = own ? 1 : ranks / out.nics_per_node;
      const Rank rank = served == 1 ? node * ranks + first : kNone;
      nics.push_back(assembly.builder.add_node(
          {.kind = NodeKind::nic, .tier = 0, .rank = rank, .name = fmt::format("nic {}.{}", node, i)}));
      for (int32_t local = first; local < first + served; ++local)
        assembly.builder.add_cable(assembly.gpu(node, local), nics.back(), link);
    }
  }
  return nics;
}

int32_t pair_cables(const PairList& pairs) {
  std::vector<int32_t> cables(pairs.ranks, 0);
  for (const auto& [a, b, count] : pairs.cables) {
    cables[a] += count;
    cables[b] += count;
  }
  return cables.empty() ? 0 : *std::max_element(cables.begin(), cables.end());
}

Fabric build_fabric(const Machine& machine) {
  std::string problems;
  for (const FieldProblem& p : check_ports(machine))
    problems += fmt::format("\n  {}{}{}: {}", p.section, p.section.empty() ? "" : ".", p.field, p.message);
  if (!problems.empty()) fail_usage("machine {} does not add up:{}", machine.name, problems);

  Assembly assembly(machine);
  add_gpus(assembly);
  // UnifiedBus is one network: the scale-up links of a rank carry its scale-out traffic too.
  const auto& out = machine.scale_out.topology;
  const bool shared = std::holds_alternative<Planes>(out) || std::holds_alternative<Mesh>(out);
  std::visit(Choose{[&](const SwitchedDomain& domain) { build_switched(assembly, domain, shared); },
                    [&](const MeshDomain& mesh) { build_mesh_domains(assembly, mesh, shared); },
                    [&](const PairList& pairs) { build_pairs(assembly, pairs); }},
             machine.scale_up.topology);
  std::visit(Choose{[&](const NoScaleOut&) {}, [&](const FatTree& tree) { build_fat_tree(assembly, tree); },
                    [&](const Dragonfly& dragonfly) { build_dragonfly(assembly, dragonfly); },
                    [&](const Planes& planes) { build_planes(assembly, planes); },
                    [&](const Mesh& mesh) { build_mesh(assembly, mesh); }},
             out);
  return std::move(assembly.builder).finish();
}

}  // namespace plumb

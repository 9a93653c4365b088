// Builds the networks of UnifiedBus systems: planes of L2 switches over the L1 switches of the nodes, and
// full meshes.
#include "model/error.h"
#include "model/fabric_build.h"

namespace plumb {

namespace {

/// Cables the ranks base, base + stride, ... (`size` of them) with each other.
void connect_all(FabricBuilder& builder, NodeId base, int32_t stride, int32_t size, const FabricLink& link) {
  for (int32_t a = 0; a < size; ++a)
    for (int32_t b = a + 1; b < size; ++b) builder.add_cable(base + a * stride, base + b * stride, link);
}

}  // namespace

int32_t mesh_cables(const std::vector<int32_t>& dimensions, const std::vector<int32_t>& cables) {
  int32_t total = 0;
  for (size_t i = 0; i < dimensions.size(); ++i) total += (dimensions[i] - 1) * cables[i];
  return total;
}

std::vector<int32_t> used_dimensions(const std::vector<int32_t>& dimensions, int32_t nodes) {
  std::vector<int32_t> used;
  for (int32_t size : dimensions) {
    if (nodes > size && nodes % size != 0) return {};
    used.push_back(std::min(nodes, size));
    nodes /= used.back();
  }
  if (nodes != 1) return {};
  return used;
}

void build_mesh_domains(Assembly& assembly, const MeshDomain& mesh, bool shared) {
  const Machine& m = assembly.machine;
  const int32_t total = mesh_cables(mesh.dimensions, mesh.cables);
  for (Rank rank = 0; rank < m.ranks(); ++rank) {
    int32_t stride = 1;
    for (size_t i = 0; i < mesh.dimensions.size(); ++i) {
      const int32_t size = mesh.dimensions[i];
      const FabricLink link = {.shared = shared,
                               .cables = static_cast<int16_t>(mesh.cables[i]),
                               .rate = m.scale_up.rate.value * (static_cast<double>(mesh.cables[i]) / total),
                               .latency = m.scale_up.latency.value};
      if (rank / stride % size == 0) connect_all(assembly.builder, rank, stride, size, link);
      stride *= size;
    }
  }
  assembly.builder.set_mesh(Link::scale_up, mesh.dimensions);
}

void build_mesh(Assembly& assembly, const Mesh& mesh) {
  const Machine& m = assembly.machine;
  std::vector<int32_t> dimensions = std::get<MeshDomain>(m.scale_up.topology).dimensions;
  int32_t stride = m.ranks_per_node();
  const std::vector<int32_t> used = used_dimensions(mesh.dimensions, m.nodes);
  for (size_t i = 0; i < used.size(); ++i) {
    const FabricLink link = {.network = Link::scale_out,
                             .cables = static_cast<int16_t>(mesh.cables[i]),
                             .rate = m.scale_out.port_rate.value * mesh.cables[i],
                             .latency = m.scale_out.hop_latency.value};
    for (Rank rank = 0; rank < m.ranks(); ++rank)
      if (rank / stride % used[i] == 0) connect_all(assembly.builder, rank, stride, used[i], link);
    stride *= used[i];
    dimensions.push_back(used[i]);
  }
  assembly.builder.set_mesh(Link::scale_out, std::move(dimensions));
}

void build_planes(Assembly& assembly, const Planes& planes) {
  const Machine& m = assembly.machine;
  if (m.nodes == 1) return;  // the L1 switches of the only node join all its ranks
  const FabricLink link = {.network = Link::scale_out,
                           .rate = m.scale_out.port_rate.value,
                           .latency = m.scale_out.hop_latency.value};
  for (int32_t plane = 0; plane < planes.planes; ++plane) {
    for (int32_t s = 0; s < planes.l2_switches; ++s) {
      const NodeId l2 =
          assembly.add_switch(NodeKind::scale_out_switch, 2, fmt::format("L2 switch {}.{}", plane, s));
      for (int32_t node = 0; node < m.nodes; ++node)
        assembly.to_switch(assembly.scale_up_switches[node * planes.planes + plane], l2, link, true);
    }
  }
}

}  // namespace plumb

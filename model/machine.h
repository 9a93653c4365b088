// A machine file: GPUs, their grouping into scale-up domains, the networks between them, and where each
// number is from.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/costs.h"
#include "model/fabric.h"
#include "model/lanes.h"
#include "model/units.h"

namespace plumb {

/// One GPU or NPU.
struct Gpu {
  std::string name;
  Sourced<int64_t> sms;
  Sourced<BytesPerSecond> hbm_rate;          // bytes read plus written per second
  Sourced<BytesPerSecond> sm_read_rate;      // of one SM
  Sourced<BytesPerSecond> sm_write_rate;     // of one SM: payload copied by it
  Sourced<BytesPerSecond> copy_rate;         // payload that all SMs together can copy inside the GPU
  Sourced<BytesPerSecond> copy_engine_rate;  // of one copy engine
};

/// What packets of a network carry and need beside payload. 0 = the file does not say.
struct PacketForm {
  Sourced<int64_t> header_bytes;        // of the first or only packet of a message
  Sourced<int64_t> next_header_bytes;   // of its other packets
  Sourced<int64_t> buffer_round_trips;  // of credits that a lane's buffer holds at least, at the link's rate
};

/// Scale-up network of a domain.
struct SwitchedDomain {  // every GPU on `planes` switches (NVSwitch, UB L1)
  int32_t ranks = 8;
  int32_t planes = 1;  // parallel switches add up
};
struct MeshDomain {                 // full mesh in each dimension; GPUs forward
  std::vector<int32_t> dimensions;  // product = ranks of a domain
  std::vector<int32_t> cables;      // per peer in each dimension
};
struct PairList {  // explicit cables, e.g. 2-GPU hosts or DGX-1 like meshes; GPUs forward
  int32_t ranks = 2;
  std::vector<std::array<int32_t, 3>> cables;  // a, b, number of cables
};

/// Scale-out network.
struct FatTree {
  std::vector<int32_t> down;  // down-ports used per switch, by tier from the leaves
  std::vector<int32_t> up;    // up-ports per switch, by tier; last tier 0
  int32_t radix = 64;
  bool rail_optimized = true;  // NIC i of each node on leaf i of its group
  int32_t pod_nodes = 0;       // nodes under the switches of one tier-2 group, 0 = all; three tiers need it
};
struct Dragonfly {
  int32_t groups = 2;
  int32_t routers = 4;        // per group, full mesh inside
  int32_t endpoints = 8;      // NICs per router
  int32_t global_cables = 1;  // per router, spread evenly over the other groups
  int32_t radix = 64;
};
struct Planes {              // e.g. CloudMatrix384: a plane = one L1 switch per node + its L2 switches;
  int32_t planes = 7;        // the L1 switches are those of the switched scale-up domain
  int32_t l2_switches = 16;  // per plane, each with one cable of port_rate to each L1 switch
};
struct Mesh {                       // nD full mesh between domains (UB-Mesh): rank i of a domain is cabled to
  std::vector<int32_t> dimensions;  // rank i of each domain that differs in one digit; port_rate per cable
  std::vector<int32_t> cables;
};
struct NoScaleOut {};

struct ScaleUp {
  std::variant<SwitchedDomain, MeshDomain, PairList> topology;
  Sourced<BytesPerSecond> rate;  // of one rank into the network, one direction, all its links
  Sourced<Seconds> latency;      // one hop, cable plus switch
  Sourced<BytesPerSecond>
      reported_rate;  // sum of a rank's link rates as the driver prints them; 0 = not known
  // Ceilings of payload between two ranks, both directions busy; 0 = not measured.
  Sourced<BytesPerSecond> store_rate;        // SMs store to the peer
  Sourced<BytesPerSecond> load_rate;         // SMs load from the peer
  Sourced<BytesPerSecond> copy_engine_rate;  // a copy engine
  PacketForm packets;
};

struct ScaleOut {
  std::variant<NoScaleOut, FatTree, Dragonfly, Planes, Mesh> topology;
  int32_t nics_per_node = 8;          // a multiple or a divisor of the ranks of a node; 0: planes, mesh, none
  int32_t ports_per_nic = 1;          // bonded ports add up
  Sourced<BytesPerSecond> port_rate;  // one cable, one direction
  Sourced<Seconds> nic_latency;       // GPU memory to wire, one side
  Sourced<Seconds> hop_latency;       // cable plus switch (mesh: cable plus the NPU at its end)
  Sourced<int64_t> mtu_bytes;
  PacketForm packets;
};

struct Machine {
  std::string name;
  std::string description;
  int32_t nodes = 1;  // scale-up domains in use
  int32_t min_nodes = 1;
  int32_t max_nodes = 1;
  Gpu gpu;
  ScaleUp scale_up;
  ScaleOut scale_out;
  std::optional<Lanes> lanes;  // absent: one lane, no arbitration
  Costs costs;

  int32_t ranks_per_node() const;
  int32_t ranks() const { return nodes * ranks_per_node(); }
  Grouping grouping() const { return {ranks(), ranks_per_node()}; }
  /// Scale-out rate of one GPU: NICs of a node times ports, shared by its GPUs (2 bonded 400 Gb/s ports per
  /// GPU: 100 GB/s; 8 GPUs on 4 ports: 25 GB/s). Planes: its share of the L1 uplinks, at most its scale-up
  /// rate. Mesh: its cables to other domains, when all are in use. 0 when there is no scale-out network.
  BytesPerSecond scale_out_rate() const;
  /// Planes and meshes between nodes are UnifiedBus: one kind of packets in both networks.
  bool is_unified_bus() const;
  /// What the file says of a network's packets, and what is usual for its kind where it does not.
  PacketForm packet_form(Link network) const;
};

/// Reads a machine file (docs/machine.md). `nodes` 0 takes the file's default. Throws ConfigError with all
/// problems: radix against ports in use, groups that do not fit, plausibility of rates and latencies, numbers
/// without source.
Machine read_machine(const std::string& path, int32_t nodes = 0);
Machine read_machine(ConfigMap root, int32_t nodes);

/// A field of a machine that does not fit the others.
struct FieldProblem {
  std::string section;  // "nodes", "scale_up", "scale_out", "lanes"
  std::string field;    // key in that section
  std::string message;  // names tier, field and both numbers, or the unreachable pair
};

/// What does not add up: ports against radix, groups, cables, nodes in use. Empty when the fabric can be
/// built.
std::vector<FieldProblem> check_ports(const Machine& machine);

/// Builds the fabric of the nodes in use. Throws Error(usage) with the messages of check_ports() when there
/// are any.
Fabric build_fabric(const Machine& machine);

}  // namespace plumb

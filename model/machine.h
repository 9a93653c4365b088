// A machine file: GPUs, their grouping into scale-up domains, the networks between them, and where each
// number is from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/costs.h"
#include "model/fabric.h"
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

/// Scale-up network of a domain.
struct SwitchedDomain {  // every GPU on `planes` switches (NVSwitch, UB L1)
  int32_t ranks = 8;
  int32_t planes = 1;  // parallel switches add up
};
struct MeshDomain {                 // full mesh in each dimension; GPUs forward
  std::vector<int32_t> dimensions;  // product = ranks of a domain
  std::vector<int32_t> cables;      // per peer in each dimension
};
struct PairList {  // explicit cables, e.g. 2-GPU hosts or DGX-1 like meshes
  int32_t ranks = 2;
  std::vector<std::array<int32_t, 3>> cables;  // a, b, number of cables
};

/// Scale-out network.
struct FatTree {
  std::vector<int32_t> down;  // down-ports used per switch, by tier from the leaves
  std::vector<int32_t> up;    // up-ports per switch, by tier; last tier 0
  int32_t radix = 64;
  bool rail_optimized = true;  // GPU i of each node on leaf i of its group
};
struct Dragonfly {
  int32_t groups = 2;
  int32_t routers = 4;        // per group, full mesh inside
  int32_t endpoints = 8;      // NICs per router
  int32_t global_cables = 1;  // per router
};
struct Planes {  // e.g. CloudMatrix384: each rank on every plane, plane = L1 per node + L2
  int32_t planes = 7;
  int32_t l2_switches = 16;  // per plane
};
struct Mesh {  // nD full mesh between domains (UB-Mesh)
  std::vector<int32_t> dimensions;
  std::vector<int32_t> cables;
};
struct NoScaleOut {};

struct ScaleUp {
  std::variant<SwitchedDomain, MeshDomain, PairList> topology;
  Sourced<BytesPerSecond> rate;  // of one rank into the network, one direction, all its links
  Sourced<Seconds> latency;      // one hop, cable plus switch
};

struct ScaleOut {
  std::variant<NoScaleOut, FatTree, Dragonfly, Planes, Mesh> topology;
  int32_t nics_per_node = 8;
  int32_t ports_per_nic = 1;  // bonded ports add up
  Sourced<BytesPerSecond> port_rate;
  Sourced<Seconds> nic_latency;  // GPU memory to wire, one side
  Sourced<Seconds> hop_latency;  // cable plus switch
  Sourced<int64_t> mtu_bytes;
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
  Costs costs;

  int32_t ranks_per_node() const;
  int32_t ranks() const { return nodes * ranks_per_node(); }
  Grouping grouping() const { return {ranks(), ranks_per_node()}; }
  /// Scale-out rate of one GPU: NICs of a node times ports, shared by its GPUs (2 bonded 400 Gb/s ports per
  /// GPU: 100 GB/s; 8 GPUs on 4 ports: 25 GB/s). 0 when there is no scale-out network.
  BytesPerSecond scale_out_rate() const;
};

/// Reads a machine file (docs/machine.md). `nodes` 0 takes the file's default. Throws ConfigError with all
/// problems: radix against ports in use, groups that do not fit, plausibility of rates and latencies, numbers
/// without source.
Machine read_machine(const std::string& path, int32_t nodes = 0);
Machine read_machine(ConfigMap root, int32_t nodes);

/// Throws Error(usage) naming tier, field and both numbers when ports do not add up, or the unreachable pair.
Fabric build_fabric(const Machine& machine);

}  // namespace plumb

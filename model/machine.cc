// Reads machine files (docs/machine.md).
#include "model/machine.h"

#include <algorithm>

#include "model/fabric_build.h"

namespace plumb {

namespace {

using Rates = Range<BytesPerSecond>;
using Times = Range<Seconds>;

constexpr int64_t kMany = 1 << 20;

constexpr Rates gigabytes(double min, double max) {
  return {gigabytes_per_second(min), gigabytes_per_second(max)};
}
constexpr Times times(double min_ns, double max_ns) { return {nanoseconds(min_ns), nanoseconds(max_ns)}; }

// Plausible values of today's hardware, narrow enough that bits taken for bytes fall out.
constexpr Rates kPortRate = gigabytes(10, 150);       // one cable: 80 Gbit/s .. 1.2 Tbit/s
constexpr Rates kScaleUpRate = gigabytes(120, 2500);  // NVLink, UnifiedBus: V100 150 .. NVLink 6 1800
constexpr Rates kPairRate = gigabytes(20, 2500);      // PCIe hosts too
constexpr Rates kHbmRate = gigabytes(400, 30000);
constexpr Rates kSmReadRate = gigabytes(5, 1000);
constexpr Rates kSmWriteRate = gigabytes(2, 400);
constexpr Rates kCopyRate = gigabytes(100, 15000);
constexpr Rates kCopyEngineRate = gigabytes(20, 6000);
constexpr Times kLinkLatency = times(10, 10'000);
constexpr Times kNicLatency = times(100, 50'000);

/// Reads the parts of a machine; counts that could not be read switch the check of ports off, since it would
/// only repeat the problem in other words.
class Reader {
 public:
  explicit Reader(ConfigMap root) : root_(root) {}

  Machine read(int32_t nodes) {
    root_.schema("plumb.machine/1");
    machine_.name = root_.text("name");
    machine_.description = root_.text("description", "");
    read_nodes(nodes);
    read_gpu(root_.map("gpu"));
    ConfigMap up = root_.map("scale_up"), out = root_.map("scale_out");
    read_scale_up(up);
    read_scale_out(out);
    if (auto lanes = root_.optional_map("lanes")) machine_.lanes = read_lanes(*lanes);
    if (auto costs = root_.optional_map("costs")) machine_.costs = read_costs(*costs);
    if (is_sound_) report_ports(up, out);
    return std::move(machine_);
  }

 private:
  /// An integer; the smallest allowed one after a problem.
  int32_t count(ConfigMap& map, std::string_view key, Range<int64_t> range) {
    const int64_t value = map.has(key) ? map.integer(key, range, range.min - 1) : map.integer(key, range);
    if (!map.has(key) || value < range.min) is_sound_ = false;
    return static_cast<int32_t>(std::clamp(value, range.min, range.max));
  }

  int32_t count(ConfigMap& map, std::string_view key, Range<int64_t> range, int32_t fallback) {
    return map.has(key) ? count(map, key, range) : static_cast<int32_t>(map.integer(key, range, fallback));
  }

  std::vector<int32_t> counts(ConfigMap& map, std::string_view key, Range<int64_t> range) {
    const auto list = map.integer_list(key, range);
    if (map.has(key) && list.empty() && map.raw(key).empty())
      map.fail(key, fmt::format("'{}' is empty", key));
    if (list.empty()) is_sound_ = false;
    return {list.begin(), list.end()};
  }

  /// The name under `topology`; other keys of a section without a known one are not looked at.
  std::string topology(ConfigMap& map, const std::vector<std::pair<std::string_view, int>>& names) {
    map.choice("topology", names);
    const std::string name = map.raw("topology");
    for (const auto& known : names)
      if (known.first == name) return name;
    for (const std::string& key : map.keys()) map.ignore(key);
    is_sound_ = false;
    return "";
  }

  void read_nodes(int32_t nodes) {
    if (root_.has("nodes") && root_.raw("nodes").empty()) {
      ConfigMap map = root_.map("nodes");
      machine_.min_nodes = count(map, "min", {1, kMany});
      machine_.max_nodes = count(map, "max", {1, kMany});
      machine_.nodes = count(map, "default", {1, kMany});
    } else {
      machine_.nodes = machine_.min_nodes = machine_.max_nodes = count(root_, "nodes", {1, kMany});
    }
    if (nodes > 0) machine_.nodes = nodes;
  }

  void read_gpu(ConfigMap map) {
    Gpu& gpu = machine_.gpu;
    gpu.name = map.text("name");
    gpu.sms = map.sourced<int64_t>("sms", {1, 1024});
    gpu.hbm_rate = map.sourced("hbm_rate", kHbmRate);
    gpu.sm_read_rate = map.sourced("sm_read_rate", kSmReadRate);
    gpu.sm_write_rate = map.sourced("sm_write_rate", kSmWriteRate);
    gpu.copy_rate = map.sourced("copy_rate", kCopyRate);
    gpu.copy_engine_rate = map.sourced("copy_engine_rate", kCopyEngineRate);
  }

  PairList read_pairs(ConfigMap& map) {
    PairList pairs;
    pairs.ranks = count(map, "ranks", {1, 4096});
    ConfigList list = map.list("cables");
    for (size_t i = 0; i < list.size(); ++i) {
      ConfigMap entry = list.map(i);
      const auto ends = counts(entry, "between", {0, 4095});
      const int32_t number = count(entry, "count", {1, 1024}, 1);
      if (ends.size() == 2) {
        pairs.cables.push_back({ends[0], ends[1], number});
      } else if (!ends.empty()) {
        entry.fail("between", fmt::format("cables between {} ranks, it must be two", ends.size()));
        is_sound_ = false;
      }
    }
    return pairs;
  }

  void read_scale_up(ConfigMap& map) {
    ScaleUp& up = machine_.scale_up;
    const std::string name = topology(map, {{"switched", 0}, {"mesh", 0}, {"pairs", 0}});
    if (name.empty()) return;
    if (name == "switched") {
      SwitchedDomain domain;
      domain.ranks = count(map, "ranks", {1, 4096});
      domain.planes = count(map, "planes", {1, 256});
      up.topology = domain;
    } else if (name == "mesh") {
      MeshDomain mesh;
      mesh.dimensions = counts(map, "dimensions", {1, 4096});
      mesh.cables = counts(map, "cables", {1, 1024});
      up.topology = mesh;
    } else {
      up.topology = read_pairs(map);
    }
    const Rates range = name == "pairs" ? kPairRate : kScaleUpRate;
    up.rate = map.sourced("rate", range);
    up.latency = map.sourced("latency", kLinkLatency);
    const Rates ceiling = {kPairRate.min, kScaleUpRate.max};
    up.reported_rate = map.sourced("reported_rate", ceiling, Sourced<BytesPerSecond>{});
    up.store_rate = map.sourced("store_rate", ceiling, Sourced<BytesPerSecond>{});
    up.load_rate = map.sourced("load_rate", ceiling, Sourced<BytesPerSecond>{});
    up.copy_engine_rate = map.sourced("copy_engine_rate", ceiling, Sourced<BytesPerSecond>{});
    up.packets = read_packets(map);
  }

  static PacketForm read_packets(ConfigMap& map) {
    const Sourced<int64_t> silent{};
    return {.header_bytes = map.sourced<int64_t>("header_bytes", {1, 256}, silent),
            .next_header_bytes = map.sourced<int64_t>("next_header_bytes", {1, 256}, silent),
            .buffer_round_trips = map.sourced<int64_t>("buffer_round_trips", {1, 64}, silent)};
  }

  void read_nics(ConfigMap& map) {
    ScaleOut& out = machine_.scale_out;
    out.nics_per_node = count(map, "nics_per_node", {1, 1024});
    out.ports_per_nic = count(map, "ports_per_nic", {1, 16}, 1);
    out.nic_latency = map.sourced("nic_latency", kNicLatency);
  }

  FatTree read_fat_tree(ConfigMap& map) {
    FatTree tree;
    tree.down = counts(map, "down", {1, 4096});
    tree.up = counts(map, "up", {0, 4096});
    tree.radix = count(map, "radix", {2, 4096});
    tree.rail_optimized = map.flag("rail_optimized", true);
    tree.pod_nodes = count(map, "pod_nodes", {1, kMany}, 0);
    return tree;
  }

  Dragonfly read_dragonfly(ConfigMap& map) {
    Dragonfly d;
    d.groups = count(map, "groups", {1, 4096});
    d.routers = count(map, "routers", {1, 4096});
    d.endpoints = count(map, "endpoints", {1, 4096});
    d.global_cables = count(map, "global_cables", {0, 4096});
    d.radix = count(map, "radix", {1, 4096});
    return d;
  }

  void read_scale_out(ConfigMap& map) {
    ScaleOut& out = machine_.scale_out;
    out.nics_per_node = 0;
    const std::string name =
        topology(map, {{"none", 0}, {"fat_tree", 0}, {"dragonfly", 0}, {"planes", 0}, {"mesh", 0}});
    if (name.empty() || name == "none") return;
    if (name == "fat_tree") {
      out.topology = read_fat_tree(map);
    } else if (name == "dragonfly") {
      out.topology = read_dragonfly(map);
    } else if (name == "planes") {
      Planes planes;
      planes.planes = count(map, "planes", {1, 256});
      planes.l2_switches = count(map, "l2_switches", {1, 4096});
      out.topology = planes;
    } else {
      Mesh mesh;
      mesh.dimensions = counts(map, "dimensions", {1, 4096});
      mesh.cables = counts(map, "cables", {1, 1024});
      out.topology = mesh;
    }
    if (name == "fat_tree" || name == "dragonfly") read_nics(map);
    out.port_rate = map.sourced("port_rate", kPortRate);
    out.hop_latency = map.sourced("hop_latency", kLinkLatency);
    out.mtu_bytes = map.sourced<int64_t>("mtu_bytes", {256, 65536});
    out.packets = read_packets(map);
  }

  void report_ports(ConfigMap& up, ConfigMap& out) {
    for (const FieldProblem& p : check_ports(machine_)) {
      if (p.section == "scale_up") {
        up.fail(p.field, "scale_up." + p.field + ": " + p.message);
      } else if (p.section == "scale_out") {
        out.fail(p.field, "scale_out." + p.field + ": " + p.message);
      } else if (p.section == "lanes") {
        root_.map("lanes").fail(p.field, "lanes." + p.field + ": " + p.message);
      } else {
        root_.fail(p.field, p.message);
      }
    }
  }

  ConfigMap root_;
  Machine machine_;
  bool is_sound_ = true;
};

}  // namespace

int32_t Machine::ranks_per_node() const {
  if (const auto* domain = std::get_if<SwitchedDomain>(&scale_up.topology)) return domain->ranks;
  if (const auto* pairs = std::get_if<PairList>(&scale_up.topology)) return pairs->ranks;
  int32_t product = 1;
  for (int32_t d : std::get<MeshDomain>(scale_up.topology).dimensions) product *= d;
  return product;
}

BytesPerSecond Machine::scale_out_rate() const {
  const int32_t ranks = ranks_per_node();
  if (std::holds_alternative<NoScaleOut>(scale_out.topology)) return {};
  if (const auto* mesh = std::get_if<Mesh>(&scale_out.topology))
    return scale_out.port_rate.value * mesh_cables(mesh->dimensions, mesh->cables);
  if (const auto* planes = std::get_if<Planes>(&scale_out.topology)) {
    const BytesPerSecond uplinks =
        scale_out.port_rate.value * (static_cast<double>(planes->planes) * planes->l2_switches / ranks);
    return std::min(uplinks, scale_up.rate.value);
  }
  return scale_out.port_rate.value *
         (static_cast<double>(scale_out.nics_per_node) * scale_out.ports_per_nic / ranks);
}

bool Machine::is_unified_bus() const {
  return std::holds_alternative<Planes>(scale_out.topology) ||
         std::holds_alternative<Mesh>(scale_out.topology);
}

/// Usual forms: docs/machine.md, section packets, says where they are from.
PacketForm Machine::packet_form(Link network) const {
  const bool is_out = network == Link::scale_out;
  PacketForm form = is_out ? scale_out.packets : scale_up.packets;
  const auto fill = [](Sourced<int64_t>& number, int64_t usual) {
    if (number.value == 0) number = {.value = usual, .source = "usual for its kind"};
  };
  const bool is_nvlink = !is_out && !is_unified_bus();
  fill(form.header_bytes, is_unified_bus() ? 44 : is_nvlink ? 1 : 42);
  fill(form.next_header_bytes, is_unified_bus() ? 44 : is_nvlink ? 1 : 26);
  fill(form.buffer_round_trips, is_nvlink ? 8 : 1);
  return form;
}

Machine read_machine(ConfigMap root, int32_t nodes) { return Reader(root).read(nodes); }

Machine read_machine(const std::string& path, int32_t nodes) {
  ConfigFile file = ConfigFile::load(path);
  Machine machine = read_machine(file.root(), nodes);
  file.finish();
  return machine;
}

}  // namespace plumb

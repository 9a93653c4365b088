// Checks that the counts of a machine add up, before a fabric is built from them: ports against radix, NICs
// against leaves and pods, cables against dimensions. Each message names tier, field and both numbers.
#include <algorithm>
#include <numeric>
#include <variant>

#include "model/fabric_build.h"
#include "model/machine.h"

namespace plumb {

namespace {

constexpr int32_t kMaxCount = 4096;  // of ports, cables, switches: far above any product, far below overflow
constexpr int32_t kMaxRanks = 1 << 20;

class Checker {
 public:
  explicit Checker(const Machine& machine) : m_(machine), out_(machine.scale_out) {}

  std::vector<FieldProblem> run() {
    check_nodes();
    section_ = "scale_up";
    std::visit([this](const auto& t) { check_up(t); }, m_.scale_up.topology);
    // The scale-out network is counted in whole nodes: it makes no sense to go on with wrong ones.
    if (problems_.empty()) {
      section_ = "scale_out";
      std::visit([this](const auto& t) { check_out(t); }, out_.topology);
    }
    if (m_.lanes && m_.lanes->buffer.value.count < out_.mtu_bytes.value) {
      section_ = "lanes";
      add("buffer", "a lane buffers {} bytes, less than one packet of mtu_bytes {}",
          m_.lanes->buffer.value.count, out_.mtu_bytes.value);
    }
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void add(std::string field, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back({section_, std::move(field), fmt::format(format, std::forward<Args>(args)...)});
  }

  bool is_count(const char* field, int64_t value, int64_t min = 1, int64_t max = kMaxCount) {
    if (value < min || value > max) add(field, "{} is {}, allowed are {} to {}", field, value, min, max);
    return value >= min && value <= max;
  }

  void check_nodes() {
    section_ = "";
    if (m_.min_nodes < 1 || m_.max_nodes < m_.min_nodes || m_.nodes < m_.min_nodes || m_.nodes > m_.max_nodes)
      add("nodes", "{} nodes, allowed are {} to {}", m_.nodes, m_.min_nodes, m_.max_nodes);
  }

  bool check_size(const char* field, int64_t ranks_per_node) {
    const int64_t ranks = ranks_per_node * m_.max_nodes;
    if (ranks <= kMaxRanks) return true;
    add(field, "{} nodes of {} ranks are more than {} ranks", m_.max_nodes, ranks_per_node, kMaxRanks);
    return false;
  }

  void check_up(const SwitchedDomain& domain) {
    is_count("planes", domain.planes);
    if (is_count("ranks", domain.ranks)) check_size("ranks", domain.ranks);
  }

  /// Returns the product of the dimensions, 0 after a problem.
  int64_t check_dimensions(const std::vector<int32_t>& dimensions, const std::vector<int32_t>& cables) {
    if (dimensions.empty() || dimensions.size() > 16 || dimensions.size() != cables.size()) {
      add("cables", "{} dimensions with {} numbers of cables: one for each of 1 to 16 dimensions",
          dimensions.size(), cables.size());
      return 0;
    }
    int64_t product = 1;
    for (size_t i = 0; i < dimensions.size(); ++i) {
      if (!is_count("dimensions", dimensions[i]) || !is_count("cables", cables[i])) return 0;
      product *= dimensions[i];
      if (!is_count("dimensions", product, 1, kMaxRanks)) return 0;
    }
    return product;
  }

  void check_up(const MeshDomain& mesh) {
    const int64_t ranks = check_dimensions(mesh.dimensions, mesh.cables);
    if (ranks > 0) check_size("dimensions", ranks);
  }

  void check_up(const PairList& pairs) {
    if (!is_count("ranks", pairs.ranks) || !check_size("ranks", pairs.ranks)) return;
    std::vector<int32_t> part(pairs.ranks);  // connected parts: the smallest rank of each
    std::iota(part.begin(), part.end(), 0);
    auto root = [&](int32_t r) {
      while (part[r] != r) r = part[r];
      return r;
    };
    std::vector<std::pair<int32_t, int32_t>> seen;
    for (const auto& [a, b, count] : pairs.cables) {
      const auto pair = std::minmax(a, b);
      if (pair.first < 0 || pair.second >= pairs.ranks || a == b) {
        add("cables", "cables between ranks {} and {}: two different ranks of 0 to {}", a, b,
            pairs.ranks - 1);
        return;
      }
      if (!is_count("cables", count)) return;
      if (std::find(seen.begin(), seen.end(), std::pair<int32_t, int32_t>(pair)) != seen.end())
        add("cables", "ranks {} and {} stand twice: give all their cables in one entry", a, b);
      seen.emplace_back(pair);
      const int32_t low = std::min(root(a), root(b)), high = std::max(root(a), root(b));
      part[high] = low;
    }
    for (int32_t r = 1; r < pairs.ranks; ++r) {
      if (root(r) == 0) continue;
      add("cables", "no path from rank 0 to rank {} of a domain", r);
      return;
    }
  }

  void check_out(const NoScaleOut&) {
    if (m_.max_nodes > 1) add("topology", "none, but nodes may be up to {}", m_.max_nodes);
  }

  /// NICs against GPUs; says whether counting may go on.
  bool check_nics() {
    if (!is_count("nics_per_node", out_.nics_per_node) || !is_count("ports_per_nic", out_.ports_per_nic))
      return false;
    const int32_t ranks = m_.ranks_per_node(), nics = out_.nics_per_node;
    if (ranks % nics == 0 || nics % ranks == 0) return true;
    add("nics_per_node",
        "{} NICs cannot be shared equally by the {} ranks of a node: one number must divide the other", nics,
        ranks);
    return false;
  }

  void check_out(const FatTree& tree) {
    if (!check_nics() || !check_tiers(tree)) return;
    const int32_t pod_nodes = tree.pod_nodes > 0 ? tree.pod_nodes : m_.max_nodes;
    if (m_.max_nodes % pod_nodes != 0)
      return add("pod_nodes", "nodes.max {} is no multiple of pod_nodes {}", m_.max_nodes, pod_nodes);
    if (tree.down[0] % out_.ports_per_nic != 0)
      return add("down", "tier 1: down {} ports per leaf is no multiple of ports_per_nic {}", tree.down[0],
                 out_.ports_per_nic);
    const int64_t ports =
        int64_t{pod_nodes} * out_.ports_per_nic * (tree.rail_optimized ? 1 : out_.nics_per_node);
    if (ports % tree.down[0] != 0)
      return add(
          "down",
          "tier 1: down {} ports per leaf, but {} nodes under one group bring {} NIC ports{}: no multiple",
          tree.down[0], pod_nodes, ports, tree.rail_optimized ? " to each rail" : "");
    check_upper_tiers(tree, m_.max_nodes / pod_nodes);
  }

  bool check_tiers(const FatTree& tree) {
    const size_t tiers = tree.down.size();
    if (tiers < 1 || tiers > 3 || tree.up.size() != tiers) {
      add("down", "{} tiers of down-ports and {} of up-ports: 1 to 3 of each", tiers, tree.up.size());
      return false;
    }
    bool good = is_count("radix", tree.radix) && is_count("pod_nodes", tree.pod_nodes, 0, kMaxRanks);
    for (size_t i = 0; i < tiers && good; ++i) {
      const bool is_top = i + 1 == tiers;
      good = is_count("down", tree.down[i]) &&
             is_count("up", tree.up[i], is_top ? 0 : 1, is_top ? 0 : kMaxCount);
      if (good && tree.down[i] + tree.up[i] > tree.radix) {
        add("radix", "tier {}: down {} + up {} = {} ports in use, radix {}", i + 1, tree.down[i], tree.up[i],
            tree.down[i] + tree.up[i], tree.radix);
        good = false;
      }
    }
    return good;
  }

  void check_upper_tiers(const FatTree& tree, int32_t pods) {
    const size_t tiers = tree.down.size();
    const int64_t per_leaf = tree.down[0] / out_.ports_per_nic;
    const int64_t leaves = int64_t{m_.max_nodes / pods} * out_.nics_per_node / per_leaf;
    if (tiers == 1 && leaves * pods > 1)
      return add("down", "tier 1: {} leaf switches but no tier 2 to join them", leaves * pods);
    if (tiers == 2 && pods > 1) return add("pod_nodes", "{} pods but no tier 3 to join them", pods);
    if (tiers < 2) return;
    if (tree.down[1] % leaves != 0)
      return add("down", "tier 2: down {} ports per spine is no multiple of the {} leaf switches under it",
                 tree.down[1], leaves);
    const int64_t leaf_cables = tree.down[1] / leaves;
    if (tree.up[0] % leaf_cables != 0)
      return add("up", "tier 1: up {} ports per leaf is no multiple of the {} cables to each spine",
                 tree.up[0], leaf_cables);
    if (tiers < 3) return;
    if (tree.down[2] % pods != 0)
      return add("down", "tier 3: down {} ports per core switch is no multiple of the {} pods", tree.down[2],
                 pods);
    const int32_t core_cables = tree.down[2] / pods;
    if (tree.up[1] % core_cables != 0)
      add("up", "tier 2: up {} ports per spine is no multiple of the {} cables to each core switch",
          tree.up[1], core_cables);
  }

  void check_out(const Dragonfly& d) {
    if (!check_nics() || !is_count("groups", d.groups) || !is_count("routers", d.routers) ||
        !is_count("endpoints", d.endpoints) || !is_count("global_cables", d.global_cables, 0) ||
        !is_count("radix", d.radix))
      return;
    const int32_t global = d.groups > 1 ? d.global_cables : 0;
    const int32_t used = d.endpoints * out_.ports_per_nic + d.routers - 1 + global;
    if (used > d.radix)
      add("radix", "tier 1: {} endpoint ports + {} local + {} global = {} ports in use, radix {}",
          d.endpoints * out_.ports_per_nic, d.routers - 1, global, used, d.radix);
    const int64_t cables = int64_t{d.routers} * d.global_cables;
    if (d.groups > 1 && cables < d.groups - 1)
      add("global_cables",
          "{} routers x {} global cables = {} per group, but {} groups need {} to reach each other",
          d.routers, d.global_cables, cables, d.groups, d.groups - 1);
    const int64_t places = int64_t{d.groups} * d.routers * d.endpoints;
    const int64_t nics = int64_t{m_.max_nodes} * out_.nics_per_node;
    if (places != nics)
      add("endpoints", "{} groups x {} routers x {} endpoints = {} places for the {} NICs of {} nodes",
          d.groups, d.routers, d.endpoints, places, nics, m_.max_nodes);
  }

  void check_out(const Planes& planes) {
    const auto* domain = std::get_if<SwitchedDomain>(&m_.scale_up.topology);
    if (domain == nullptr)
      return add("topology", "planes need a switched scale_up domain, whose switches they join");
    if (!is_count("planes", planes.planes) || !is_count("l2_switches", planes.l2_switches)) return;
    if (planes.planes != domain->planes)
      add("planes", "{} planes over scale_up.planes {}: each plane joins one switch of every node",
          planes.planes, domain->planes);
  }

  void check_out(const Mesh& mesh) {
    if (!std::holds_alternative<MeshDomain>(m_.scale_up.topology))
      return add("topology", "a mesh of domains needs a scale_up mesh");
    const int64_t product = check_dimensions(mesh.dimensions, mesh.cables);
    if (product == 0) return;
    if (product != m_.max_nodes)
      return add("dimensions", "dimensions hold {} nodes, nodes.max is {}", product, m_.max_nodes);
    if (!used_dimensions(mesh.dimensions, m_.nodes).empty()) return;
    std::vector<int32_t> legal;
    for (int32_t n = m_.min_nodes; n <= m_.max_nodes; ++n)
      if (!used_dimensions(mesh.dimensions, n).empty()) legal.push_back(n);
    section_ = "";
    add("nodes", "{} nodes do not fill whole rows of the mesh [{}]; allowed are {}", m_.nodes,
        fmt::join(mesh.dimensions, ", "), fmt::join(legal, ", "));
  }

  const Machine& m_;
  const ScaleOut& out_;
  std::string section_;
  std::vector<FieldProblem> problems_;
};

}  // namespace

std::vector<FieldProblem> check_ports(const Machine& machine) { return Checker(machine).run(); }

}  // namespace plumb

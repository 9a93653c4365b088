// Reader of experiment files, and from an experiment to its routing and plan.
#include "model/experiment.h"

#include <algorithm>
#include <filesystem>

#include "model/config.h"
#include "model/error.h"
#include "model/plans/builders.h"
#include "model/plans/derive.h"
#include "model/sm_choice.h"

namespace plumb {
namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxMessage = int64_t{1} << 40;  // of a pair: all pairs of 2048 ranks fit 63 bits

const std::vector<std::pair<std::string_view, ProgramKind>>& program_names() {
  static const std::vector<std::pair<std::string_view, ProgramKind>> names = [] {
    std::vector<std::pair<std::string_view, ProgramKind>> result;
    for (int i = 0; i <= static_cast<int>(ProgramKind::background); ++i)
      result.emplace_back(to_string(static_cast<ProgramKind>(i)), static_cast<ProgramKind>(i));
    return result;
  }();
  return names;
}

int32_t read_int(ConfigMap& map, std::string_view key, Range<int64_t> range, int64_t fallback) {
  return static_cast<int32_t>(map.integer(key, range, fallback));
}

Program read_program(ConfigMap map) {
  const Program standard;
  Program p;
  p.kind = map.choice("kind", program_names());
  p.mode = map.choice<Mode>("mode", {{"direct", Mode::direct}, {"hybrid", Mode::hybrid}}, standard.mode);
  p.placement = map.choice<RowPlacement>(
      "placement", {{"staged", RowPlacement::staged}, {"direct", RowPlacement::direct}}, standard.placement);
  p.cached = map.flag("cached", standard.cached);
  p.host_sync = map.flag("host_sync", standard.host_sync);
  p.expand = map.flag("expand", standard.expand);
  p.zero_padding = map.flag("zero_padding", standard.zero_padding);
  p.multiple_reduction = map.flag("multiple_reduction", standard.multiple_reduction);
  p.num_biases = read_int(map, "num_biases", {0, 2}, standard.num_biases);
  p.rdma_only = map.flag("rdma_only", standard.rdma_only);
  p.num_sms = read_int(map, "num_sms", {0, 1 << 16}, standard.num_sms);
  p.num_qps = read_int(map, "num_qps", {0, 1 << 16}, standard.num_qps);
  p.chunk_rows = read_int(map, "chunk_rows", {1, 1 << 20}, standard.chunk_rows);
  p.traffic_class = static_cast<uint8_t>(map.integer("traffic_class", {0, 15}, standard.traffic_class));
  p.message = map.quantity<Bytes>("message", {Bytes{0}, Bytes{kMaxMessage}}, standard.message);
  p.pattern = map.choice<Pattern>("pattern",
                                  {{"incast", Pattern::incast},
                                   {"permutation", Pattern::permutation},
                                   {"all_to_all", Pattern::all_to_all}},
                                  standard.pattern);
  p.fetches = read_int(map, "fetches", {0, 1 << 20}, standard.fetches);
  p.table_rows = map.integer("table_rows", {0, int64_t{1} << 40}, standard.table_rows);
  p.seed = static_cast<uint64_t>(map.integer("seed", {0, INT64_MAX}, static_cast<int64_t>(standard.seed)));
  try {
    validate(p);
  } catch (const Error& error) {
    map.fail("kind", error.what());
  }
  return p;
}

/// `ranks`: what the machine offers when the shape does not say.
Shape read_shape(ConfigMap map, int32_t ranks) {
  Shape s;
  s.ranks = read_int(map, "ranks", {1, kMaxRanks}, ranks);
  s.experts = static_cast<int32_t>(map.integer("experts", {1, kMaxRanks * 16}));
  s.topk = static_cast<int32_t>(map.integer("topk", {1, 32}));
  s.hidden = static_cast<int32_t>(map.integer("hidden", {1, 1 << 24}));
  if (map.has("tokens")) {
    for (const int64_t n : map.integer_list("tokens", {0, kMaxTokens}))
      s.tokens.push_back(static_cast<int32_t>(n));
    if (static_cast<int32_t>(s.tokens.size()) != s.ranks)
      map.fail("tokens", fmt::format("lists {} ranks, the shape has {}", s.tokens.size(), s.ranks));
    if (map.has("tokens_per_rank")) map.fail("tokens_per_rank", "stands beside 'tokens'; give one of both");
    map.ignore("tokens_per_rank");
  } else {
    s.tokens.assign(static_cast<size_t>(s.ranks),
                    static_cast<int32_t>(map.integer("tokens_per_rank", {0, kMaxTokens})));
  }
  const int32_t most = s.tokens.empty() ? 0 : *std::max_element(s.tokens.begin(), s.tokens.end());
  s.max_tokens = read_int(map, "max_tokens", {0, kMaxTokens}, most);
  s.dispatch_type =
      map.choice<DType>("dtype", {{"fp8", DType::fp8_e4m3}, {"bf16", DType::bf16}}, DType::fp8_e4m3);
  s.scale_format = map.choice<ScaleFormat>(
      "scale_format", {{"fp32", ScaleFormat::fp32}, {"ue8m0", ScaleFormat::ue8m0}}, ScaleFormat::fp32);
  s.scale_block = read_int(map, "scale_block", {1, 1 << 20}, 128);
  s.alignment = read_int(map, "alignment", {1, 1 << 16}, 1);
  return s;
}

RoutingSpec read_routing(ConfigMap map, const std::filesystem::path& folder) {
  const RoutingSpec standard;
  RoutingSpec r;
  std::vector<std::pair<std::string_view, RoutingKind>> kinds;
  for (int i = 0; i <= static_cast<int>(RoutingKind::replay); ++i)
    kinds.emplace_back(to_string(static_cast<RoutingKind>(i)), static_cast<RoutingKind>(i));
  r.kind = map.choice("kind", kinds, standard.kind);
  r.seed = static_cast<uint64_t>(map.integer("seed", {0, INT64_MAX}, static_cast<int64_t>(standard.seed)));
  r.groups = read_int(map, "groups", {1, kMaxRanks}, standard.groups);
  r.group_topk = read_int(map, "group_topk", {1, kMaxRanks}, standard.group_topk);
  r.exponent = map.number("exponent", {0, 16}, standard.exponent);
  r.hot_index = read_int(map, "hot_index", {0, kMaxRanks * 16}, standard.hot_index);
  r.hot_fraction = map.number("hot_fraction", {0, 1}, standard.hot_fraction);
  r.hot_ratio = map.number("hot_ratio", {1, 1e6}, standard.hot_ratio);
  r.masked_ratio = map.percent("masked", {0, 1}, standard.masked_ratio);
  if (map.has("file")) r.file = (folder / map.text("file")).lexically_normal().string();
  if (r.kind == RoutingKind::replay && r.file.empty()) map.fail("kind", "replay needs 'file'");
  return r;
}

Placement read_placement(ConfigMap map, const Shape& logical, int32_t nodes, const RoutingSpec& routing) {
  enum class Kind { standard, given, global, hierarchical };
  const Kind kind = map.choice<Kind>("policy", {{"default", Kind::standard},
                                                {"given", Kind::given},
                                                {"global", Kind::global},
                                                {"hierarchical", Kind::hierarchical}});
  const int64_t physical =
      map.integer("physical_experts", {logical.experts, kMaxRanks * 16}, logical.experts);
  std::vector<int32_t> logical_of;
  if (map.has("logical_of"))
    for (const int64_t e : map.integer_list("logical_of", {0, logical.experts - 1}))
      logical_of.push_back(static_cast<int32_t>(e));
  const bool balances = kind == Kind::global || kind == Kind::hierarchical;
  if (!balances && map.has("physical_experts"))
    map.fail("physical_experts", "belongs to the policies global and hierarchical; 'given' counts its list");
  if (kind != Kind::given && map.has("logical_of")) map.fail("logical_of", "belongs to the policy given");
  try {
    if (kind == Kind::standard) return default_placement(logical.experts, logical.ranks);
    if (kind == Kind::given) return given_placement(logical.experts, logical.ranks, logical_of);
    // The load that balances is what this routing offers: the count of choices per expert.
    std::vector<double> load(static_cast<size_t>(logical.experts));
    const Routing table = Routing::generate(logical, routing);
    std::vector<int32_t> rows;
    for (Rank r = 0; r < logical.ranks; ++r) {
      table.rows(r, rows);
      for (const int32_t e : rows)
        if (e >= 0) load[static_cast<size_t>(e)] += 1;
    }
    return balance(load,
                   {.policy = kind == Kind::global ? BalancePolicy::global : BalancePolicy::hierarchical,
                    .ranks = logical.ranks,
                    .nodes = nodes,
                    .groups = routing.groups,
                    .physical_experts = static_cast<int32_t>(physical)});
  } catch (const Error& error) {
    map.fail("policy", error.what());
    return {.ranks = logical.ranks, .logical_experts = logical.experts, .logical_of = {}};
  }
}

RunOptions read_run(std::optional<ConfigMap> optional) {
  RunOptions run;
  if (!optional) return run;
  ConfigMap map = *optional;
  run.on = map.text_list("on", run.on);
  for (const std::string& name : run.on)
    if (name != "host" && name != "analytic" && name != "sim" && name != "cuda")
      map.fail("on", fmt::format("'{}' is no executor, allowed: host, analytic, sim, cuda", name));
  for (size_t i = 0; i < run.on.size(); ++i)
    if (std::find(run.on.begin(), run.on.begin() + static_cast<ptrdiff_t>(i), run.on[i]) !=
        run.on.begin() + static_cast<ptrdiff_t>(i))
      map.fail("on", fmt::format("'{}' stands twice", run.on[i]));
  run.repeat = read_int(map, "repeat", {1, 1 << 20}, run.repeat);
  run.world = map.choice<WorldChoice>(
      "world",
      {{"auto", WorldChoice::automatic}, {"local", WorldChoice::local}, {"nvlink", WorldChoice::nvlink}},
      run.world);
  run.tolerance = map.percent("tolerance", {0, 100}, run.tolerance);
  run.seed = static_cast<uint64_t>(map.integer("seed", {0, INT64_MAX}, static_cast<int64_t>(run.seed)));
  run.host.window_bytes =
      map.quantity<Bytes>("host_window", {Bytes{0}, Bytes{kMaxBytes}}, Bytes{run.host.window_bytes}).count;
  run.host.memory_limit =
      map.quantity<Bytes>("host_memory", {Bytes{1}, Bytes{kMaxBytes}}, Bytes{run.host.memory_limit}).count;
  run.expert = map.choice<ExpertFunction>("expert",
                                          {{"identity", ExpertFunction::identity},
                                           {"scaled", ExpertFunction::scaled},
                                           {"weighted", ExpertFunction::weighted}},
                                          run.expert);
  return run;
}

/// The machine with as many nodes as `ranks` need; 0 = the file's default.
Machine read_machine_for(ConfigMap& root, const std::filesystem::path& folder, std::string& file) {
  ConfigMap map = root.map("machine");
  file = (folder / map.text("file")).lexically_normal().string();
  const int64_t nodes = map.integer("nodes", {0, kMaxRanks}, 0);
  Machine machine;
  const auto try_reading = [&map](std::string_view key, const auto& read) {
    try {
      read();
    } catch (const ConfigError&) {
      throw;  // already names the other file
    } catch (const Error& error) {
      map.fail(key, error.what());
    }
  };
  try_reading("file", [&] { machine = read_machine(file, static_cast<int32_t>(nodes)); });
  if (map.has("costs")) {
    const auto costs = (folder / map.text("costs")).lexically_normal();
    try_reading("costs",
                [&] { machine.costs = load_costs(costs.parent_path().string(), costs.stem().string()); });
  }
  return machine;
}

/// Records whether the spec does not fit the shape; rows are not drawn. A shape that is wrong itself is
/// reported elsewhere.
void check_routing(ConfigMap& map, const Shape& shape, const RoutingSpec& spec) {
  try {
    validate_gate(shape);
  } catch (const Error&) {
    return;
  }
  try {
    Routing::generate(shape, spec);
  } catch (const ConfigError&) {
    throw;  // already names the trace file
  } catch (const Error& error) {
    map.fail("kind", error.what());
  }
}

Experiment read_one(ConfigFile& file, const std::filesystem::path& path) {
  ConfigMap root = file.root();
  Experiment e;
  root.schema("plumb.experiment/1");
  e.name = root.text("name", path.stem().string());
  root.ignore("sweep");
  root.ignore("points");
  e.machine = read_machine_for(root, path.parent_path(), e.machine_file);
  e.program = read_program(root.map("program"));
  // Without costs of its own a machine runs the library that the program belongs to.
  if (!e.machine.name.empty() && e.machine.costs.name.empty())
    e.machine.costs = load_costs((std::filesystem::path(e.machine_file).parent_path() / "costs").string(),
                                 default_costs(e.program.kind));
  e.logical_shape = read_shape(root.map("shape"), e.machine.ranks());
  if (auto routing = root.optional_map("routing")) {
    e.routing = read_routing(*routing, path.parent_path());
    check_routing(*routing, e.logical_shape, e.routing);
  }
  e.shape = e.logical_shape;
  if (auto placement = root.optional_map("placement")) {
    e.placement = read_placement(*placement, e.logical_shape, e.grouping().nodes(), e.routing);
    e.shape.experts = e.placement->physical_experts();
  }
  try {
    if (e.placement.has_value() == false || e.shape.experts > 0) validate(e.shape);
  } catch (const Error& error) {
    root.fail("shape", error.what());
  }
  if (auto list = root.optional_list("background"))
    for (size_t i = 0; i < list->size(); ++i) {
      ConfigMap map = list->map(i);
      e.background.push_back(read_program(map));
      if (e.background.back().kind != ProgramKind::background) map.fail("kind", "must be background here");
    }
  e.run = read_run(root.optional_map("run"));
  if (auto sim = root.optional_map("sim")) e.sim = read_sim_options(*sim);
  const int64_t device_sms = e.machine.gpu.sms.value;
  if (!e.machine.name.empty() && e.program.num_sms > device_sms)
    root.fail("program",
              fmt::format("num_sms is {}, '{}' has {} SMs", e.program.num_sms, e.machine.name, device_sms));
  e.validation_file =
      (path.parent_path() / root.text("validation", "validate.yaml")).lexically_normal().string();
  if (root.has("published") && !root.raw("published").empty())
    e.published = {root.raw("published")};
  else
    e.published = root.text_list("published", {});
  const int32_t per_node = e.machine.ranks_per_node();
  const int32_t ranks = e.logical_shape.ranks;
  if (per_node > 0 && (ranks > e.machine.ranks() || (ranks > per_node && ranks % per_node != 0)))
    root.fail(
        "shape",
        fmt::format("{} ranks do not fit '{}' with {} nodes of {}; allowed: up to {}, whole nodes beyond one",
                    ranks, e.machine.name, e.machine.nodes, per_node, e.machine.ranks()));
  return e;
}

struct Assignment {
  std::string text;  // key.key=value
  AssignmentSource source;
};

/// What a point changes in its file.
struct Point {
  std::string label;
  std::vector<Assignment> assignments;

  bool has_line(const Location& where) const {
    return std::ranges::any_of(assignments, [&](const Assignment& a) {
      const Location& value = a.source.value;
      return value.file == where.file && (value.line == where.line || a.source.key.line == where.line);
    });
  }
};

std::string join(const std::vector<Assignment>& parts) {
  std::string out;
  for (const Assignment& part : parts) out += (out.empty() ? "" : " ") + part.text;
  return out;
}

std::vector<Point> read_points(const std::string& path, const std::vector<std::string>& overrides) {
  ConfigFile file = ConfigFile::load(path);
  for (const std::string& assignment : overrides) file.set(assignment);
  ConfigMap root = file.root();
  if (root.has("sweep") && root.has("points")) root.fail("points", "stands beside 'sweep'; give one of both");
  std::vector<Point> points(1);
  if (auto sweep = root.optional_map("sweep")) {
    for (const std::string& key : sweep->keys()) {
      ConfigList values = sweep->list(key);
      if (values.size() == 0) sweep->fail(key, "lists no value");
      std::vector<Point> next;
      for (const Point& point : points)
        for (size_t i = 0; i < values.size(); ++i) {
          next.push_back(point);
          next.back().assignments.push_back(
              {fmt::format("{}={}", key, values.text(i)), {sweep->key_location(key), values.location(i)}});
        }
      points = std::move(next);
    }
    for (Point& point : points) point.label = join(point.assignments);
  } else if (auto list = root.optional_list("points")) {
    points.clear();
    for (size_t i = 0; i < list->size(); ++i) {
      ConfigMap map = list->map(i);
      Point point;
      for (const std::string& key : map.keys()) {
        if (key == "name") continue;
        const std::string value = map.raw(key);
        if (value.empty()) map.fail(key, "no single value; a list or mapping is given as text in quotes");
        point.assignments.push_back(
            {fmt::format("{}={}", key, value), {map.key_location(key), map.location(key)}});
      }
      point.label = map.text("name", join(point.assignments));
      points.push_back(std::move(point));
    }
    if (points.empty()) root.fail("points", "lists no point");
  }
  for (const std::string& key : root.keys()) root.ignore(key);
  file.finish();
  return points;
}

/// The problems of all points, each once.
class PointProblems {
 public:
  void add(const Point& point, const ConfigError& error) {
    for (const Problem& problem : error.problems()) {
      const auto known = std::ranges::find_if(found_, [&](const Found& f) {
        return f.problem.message == problem.message && to_string(f.problem.where) == to_string(problem.where);
      });
      if (known != found_.end())
        ++known->points;
      else
        found_.push_back({problem, point.has_line(problem.where) ? "" : point.label, 1});
    }
  }
  /// A problem of some of `points` points that does not stand in their own lines names the first of them.
  void raise_any(size_t points) {
    if (found_.empty()) return;
    std::vector<Problem> problems;
    for (Found& f : found_) {
      if (f.points < points && !f.label.empty())
        f.problem.message += fmt::format(" (point '{}'{})", f.label,
                                         f.points == 1 ? "" : fmt::format(" and {} more", f.points - 1));
      problems.push_back(std::move(f.problem));
    }
    throw ConfigError(std::move(problems));
  }

 private:
  struct Found {
    Problem problem;
    std::string label;  // of the first point; empty when it stands in the point's own lines
    size_t points = 0;
  };
  std::vector<Found> found_;
};

}  // namespace

Grouping Experiment::grouping() const {
  return {.ranks = logical_shape.ranks, .scaleup = std::min(logical_shape.ranks, machine.ranks_per_node())};
}

std::vector<Experiment> read_experiments(const std::string& path, const std::vector<std::string>& overrides) {
  std::vector<Experiment> experiments;
  const std::vector<Point> points = read_points(path, overrides);
  PointProblems problems;
  for (const Point& point : points) {
    try {
      ConfigFile file = ConfigFile::load(path);
      for (const std::string& assignment : overrides) file.set(assignment);
      for (const Assignment& assignment : point.assignments) file.set(assignment.text, assignment.source);
      Experiment e = read_one(file, path);
      file.finish();
      e.label = point.label;
      experiments.push_back(std::move(e));
    } catch (const ConfigError& error) {
      problems.add(point, error);
    }
  }
  problems.raise_any(points.size());
  return experiments;
}

Routing make_routing(const Experiment& e) {
  Routing logical = Routing::generate(e.logical_shape, e.routing);
  return e.placement ? place(logical, e.logical_shape, *e.placement) : logical;
}

Program resolved_program(const Experiment& e, const Routing& routing) {
  return choose_sms_and_qps({.machine = e.machine,
                             .shape = e.shape,
                             .routing = e.routing,
                             .grouping = e.grouping(),
                             .table = e.placement ? &routing : nullptr},
                            e.program);
}

Plan make_plan(const Experiment& e, const Routing& routing, bool items) {
  const Grouping grouping = e.grouping();
  const Program program = resolved_program(e, routing);
  Plan plan = build_plan({e.shape, routing, program, grouping, items});
  for (size_t i = 0; i < e.background.size(); ++i)
    plan = overlay(plan, build_plan({e.shape, routing, e.background[i], grouping, items}),
                   fmt::format("background{}.", i));
  return plan;
}

}  // namespace plumb

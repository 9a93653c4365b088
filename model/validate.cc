// Runs executors on the plans of published rows and sums up their errors.
#include "model/validate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/analytic.h"
#include "model/error.h"
#include "model/plans/builders.h"

namespace plumb {
namespace {

/// Why a row cannot be predicted although a rule fits.
struct NotDescribed {
  std::string reason;
};

/// The domains that a row used: "RxN", "1xN" (no scale-up links) or something else (one network).
struct Topology {
  int32_t domain = 0;  // ranks in a scale-up domain; 0 = as many as the machine has
  bool uses_scale_up = true;
};

Topology topology_of(const PublishedRow& row) {
  const size_t cross = row.topology.find('x');
  const int32_t domain = cross == std::string::npos ? 0 : std::atoi(row.topology.c_str());
  if (domain > 1) return {.domain = domain, .uses_scale_up = true};
  return {.domain = 0, .uses_scale_up = false};
}

/// A machine with domains of `ranks`: part of a large domain, with its part of the NICs.
void use_domain(Machine& machine, int32_t ranks) {
  auto* domain = std::get_if<SwitchedDomain>(&machine.scale_up.topology);
  if (ranks == 0 || ranks == machine.ranks_per_node()) return;
  if (domain == nullptr)
    throw NotDescribed{fmt::format("machine {} has no domains of {} ranks", machine.name, ranks)};
  const int64_t nics = int64_t{machine.scale_out.nics_per_node} * ranks / domain->ranks;
  machine.scale_out.nics_per_node = static_cast<int32_t>(nics);
  domain->ranks = ranks;
}

class Runner {
 public:
  Runner(const ValidationPlan& plan, const std::map<std::string, ExecutorFactory>& executors)
      : plan_(plan), factories_(executors) {}

  ValidatedRow run(const PublishedRow& row, const RowRule& rule) {
    ValidatedRow out{.row = row, .family = rule.family, .set = set_of(row, rule), .predictions = {}};
    Case setup = describe(row, rule, out.is_assumed);
    for (const auto& [name, factory] : factories_) {
      auto executor = factory(setup.machine->machine, setup.machine->fabric, costs(rule.costs));
      Prediction prediction{.executor = name, .bottleneck = ""};
      double seconds = 0;
      const bool is_pair = row.op == "dispatch_combine" || row.op == "dispatch+combine";
      const bool has_combine = is_pair || row.op.starts_with("combine");
      if (is_pair) seconds += rule.pair_gap.value;
      if (is_pair || !has_combine) seconds += measure(*executor, setup, rule, false, prediction);
      if (has_combine) seconds += measure(*executor, setup, rule, true, prediction);
      prediction.value = in_unit(row, rule, setup, seconds);
      prediction.error = prediction.value / row.value - 1;
      out.predictions.push_back(std::move(prediction));
    }
    return out;
  }

 private:
  struct Site {
    Machine machine;
    Fabric fabric;
  };
  struct Load {
    Shape shape;
    Routing routing;
    FanOut fan_out;
  };
  struct Case {
    const Site* machine = nullptr;
    Shape shape;
    const Load* load = nullptr;
    std::string load_key;
    Program program;
    std::string type;  // of the rows that the unit counts
  };

  static RowSet set_of(const PublishedRow& row, const RowRule& rule) {
    const bool is_fit = !rule.fit.empty() && fits(rule.fit, row);
    if (rule.is_target) return is_fit ? RowSet::fit : RowSet::held_out;
    return is_fit ? RowSet::secondary_fit : RowSet::secondary;
  }

  const Costs& costs(const std::string& name) {
    auto it = costs_.find(name);
    if (it == costs_.end()) it = costs_.emplace(name, load_costs(plan_.costs_directory, name)).first;
    return it->second;
  }

  /// The machine of a row with as many domains as it used.
  const Site& site(const PublishedRow& row) {
    const auto rule = std::find_if(plan_.machines.begin(), plan_.machines.end(),
                                   [&](const MachineRule& m) { return fits(m.match, row); });
    if (rule == plan_.machines.end()) throw NotDescribed{"machine not described"};
    const Topology topology = topology_of(row);
    const std::string key =
        fmt::format("{} {} {}", rule - plan_.machines.begin(), topology.domain, row.ranks);
    if (auto it = sites_.find(key); it != sites_.end()) return *it->second;
    ConfigFile file = ConfigFile::load(rule->machine);
    for (const std::string& assignment : rule->set) file.set(assignment);
    Machine machine = read_machine(file.root(), 0);
    file.finish();
    use_domain(machine,
               topology.domain > 0 ? topology.domain : std::min(row.ranks, machine.ranks_per_node()));
    if (row.ranks % machine.ranks_per_node() != 0)
      throw NotDescribed{
          fmt::format("{} ranks do not fill domains of {}", row.ranks, machine.ranks_per_node())};
    machine.nodes = row.ranks / machine.ranks_per_node();
    machine.max_nodes = std::max(machine.max_nodes, machine.nodes);
    Fabric fabric = build_fabric(machine);
    return *sites_.emplace(key, std::make_unique<Site>(Site{std::move(machine), std::move(fabric)}))
                .first->second;
  }

  Case describe(const PublishedRow& row, const RowRule& rule, bool& is_assumed) {
    Case out;
    if (row.ranks == 0) throw NotDescribed{"number of ranks missing"};
    const int32_t tokens = row.tokens > 0 ? row.tokens : rule.tokens;
    if (tokens == 0) throw NotDescribed{"tokens missing"};
    out.machine = &site(row);
    const Grouping grouping = out.machine->machine.grouping();
    const bool is_combine = row.op.starts_with("combine");
    const std::string& stated = is_combine ? row.combine_type : row.dispatch_type;
    out.type = stated;
    if (stated.empty()) {
      is_assumed = true;
      out.type = is_combine ? rule.assumed_combine_type : rule.assumed_dispatch_type;
    }
    if (out.type.empty()) throw NotDescribed{"type of the rows missing"};
    const int32_t experts = row.experts > 0 ? row.experts : plan_.experts;
    const int32_t topk = row.topk > 0 ? row.topk : plan_.topk;
    const int32_t hidden = row.hidden > 0 ? row.hidden : plan_.hidden;
    // Experts spread evenly: the next number that the ranks divide (256 on 24 ranks: 264).
    out.shape =
        uniform_shape(row.ranks, static_cast<int32_t>(round_up(experts, row.ranks)), topk, tokens, hidden);
    out.shape.dispatch_type = out.type == "bf16" && !is_combine ? DType::bf16 : DType::fp8_e4m3;
    out.load_key = fmt::format("R{} E{} K{} T{} G{}/{} su{}", row.ranks, out.shape.experts, topk, tokens,
                               rule.gate_groups, rule.gate_group_topk, grouping.scaleup);
    out.load = &load(out, rule, grouping);
    out.program = program_of(row, rule, grouping);
    // DeepEP has one for each local expert, to each rank; what runs over UnifiedBus has none.
    if (rule.program == "low_latency" && !out.machine->machine.is_unified_bus())
      out.program.num_qps = out.shape.experts;
    return out;
  }

  const Load& load(const Case& setup, const RowRule& rule, const Grouping& grouping) {
    if (auto it = loads_.find(setup.load_key); it != loads_.end()) return *it->second;
    RoutingSpec spec;
    spec.seed = plan_.seed;
    if (rule.gate_groups > 0) {
      spec.kind = RoutingKind::group_limited;
      spec.groups = rule.gate_groups;
      spec.group_topk = rule.gate_group_topk;
    }
    const Routing drawn = Routing::generate(setup.shape, spec);
    std::vector<int32_t> table, rows;
    for (Rank r = 0; r < setup.shape.ranks; ++r) {
      drawn.rows(r, rows);
      table.insert(table.end(), rows.begin(), rows.end());
    }
    Routing routing = Routing::from_table(setup.shape, std::move(table));
    const FanOut fan = fan_out(setup.shape, routing, grouping);
    auto made = std::make_unique<Load>(Load{setup.shape, std::move(routing), fan});
    return *loads_.emplace(setup.load_key, std::move(made)).first->second;
  }

  static Program program_of(const PublishedRow& row, const RowRule& rule, const Grouping& grouping) {
    Program program;
    program.kind = rule.program == "v1"   ? ProgramKind::v1_dispatch
                   : rule.program == "v2" ? ProgramKind::dispatch
                                          : ProgramKind::low_latency_dispatch;
    program.mode = grouping.nodes() > 1 ? Mode::hybrid : Mode::direct;
    program.num_sms = row.sms > 0 ? row.sms : rule.sms;
    program.chunk_rows = rule.chunk_rows;
    program.rdma_only = rule.program == "low_latency" && !topology_of(row).uses_scale_up;
    program.cached = row.op.ends_with("_cached");
    program.expand = row.op.ends_with("_expand");
    return program;
  }

  static ProgramKind combine_of(ProgramKind dispatch) {
    return dispatch == ProgramKind::v1_dispatch            ? ProgramKind::v1_combine
           : dispatch == ProgramKind::low_latency_dispatch ? ProgramKind::low_latency_combine
                                                           : ProgramKind::combine;
  }

  const Plan& plan(const Case& setup, const Shape& shape, const Program& program) {
    const Grouping grouping = setup.machine->machine.grouping();
    const std::string key = fmt::format("{} H{} {} {}", setup.load_key, shape.hidden,
                                        to_string(shape.dispatch_type), to_string(program));
    if (auto it = plans_.find(key); it != plans_.end()) return *it->second;
    Plan made = build_plan({shape, setup.load->routing, program, grouping, false});
    return *plans_.emplace(key, std::make_unique<Plan>(std::move(made))).first->second;
  }

  double measure(Executor& executor, const Case& setup, const RowRule& rule, bool is_combine,
                 Prediction& prediction) {
    Program program = setup.program;
    Shape shape = setup.shape;
    if (is_combine) program.kind = combine_of(program.kind);
    if (!is_combine && rule.dispatch_hidden > 0) shape.hidden = rule.dispatch_hidden;
    double seconds = 0;
    if (!is_combine && rule.gather_bytes > 0 && setup.machine->machine.nodes > 1) {
      Program gather;
      gather.kind = ProgramKind::all_gather;
      gather.message = {rule.gather_bytes * setup.shape.max_tokens};
      seconds += executor.run(plan(setup, shape, gather)).total.value;
    }
    const Plan& measured = plan(setup, shape, program);
    const Trace trace = executor.run(measured);
    prediction.bottleneck += (prediction.bottleneck.empty() ? "" : ", ") + trace.bottleneck;
    return seconds + measured_time(trace, measured, rule).value;
  }

  static double in_unit(const PublishedRow& row, const RowRule& rule, const Case& setup, double seconds) {
    const auto value =
        value_in_unit({row, rule}, setup.load->fan_out, setup.type, setup.shape.max_tokens, Seconds{seconds});
    if (!value) throw NotDescribed{fmt::format("unit {} of {} rows not described", row.unit, setup.type)};
    return *value;
  }

  const ValidationPlan& plan_;
  const std::map<std::string, ExecutorFactory>& factories_;
  std::map<std::string, Costs> costs_;
  std::map<std::string, std::unique_ptr<Site>> sites_;
  std::map<std::string, std::unique_ptr<Load>> loads_;
  std::map<std::string, std::unique_ptr<Plan>> plans_;
};

ErrorSummary sum_up(std::vector<std::pair<double, std::string>> errors) {
  ErrorSummary out;
  out.count = static_cast<int64_t>(errors.size());
  if (errors.empty()) return out;
  std::sort(errors.begin(), errors.end());
  out.median_error = (errors[errors.size() / 2].first + errors[(errors.size() - 1) / 2].first) / 2;
  out.worst_error = errors.back().first;
  out.worst_id = errors.back().second;
  return out;
}

}  // namespace

void sum_up(ValidationResult& result) {
  using Errors = std::vector<std::pair<double, std::string>>;
  std::map<std::string, std::map<std::string, Errors>> sets;
  std::map<std::string, std::map<std::string, std::map<std::string, Errors>>> families;
  for (const ValidatedRow& row : result.rows)
    for (const Prediction& p : row.predictions) {
      const std::pair<double, std::string> error{std::abs(p.error), row.row.id};
      const std::string set(to_string(row.set));
      sets[p.executor][set].push_back(error);
      families[p.executor][row.family][set].push_back(error);
    }
  for (const auto& [executor, by_set] : sets)
    for (const auto& [set, errors] : by_set) result.summary[executor][set] = sum_up(errors);
  for (const auto& [executor, by_family] : families)
    for (const auto& [family, by_set] : by_family)
      for (const auto& [set, errors] : by_set) result.families[executor][family][set] = sum_up(errors);
}

ValidationResult run_validation(const ValidationPlan& plan,
                                const std::map<std::string, ExecutorFactory>& executors,
                                const RowMatch& only) {
  Runner runner(plan, executors);
  ValidationResult result;
  for (const PublishedRow& row : plan.rows) {
    if (!fits(only, row)) continue;
    const auto rule = std::find_if(plan.rules.begin(), plan.rules.end(),
                                   [&](const RowRule& r) { return fits(r.match, row); });
    if (rule == plan.rules.end()) {
      result.uncovered.push_back({row.id, "no rule fits"});
    } else if (!rule->skip.empty()) {
      result.uncovered.push_back({row.id, rule->skip});
    } else {
      try {
        result.rows.push_back(runner.run(row, *rule));
      } catch (const NotDescribed& e) {
        result.uncovered.push_back({row.id, e.reason});
      }
    }
  }
  sum_up(result);
  return result;
}

ExecutorFactory analytic_factory() {
  return [](const Machine& machine, const Fabric& fabric, const Costs& costs) -> std::unique_ptr<Executor> {
    return std::make_unique<AnalyticExecutor>(machine, fabric, costs);
  };
}

}  // namespace plumb

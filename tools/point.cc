// One experiment point: plan once, run every executor on it, compare.
#include "tools/point.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>

#include "model/analytic.h"
#include "model/compare.h"
#include "model/error.h"
#include "model/host.h"
#include "model/host_dump.h"
#include "model/validate.h"
#include "tools/output.h"
#include "tools/run_cuda.h"

#ifdef PLUMB_HAS_SIM
#include "tools/sim_run.h"
#endif

namespace plumb {
namespace {

bool needs_rows(const Experiment& e) {
  const auto& on = e.run.on;
  const bool moves = std::find(on.begin(), on.end(), "host") != on.end() ||
                     std::find(on.begin(), on.end(), "cuda") != on.end();
  return moves || !e.program.multiple_reduction;
}

struct Context {
  const Experiment& experiment;
  const Routing& routing;
  const Fabric& fabric;
  const PointOptions& options;
};

Trace run_host(const Context& c, const Plan& plan) {
  HostExecutor host({.shape = c.experiment.shape,
                     .routing = c.routing,
                     .seed = c.experiment.run.seed,
                     .expert = c.experiment.run.expert,
                     .values = {},
                     .options = c.experiment.run.host});
  Trace trace = host.run(plan);
  if (!c.options.dump_folder.empty()) dump(host.result(), c.options.dump_folder);
  return trace;
}

/// What an executor gave, and its object `sim` if it simulated.
struct Outcome {
  Trace trace;
  Json sim;
};

#ifdef PLUMB_HAS_SIM
Outcome run_sim(const Context& c, const Plan& plan) {
  SimulatedRun run = run_simulated(c.experiment, c.fabric, plan, c.options);
  return {std::move(run.trace), std::move(run.json)};
}
#else
Outcome run_sim(const Context&, const Plan&) {
  throw Error(ErrorKind::environment,
              "executor 'sim' is not in this build: it was configured with PLUMB_SIM=OFF");
}
#endif

Outcome run_executor(const Context& c, const Plan& plan, const std::string& name) {
  if (name == "host") return {run_host(c, plan), {}};
  if (name == "analytic")
    return {AnalyticExecutor(c.experiment.machine, c.fabric, c.experiment.machine.costs).run(plan), {}};
  if (name == "sim") return run_sim(c, plan);
  if (name == "cuda") return {run_cuda(c.experiment, c.routing, plan), {}};
  throw Error(ErrorKind::usage, fmt::format("'{}' is no executor; allowed: host, analytic, sim, cuda", name));
}

double microseconds_or_nan(Seconds s) { return s.value * 1e6; }

/// First begin and last end of a phase over the ranks; begin -1 when the trace has no spans of it.
struct Window {
  int64_t begin_ns = -1;
  int64_t end_ns = 0;
};

std::vector<Window> windows_of(const Trace& trace, size_t phases) {
  std::vector<Window> windows(phases);
  for (const Span& span : trace.spans) {
    if (span.phase < 0 || static_cast<size_t>(span.phase) >= phases) continue;
    Window& w = windows[static_cast<size_t>(span.phase)];
    w.begin_ns = w.begin_ns < 0 ? span.begin_ns : std::min(w.begin_ns, span.begin_ns);
    w.end_ns = std::max(w.end_ns, span.end_ns);
  }
  return windows;
}

/// Whether overlaid traffic brought the phase: make_plan() names those "backgroundN.".
bool is_background(const std::string& phase) {
  return phase.starts_with("background") && phase.find('.') != std::string::npos;
}

/// When the program itself and each background ended, and the background's rate over all ranks. Only of
/// executors with a clock and spans.
void add_background(Json& out, const Experiment& e, const Trace& trace) {
  if (e.background.empty() || trace.spans.empty() || trace.total.value <= 0) return;
  out["background"] = Json::array();
  for (const Json& phase : out["phases"]) {
    if (!is_background(phase["name"]) || !phase.contains("end_us")) continue;
    const double us = phase["end_us"].get<double>();
    out["background"].push_back({{"name", phase["name"]},
                                 {"end_us", us},
                                 {"gb_per_s", us > 0 ? phase["bytes"].get<double>() / us * 1e-3 : 0}});
  }
  std::map<Rank, int64_t> ends;  // of the program on each rank
  for (const Span& span : trace.spans) {
    if (is_background(out["phases"][static_cast<size_t>(span.phase)]["name"])) continue;
    int64_t& end = ends[span.rank];
    end = std::max(end, span.end_ns);
  }
  std::vector<int64_t> sorted;
  for (const auto& [rank, end] : ends) sorted.push_back(end);
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return;
  out["program_us"] = static_cast<double>(sorted.back()) * 1e-3;
  out["program_median_us"] = static_cast<double>(sorted[(sorted.size() - 1) / 2]) * 1e-3;
}

Json executor_json(const Plan& plan, const Trace& trace, const Ledger& expected) {
  Json phases = Json::array();
  const std::vector<Window> windows = windows_of(trace, plan.phases().size());
  for (size_t p = 0; p < plan.phases().size(); ++p) {
    const LedgerEntry moved = trace.ledger.total(static_cast<PhaseId>(p));
    const PhaseTime time = p < trace.phase_times.size() ? trace.phase_times[p] : PhaseTime{};
    phases.push_back({{"name", plan.phases()[p].name},
                      {"time_us", microseconds_or_nan(time.time)},
                      {"lower_us", microseconds_or_nan(time.lower)},
                      {"bottleneck", time.bottleneck},
                      {"messages", moved.messages},
                      {"bytes", moved.bytes}});
    if (windows[p].begin_ns < 0 || trace.total.value <= 0) continue;
    phases.back()["begin_us"] = static_cast<double>(windows[p].begin_ns) * 1e-3;
    phases.back()["end_us"] = static_cast<double>(windows[p].end_ns) * 1e-3;
  }
  const LedgerEntry total = trace.ledger.total();
  return {{"name", trace.header.executor},
          {"time_us", microseconds_or_nan(trace.total)},
          {"lower_us", microseconds_or_nan(trace.lower)},
          {"bottleneck", trace.bottleneck},
          {"clock", trace.header.clock},
          {"note", trace.header.note},
          {"messages", total.messages},
          {"bytes", total.bytes},
          {"ledger_ok", trace.ledger == expected},
          {"phases", phases}};
}

/// Published rows beside the runs: what each executor predicts in the row's own unit.
Json published_json(const Experiment& e, const Routing& routing, const Plan& plan,
                    const std::vector<Trace>& traces) {
  Json rows = Json::array();
  if (e.published.empty()) return rows;
  const ValidationPlan record =
      read_validation(e.validation_file.empty() ? shipped_rules() : e.validation_file);
  const FanOut fan = fan_out(e.shape, routing, e.grouping());
  for (const std::string& id : e.published) {
    const RuledRow ruled = find_row(record, id);
    const bool is_combine = ruled.row.op.starts_with("combine");
    std::string type = is_combine ? ruled.row.combine_type : ruled.row.dispatch_type;
    if (type.empty()) type = is_combine ? ruled.rule.assumed_combine_type : ruled.rule.assumed_dispatch_type;
    const auto stands_for = time_of_value(ruled, fan, type, e.shape.max_tokens);
    Json row = {{"id", id}, {"unit", ruled.row.unit}, {"published", ruled.row.value}};
    if (stands_for) row["published_us"] = microseconds(*stands_for);
    for (const Trace& trace : traces) {
      if (trace.total.value <= 0) continue;
      const Seconds time = measured_time(trace, plan, ruled.rule);
      const auto value = value_in_unit(ruled, fan, type, e.shape.max_tokens, time);
      if (!value) continue;
      row["predicted"][trace.header.executor] = *value;
      row["predicted_us"][trace.header.executor] = microseconds(time);
      row["error"][trace.header.executor] = *value / ruled.row.value - 1;
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

const Experiment& chosen_point(const std::vector<Experiment>& experiments, int32_t point) {
  const auto count = static_cast<int32_t>(experiments.size());
  if (point >= count || (point < 0 && count != 1))
    fail_usage("'{}' has {} points; choose one with --point 0 .. {}", experiments.front().name, count,
               count - 1);
  return experiments[static_cast<size_t>(std::max(point, 0))];
}

Json plan_json(const Plan& plan, int64_t max_ops) {
  const auto totals = account_phases(plan);
  int64_t messages = 0;
  int64_t bytes = 0;
  Json phases = Json::array();
  for (size_t p = 0; p < plan.phases().size(); ++p) {
    const Phase& phase = plan.phases()[p];
    messages += totals[p].messages;
    bytes += totals[p].bytes;
    phases.push_back({{"name", phase.name},
                      {"engine", to_string(phase.engine)},
                      {"sms", phase.sms},
                      {"row_bytes", phase.row_bytes},
                      {"messages", totals[p].messages},
                      {"bytes", totals[p].bytes}});
  }
  Json out = {{"schema", "plumb.plan/1"},
              {"digest", to_string(plan.digest())},
              {"program", to_string(plan.program())},
              {"ranks", plan.grouping().ranks},
              {"scaleup", plan.grouping().scaleup},
              {"ops_count", plan.ops().size()},
              {"messages", messages},
              {"bytes", bytes},
              {"phases", phases}};
  if (static_cast<int64_t>(plan.ops().size()) > max_ops) return out;
  const Ledger ledger = account(plan);
  out["ledger"] = Json::array();
  for (const LedgerEntry& e : ledger.entries())
    out["ledger"].push_back({{"phase", plan.phases()[e.phase].name},
                             {"src", e.src},
                             {"dst", e.dst},
                             {"messages", e.messages},
                             {"bytes", e.bytes}});
  out["ops"] = Json::array();
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<size_t>(id)];
    Json on = Json::array();
    for (const Dep& dep : plan.deps(id)) on.push_back({{"op", dep.op}, {"event", to_string(dep.on)}});
    out["ops"].push_back({{"kind", to_string(op.kind)},
                          {"link", to_string(op.link)},
                          {"class", op.traffic_class},
                          {"phase", plan.phases()[op.phase].name},
                          {"src", op.src},
                          {"dst", op.dst},
                          {"messages", op.messages},
                          {"rows", op.rows},
                          {"bytes", op.bytes},
                          {"on", on}});
  }
  return out;
}

Json waits_json(std::span<const Trace> traces) {
  constexpr int32_t kMaxPrinted = 128;  // of a matrix worth printing
  Json out = Json::object();
  for (const std::string_view executor : kExecutors) {
    const auto waits = wait_matrix(traces, executor);
    if (!waits) continue;
    Json& mine = out[std::string(executor)];
    for (Rank s = 0; s < waits->ranks() && waits->ranks() <= kMaxPrinted; ++s)
      for (Rank d = 0; d < waits->ranks(); ++d)
        mine["wait_us"][static_cast<size_t>(s)].push_back(std::max(0.0, microseconds(waits->at(s, d))));
    mine["findings"] = Json::array();
    for (const WaitFinding& finding : diagnose(*waits))
      mine["findings"].push_back({{"cause", to_string(finding.cause)},
                                  {"source", finding.source},
                                  {"destination", finding.destination},
                                  {"wait_us", microseconds(finding.wait)},
                                  {"typical_us", microseconds(finding.typical)}});
  }
  return out;
}

Experiment effective(Experiment e, Json* report) {
  const char* environment = std::getenv("PLUMB_SL");
  const EffectiveLevel level = effective_service_level(
      e.program, environment == nullptr ? std::nullopt : std::optional<std::string_view>(environment));
  if (!level.warning.empty()) std::fprintf(stderr, "plumb: warning: %s\n", level.warning.c_str());
  e.program.traffic_class = static_cast<uint8_t>(level.level);
  if (report != nullptr) *report = {{"value", level.level}, {"origin", level.origin}};
  return e;
}

void write_trace(const PointOptions& options, const Trace& trace) {
  if (options.trace_folder.empty()) return;
  std::ostringstream text;
  write_csv(text, trace);
  write_file(options.trace_folder + "/" + options.prefix + trace.header.executor + ".csv", text.str());
}

Json run_point(const Experiment& given, const PointOptions& options) {
  Json level;
  const Experiment e = effective(given, &level);
  const Routing routing = make_routing(e);
  const Plan plan = make_plan(e, routing, needs_rows(e));
  const Fabric fabric = build_fabric(e.machine);
  const Context context{e, routing, fabric, options};

  std::vector<Trace> traces;
  Json executors = Json::array();
  for (const std::string& name : e.run.on) {
    Outcome outcome = run_executor(context, plan, name);
    Trace& trace = outcome.trace;
    trace.header.machine = e.machine.name;
    trace.header.seed = e.routing.seed;
    executors.push_back(executor_json(plan, trace, account(plan)));
    add_background(executors.back(), e, trace);
    if (!outcome.sim.is_null()) executors.back()["sim"] = std::move(outcome.sim);
    write_trace(options, trace);
    traces.push_back(std::move(trace));
  }
  const std::string table = to_table(compare(traces, {.plan = &plan})) + waits_text(traces);
  return {{"label", e.label},
          {"digest", to_string(plan.digest())},
          {"program", to_string(plan.program())},
          {"machine", e.machine.name},
          {"ranks", plan.grouping().ranks},
          {"scaleup", plan.grouping().scaleup},
          {"seed", e.routing.seed},
          {"service_level", level},
          {"executors", executors},
          {"published", published_json(e, routing, plan, traces)},
          {"waits", waits_json(traces)},
          {"table", table}};
}

}  // namespace plumb

// plumb compare: lines up traces of one plan.
#include <cstdio>
#include <memory>
#include <sstream>

#include "model/compare.h"
#include "model/error.h"
#include "model/experiment.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  std::vector<std::string> traces;
  std::string experiment;
  std::vector<std::string> set;
  int32_t point = -1;
  double tolerance = 0;
  bool allow_incomplete = false;
  std::string csv;
  bool json = false;
};

Json to_json(const Comparison& comparison, const std::vector<Trace>& traces) {
  Json rows = Json::array();
  for (const ComparisonRow& row : comparison.rows) {
    Json out = {{"phase", row.phase}, {"messages", row.messages}, {"logical_bytes", row.logical}};
    if (row.wire) out["wire_bytes"] = {{"scale_up", row.wire->scale_up}, {"scale_out", row.wire->scale_out}};
    for (size_t i = 0; i < row.times.size(); ++i) {
      const ComparedTime& time = row.times[i];
      Json& cell = out["executors"][comparison.executors[i].name];
      cell = {{"p50_us", microseconds(time.p50)},
              {"max_us", microseconds(time.max)},
              {"bottleneck", time.bottleneck}};
      if (time.error) cell["error"] = *time.error;
    }
    rows.push_back(out);
  }
  return {{"schema", "plumb.compare/1"},
          {"digest", to_string(comparison.plan)},
          {"program", comparison.program},
          {"rows", rows},
          {"waits", waits_json(traces)}};
}

Table to_rows(const Comparison& comparison) {
  Table table({"phase", "executor", "p50_us", "max_us", "lower_us", "error", "messages", "logical_bytes",
               "bottleneck"});
  for (const ComparisonRow& row : comparison.rows)
    for (size_t i = 0; i < row.times.size(); ++i) {
      const ComparedTime& time = row.times[i];
      table.add({row.phase, comparison.executors[i].name, fmt::format("{}", microseconds(time.p50)),
                 fmt::format("{}", microseconds(time.max)), fmt::format("{}", microseconds(time.lower)),
                 time.error ? fmt::format("{}", *time.error) : "", std::to_string(row.messages),
                 std::to_string(row.logical), time.bottleneck});
    }
  return table;
}

int run(const Options& options) {
  if (options.experiment.empty() && (!options.set.empty() || options.point >= 0))
    fail_usage("--set and --point are of an experiment: name it with --experiment");
  std::vector<Trace> traces;
  for (const std::string& path : options.traces) {
    std::istringstream text(read_file(path));
    traces.push_back(read_csv(text, path));
  }
  CompareInput input{.allow_incomplete = options.allow_incomplete};
  std::optional<Plan> plan;
  if (!options.experiment.empty()) {
    const auto experiments = read_experiments(options.experiment, options.set);
    const Experiment e = effective(chosen_point(experiments, options.point), nullptr);
    plan = make_plan(e, make_routing(e), !e.program.multiple_reduction);
    input.plan = &*plan;
  }
  if (!options.csv.empty()) check_writable_file(options.csv);
  const Comparison comparison = compare(traces, input);
  if (!options.csv.empty()) write_file(options.csv, to_rows(comparison).csv());
  std::printf("%s", options.json ? (to_json(comparison, traces).dump(2) + "\n").c_str()
                                 : (to_table(comparison) + waits_text(traces)).c_str());
  if (options.tolerance <= 0) return 0;
  for (const ComparedTime& time : comparison.rows.back().times)
    if (time.error && std::abs(*time.error) > options.tolerance) {
      std::fprintf(stderr, "plumb: total times differ by more than %.1f %%\n", options.tolerance * 100);
      return static_cast<int>(ErrorKind::mismatch);
    }
  return 0;
}

}  // namespace

Action configure_compare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("traces", options->traces, "trace files (CSV) of one plan")->required();
  app.add_option("--experiment", options->experiment,
                 "its experiment: splits bytes by link and checks ledgers");
  app.add_option("--set", options->set, "override a key of the experiment")->take_all();
  app.add_option("--point", options->point, "which point of a sweep, from 0");
  app.add_option("--tolerance", options->tolerance, "exit with 1 when total times differ by more, e.g. 0.15")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--allow-incomplete", options->allow_incomplete, "take traces of runs that ended early");
  app.add_option("--csv", options->csv, "write phases and times to this file");
  app.add_flag("--json", options->json, "print as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

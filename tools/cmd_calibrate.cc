// plumb calibrate: fits the constants of an implementation to traces of an experiment, and writes a costs
// file.
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <sstream>

#include "model/calibrate.h"
#include "model/error.h"
#include "model/experiment.h"
#include "model/sm_knee.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string experiment;
  std::vector<std::string> traces;
  std::vector<std::string> set;
  std::vector<std::string> fit;
  std::vector<std::string> held_out;
  std::string start;
  std::string output;
  bool phases = false;
  bool json = false;
  double knee = 0;  // percent; 0: none asked for
  bool bend = false;
};

/// What the points refer to, at one place.
struct Measured {
  explicit Measured(Experiment e)
      : experiment(std::move(e)),
        plan(make_plan(experiment, make_routing(experiment), !experiment.program.multiple_reduction)),
        fabric(build_fabric(experiment.machine)) {}
  Experiment experiment;
  Plan plan;
  Fabric fabric;
};

/// NAME is a file beside the machine's others, PATH any file.
Costs start_costs(const Options& options, const std::vector<Experiment>& experiments) {
  const Experiment& first = experiments.front();
  if (!options.start.empty()) {
    const fs::path path(options.start);
    if (!path.has_parent_path() && path.extension().empty())
      return load_costs((fs::path(first.machine_file).parent_path() / "costs").string(), options.start);
    return load_costs(path.has_parent_path() ? path.parent_path().string() : ".", path.stem().string());
  }
  for (const Experiment& e : experiments)
    if (to_yaml(e.machine.costs, "") != to_yaml(first.machine.costs, ""))
      fail_usage(
          "points '{}' and '{}' have different costs ('{}', '{}'); choose the start of the fit with --start",
          first.label, e.label, first.machine.costs.name, e.machine.costs.name);
  return first.machine.costs;
}

/// A file may extend the start when that stands beside it with the same values; else it holds all values
/// itself.
CostsFileOptions file_options(const std::string& output, const Costs& start) {
  const fs::path path(output);
  if (path.extension() != ".yaml") fail_usage("a costs file must be called NAME.yaml, found '{}'", output);
  CostsFileOptions out{.name = path.stem().string(), .extends = ""};
  if (out.name == start.name)
    fail_usage("'{}' has the name of the start of the fit; choose another one", output);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (start.name.empty() || !fs::exists(folder / (start.name + ".yaml"))) return out;
  if (to_yaml(load_costs(folder.string(), start.name), "") == to_yaml(start, "")) out.extends = start.name;
  return out;
}

Json to_json(const CalibrationErrors& errors) {
  return {{"points", errors.count},
          {"rms", errors.rms},
          {"median", errors.median},
          {"worst", errors.worst},
          {"worst_label", errors.worst_label}};
}

Json to_json(const Calibration& c) {
  Json out = {{"schema", "plumb.calibrate/1"}, {"executor", c.executor},      {"traces", to_string(c.traces)},
              {"iterations", c.iterations},    {"parameters", Json::array()}, {"left_out", Json::array()},
              {"points", Json::array()}};
  for (const FittedParameter& p : c.parameters)
    out["parameters"].push_back({{"name", p.name},
                                 {"before", p.before},
                                 {"after", p.after},
                                 {"standard_error", p.standard_error},  // NaN becomes null
                                 {"at_bound", p.is_at_bound},
                                 {"determined", p.is_determined}});
  for (const LeftOutParameter& p : c.left_out)
    out["left_out"].push_back({{"name", p.name}, {"reason", p.reason}});
  for (const CalibratedPoint& p : c.points)
    out["points"].push_back({{"label", p.label},
                             {"set", p.is_held_out ? "held_out" : "fit"},
                             {"plan", to_string(p.plan)},
                             {"traces", to_string(p.traces)},
                             {"repeats", p.repeats},
                             {"measured_us", microseconds(p.measured)},
                             {"before_us", microseconds(p.before)},
                             {"after_us", microseconds(p.after)},
                             {"error", p.error}});
  out["before"] = to_json(c.before);
  out["fit"] = to_json(c.fit);
  out["held_out"] = to_json(c.held_out);
  return out;
}

/// In the unit that a costs file would use.
std::string value_text(const std::string& name, double value) {
  if (name == "sm.rates") return number(value * 1e-9) + " GB/s";
  if (name.ends_with("share") || name.ends_with("factor") || name.ends_with("rows")) return number(value);
  if (name.ends_with("sms")) return number(value) + " SMs";
  return number(value * 1e6) + " us";
}

std::string to_text(const Calibration& c) {
  Table points({"point", "set", "repeats", "measured us", "before us", "after us", "error"});
  for (const CalibratedPoint& p : c.points)
    points.add({p.label, p.is_held_out ? "held out" : "fit", std::to_string(p.repeats),
                number(microseconds(p.measured)), number(microseconds(p.before)),
                number(microseconds(p.after)), percent(p.error)});
  Table errors({"errors", "points", "rms", "median", "worst", "worst point"});
  const auto size = [](double fraction) { return fmt::format("{:.2f} %", fraction * 100); };
  const auto add = [&](const char* name, const CalibrationErrors& e) {
    if (e.count > 0)
      errors.add(
          {name, std::to_string(e.count), size(e.rms), size(e.median), percent(e.worst), e.worst_label});
  };
  add("before, all", c.before);
  add("fit", c.fit);
  add("held out", c.held_out);
  Table parameters({"parameter", "before", "after", "standard error", "note"});
  for (const FittedParameter& p : c.parameters)
    parameters.add({p.name, value_text(p.name, p.before), value_text(p.name, p.after),
                    std::isfinite(p.standard_error) ? value_text(p.name, p.standard_error) : "-",
                    !p.is_determined ? "not determined"
                    : p.is_at_bound  ? "at its bound"
                                     : ""});
  std::string out = parameters.text() + "\n" + points.text() + "\n" + errors.text();
  if (!c.left_out.empty()) out += "\nnot fitted:\n";
  for (const LeftOutParameter& p : c.left_out) out += "  " + p.name + ": " + p.reason + "\n";
  return out;
}

/// Where a sweep's time bends: `share` above its best time, or (0) where its branch and its plateau meet.
double knee_by(std::span<const SweepTime> sweep, double share) {
  return share > 0 ? knee_of(sweep, share) : bend_of(sweep).sms;
}

Json knees_json(const std::vector<SmSweep>& sweeps, double share) {
  Json out = Json::array();
  for (const SmSweep& sweep : sweeps) {
    Json knee = {{"sweep", sweep.label}};
    if (share > 0) knee["share"] = share;
    knee["points"] = sweep.measured.size();
    knee["measured_sms"] = knee_by(sweep.measured, share);
    knee["predicted_sms"] = knee_by(sweep.predicted, share);
    if (share == 0) {
      knee["measured_misfit"] = bend_of(sweep.measured).misfit;
      knee["predicted_misfit"] = bend_of(sweep.predicted).misfit;
    }
    out.push_back(std::move(knee));
  }
  return out;
}

std::string knees_text(const std::vector<SmSweep>& sweeps, double share) {
  constexpr double kPromised = 2;  // SMs
  const bool is_bend = share == 0;
  Table table({is_bend ? "bends of sweeps" : "knees of sweeps", "points", "measured SMs", "predicted SMs",
               "difference"});
  int32_t kept = 0;
  for (const SmSweep& sweep : sweeps) {
    const double measured = knee_by(sweep.measured, share);
    const double predicted = knee_by(sweep.predicted, share);
    kept += std::abs(predicted - measured) <= kPromised;
    table.add({sweep.label, std::to_string(sweep.measured.size()), fmt::format("{:.1f}", measured),
               fmt::format("{:.1f}", predicted), fmt::format("{:+.1f}", predicted - measured)});
  }
  return table.text() + fmt::format("within {} SMs: {} of {} sweeps ({})\n", kPromised, kept, sweeps.size(),
                                    is_bend ? "branch a + b / SMs meets plateau"
                                            : number(share * 100) + " % above the best time");
}

int run(const Options& options) {
  check_writable_file(options.output);
  if (!(options.knee >= 0 && options.knee <= 100))
    fail_usage("--knee is {}; allowed: 0 .. 100 percent above the best time", options.knee);
  std::vector<Experiment> experiments = read_experiments(options.experiment, options.set);
  for (Experiment& e : experiments) e = effective(e, nullptr);
  const Costs start = start_costs(options, experiments);
  const CostsFileOptions file = file_options(options.output, start);

  std::deque<Measured> measured;  // points hold references
  std::vector<CalibrationPoint> points;
  for (const Experiment& e : experiments) {
    const Measured& m = measured.emplace_back(e);
    points.push_back({.label = e.label.empty() ? "all" : e.label,
                      .plan = m.plan,
                      .machine = m.experiment.machine,
                      .fabric = m.fabric,
                      .traces = {}});
  }
  for (const std::string& path : options.traces) {
    std::istringstream text(read_file(path));
    assign(points, read_csv(text, path), path);
  }
  CalibrationOptions how{.fit = options.fit, .held_out = std::nullopt, .use_phases = options.phases};
  if (options.held_out == std::vector<std::string>{"none"})
    how.held_out.emplace();
  else if (!options.held_out.empty())
    how.held_out = options.held_out;
  const Calibration result = calibrate(points, start, how);
  write_file(options.output, to_yaml(result, file));

  const double share = options.knee / 100;
  const bool asks_knees = options.knee > 0 || options.bend;
  const auto sweeps = asks_knees ? sm_sweeps(experiments, result.points) : std::vector<SmSweep>();
  if (options.json) {
    Json out = to_json(result);
    if (options.knee > 0) out["knees"] = knees_json(sweeps, share);
    if (options.bend) out["bends"] = knees_json(sweeps, 0);
    std::printf("%s\n", out.dump(2).c_str());
    return 0;
  }
  const size_t without = points.size() - result.points.size();
  std::printf("%s\n", to_text(result).c_str());
  if (options.knee > 0) std::printf("%s\n", knees_text(sweeps, share).c_str());
  if (options.bend) std::printf("%s\n", knees_text(sweeps, 0).c_str());
  if (without > 0) std::printf("%zu of %zu points have no trace.\n", without, points.size());
  std::printf("%s: costs '%s'%s\n", options.output.c_str(), file.name.c_str(),
              file.extends.empty() ? ", all values" : (", extends '" + file.extends + "'").c_str());
  return 0;
}

}  // namespace

Action configure_calibrate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("experiment", options->experiment, "experiment file; its points are what was measured")
      ->required();
  app.add_option("--trace", options->traces, "trace files (CSV); each belongs to the point whose plan it ran")
      ->required();
  app.add_option("-o,--out", options->output, "costs file to write, NAME.yaml")->required();
  app.add_option("--fit", options->fit,
                 "parameters, e.g. scale_up_share,fixed.0.time; default: what the points tell")
      ->delimiter(',');
  app.add_option("--holdout", options->held_out,
                 "points kept out of the fit, or none; default: every second one")
      ->delimiter(',');
  app.add_option("--start", options->start,
                 "costs to start from, a name or a file; default: the experiment's");
  app.add_option("--set", options->set, "override a key of the experiment, e.g. shape.topk=4")->take_all();
  app.add_flag("--phases", options->phases, "fit to the times of phases too");
  app.add_option("--knee", options->knee,
                 "print the knee of each sweep of SMs: where it is within PERCENT of its best time");
  app.add_flag("--bend", options->bend,
               "print the bend of each sweep of SMs: where its branch a + b / SMs meets its plateau");
  app.add_flag("--json", options->json, "print the report as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

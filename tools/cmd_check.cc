// plumb check: validates files by their `schema` and prints all problems of all of them.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "model/error.h"
#include "model/experiment.h"
#include "model/machine.h"
#include "model/validate.h"
#include "tools/command.h"

#ifdef PLUMB_HAS_SIM
#include "sim/flow_efficiency.h"
#include "sim/sim_executor.h"
#endif

namespace plumb {
namespace {

std::string schema_of(const std::string& path) {
  ConfigFile file = ConfigFile::load(path);
  ConfigMap root = file.root();
  const std::string schema = root.text("schema");
  for (const std::string& key : root.keys()) root.ignore(key);
  file.finish();
  return schema;
}

#ifdef PLUMB_HAS_SIM
/// Points that the simulator would refuse for their options. Throws Error(usage) naming all.
void check_simulated(const std::vector<Experiment>& points) {
  std::string problems;
  for (const Experiment& point : points) {
    if (point.sim.events.empty() && !point.sim.lanes && !point.machine.lanes) continue;
    try {
      sim::check_sim_options(point.machine, build_fabric(point.machine), point.sim, point.shape.ranks);
    } catch (const Error& error) {
      const std::string label = point.label.empty() ? "" : "point " + point.label + ": ";
      problems += (problems.empty() ? "" : "\n") + label + error.what();
    }
  }
  if (!problems.empty()) throw Error(ErrorKind::usage, problems);
}

void check_flow_efficiency(const std::string& path) { sim::FlowEfficiency::load(path); }
#else
void check_simulated(const std::vector<Experiment>&) {}

void check_flow_efficiency(const std::string&) {
  throw Error(ErrorKind::environment,
              "schema plumb.flow_efficiency/1 cannot be checked: this build was configured with "
              "PLUMB_SIM=OFF");
}
#endif

void check_file(const std::string& path) {
  const std::string schema = schema_of(path);
  if (schema == "plumb.experiment/1") {
    check_simulated(read_experiments(path));
  } else if (schema == "plumb.machine/1") {
    build_fabric(read_machine(path));
  } else if (schema == "plumb.costs/1") {
    const std::filesystem::path file(path);
    load_costs(file.has_parent_path() ? file.parent_path().string() : ".", file.stem().string());
  } else if (schema == "plumb.validation/1") {
    read_validation(path);
  } else if (schema == "plumb.flow_efficiency/1") {
    check_flow_efficiency(path);
  } else {
    ConfigFile file = ConfigFile::load(path);
    ConfigMap root = file.root();
    root.fail("schema", fmt::format("'schema' is '{}', allowed: plumb.experiment/1, plumb.machine/1, "
                                    "plumb.costs/1, plumb.validation/1, plumb.flow_efficiency/1",
                                    schema));
    for (const std::string& key : root.keys()) root.ignore(key);
    file.finish();
  }
}

int run(const std::vector<std::string>& files) {
  std::vector<Problem> problems;
  std::string others;
  for (const std::string& path : files) {
    try {
      check_file(path);
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    } catch (const Error& error) {
      others += fmt::format("{}: error: {}\n", path, error.what());
    }
  }
  if (!problems.empty()) std::fprintf(stderr, "%s\n", render(problems).c_str());
  std::fprintf(stderr, "%s", others.c_str());
  if (!problems.empty() || !others.empty()) return static_cast<int>(ErrorKind::usage);
  std::printf("%zu files ok\n", files.size());
  return 0;
}

}  // namespace

Action configure_check(CLI::App& app) {
  auto files = std::make_shared<std::vector<std::string>>();
  app.add_option("files", *files, "experiment, machine, costs, validation or flow efficiency files")
      ->required();
  return [files] { return run(*files); };
}

}  // namespace plumb

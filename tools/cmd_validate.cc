// plumb validate: predicts every row of the public record that a machine file describes.
#include <cstdio>
#include <memory>

#include "model/error.h"
#include "model/validate.h"
#include "tools/command.h"
#include "tools/output.h"

#ifdef PLUMB_HAS_SIM
#include "sim/sim_executor.h"
#endif

namespace plumb {
namespace {

struct Options {
  std::vector<std::string> on = {"analytic"};
  std::string rules;  // "" = those of the checkout, else the installed ones
  std::string output;
  std::string csv;
  bool json = false;
  bool summary = false;
};

ExecutorFactory sim_factory() {
#ifdef PLUMB_HAS_SIM
  return [](const Machine& machine, const Fabric& fabric, const Costs& costs) {
    return std::make_unique<sim::SimExecutor>(machine, fabric, costs, SimOptions{});
  };
#else
  throw Error(ErrorKind::environment,
              "executor 'sim' is not in this build: it was configured with PLUMB_SIM=OFF");
#endif
}

int run(const Options& options) {
  if (!options.output.empty()) check_writable_file(options.output);
  if (!options.csv.empty()) check_writable_file(options.csv);
  std::map<std::string, ExecutorFactory> executors;
  for (const std::string& name : options.on) {
    if (name == "analytic")
      executors[name] = analytic_factory();
    else if (name == "sim")
      executors[name] = sim_factory();
    else
      fail_usage("executor '{}' cannot validate; allowed: analytic, sim", name);
  }
  const ValidationResult result =
      run_validation(read_validation(options.rules.empty() ? shipped_rules() : options.rules), executors);
  if (!options.csv.empty()) write_file(options.csv, to_csv(result));
  const std::string text = options.json ? to_json(result) : to_table(result, !options.summary);
  if (options.output.empty())
    std::fwrite(text.data(), 1, text.size(), stdout);
  else
    write_file(options.output, text);
  return 0;
}

}  // namespace

Action configure_validate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--on", options->on, "executors")->delimiter(',');
  app.add_option("--rules", options->rules, "rules and records, docs/validation.md");
  app.add_option("-o,--out", options->output, "write to this file");
  app.add_option("--csv", options->csv, "write the rows to this file");
  app.add_flag("--json", options->json, "print as JSON");
  app.add_flag("--summary", options->summary, "families and sets only, no rows");
  return [options] { return run(*options); };
}

}  // namespace plumb

// plumb plan: builds and prints a plan.
#include <cstdio>
#include <memory>

#include "model/error.h"
#include "tools/command.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  std::string experiment;
  std::vector<std::string> set;
  bool text = false;
  bool ledger = false;
  bool dot = false;
  bool json = false;
  int64_t max_ops = 100000;
};

std::string ledger_table(const Plan& plan) {
  const Ledger ledger = account(plan);
  Table table({"phase", "source", "destination", "messages", "bytes"});
  for (const LedgerEntry& e : ledger.entries())
    table.add({plan.phases()[e.phase].name, std::to_string(e.src), std::to_string(e.dst),
               std::to_string(e.messages), std::to_string(e.bytes)});
  return table.text();
}

std::string summary(const Plan& plan) {
  const Ledger ledger = account(plan);
  Table table({"phase", "engine", "SMs", "messages", "bytes"});
  for (size_t p = 0; p < plan.phases().size(); ++p) {
    const LedgerEntry moved = ledger.total(static_cast<PhaseId>(p));
    table.add({plan.phases()[p].name, std::string(to_string(plan.phases()[p].engine)),
               std::to_string(plan.phases()[p].sms), std::to_string(moved.messages),
               std::to_string(moved.bytes)});
  }
  return fmt::format("program {}\nranks {} in domains of {}\nops {}, {} of memory\ndigest {}\n\n{}",
                     to_string(plan.program()), plan.grouping().ranks, plan.grouping().scaleup,
                     plan.ops().size(), to_string(Bytes{plan.memory_bytes()}), to_string(plan.digest()),
                     table.text());
}

int run(const Options& options) {
  const auto experiments = read_experiments(options.experiment, options.set);
  if (experiments.size() != 1)
    fail_usage("'{}' has {} points, a plan is of one; choose with --set", options.experiment,
               experiments.size());
  const Experiment& e = experiments.front();
  const Plan plan = make_plan(e, make_routing(e), !e.program.multiple_reduction);
  std::string out;
  if (options.json)
    out = plan_json(plan, options.max_ops).dump(2) + "\n";
  else if (options.dot)
    out = to_dot(plan);
  else if (options.text)
    out = to_text(plan);
  else if (options.ledger)
    out = ledger_table(plan);
  else
    out = summary(plan);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

}  // namespace

Action configure_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("experiment", options->experiment, "experiment file")->required();
  app.add_option("--set", options->set, "override a key, e.g. shape.topk=4")->take_all();
  app.add_flag("--text", options->text, "one line per op");
  app.add_flag("--ledger", options->ledger, "messages and bytes per phase, source and destination");
  app.add_flag("--dot", options->dot, "Graphviz");
  app.add_flag("--json", options->json, "digest, phases, ledger and ops as JSON");
  app.add_option("--max-ops", options->max_ops, "leave the ops out of the JSON of larger plans");
  return [options] { return run(*options); };
}

}  // namespace plumb

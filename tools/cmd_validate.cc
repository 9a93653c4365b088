// plumb validate: predicts every row of the public record that a machine file describes.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "model/error.h"
#include "model/validate.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/point.h"
#include "tools/process_pool.h"

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
  std::string only = "*";  // pattern of ids
  int32_t jobs = 0;
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

constexpr size_t kRowsPerPiece = 12;  // neighbours share machines, whose fabrics are built once a process

/// What some rows gave, by id, in the process that predicted them.
std::string rows_text(const ValidationResult& result) {
  Json out = Json::object();
  for (const ValidatedRow& row : result.rows) {
    Json& at = out[row.row.id];
    at = {{"family", row.family}, {"set", static_cast<int>(row.set)}, {"assumed", row.is_assumed}};
    for (const Prediction& p : row.predictions)
      at["predictions"].push_back({p.executor, p.value, p.error, p.bottleneck});
  }
  for (const UncoveredRow& row : result.uncovered) out[row.id] = {{"uncovered", row.reason}};
  return out.dump();
}

void add_row(const PublishedRow& row, const Json& part, ValidationResult& result) {
  if (part.contains("uncovered")) {
    result.uncovered.push_back({row.id, part["uncovered"]});
    return;
  }
  ValidatedRow out{.row = row,
                   .family = part["family"],
                   .set = static_cast<RowSet>(part["set"].get<int>()),
                   .is_assumed = part["assumed"],
                   .predictions = {}};
  for (const Json& p : part["predictions"]) out.predictions.push_back({p[0], p[1], p[2], p[3]});
  result.rows.push_back(std::move(out));
}

/// Rows on all cores, put together in their order.
ValidationResult validate_rows(const ValidationPlan& plan,
                               const std::map<std::string, ExecutorFactory>& executors,
                               const Options& options) {
  std::vector<const PublishedRow*> rows;
  for (const PublishedRow& row : plan.rows)
    if (fits({{"id", {options.only}}}, row)) rows.push_back(&row);
  if (rows.empty()) fail_usage("--only '{}': no row of the record has such an id", options.only);
  const size_t pieces = (rows.size() + kRowsPerPiece - 1) / kRowsPerPiece;
  const auto parts = run_pieces(static_cast<int32_t>(pieces), options.jobs, "validate", [&](int32_t piece) {
    RowMatch ids;
    const size_t first = static_cast<size_t>(piece) * kRowsPerPiece;
    for (size_t i = first; i < std::min(rows.size(), first + kRowsPerPiece); ++i)
      ids["id"].push_back(rows[i]->id);
    return rows_text(run_validation(plan, executors, ids));
  });
  ValidationResult result;
  for (size_t i = 0; i < pieces; ++i) {
    if (!parts[i].error.empty()) throw Error(static_cast<ErrorKind>(parts[i].exit_code), parts[i].error);
    const Json part = Json::parse(parts[i].text);
    for (size_t k = i * kRowsPerPiece; k < std::min(rows.size(), (i + 1) * kRowsPerPiece); ++k)
      add_row(*rows[k], part.at(rows[k]->id), result);
  }
  sum_up(result);
  return result;
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
  const ValidationPlan plan = read_validation(options.rules.empty() ? shipped_rules() : options.rules);
  const ValidationResult result = validate_rows(plan, executors, options);
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
  app.add_option("--on", options->on, "executors: analytic, sim")->delimiter(',');
  app.add_option("--rules", options->rules, "rules and records, docs/validation.md");
  app.add_option("--only", options->only, "rows whose id fits this pattern, e.g. 'deepep-v1-ll*'");
  app.add_option("--jobs", options->jobs, "rows at a time, 0 = one per core");
  app.add_option("-o,--out", options->output, "write to this file");
  app.add_option("--csv", options->csv, "write the rows to this file");
  app.add_flag("--json", options->json, "print as JSON");
  app.add_flag("--summary", options->summary, "families and sets only, no rows");
  return [options] { return run(*options); };
}

}  // namespace plumb

// Reports of a validation: text tables and JSON.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/validate.h"

namespace plumb {
namespace {

void add_summary(std::string& out, std::string_view name, std::string_view set, const ErrorSummary& s) {
  out += fmt::format("{:<44} {:<13} {:>5} {:>9.1f} {:>8.1f}  {}\n", name, set, s.count, 100 * s.median_error,
                     100 * s.worst_error, s.worst_id);
}

nlohmann::ordered_json json(const ErrorSummary& s) {
  return {{"count", s.count},
          {"median_error", s.median_error},
          {"worst_error", s.worst_error},
          {"worst_id", s.worst_id}};
}

nlohmann::ordered_json json(const std::map<std::string, ErrorSummary>& sets) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [set, summary] : sets) out[set] = json(summary);
  return out;
}

void add_rows(std::string& out, const ValidationResult& result) {
  out += fmt::format("\n{:<72} {:<10} {:>10} {:>10} {:>8}  {:<13} {}\n", "row", "executor", "published",
                     "predicted", "error %", "set", "unit, bottleneck");
  for (const ValidatedRow& row : result.rows)
    for (const Prediction& p : row.predictions)
      out += fmt::format("{:<72} {:<10} {:>10.1f} {:>10.1f} {:>+8.1f}  {:<13} {}{}, {}\n", row.row.id,
                         p.executor, row.row.value, p.value, 100 * p.error, to_string(row.set), row.row.unit,
                         row.is_assumed ? " (type assumed)" : "", p.bottleneck);
}

}  // namespace

std::string to_table(const ValidationResult& result, bool with_rows) {
  std::string out;
  for (const auto& [executor, sets] : result.summary) {
    out += fmt::format("{}\n{:<44} {:<13} {:>5} {:>9} {:>8}  {}\n", executor, "family", "set", "rows",
                       "median %", "worst %", "worst row");
    for (const auto& [set, summary] : sets)
      add_summary(out, set.starts_with("secondary") ? "all other families" : "all target families", set,
                  summary);
    for (const auto& [family, by_set] : result.families.at(executor))
      for (const auto& [set, summary] : by_set) add_summary(out, family, set, summary);
  }
  if (with_rows) add_rows(out, result);
  std::map<std::string, int64_t> reasons;
  for (const UncoveredRow& row : result.uncovered) ++reasons[row.reason];
  out += fmt::format("\n{} rows predicted, {} not covered\n", result.rows.size(), result.uncovered.size());
  for (const auto& [reason, count] : reasons) out += fmt::format("{:>5} {}\n", count, reason);
  return out;
}

std::string to_json(const ValidationResult& result) {
  nlohmann::ordered_json out;
  out["summary"] = nlohmann::ordered_json::object();
  for (const auto& [executor, sets] : result.summary) out["summary"][executor] = json(sets);
  out["families"] = nlohmann::ordered_json::object();
  for (const auto& [executor, families] : result.families)
    for (const auto& [family, sets] : families) out["families"][executor][family] = json(sets);
  out["rows"] = nlohmann::ordered_json::array();
  for (const ValidatedRow& row : result.rows) {
    nlohmann::ordered_json entry = {{"id", row.row.id},         {"system", row.row.system},
                                    {"family", row.family},     {"set", std::string(to_string(row.set))},
                                    {"unit", row.row.unit},     {"published", row.row.value},
                                    {"source", row.row.source}, {"type_assumed", row.is_assumed}};
    if (!row.predictions.empty()) {  // of the first executor, for readers of one
      entry["predicted"] = row.predictions.front().value;
      entry["error"] = row.predictions.front().error;
    }
    for (const Prediction& p : row.predictions)
      entry["predictions"][p.executor] = {
          {"value", p.value}, {"error", p.error}, {"bottleneck", p.bottleneck}};
    out["rows"].push_back(std::move(entry));
  }
  out["uncovered"] = nlohmann::ordered_json::array();
  for (const UncoveredRow& row : result.uncovered)
    out["uncovered"].push_back({{"id", row.id}, {"reason", row.reason}});
  return out.dump(2) + "\n";
}

}  // namespace plumb

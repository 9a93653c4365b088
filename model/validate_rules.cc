// Reads experiments/validate.yaml and decides which rule a row falls under.
#include <algorithm>
#include <array>
#include <filesystem>

#include "model/error.h"
#include "model/validate.h"

namespace plumb {
namespace {

constexpr Range<int64_t> kCount{.min = 0, .max = 1 << 24};
constexpr std::array<std::string_view, 12> kFields = {"id", "system",   "mode",   "arch", "gpu",      "nic",
                                                      "op", "topology", "source", "note", "quantity", "seen"};

std::string field(const PublishedRow& row, std::string_view name) {
  if (name == "id") return row.id;
  if (name == "system") return row.system;
  if (name == "mode") return row.mode;
  if (name == "arch") return row.arch;
  if (name == "gpu") return row.gpu;
  if (name == "nic") return row.nic;
  if (name == "op") return row.op;
  if (name == "topology") return row.topology;
  if (name == "source") return row.source;
  if (name == "note") return row.note;
  if (name == "quantity") return row.quantity;
  if (name == "seen") return row.seen;
  fail_usage("rows have no field '{}'; allowed: {}", name, fmt::join(kFields, ", "));
}

RowMatch read_match(ConfigMap map) {
  RowMatch match;
  for (const std::string& key : map.keys()) {
    if (std::find(kFields.begin(), kFields.end(), key) == kFields.end()) {
      map.ignore(key);
      map.fail(key, fmt::format("rows have no field '{}'; allowed: {}", key, fmt::join(kFields, ", ")));
      continue;
    }
    match[key] = map.text_list(key, {});
  }
  return match;
}

RowRule read_rule(ConfigMap map) {
  RowRule rule;
  rule.match = read_match(map.map("match"));
  rule.skip = map.text("skip", "");
  if (!rule.skip.empty()) return rule;
  rule.family = map.text("family");
  rule.is_target = map.flag("target", false);
  rule.program =
      map.choice<std::string>("program", {{"v1", "v1"}, {"v2", "v2"}, {"low_latency", "low_latency"}});
  rule.costs = map.text("costs");
  if (auto fit = map.optional_map("fit")) rule.fit = read_match(*fit);
  rule.without_phases = map.text_list("without_phases", {});
  ConfigMap counted = map.map("counted_bytes");
  for (const std::string& type : counted.keys()) rule.counted_bytes[type] = counted.integer(type, kCount);
  if (auto types = map.optional_map("assumed_types")) {
    rule.assumed_dispatch_type = types->text("dispatch");
    rule.assumed_combine_type = types->text("combine");
  }
  const auto count = [&](std::string_view key, int64_t fallback) {
    return static_cast<int32_t>(map.integer(key, kCount, fallback));
  };
  rule.tokens = count("tokens", 0);
  rule.sms = count("sms", 0);
  rule.chunk_rows = count("chunk_rows", 6);
  rule.dispatch_hidden = count("dispatch_hidden", 0);
  if (auto gate = map.optional_map("gate")) {
    rule.gate_groups = static_cast<int32_t>(gate->integer("groups", {.min = 1, .max = 1 << 16}));
    rule.gate_group_topk = static_cast<int32_t>(gate->integer("group_topk", {.min = 1, .max = 1 << 16}));
  }
  rule.gather_bytes = count("gather_bytes", 0);
  rule.pair_gap = map.quantity<Seconds>("pair_gap", {.min = {0}, .max = {1}}, Seconds{});
  return rule;
}

}  // namespace

std::string_view to_string(RowSet set) {
  constexpr std::array<std::string_view, 4> kNames = {"fit", "held_out", "secondary", "secondary_fit"};
  return kNames[static_cast<size_t>(set)];
}

bool fits_pattern(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  for (size_t at = star; at <= text.size(); ++at)
    if (fits_pattern(pattern, text.substr(at))) return true;
  return false;
}

bool fits(const RowMatch& match, const PublishedRow& row) {
  return std::all_of(match.begin(), match.end(), [&](const auto& entry) {
    const std::string text = field(row, entry.first);
    return std::any_of(entry.second.begin(), entry.second.end(),
                       [&](const std::string& pattern) { return fits_pattern(pattern, text); });
  });
}

ValidationPlan read_validation(const std::string& path) {
  const std::filesystem::path here = std::filesystem::path(path).parent_path();
  ConfigFile file = ConfigFile::load(path);
  ConfigMap root = file.root();
  root.schema("plumb.validation/1");
  ValidationPlan plan;
  plan.seed = static_cast<uint64_t>(root.integer("seed", {.min = 0, .max = INT64_MAX}, 1));
  plan.experts = static_cast<int32_t>(root.integer("experts", kCount, plan.experts));
  plan.topk = static_cast<int32_t>(root.integer("topk", kCount, plan.topk));
  plan.hidden = static_cast<int32_t>(root.integer("hidden", kCount, plan.hidden));
  plan.costs_directory = (here / root.text("costs")).string();
  const std::vector<std::string> records = root.text_list("records", {});
  ConfigList machines = root.list("machines");
  for (size_t i = 0; i < machines.size(); ++i) {
    ConfigMap entry = machines.map(i);
    plan.machines.push_back({.match = read_match(entry.map("match")),
                             .machine = (here / entry.text("machine")).string(),
                             .set = entry.text_list("set", {})});
  }
  ConfigList rules = root.list("rules");
  for (size_t i = 0; i < rules.size(); ++i) plan.rules.push_back(read_rule(rules.map(i)));
  file.finish();
  for (const std::string& record : records)
    for (PublishedRow& row : read_published((here / record).string())) plan.rows.push_back(std::move(row));
  return plan;
}

}  // namespace plumb

// Reads and checks the lanes of a machine file, and settles which service level traffic gets.
#include "model/lanes.h"

#include <algorithm>
#include <charconv>

namespace plumb {

namespace {

constexpr int32_t kMaxLanes = 16;    // UnifiedBus; InfiniBand has 15
constexpr int32_t kMaxEntries = 64;  // of an arbitration table

/// Clears is_sound after a problem, which an unserved lane would only repeat.
std::vector<LaneWeight> read_table(ConfigMap& map, std::string_view key, int32_t count, bool& is_sound) {
  std::vector<LaneWeight> result;
  auto list = map.optional_list(key);
  if (!list) return result;
  if (list->size() > kMaxEntries)
    map.fail(key, fmt::format("{} has {} entries, at most {} are allowed", key, list->size(), kMaxEntries));
  for (size_t i = 0; i < list->size(); ++i) {
    ConfigMap entry = list->map(i);
    LaneWeight weight;
    weight.lane = static_cast<int32_t>(entry.has("lane") ? entry.integer("lane", {0, count - 1}, -1)
                                                         : entry.integer("lane", {0, count - 1}));
    weight.weight = static_cast<int32_t>(entry.has("weight") ? entry.integer("weight", {0, 255}, -1)
                                                             : entry.integer("weight", {0, 255}));
    is_sound = is_sound && entry.has("lane") && entry.has("weight") && weight.lane >= 0 && weight.weight >= 0;
    result.push_back(weight);
  }
  return result;
}

void check_served(ConfigMap& map, const Lanes& lanes) {
  for (int32_t level = 0; level < kServiceLevels; ++level) {
    auto serves = [lane = lanes.lane(level)](const LaneWeight& w) { return w.lane == lane && w.weight > 0; };
    if (std::any_of(lanes.high.begin(), lanes.high.end(), serves)) continue;
    if (std::any_of(lanes.low.begin(), lanes.low.end(), serves)) continue;
    map.fail("sl_to_vl",
             fmt::format("service level {} uses lane {}, which has no weight above 0 in high or low: its "
                         "traffic would never be sent",
                         level, lanes.lane(level)));
    return;
  }
}

}  // namespace

Lanes read_lanes(ConfigMap map) {
  Lanes lanes;
  lanes.count = std::max<int32_t>(1, static_cast<int32_t>(map.integer("count", {1, kMaxLanes})));
  lanes.buffer = map.sourced<Bytes>("buffer", {Bytes{1024}, Bytes{64 << 20}});
  lanes.credit_unit = map.sourced<Bytes>("credit_unit", {Bytes{16}, Bytes{4096}});
  lanes.high_limit = static_cast<int32_t>(map.integer("high_limit", {0, 255}, 255));

  const auto table = map.integer_list("sl_to_vl", {0, lanes.count - 1});
  const bool has_table = table.size() == kServiceLevels;
  if (has_table) {
    std::transform(table.begin(), table.end(), lanes.sl_to_vl.begin(),
                   [](int64_t vl) { return static_cast<int32_t>(vl); });
  } else if (map.has("sl_to_vl")) {
    map.fail("sl_to_vl", fmt::format("sl_to_vl has {} entries, it needs {}: one lane for each service level",
                                     table.size(), kServiceLevels));
  }
  bool is_sound = has_table;
  lanes.high = read_table(map, "high", lanes.count, is_sound);
  lanes.low = read_table(map, "low", lanes.count, is_sound);
  if (lanes.high.empty() && lanes.low.empty())
    for (int32_t lane = 0; lane < lanes.count; ++lane) lanes.low.push_back({.lane = lane, .weight = 64});
  if (is_sound) check_served(map, lanes);
  if (map.has("adaptive_levels"))
    for (int64_t level : map.integer_list("adaptive_levels", {0, kServiceLevels - 1}))
      if (level >= 0 && level < kServiceLevels) lanes.adaptive[level] = true;
  return lanes;
}

EffectiveLevel effective_service_level(const Program& program, std::optional<std::string_view> environment) {
  auto check = [](int64_t level, std::string_view origin) {
    if (level < 0 || level >= kServiceLevels)
      fail_usage("service level {} from {}: allowed are 0 to {}", level, origin, kServiceLevels - 1);
    return static_cast<int32_t>(level);
  };
  EffectiveLevel result;
  result.level = check(program.traffic_class, "program");
  result.origin = "program";
  if (!environment || environment->empty()) return result;

  int64_t value = 0;
  const char* end = environment->data() + environment->size();
  const auto [stop, error] = std::from_chars(environment->data(), end, value);
  if (error != std::errc() || stop != end)
    fail_usage("environment PLUMB_SL is '{}': a service level is a whole number from 0 to {}", *environment,
               kServiceLevels - 1);
  const int32_t level = check(value, "environment PLUMB_SL");
  if (level != result.level)
    result.warning =
        fmt::format("environment PLUMB_SL={} overrides service level {} of the program", level, result.level);
  result.level = level;
  result.origin = "environment PLUMB_SL";
  return result;
}

std::string to_string(const EffectiveLevel& level, const Lanes& lanes) {
  return fmt::format("service level {} ({}), lane {}, adaptive routing {}", level.level, level.origin,
                     lanes.lane(level.level), lanes.adaptive[level.level] ? "on" : "off");
}

}  // namespace plumb

// From a run to the number that a published row prints, and back.
#include <algorithm>
#include <numeric>

#include "model/error.h"
#include "model/validate.h"

namespace plumb {

RuledRow find_row(const ValidationPlan& plan, std::string_view id) {
  const auto row =
      std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PublishedRow& r) { return r.id == id; });
  if (row == plan.rows.end()) {
    std::vector<std::string_view> known;
    for (const PublishedRow& r : plan.rows) known.push_back(r.id);
    const std::string near = nearest_name(id, known);
    fail_usage("no published row has the id '{}'{}", id,
               near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
  }
  const auto rule = std::find_if(plan.rules.begin(), plan.rules.end(),
                                 [&](const RowRule& r) { return fits(r.match, *row); });
  if (rule == plan.rules.end() || !rule->skip.empty())
    fail_usage("published row '{}' is not described: {}", id,
               rule == plan.rules.end() ? "no rule fits" : rule->skip);
  return {*row, *rule};
}

Seconds measured_time(const Trace& trace, const Plan& plan, const RowRule& rule) {
  std::vector<int64_t> ends(static_cast<size_t>(plan.grouping().ranks));
  for (const Span& span : trace.spans) {
    if (is_listed(rule.without_phases, plan.phases()[static_cast<size_t>(span.phase)].name)) continue;
    int64_t& end = ends[static_cast<size_t>(span.rank)];
    end = std::max(end, span.end_ns);
  }
  const double sum = std::accumulate(ends.begin(), ends.end(), 0.0);
  return nanoseconds(sum / static_cast<double>(ends.size()));
}

FanOut fan_out(const Shape& shape, const Routing& routing, const Grouping& grouping) {
  int64_t ranks = 0, nodes = 0, choices = 0;
  std::vector<int32_t> table;
  std::vector<Rank> to;
  for (Rank r = 0; r < shape.ranks; ++r) {
    routing.rows(r, table);
    for (size_t i = 0; i < table.size(); i += static_cast<size_t>(shape.topk)) {
      const auto row = std::span(table).subspan(i, static_cast<size_t>(shape.topk));
      destinations(shape, row, to);
      ranks += static_cast<int64_t>(to.size());
      choices += std::count_if(row.begin(), row.end(), [](int32_t e) { return e >= 0; });
      for (size_t k = 0; k < to.size(); ++k)
        nodes += k == 0 || grouping.node(to[k]) != grouping.node(to[k - 1]);
    }
  }
  const auto tokens = static_cast<double>(std::max<int64_t>(shape.total_tokens(), 1));
  return {static_cast<double>(ranks) / tokens, static_cast<double>(nodes) / tokens,
          static_cast<double>(choices) / tokens};
}

std::optional<double> value_in_unit(const RuledRow& ruled, const FanOut& fan, std::string_view type,
                                    int32_t tokens, Seconds time) {
  const std::string& unit = ruled.row.unit;
  if (unit == "us") return microseconds(time);
  const auto bytes = ruled.rule.counted_bytes.find(std::string(type));
  if (bytes == ruled.rule.counted_bytes.end()) return std::nullopt;
  double rows = 0;
  if (unit == "logical_rdma") rows = fan.nodes;
  if (unit == "logical_nvlink" || unit == "logical_xgmi" || unit == "logical_ub") rows = fan.ranks;
  if (unit == "selections") rows = fan.choices;
  if (rows == 0) return std::nullopt;
  return tokens * rows * static_cast<double>(bytes->second) / time.value * 1e-9;
}

std::optional<Seconds> time_of_value(const RuledRow& ruled, const FanOut& fan, std::string_view type,
                                     int32_t tokens) {
  if (ruled.row.unit == "us") return microseconds(ruled.row.value);
  // Counted bytes over time is its own inverse, but for the unit of the value.
  const auto seconds = value_in_unit(ruled, fan, type, tokens, Seconds{ruled.row.value});
  return seconds ? std::optional(Seconds{*seconds}) : std::nullopt;
}

}  // namespace plumb

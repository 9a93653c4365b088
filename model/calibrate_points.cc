// Assignment of traces to points, repeats, and the choice of held-out points.
#include "model/calibrate_points.h"

#include <algorithm>
#include <sstream>

#include "model/error.h"

namespace plumb {
namespace {

[[noreturn]] void fail_mismatch(const std::string& message) { throw Error(ErrorKind::mismatch, message); }

Digest content(const Trace& trace) {
  std::ostringstream text;
  write_csv(text, trace);
  return DigestBuilder().add(std::string_view(text.view())).finish();
}

std::string quoted_list(std::span<const CalibrationPoint> points) {
  std::string list;
  for (const CalibrationPoint& p : points)
    list += fmt::format("\n  '{}': {}", p.label, to_string(p.plan.digest()));
  return list;
}

/// Refuses runs that say nothing about the machine's times.
void check_usable(const Trace& trace, const std::string& name) {
  if (!trace.header.complete) fail_mismatch(fmt::format("trace '{}' is of a run that ended early", name));
  if (trace.header.executor == "host")
    fail_usage("trace '{}' is of the host executor, which times the CPU; allowed: analytic, sim, cuda", name);
  if (trace.total.value <= 0) fail_usage("trace '{}' has no total time", name);
}

/// By text, but a run of digits by its value: "tokens=64" before "tokens=256".
bool is_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto digits = [&](std::string_view text, size_t at) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    while (at + 1 < end && text[at] == '0') ++at;
    return text.substr(at, end - at);
  };
  size_t i = 0, k = 0;
  while (i < a.size() && k < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[k])) {
      if (a[i] != b[k]) return a[i] < b[k];
      ++i, ++k;
      continue;
    }
    const std::string_view x = digits(a, i), y = digits(b, k);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
    i = static_cast<size_t>(x.data() - a.data()) + x.size();
    k = static_cast<size_t>(y.data() - b.data()) + y.size();
  }
  return a.size() - i != b.size() - k ? a.size() - i < b.size() - k : a < b;
}

}  // namespace

void assign(std::span<CalibrationPoint> points, Trace trace, const std::string& name) {
  check_usable(trace, name);
  CalibrationPoint* match = nullptr;
  std::string other_machine;
  for (CalibrationPoint& point : points) {
    for (const Trace& earlier : point.traces)
      if (earlier.header.executor != trace.header.executor)
        fail_usage("trace '{}' is of {}, another one of {}; fit to one executor at a time", name,
                   trace.header.executor, earlier.header.executor);
    if (point.plan.digest() != trace.header.plan) continue;
    if (point.machine.name != trace.header.machine) {
      other_machine = point.machine.name;
      continue;
    }
    if (match != nullptr)
      fail_usage("trace '{}' fits points '{}' and '{}', which have the same plan; choose one with overrides",
                 name, match->label, point.label);
    match = &point;
  }
  if (match == nullptr && !other_machine.empty())
    fail_mismatch(fmt::format("trace '{}' was made on machine '{}', the point of its plan is of machine '{}'",
                              name, trace.header.machine, other_machine));
  if (match == nullptr)
    fail_mismatch(fmt::format("trace '{}' is of plan {}, which no point has; there are:{}", name,
                              to_string(trace.header.plan), quoted_list(points)));
  for (const Trace& earlier : match->traces)
    if (content(earlier) == content(trace))
      fail_usage("trace '{}' was given before (point '{}')", name, match->label);
  match->traces.push_back(std::move(trace));
}

namespace detail {

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double measured_time(const CalibrationPoint& point, int32_t phase) {
  std::vector<double> times;
  for (const Trace& trace : point.traces) {
    const auto index = static_cast<size_t>(phase);
    if (phase != kTotal && index >= trace.phase_times.size()) return 0;
    times.push_back(phase == kTotal ? trace.total.value : trace.phase_times[index].time.value);
    if (times.back() <= 0) return 0;
  }
  return lower_median(std::move(times));
}

Digest content_of(const CalibrationPoint& point) {
  std::vector<Digest> contents;
  for (const Trace& trace : point.traces) contents.push_back(content(trace));
  std::sort(contents.begin(), contents.end());
  DigestBuilder all;
  for (const Digest& digest : contents) all.add(std::string_view(to_string(digest)));
  return all.finish();
}

std::vector<CalibrationPoint> measured_points(std::span<const CalibrationPoint> points) {
  std::vector<const CalibrationPoint*> order;
  for (const CalibrationPoint& point : points)
    if (!point.traces.empty()) order.push_back(&point);
  if (order.empty()) fail_usage("none of the {} points has a trace", points.size());
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return is_before(a->label, b->label); });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->label == order[i - 1]->label) fail_usage("two points are called '{}'", order[i]->label);
  std::vector<CalibrationPoint> out;
  for (const CalibrationPoint* point : order) out.push_back(*point);
  return out;
}

std::vector<bool> choose_held_out(const std::vector<CalibrationPoint>& points,
                                  const std::optional<std::vector<std::string>>& labels) {
  std::vector<bool> out(points.size());
  if (!labels) {
    for (size_t i = 1; i < out.size(); i += 2) out[i] = true;
    return out;
  }
  std::vector<std::string_view> known;
  for (const CalibrationPoint& point : points) known.push_back(point.label);
  for (const std::string& label : *labels) {
    const auto found = std::find(known.begin(), known.end(), label);
    if (found == known.end())
      fail_usage("no measured point is called '{}'; there are: '{}'", label, fmt::join(known, "', '"));
    out[static_cast<size_t>(found - known.begin())] = true;
  }
  if (std::all_of(out.begin(), out.end(), [](bool b) { return b; })) fail_usage("all points are held out");
  return out;
}

}  // namespace detail
}  // namespace plumb

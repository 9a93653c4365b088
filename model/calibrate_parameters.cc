// The list of constants that can be fitted.
#include "model/calibrate_parameters.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "model/error.h"

namespace plumb::detail {
namespace {

struct NamedTime {
  const char* name;
  Sourced<Seconds> Costs::*member;
};

/// Before and after the times that stand in lists.
constexpr std::array kTimes = {NamedTime{"message_time", &Costs::message_time},
                               NamedTime{"kernel_gap", &Costs::kernel_gap},
                               NamedTime{"host_sync", &Costs::host_sync},
                               NamedTime{"scale_up_barrier", &Costs::scale_up_barrier},
                               NamedTime{"scale_out_barrier", &Costs::scale_out_barrier},
                               NamedTime{"scale_up_latency", &Costs::scale_up_latency},
                               NamedTime{"scale_out_latency", &Costs::scale_out_latency}};

double& number(Sourced<double>& s) { return s.value; }
double& number(Sourced<Seconds>& s) { return s.value.value; }
double& number(Sourced<BytesPerSecond>& s) { return s.value.value; }

/// `place` returns a reference to a Sourced value of the costs.
template <class Place>
CostParameter parameter(std::string name, CostKind kind, Place place) {
  return {.name = std::move(name),
          .kind = kind,
          .value = [place](Costs& c) -> double& { return number(place(c)); },
          .source = [place](Costs& c) -> std::string& { return place(c).source; }};
}

struct TextUnit {
  const char* name;
  double size;
};
constexpr TextUnit text_unit(CostKind kind) {
  if (kind == CostKind::time) return {" us", 1e-6};
  if (kind == CostKind::rate) return {" GB/s", 1e9};
  return {"", 1};
}

/// As the reader of the file does.
double parsed(CostKind kind, const std::string& text) {
  if (kind == CostKind::time) return parse_seconds(text).value().value;
  if (kind == CostKind::rate) return parse_rate(text).value().value;
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

Range<double> bounds(CostKind kind) {
  switch (kind) {
    case CostKind::share:
      return {.min = 0.001, .max = 1};
    case CostKind::rate:
      return {.min = 1e8, .max = 1e13};
    case CostKind::factor:
      return {.min = 0.01, .max = 100};
    case CostKind::count:
      return {.min = 0, .max = 1000};
    case CostKind::time:
      break;
  }
  return {.min = 0, .max = 1};
}

std::vector<CostParameter> cost_parameters(const Costs& costs, const std::string& gpu) {
  std::vector<CostParameter> all;
  all.push_back(parameter(
      "scale_up_share", CostKind::share, [](Costs & c) -> auto& { return c.scale_up_share; }));
  all.push_back(parameter(
      "scale_out_share", CostKind::share, [](Costs & c) -> auto& { return c.scale_out_share; }));
  all.push_back(parameter(
      "memory_share", CostKind::share, [](Costs & c) -> auto& { return c.memory_share; }));
  all.push_back(parameter(
      "sm.rates", CostKind::rate, [gpu](Costs & c) -> auto& {
        const auto own = std::find_if(c.sm.rates.begin(), c.sm.rates.end(),
                                      [&](const SmRate& r) { return r.gpus == std::vector{gpu}; });
        PLUMB_CHECK(own != c.sm.rates.end(), "no SM rate of '{}' alone", gpu);
        return own->rate;
      }));
  for (size_t i = 0; i < costs.sm.factors.size(); ++i)
    all.push_back(parameter(
        fmt::format("sm.factors.{}.factor", i),
        CostKind::factor, [i](Costs & c) -> auto& { return c.sm.factors[i].factor; }));
  // Without a source a value is the one that an absent key stands for.
  for (size_t i = 0; i < costs.sm.feeds.size(); ++i) {
    if (!costs.sm.feeds[i].share.source.empty())
      all.push_back(parameter(
          fmt::format("sm.feeds.{}.share", i),
          CostKind::share, [i](Costs & c) -> auto& { return c.sm.feeds[i].share; }));
    if (!costs.sm.feeds[i].half_sms.source.empty())
      all.push_back(parameter(
          fmt::format("sm.feeds.{}.half_sms", i),
          CostKind::count, [i](Costs & c) -> auto& { return c.sm.feeds[i].half_sms; }));
    if (!costs.sm.feeds[i].own_rows.source.empty())
      all.push_back(parameter(
          fmt::format("sm.feeds.{}.own_rows", i),
          CostKind::share, [i](Costs & c) -> auto& { return c.sm.feeds[i].own_rows; }));
  }
  for (size_t i = 0; i < costs.fixed.size(); ++i)
    all.push_back(parameter(
        fmt::format("fixed.{}.time", i),
        CostKind::time, [i](Costs & c) -> auto& { return c.fixed[i].time; }));
  for (size_t i = 0; i < costs.fixed.size(); ++i)
    if (!costs.fixed[i].per_sm.source.empty())
      all.push_back(parameter(
          fmt::format("fixed.{}.per_sm", i),
          CostKind::time, [i](Costs & c) -> auto& { return c.fixed[i].per_sm; }));
  all.push_back(parameter(
      "sm.row_time", CostKind::time, [](Costs & c) -> auto& { return c.sm.row_time; }));
  for (const NamedTime& time : kTimes)
    all.push_back(parameter(
        time.name, CostKind::time, [m = time.member](Costs & c) -> auto& { return c.*m; }));
  for (size_t i = 0; i < costs.fixed.size(); ++i)
    all.push_back(parameter(
        fmt::format("fixed.{}.per_doubling", i),
        CostKind::time, [i](Costs & c) -> auto& { return c.fixed[i].per_doubling; }));
  for (CostParameter& p : all) p.is_default = !p.name.starts_with("sm.feeds.");
  return all;
}

bool own_sm_rate(Costs& costs, const std::string& gpu, BytesPerSecond machine_rate) {
  auto& rates = costs.sm.rates;
  if (!rates.empty() && rates.front().gpus == std::vector{gpu}) return true;
  const BytesPerSecond rate = sm_rate(costs.sm, gpu).value_or(machine_rate);
  if (rate.value <= 0 || gpu.empty()) return false;
  rates.insert(rates.begin(),
               {.gpus = {gpu}, .rate = {.value = rate, .source = "assumed at the start of a fit"}});
  return true;
}

double rounded(CostKind kind, double value, int digits) {
  const TextUnit unit = text_unit(kind);
  if (kind == CostKind::time && value < 1e-15) return 0;
  return parsed(kind, fmt::format("{:.{}g}{}", value / unit.size, digits, unit.name));
}

std::string text_of(CostKind kind, double value) {
  const TextUnit unit = text_unit(kind);
  for (int digits = 1; digits <= 17; ++digits) {
    std::string text = fmt::format("{:.{}g}{}", value / unit.size, digits, unit.name);
    if (parsed(kind, text) == value) return text;
  }
  // value / unit * unit need not be value.
  if (kind == CostKind::time) return fmt::format("{} s", value);
  return kind == CostKind::rate ? fmt::format("{} B/s", value) : fmt::format("{}", value);
}

}  // namespace plumb::detail

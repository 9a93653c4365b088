// The costs file of a calibration: an overlay of the fitted values, or all values.
#include <algorithm>
#include <array>
#include <set>

#include "model/calibrate.h"
#include "model/calibrate_parameters.h"
#include "model/error.h"

namespace plumb {
namespace {

using detail::CostKind;
using detail::text_of;

/// A YAML double-quoted scalar on one line.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string list_of(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + quoted(text);
  return "[" + out + "]";
}

std::string list_of(const std::vector<Link>& links) {
  std::string out;
  for (const Link link : links) out += (out.empty() ? "" : ", ") + std::string(to_string(link));
  return "[" + out + "]";
}

std::string sourced(CostKind kind, double value, const std::string& source) {
  return fmt::format("{{value: {}, source: {}}}", text_of(kind, value),
                     quoted(source.empty() ? "assumed, no source given" : source));
}
std::string sourced(const Sourced<Seconds>& s) { return sourced(CostKind::time, s.value.value, s.source); }

/// Writes all values of some costs, or those that were fitted.
class Writer {
 public:
  Writer(const Costs& costs, std::set<std::string> fitted, bool writes_all)
      : costs_(costs), fitted_(std::move(fitted)), writes_all_(writes_all) {}

  std::string values() {
    // The parameters that are keys of the top level; lists follow.
    Costs copy = costs_;
    for (const detail::CostParameter& p : detail::cost_parameters(copy, ""))
      if (p.name.find('.') == std::string::npos) scalar("", p.name, p.kind, p.value(copy), p.source(copy));
    if (writes_all_) out_ += fmt::format("fill_links: {}\n", list_of(costs_.fill_links));
    sm();
    fixed();
    return out_;
  }

 private:
  bool is_fitted(const std::string& prefix) const {
    return std::any_of(fitted_.begin(), fitted_.end(),
                       [&](const auto& name) { return name.starts_with(prefix); });
  }
  bool needs(const std::string& prefix) const { return writes_all_ || is_fitted(prefix); }

  void scalar(const char* indent, const std::string& name, CostKind kind, double value,
              const std::string& source) {
    // Without a source a value is the one that an absent key stands for.
    if (is_fitted(name) || (writes_all_ && !source.empty()))
      out_ +=
          fmt::format("{}{}: {}\n", indent, name.substr(name.find('.') + 1), sourced(kind, value, source));
  }

  void sm() {
    if (!needs("sm.")) return;
    const SmCosts& sm = costs_.sm;
    out_ += "sm:\n";
    if (writes_all_) {
      out_ += fmt::format("  links: {}\n  free_phases: {}\n", list_of(sm.links), list_of(sm.free_phases));
    }
    scalar("  ", "sm.row_time", CostKind::time, sm.row_time.value.value, sm.row_time.source);
    if (needs("sm.rates") && !sm.rates.empty()) {
      out_ += "  rates:\n";
      for (const SmRate& r : sm.rates)
        out_ += fmt::format("    - {{gpus: {}, rate: {}}}\n", list_of(r.gpus),
                            sourced(CostKind::rate, r.rate.value.value, r.rate.source));
    }
    if (needs("sm.factors") && !sm.factors.empty()) {
      out_ += "  factors:\n";
      for (const SmFactor& f : sm.factors)
        out_ += fmt::format("    - {{phases: {}, gpus: {}, factor: {}{}}}\n", list_of(f.phases),
                            list_of(f.gpus), sourced(CostKind::factor, f.factor.value, f.factor.source),
                            f.streamed ? ", streamed: true" : "");
    }
    feeds(sm.feeds);
  }

  void feeds(const std::vector<SmFeed>& feeds) {
    if (!needs("sm.feeds") || feeds.empty()) return;
    out_ += "  feeds:\n";
    const auto value = [this](const char* name, CostKind kind, const Sourced<double>& s) {
      if (!s.source.empty()) out_ += fmt::format("      {}: {}\n", name, sourced(kind, s.value, s.source));
    };
    for (const SmFeed& f : feeds) {
      out_ += fmt::format("    - phases: {}\n", list_of(f.phases));
      if (f.pushed) out_ += "      pushed: true\n";
      value("share", CostKind::share, f.share);
      value("half_sms", CostKind::count, f.half_sms);
      value("own_rows", CostKind::share, f.own_rows);
    }
  }

  void fixed() {
    if (!needs("fixed") || costs_.fixed.empty()) return;
    out_ += "fixed:\n";
    for (const FixedCost& f : costs_.fixed) {
      out_ += fmt::format("  - phases: {}\n", list_of(f.phases));
      if (!f.covers.empty()) out_ += fmt::format("    covers: {}\n", list_of(f.covers));
      out_ += fmt::format("    time: {}\n", sourced(f.time));
      if (f.per_doubling.value.value != 0 || !f.per_doubling.source.empty())
        out_ += fmt::format("    per_doubling: {}\n", sourced(f.per_doubling));
      if (!f.per_sm.source.empty()) out_ += fmt::format("    per_sm: {}\n", sourced(f.per_sm));
      if (f.base_ranks != 1) out_ += fmt::format("    base_ranks: {}\n", f.base_ranks);
    }
  }

  const Costs& costs_;
  const std::set<std::string> fitted_;
  const bool writes_all_;
  std::string out_;
};

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

std::string heading(const Calibration& c) {
  std::string out = fmt::format(
      "# Fitted by plumb calibrate to {} runs, traces digest {}.\n"
      "# rms error: fit {:.2f} % of {} points, held out {:.2f} % of {}; before {:.2f} %. Per point:\n"
      "# set, measured us, predicted us, error, digest of plan, digest of traces, label\n",
      c.executor, to_string(c.traces), c.fit.rms * 100, c.fit.count, c.held_out.rms * 100, c.held_out.count,
      c.before.rms * 100);
  for (const CalibratedPoint& p : c.points)
    out += fmt::format("#   {} {:.3f} {:.3f} {:+.2f} % {} {} '{}'\n", p.is_held_out ? "held-out" : "fit",
                       microseconds(p.measured), microseconds(p.after), p.error * 100, to_string(p.plan),
                       to_string(p.traces), one_line(p.label));
  return out;
}

}  // namespace

std::string to_yaml(const Calibration& calibration, const CostsFileOptions& options) {
  std::set<std::string> fitted;
  for (const FittedParameter& p : calibration.parameters) fitted.insert(p.name);
  std::string out =
      heading(calibration) + fmt::format("schema: plumb.costs/1\nname: {}\n", quoted(options.name));
  if (!options.extends.empty()) out += fmt::format("extends: {}\n", quoted(options.extends));
  if (options.extends.empty() && !calibration.costs.describes.empty())
    out += fmt::format("describes: {}\n", quoted(calibration.costs.describes));
  return out + Writer(calibration.costs, std::move(fitted), options.extends.empty()).values();
}

std::string to_yaml(const Costs& costs, const std::string& name) {
  std::string out = fmt::format("schema: plumb.costs/1\nname: {}\n", quoted(name));
  if (!costs.describes.empty()) out += fmt::format("describes: {}\n", quoted(costs.describes));
  return out + Writer(costs, {}, true).values();
}

}  // namespace plumb

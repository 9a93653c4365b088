// Costs files: reading, inheritance, and the choice of a constant by GPU and phase.
#include "model/costs.h"

#include <algorithm>
#include <limits>

#include "model/error.h"

namespace plumb {
namespace {

constexpr Range<double> kShare{.min = 0.001, .max = 1};
constexpr Range<double> kFactor{.min = 0.01, .max = 100};
constexpr Range<double> kHalfSms{.min = 0, .max = 1000};
constexpr Range<Seconds> kTime{.min = {0}, .max = {1}};
constexpr Range<BytesPerSecond> kSmRate{.min = {1e8}, .max = {1e13}};
constexpr int kMaxExtends = 8;

std::vector<Link> read_links(ConfigMap& map, std::string_view key, std::vector<Link> standard) {
  if (!map.has(key)) return standard;
  std::vector<Link> links;
  for (const std::string& name : map.text_list(key, {})) {
    const auto all = {Link::local, Link::scale_up, Link::scale_out};
    const auto found = std::find_if(all.begin(), all.end(), [&](Link l) { return to_string(l) == name; });
    if (found == all.end())
      map.fail(key, fmt::format("'{}' is no class of path; allowed: local, scale_up, scale_out", name));
    else
      links.push_back(*found);
  }
  return links;
}

SmCosts read_sm(ConfigMap map, SmCosts out) {
  out.links = read_links(map, "links", out.links);
  out.free_phases = map.text_list("free_phases", out.free_phases);
  out.row_time = map.sourced<Seconds>("row_time", kTime, out.row_time);
  if (auto rates = map.optional_list("rates")) {
    out.rates.clear();
    for (size_t i = 0; i < rates->size(); ++i) {
      ConfigMap entry = rates->map(i);
      out.rates.push_back(
          {.gpus = entry.text_list("gpus", {}), .rate = entry.sourced<BytesPerSecond>("rate", kSmRate)});
    }
  }
  if (auto factors = map.optional_list("factors")) {
    out.factors.clear();
    for (size_t i = 0; i < factors->size(); ++i) {
      ConfigMap entry = factors->map(i);
      out.factors.push_back({.phases = entry.text_list("phases", {}),
                             .gpus = entry.text_list("gpus", {}),
                             .factor = entry.sourced<double>("factor", kFactor),
                             .streamed = entry.flag("streamed", false)});
      if (out.factors.back().phases.empty())
        entry.fail("phases", "'phases' is empty: the factor would never apply");
    }
  }
  if (auto feeds = map.optional_list("feeds")) {
    out.feeds.clear();
    for (size_t i = 0; i < feeds->size(); ++i) {
      ConfigMap entry = feeds->map(i);
      const SmFeed standard;
      out.feeds.push_back({.phases = entry.text_list("phases", {}),
                           .share = entry.sourced<double>("share", kShare, standard.share),
                           .half_sms = entry.sourced<double>("half_sms", kHalfSms, standard.half_sms),
                           .own_rows = entry.sourced<double>("own_rows", kShare, standard.own_rows),
                           .pushed = entry.flag("pushed", false)});
      if (out.feeds.back().phases.empty())
        entry.fail("phases", "'phases' is empty: the feed would never apply");
    }
  }
  return out;
}

std::vector<FixedCost> read_fixed(ConfigList list) {
  std::vector<FixedCost> out;
  for (size_t i = 0; i < list.size(); ++i) {
    ConfigMap entry = list.map(i);
    FixedCost fixed{.phases = entry.text_list("phases", {}),
                    .covers = entry.text_list("covers", {}),
                    .time = entry.sourced<Seconds>("time", kTime),
                    .per_doubling = entry.sourced<Seconds>("per_doubling", kTime, {}),
                    .base_ranks = entry.integer("base_ranks", {.min = 1, .max = 1 << 20}, 1),
                    .per_sm = entry.sourced<Seconds>("per_sm", kTime, {})};
    if (fixed.phases.empty()) entry.fail("phases", "'phases' is empty: the time would never be paid");
    out.push_back(std::move(fixed));
  }
  return out;
}

/// A word of the name, not a part of one: "B200" is not in "NVIDIA GB200".
bool has_word(std::string_view name, std::string_view word) {
  const auto is_border = [&](size_t at) { return at >= name.size() || name[at] == ' ' || name[at] == '-'; };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1))
    if ((at == 0 || is_border(at - 1)) && is_border(at + word.size())) return true;
  return false;
}

bool names_gpu(const std::vector<std::string>& gpus, std::string_view gpu) {
  return gpus.empty() ||
         std::any_of(gpus.begin(), gpus.end(), [&](const auto& g) { return has_word(gpu, g); });
}

Costs load(const std::string& directory, std::string_view name, int depth) {
  if (depth > kMaxExtends)
    fail_usage("costs '{}': more than {} files extend each other; is there a circle?", name, kMaxExtends);
  if (name.empty() || name.find('/') != std::string_view::npos)
    fail_usage("'{}' is no name of a costs file; allowed: the name of a file in {} without .yaml", name,
               directory);
  ConfigFile file = ConfigFile::load(fmt::format("{}/{}.yaml", directory, name));
  ConfigMap root = file.root();
  root.schema("plumb.costs/1");
  const std::string base = root.text("extends", "");
  Costs costs = read_costs(root, base.empty() ? Costs{} : load(directory, base, depth + 1));
  if (costs.name != name)
    root.fail("name", fmt::format("'name' is {}, allowed {}: the name of the file", costs.name, name));
  file.finish();
  return costs;
}

}  // namespace

Costs read_costs(ConfigMap map) { return read_costs(map, {}); }

Costs read_costs(ConfigMap map, Costs out) {
  out.name = map.text("name");
  out.describes = map.text("describes", out.describes);
  out.scale_up_share = map.sourced<double>("scale_up_share", kShare, out.scale_up_share);
  out.scale_out_share = map.sourced<double>("scale_out_share", kShare, out.scale_out_share);
  out.memory_share = map.sourced<double>("memory_share", kShare, out.memory_share);
  out.scale_up_latency = map.sourced<Seconds>("scale_up_latency", kTime, out.scale_up_latency);
  out.scale_out_latency = map.sourced<Seconds>("scale_out_latency", kTime, out.scale_out_latency);
  out.fill_links = read_links(map, "fill_links", out.fill_links);
  out.message_time = map.sourced<Seconds>("message_time", kTime, out.message_time);
  out.scale_up_barrier = map.sourced<Seconds>("scale_up_barrier", kTime, out.scale_up_barrier);
  out.scale_out_barrier = map.sourced<Seconds>("scale_out_barrier", kTime, out.scale_out_barrier);
  out.kernel_gap = map.sourced<Seconds>("kernel_gap", kTime, out.kernel_gap);
  out.host_sync = map.sourced<Seconds>("host_sync", kTime, out.host_sync);
  if (auto sm = map.optional_map("sm")) out.sm = read_sm(*sm, out.sm);
  if (auto fixed = map.optional_list("fixed")) out.fixed = read_fixed(*fixed);
  return out;
}

Costs load_costs(const std::string& directory, std::string_view name) { return load(directory, name, 0); }

std::string_view default_costs(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::v1_dispatch:
    case ProgramKind::v1_combine:
      return "deepep_v1";
    case ProgramKind::low_latency_dispatch:
    case ProgramKind::low_latency_combine:
      return "deepep_v1_low_latency";
    default:
      return "plumb";
  }
}

bool is_listed(const std::vector<std::string>& patterns, std::string_view phase) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    return pattern.ends_with('*') ? phase.starts_with(pattern.substr(0, pattern.size() - 1))
                                  : phase == pattern;
  });
}

std::optional<BytesPerSecond> sm_rate(const SmCosts& sm, std::string_view gpu) {
  for (const SmRate& entry : sm.rates)
    if (names_gpu(entry.gpus, gpu)) return entry.rate.value;
  return std::nullopt;
}

double sm_factor(const SmCosts& sm, std::string_view phase, std::string_view gpu, bool streamed) {
  double factor = 1;
  for (const SmFactor& entry : sm.factors)
    if (is_listed(entry.phases, phase) && names_gpu(entry.gpus, gpu) && (streamed || !entry.streamed))
      factor *= entry.factor.value;
  return factor;
}

const SmFeed* sm_feed(const SmCosts& sm, std::string_view phase, bool pushed) {
  for (const SmFeed& entry : sm.feeds)
    if (is_listed(entry.phases, phase) && (pushed || !entry.pushed)) return &entry;
  return nullptr;
}

double part_of_link(const SmFeed& feed, double sms) {
  return feed.share.value * sms / (sms + feed.half_sms.value);
}

}  // namespace plumb

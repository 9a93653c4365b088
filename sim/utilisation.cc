// Bins of link bytes: sampling, merging, and what is kept at the end.
#include "sim/utilisation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "model/error.h"

namespace plumb::sim {
namespace {

constexpr int32_t kFewestBins = 16;

/// "leaf" of "leaf 0.1".
std::string kind_name(const FabricNode& node) { return node.name.substr(0, node.name.rfind(' ')); }

int32_t height(const FabricNode& node) {
  if (node.kind == NodeKind::gpu) return 0;
  return node.kind == NodeKind::nic ? 1 : 1 + node.tier;
}

double part(int64_t bytes, BytesPerSecond rate, Ps time) {
  return time > 0 ? static_cast<double>(bytes) / (rate.value * to_seconds(time).value) : 0;
}

}  // namespace

std::string name_of_link(const Fabric& fabric, LinkId id) {
  const FabricLink& link = fabric.links()[static_cast<size_t>(id)];
  return fmt::format("{} -> {}", fabric.nodes()[static_cast<size_t>(link.from)].name,
                     fabric.nodes()[static_cast<size_t>(link.to)].name);
}

Ps LinkTimeline::width_of(int32_t bin) const { return std::min(width, end - bin * width); }

double LinkTimeline::use(const LinkSeries& s, int32_t bin) const {
  return part(s.sent[static_cast<size_t>(bin)], s.rate, width_of(bin));
}

double LinkTimeline::mean_use(const LinkClass& c, int32_t bin) const {
  return part(c.sent[static_cast<size_t>(bin)], c.rate, width_of(bin));
}

LinkSampler::LinkSampler(const Fabric& fabric, SamplerLimits limits)
    : fabric_(fabric), limits_(limits), width_(limits.first_width) {
  PLUMB_CHECK(limits.bins >= 2 && limits.bins % 2 == 0 && limits.first_width > 0,
              "{} bins of {} ps, allowed an even number from 2 and a width above 0", limits.bins,
              limits.first_width);
  const auto links = static_cast<int64_t>(fabric.links().size());
  if (links * limits_.bins > limits_.cells)
    limits_.bins = static_cast<int32_t>(std::clamp<int64_t>(
        limits_.cells / links / 2 * 2, std::min(kFewestBins, limits_.bins), limits_.bins));
  sent_.resize(static_cast<size_t>(links * limits_.bins));
  before_.resize(static_cast<size_t>(links));
}

void LinkSampler::put(std::span<const LinkUse> use) {
  PLUMB_CHECK(use.size() == before_.size(), "use of {} links of {}", use.size(), before_.size());
  for (size_t l = 0; l < use.size(); ++l) {
    row(l)[filled_] += use[l].packet_bytes - before_[l];
    before_[l] = use[l].packet_bytes;
  }
}

void LinkSampler::sample(std::span<const LinkUse> use) {
  put(use);
  if (++filled_ == limits_.bins) merge_pairs();
}

void LinkSampler::merge_pairs() {
  filled_ /= 2;
  width_ *= 2;
  for (size_t l = 0; l < before_.size(); ++l) {
    int64_t* bins = row(l);
    for (int32_t b = 0; b < filled_; ++b) bins[b] = bins[2 * b] + bins[2 * b + 1];
    std::fill(bins + filled_, bins + limits_.bins, 0);
  }
}

LinkTimeline LinkSampler::finish(std::span<const LinkUse> use, Ps end) {
  put(use);
  LinkTimeline timeline;
  timeline.width = width_;
  timeline.end = std::clamp(end, std::max<Ps>(filled_ * width_, 1), (filled_ + 1) * width_);
  spread(timeline);
  add_classes(timeline);
  add_series(timeline);
  return timeline;
}

/// What is left over at the end stays in the last bin: totals are exact.
void LinkSampler::spread(LinkTimeline& timeline) {
  const int32_t bins = timeline.bins();
  for (size_t l = 0; l < before_.size(); ++l) {
    int64_t* sent = row(l);
    // The bin that finish() opened may be empty of time; what it holds started in the one before.
    for (int32_t b = bins; b <= filled_; ++b) {
      sent[bins - 1] += sent[b];
      sent[b] = 0;
    }
    for (int32_t b = 0; b + 1 < bins; ++b) {
      const auto most =
          static_cast<int64_t>(std::ceil(fabric_.links()[l].rate.value * to_seconds(timeline.width).value));
      const int64_t rest = std::max<int64_t>(0, sent[b] - most);
      sent[b] -= rest;
      sent[b + 1] += rest;
    }
  }
}

void LinkSampler::add_classes(LinkTimeline& timeline) {
  using Key = std::tuple<Link, int32_t, int32_t, int32_t, std::string>;
  const auto key_of = [&](const FabricLink& link) -> Key {
    const FabricNode& from = fabric_.nodes()[static_cast<size_t>(link.from)];
    const FabricNode& to = fabric_.nodes()[static_cast<size_t>(link.to)];
    const int32_t begin = height(from), end = height(to);
    return {link.network, std::min(begin, end), std::max(begin, end), begin > end,
            kind_name(from) + " -> " + kind_name(to)};
  };
  std::map<Key, int32_t> index;
  for (const FabricLink& link : fabric_.links()) index.emplace(key_of(link), 0);
  for (auto& [key, number] : index) {
    number = static_cast<int32_t>(timeline.classes.size());
    LinkClass& c = timeline.classes.emplace_back();
    c.name = std::get<4>(key);
    c.network = std::get<0>(key);
  }
  const auto bins = static_cast<size_t>(timeline.bins());
  for (LinkClass& c : timeline.classes) {
    c.sent.resize(bins);
    c.peak.resize(bins);
  }
  for (size_t l = 0; l < before_.size(); ++l) {
    const FabricLink& link = fabric_.links()[l];
    timeline.class_of.push_back(index.at(key_of(link)));
    LinkClass& c = timeline.classes[static_cast<size_t>(timeline.class_of.back())];
    ++c.links;
    c.rate = {c.rate.value + link.rate.value};
    for (size_t b = 0; b < bins; ++b) {
      c.sent[b] += row(l)[b];
      c.peak[b] = std::max(c.peak[b], part(row(l)[b], link.rate, timeline.width_of(static_cast<int32_t>(b))));
    }
  }
}

void LinkSampler::add_series(LinkTimeline& timeline) {
  std::vector<LinkId> kept;
  for (size_t l = 0; l < before_.size(); ++l)
    if (before_[l] > 0) kept.push_back(static_cast<LinkId>(l));
  const auto use = [&](LinkId l) {
    return part(before_[static_cast<size_t>(l)], fabric_.links()[static_cast<size_t>(l)].rate, timeline.end);
  };
  if (kept.size() > static_cast<size_t>(limits_.all_series)) {
    std::stable_sort(kept.begin(), kept.end(), [&](LinkId a, LinkId b) { return use(a) > use(b); });
    kept.resize(std::min(kept.size(), static_cast<size_t>(limits_.hot_series)));
  }
  const auto order = [&](LinkId l) { return std::pair(timeline.class_of[static_cast<size_t>(l)], l); };
  std::sort(kept.begin(), kept.end(), [&](LinkId a, LinkId b) { return order(a) < order(b); });
  for (const LinkId l : kept)
    timeline.series.push_back(
        {.link = l,
         .link_class = timeline.class_of[static_cast<size_t>(l)],
         .rate = fabric_.links()[static_cast<size_t>(l)].rate,
         .sent = {row(static_cast<size_t>(l)), row(static_cast<size_t>(l)) + timeline.bins()}});
}

}  // namespace plumb::sim

// Use of links over time, sampled while a network runs. Needs no end date: bins are merged in pairs whenever
// they run out, so that one pass and bounded memory do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "sim/statistics.h"
#include "sim/time.h"

namespace plumb::sim {

/// Links that join the same kinds of nodes, e.g. "leaf -> spine".
struct LinkClass {
  std::string name;
  Link network = Link::scale_up;
  int32_t links = 0;
  BytesPerSecond rate{};      // of all its links together
  std::vector<int64_t> sent;  // [bins] bytes of all its links
  std::vector<double> peak;   // [bins] use of its busiest link, part of its rate
};

struct LinkSeries {
  LinkId link = 0;
  int32_t link_class = 0;
  BytesPerSecond rate{};
  std::vector<int64_t> sent;  // [bins] bytes, headers included
};

/// What LinkSampler saw. A network counts a packet when it starts; bytes beyond what a link can send in a bin
/// stand in the next one, as they do on the wire.
struct LinkTimeline {
  Ps width = 0;  // of a bin, the last one ends at `end`
  Ps end = 0;
  std::vector<LinkClass> classes;  // scale-up before scale-out, then from the GPUs upwards
  std::vector<int32_t> class_of;   // [links] of the fabric
  std::vector<LinkSeries> series;  // of the most used links, by class, then id

  int32_t bins() const { return width == 0 ? 0 : static_cast<int32_t>((end + width - 1) / width); }
  Ps width_of(int32_t bin) const;
  /// Part of what can be sent in a bin. The nominal rate is 1.
  double use(const LinkSeries& series, int32_t bin) const;
  double mean_use(const LinkClass& link_class, int32_t bin) const;
};

struct SamplerLimits {
  int32_t bins = 200;         // at most; even, 2 or more
  Ps first_width = 200'000;   // of a bin before any merge: 2 packets of 4 KiB at 50 GB/s
  int64_t cells = 4'000'000;  // links x bins: above, fewer bins, but never less than 16
  int32_t all_series = 128;   // series of every used link up to that many,
  int32_t hot_series = 64;    // else of the most used ones
};

/// Takes the bytes that each link has sent at the dates it asks for. Memory: links x bins x 8 B.
class LinkSampler {
 public:
  /// `fabric` must outlive it. Throws LogicError for limits out of range.
  explicit LinkSampler(const Fabric& fabric, SamplerLimits limits = {});

  /// The date of the next sample.
  Ps next() const { return (filled_ + 1) * width_; }
  /// `use`: Network::link_use() at next(), all links in order.
  void sample(std::span<const LinkUse> use);
  /// `use`: at the end of the run, after the last sample. A date before the last sample counts as that.
  LinkTimeline finish(std::span<const LinkUse> use, Ps end);

 private:
  void merge_pairs();
  void put(std::span<const LinkUse> use);
  int64_t* row(size_t link) { return &sent_[link * static_cast<size_t>(limits_.bins)]; }
  void spread(LinkTimeline& timeline);
  void add_classes(LinkTimeline& timeline);
  void add_series(LinkTimeline& timeline);

  const Fabric& fabric_;
  SamplerLimits limits_;
  Ps width_ = 0;
  int32_t filled_ = 0;
  std::vector<int64_t> sent_;    // [links][limits_.bins]
  std::vector<int64_t> before_;  // [links] sent until the last sample
};

/// "leaf 0.1 -> spine 0.3".
std::string name_of_link(const Fabric& fabric, LinkId link);

}  // namespace plumb::sim

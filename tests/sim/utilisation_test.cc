// Bins of link bytes: exact totals, merging, classes, and that sampling changes no date.
#include "sim/utilisation.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/experiment.h"
#include "sim/sim_executor.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

/// All links have sent that many bytes.
std::vector<LinkUse> sent(const Fabric& fabric, int64_t bytes) {
  std::vector<LinkUse> use;
  for (size_t l = 0; l < fabric.links().size(); ++l)
    use.push_back({.link = static_cast<LinkId>(l), .packet_bytes = bytes});
  return use;
}

int64_t total(const std::vector<int64_t>& bins) {
  return std::accumulate(bins.begin(), bins.end(), int64_t{0});
}

constexpr SamplerLimits kFourBins = {.bins = 4, .first_width = 1000};

TEST(LinkSampler, FullBinsMergeInPairsAndKeepTheirBytes) {
  const Fabric fabric = star(2);
  LinkSampler sampler(fabric, kFourBins);
  // 50 B a bin is all that 50 GB/s sends in 1 ns. After four bins: two of 2 ns, and the next sample at 6 ns.
  int64_t bytes = 0;
  for (const int64_t more : {10, 20, 30, 40}) {
    bytes += more;
    sampler.sample(sent(fabric, bytes));
  }
  EXPECT_EQ(sampler.next(), 6000);
  sampler.sample(sent(fabric, 105));
  const LinkTimeline timeline = sampler.finish(sent(fabric, 107), 7000);
  EXPECT_EQ(timeline.width, 2000);
  EXPECT_EQ(timeline.end, 7000);
  ASSERT_EQ(timeline.series.size(), fabric.links().size());
  for (const LinkSeries& s : timeline.series)
    EXPECT_EQ(s.sent, (std::vector<int64_t>{10 + 20, 30 + 40, 5, 2}));
  // 30 of 100 B; the last bin is 1 ns long: 2 of 50 B.
  EXPECT_DOUBLE_EQ(timeline.use(timeline.series[0], 0), 0.3);
  EXPECT_DOUBLE_EQ(timeline.use(timeline.series[0], 3), 0.04);
}

TEST(LinkSampler, BytesBeyondTheRateStandInTheNextBin) {
  const Fabric fabric = star(2);
  LinkSampler sampler(fabric, kFourBins);
  sampler.sample(sent(fabric, 120));  // 50 B a bin: 50, 50, 20
  sampler.sample(sent(fabric, 120));
  const LinkTimeline timeline = sampler.finish(sent(fabric, 120), 3000);
  EXPECT_EQ(timeline.series[0].sent, (std::vector<int64_t>{50, 50, 20}));
}

TEST(LinkSampler, ARunThatEndsWithABinHasNoEmptyOne) {
  const Fabric fabric = star(2);
  LinkSampler sampler(fabric, kFourBins);
  sampler.sample(sent(fabric, 10));
  const LinkTimeline timeline = sampler.finish(sent(fabric, 15), 1000);
  EXPECT_EQ(timeline.bins(), 1);
  EXPECT_EQ(timeline.series[0].sent, std::vector<int64_t>{15});
}

TEST(LinkSampler, ClassesGoFromTheGpusUpwards) {
  const Fabric fabric = leaf_spine({.ranks = 4, .down = 2, .spines = 2});
  LinkSampler sampler(fabric, kFourBins);
  std::vector<LinkUse> use = sent(fabric, 0);
  for (LinkUse& u : use)
    if (fabric.links()[static_cast<size_t>(u.link)].from == fabric.endpoint(3)) u.packet_bytes = 20;
  const LinkTimeline timeline = sampler.finish(use, 1000);
  std::vector<std::string> names;
  std::vector<int32_t> links;
  for (const LinkClass& c : timeline.classes) {
    names.push_back(c.name);
    links.push_back(c.links);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"gpu -> leaf", "leaf -> gpu", "leaf -> spine", "spine -> leaf"}));
  EXPECT_EQ(links, (std::vector<int32_t>{4, 4, 4, 4}));
  // One of four links sends 20 of 50 B.
  EXPECT_DOUBLE_EQ(timeline.mean_use(timeline.classes[0], 0), 0.1);
  EXPECT_DOUBLE_EQ(timeline.classes[0].peak[0], 0.4);
  EXPECT_EQ(timeline.classes[1].sent[0], 0);
  ASSERT_EQ(timeline.series.size(), 1u);  // unused links have no series
  EXPECT_EQ(name_of_link(fabric, timeline.series[0].link), "gpu 3 -> leaf 1");
}

TEST(LinkSampler, ManyLinksKeepTheHottestSeriesAndFewerBins) {
  const Fabric fabric = star(32);  // 64 links
  // 64 links x 20 bins are the cells allowed: width doubles at the 20th sample.
  LinkSampler sampler(fabric,
                      {.bins = 200, .first_width = 1000, .cells = 64 * 20, .all_series = 8, .hot_series = 3});
  std::vector<LinkUse> use = sent(fabric, 1);
  use[40].packet_bytes = 9;
  use[7].packet_bytes = 8;
  use[50].packet_bytes = 7;
  for (int i = 0; i < 20; ++i) sampler.sample(use);
  EXPECT_EQ(sampler.next(), 22'000);
  const LinkTimeline timeline = sampler.finish(use, 21'000);
  std::vector<LinkId> kept;
  for (const LinkSeries& s : timeline.series) kept.push_back(s.link);
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(kept, (std::vector<LinkId>{7, 40, 50}));
}

TEST(LinkSampler, SamplingChangesNoDateAndTotalsAreTheBytesOfTheLinks) {
  const Fabric fabric = leaf_spine({.ranks = 16, .down = 4, .spines = 2});
  const auto play = [&](LinkSampler* sampler) {
    Script traffic;
    for (Rank src = 0; src < 16; ++src)
      for (Rank dst = 0; dst < 16; ++dst)
        if (src != dst) traffic.add({.src = src, .dst = dst, .bytes = 20'000, .cookie = 0});
    PacketNetwork network(fabric, packet_settings(), traffic);
    network.wake_all();
    while (sampler != nullptr && network.advance(sampler->next())) sampler->sample(network.link_use());
    network.run();
    std::vector<Ps> dates;
    for (const Script::Arrival& a : traffic.arrivals) dates.push_back(a.at);
    return std::tuple(dates, network.link_use(), dates.back());
  };
  LinkSampler sampler(fabric);
  const auto [dates, use, end] = play(&sampler);
  EXPECT_EQ(dates, std::get<0>(play(nullptr)));
  const LinkTimeline timeline = sampler.finish(use, end);
  EXPECT_GT(timeline.bins(), 8);
  for (const LinkSeries& s : timeline.series)
    EXPECT_EQ(total(s.sent), use[static_cast<size_t>(s.link)].packet_bytes);
  int64_t all = 0, of_classes = 0;
  for (const LinkUse& u : use) all += u.packet_bytes;
  for (const LinkClass& c : timeline.classes) of_classes += total(c.sent);
  EXPECT_EQ(of_classes, all);
}

class Played : public testing::Test {
 protected:
  SimReport run(const std::string& late_event_of = "") const {
    Experiment e =
        read_experiments(PLUMB_SOURCE_DIR "/experiments/hybrid-small.yaml", {"run.on=[sim]"}).at(0);
    const Fabric fabric = build_fabric(e.machine);
    if (!late_event_of.empty())
      e.sim.events.push_back(
          {.kind = SimEvent::Kind::link_rate, .at = microseconds(1000), .target = late_event_of});
    SimExecutor executor(e.machine, fabric, e.machine.costs, e.sim);
    executor.run(make_plan(e, make_routing(e), false));
    return executor.report();
  }
};

TEST_F(Played, TheTimelineEndsWithThePlanAndHoldsAllBytes) {
  const SimReport report = run();
  EXPECT_EQ(report.timeline.end, report.end);
  for (const LinkSeries& s : report.timeline.series) {
    EXPECT_EQ(total(s.sent), report.links[static_cast<size_t>(s.link)].packet_bytes);
    for (int32_t b = 0; b + 1 < report.timeline.bins(); ++b) EXPECT_LE(report.timeline.use(s, b), 1.0001);
  }
}

TEST_F(Played, TheTimelineIsTheSameEachTimeAndAnEventFarAheadDoesNotStretchIt) {
  const SimReport first = run();
  const SimReport second = run("gpu 0 -> nic 0.0");
  EXPECT_EQ(first.timeline.width, second.timeline.width);
  EXPECT_EQ(first.timeline.end, second.timeline.end);
  ASSERT_EQ(first.timeline.series.size(), second.timeline.series.size());
  for (size_t i = 0; i < first.timeline.series.size(); ++i)
    EXPECT_EQ(first.timeline.series[i].sent, second.timeline.series[i].sent);
}

}  // namespace
}  // namespace plumb::sim

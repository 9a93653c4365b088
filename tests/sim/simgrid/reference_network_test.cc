// SimGrid's fluid network: max-min shares in closed form, and its limits.
#include <string>

#include <gtest/gtest.h>

#include "model/error.h"
#include "model/random.h"
#include "sim/flow_network.h"
#include "sim/simgrid/reference_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr double kExact = 1e-6;  // of a date: SimGrid's dates are grains of 1 ps in doubles

TEST(ReferenceNetwork, IncastSharesOneLink) {
  // 7 x 1 MB through 50 GB/s, after 2 x 300 ns: 140.6 us each.
  std::vector<ReferenceFlow> flows;
  for (Rank r = 1; r < 8; ++r) flows.push_back({.src = r, .dst = 0, .bytes = 1'000'000});
  for (Seconds end : run_reference_network(star(8), flows))
    EXPECT_NEAR(end.value, 140.6e-6, 140.6e-6 * kExact);
}

TEST(ReferenceNetwork, MaxMinSharesFollowStartsAndEnds) {
  // A: 0 -> 2 from 0 on, 2 MB. B: 1 -> 2 from 10 us on, 1 MB. C: 1 -> 3 from 10 us on, 1 MB.
  // Until 10.6 us A has 50 GB/s: 0.5 MB. Then rank 1 is shared by B and C, link to 2 by A and B: all 25 GB/s.
  // B and C end after 40 us, at 50.6 us, and A, too: 0.5 + 1 MB, the rest of 0.5 MB at full rate: 10 us.
  const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 2, .bytes = 2'000'000},
                                            {.src = 1, .dst = 2, .bytes = 1'000'000, .start = {10e-6}},
                                            {.src = 1, .dst = 3, .bytes = 1'000'000, .start = {10e-6}}};
  const std::vector<Seconds> ends = run_reference_network(star(4), flows);
  EXPECT_NEAR(ends[0].value, 60.6e-6, 60.6e-6 * kExact);
  EXPECT_NEAR(ends[1].value, 50.6e-6, 50.6e-6 * kExact);
  EXPECT_NEAR(ends[2].value, 50.6e-6, 50.6e-6 * kExact);
}

TEST(ReferenceNetwork, PathsAreOneOrAnEqualSplit) {
  // Ranks 0 and 1 of leaf 0 send 1 MB each to ranks 4 and 6 of leaf 1, over 2 spines: destinations 4 and 6
  // choose the same spine (even), 40 us; split in halves over both, 20 us. 4 links of 300 ns.
  const Fabric fabric = leaf_spine({.ranks = 8, .down = 4, .spines = 2});
  const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 4, .bytes = 1'000'000},
                                            {.src = 1, .dst = 6, .bytes = 1'000'000}};
  for (int32_t paths : {1, 2}) {
    const double right = (paths == 1 ? 40e-6 : 20e-6) + 1.2e-6;
    for (Seconds end : run_reference_network(fabric, flows, {.paths = paths}))
      EXPECT_NEAR(end.value, right, right * kExact);
  }
}

TEST(ReferenceNetwork, AgreesWithPacketsOnSharedLinks) {
  // The packets' headers are 42 + 26 per packet of 4096: 0.6 %; a message's last packets add some hundred ns.
  const Fabric fabric = star(8);
  std::vector<ReferenceFlow> flows;
  Script traffic;
  for (Rank r = 0; r < 8; ++r)
    for (Rank step : {1, 3}) {
      const Rank dst = r < 4 ? 7 - step : (r + step) % 8;
      if (dst == r) continue;
      flows.push_back({.src = r, .dst = dst, .bytes = 500'000});
      traffic.add({.src = r, .dst = dst, .bytes = 500'000, .cookie = flows.size()});
    }
  const std::vector<Seconds> ends = run_reference_network(fabric, flows);
  PacketNetwork network(fabric, packet_settings(), traffic);
  network.wake_all();
  network.run();
  double last = 0;
  for (Seconds end : ends) last = std::max(last, end.value);
  EXPECT_NEAR(to_seconds(traffic.arrivals.back().at).value, last * 1.0064, last * 0.005);
}

std::string refusal(std::vector<ReferenceFlow> flows, const ReferenceSettings& settings = {}) {
  try {
    run_reference_network(star(3), flows, settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "none";
}

/// Flows of random sizes from each rank to some others, on SimGrid's network and on the flow network:
/// relative differences.
struct Difference {
  double largest = 0;   // of an end date
  double makespan = 0;  // of the last one
};
Difference difference_of(const Fabric& fabric, Rank ranks, int32_t flows_per_rank, double batch) {
  Random random(5, RandomStream::test, static_cast<uint64_t>(ranks));
  std::vector<ReferenceFlow> flows;
  Script traffic;
  for (Rank src = 0; src < ranks; ++src)
    for (int32_t i = 0; i < flows_per_rank; ++i) {
      const Rank dst = (src + 1 + static_cast<Rank>(random.below(static_cast<uint64_t>(ranks - 1)))) % ranks;
      const auto bytes = 500'000 + static_cast<int64_t>(random.below(1'000'000));
      traffic.add({.src = src, .dst = dst, .bytes = bytes, .cookie = flows.size()});
      flows.push_back({.src = src, .dst = dst, .bytes = bytes + 1});  // its one header byte
    }
  FlowSettings settings;
  settings.relative_batch = batch;
  for (auto& network : settings.networks)
    network = {
        .mtu_bytes = 1 << 30, .first_header_bytes = 1, .next_header_bytes = 1, .policy = {}, .injection = {}};
  FlowNetwork network(fabric, settings, traffic);
  for (Rank r = 0; r < ranks; ++r) network.wake(r, Link::scale_out, 0);
  network.run();
  const std::vector<Seconds> ends = run_reference_network(fabric, flows);
  Difference out;
  double last = 0, reference_last = 0;
  for (size_t i = 0; i < flows.size(); ++i) {
    const double end = to_seconds(traffic.arrival(i)).value;
    out.largest = std::max(out.largest, std::abs(end / ends[i].value - 1));
    last = std::max(last, end);
    reference_last = std::max(reference_last, ends[i].value);
  }
  out.makespan = std::abs(last / reference_last - 1);
  return out;
}

TEST(ReferenceNetwork, FlowsEndWithinOnePercentUpTo64Ranks) {
  // The reference waits the latency before a flow, the flow network behind it: 0.3 us or less of some 100 us
  // here, where all paths are of one length; none where links have no latency to speak of.
  for (const Rank ranks : {8, 16, 32, 64}) {
    const int32_t each = std::min(960 / ranks, 12);
    const Fabric tree =
        leaf_spine({.ranks = ranks, .down = 4, .spines = 1, .wire = {.latency = nanoseconds(1)}});
    EXPECT_LT(difference_of(star(ranks), ranks, each, 0).largest, 1e-5) << ranks;
    EXPECT_LT(difference_of(tree, ranks, each, 0).largest, 1e-4) << ranks;
    // Batches move single ends by some percent, the whole by less than one.
    EXPECT_LT(difference_of(star(ranks), ranks, each, FlowSettings().relative_batch).makespan, 0.01) << ranks;
    EXPECT_LT(difference_of(tree, ranks, each, FlowSettings().relative_batch).makespan, 0.01) << ranks;
  }
}

TEST(ReferenceNetwork, RefusesWhatMakesNoSense) {
  EXPECT_EQ(refusal({{.src = 0, .dst = 3}}), "reference network: a flow from rank 0 to rank 3 of 3");
  EXPECT_EQ(refusal({{.src = 0, .dst = 1, .bytes = -1}}), "reference network: a flow of -1 bytes at 0 s");
  EXPECT_EQ(refusal({{.src = 1, .dst = 1, .bytes = 1}}),
            "reference network: rank 1 sends to itself, and no local rate is given");
  EXPECT_EQ(
      refusal(std::vector<ReferenceFlow>(1001, {.src = 0, .dst = 1, .bytes = 1})),
      "reference network: more than 1000 flows; SimGrid's own network is for small cases, use packets or "
      "flows of plumb::sim");
  EXPECT_EQ(refusal({}, {.paths = 0}), "reference network: 0 paths per flow");
}

TEST(ReferenceNetwork, EmptyFlowsTakeTheLatencyOnly) {
  EXPECT_TRUE(run_reference_network(star(2), {}).empty());
  const std::vector<ReferenceFlow> flows = {{.src = 0, .dst = 1, .bytes = 0, .start = {1e-6}}};
  EXPECT_NEAR(run_reference_network(star(2), flows)[0].value, 1.6e-6, 1e-15);
}

}  // namespace
}  // namespace plumb::sim

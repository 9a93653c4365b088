// Our SM model against hand-worked cases and, where both count the same link, against DeepEP's.
#include "model/sm_model.h"

#include <string>
#include <vector>

#include "model/error.h"
#include "tests/model/deepep_cases.h"
#include "tests/model/golden.h"

namespace plumb {
namespace {

/// Our model with the inputs of a DeepEP case, dispatch of fp8 rows of H 7168.
SmWork work_of(const DeepepSmInput& in) {
  const Grouping grouping{in.scaleout * in.scaleup, in.nvlink_ranks};
  SmWork work{.program = {.mode = in.scaleout > 1 ? Mode::hybrid : Mode::direct},
              .grouping = grouping,
              .tokens = 4096,
              .record = Bytes{7520},
              .output_row = Bytes{14336}};
  work.copies.ranks = expected_distinct(in.experts, grouping.ranks, in.topk);
  work.copies.nodes = expected_distinct(in.experts, grouping.nodes(), in.topk);
  work.copies.selections = in.topk;
  return work;
}

SmMachine machine_of(const DeepepSmInput& in) {
  return {.rdma = gigabytes_per_second(in.rdma_gbs),
          .nvlink = gigabytes_per_second(in.nvlink_gbs),
          .hbm = gigabytes_per_second(4800),
          .sm_read = gigabytes_per_second(in.sm_read_gbs),
          .sm_write = gigabytes_per_second(in.sm_write_gbs),
          .device_sms = in.device_sms,
          .sm_granularity = in.device_sms > 1 ? 2 : 1};
}

TEST(SmModel, NeedEqualsDeepepsWhereItCountsTheRightLink) {
  // Same volumes and rates, so the same real-valued SM count; only direct mode over several nodes differs.
  int compared = 0;
  for (const auto& c : golden("sm_model").at("cases")) {
    const DeepepSmInput in = golden_input(c.at("inputs"));
    const bool misses_rdma = in.scaleout == 1 && in.scaleup > in.nvlink_ranks;
    if (misses_rdma || c.at("outputs").at("bound") == "none") continue;
    SCOPED_TRACE(c.at("id"));
    const SmPrediction ours = corrected_sms(work_of(in), machine_of(in));
    expect_close(ours.sm_need, c.at("outputs").at("raw").get<double>());
    EXPECT_EQ(to_string(ours.bound), c.at("outputs").at("bound").get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 26);
}

TEST(SmModel, DirectModeAcrossNodesIsBoundByRdma) {
  // h200_direct16: V = 4096 * 7520, t = 6.52327953: RDMA V t / 2 / 50 GB/s = 2.00929534 ms, NVLink V t 7/16 /
  // 430.3 GB/s = 0.20428950 ms; write V (1 + t/2) = 131.27 MB at 50 GB/s per SM: 2.6253337 ms on one SM,
  // so 1.30659425 SMs.
  const DeepepSmInput in = golden_case("h200_direct16");
  const SmPrediction ours = corrected_sms(work_of(in), machine_of(in));
  EXPECT_EQ(ours.bound, LinkBound::rdma);
  expect_close(ours.rdma_time.value, 2.009295343296e-3);
  expect_close(ours.nvlink_time.value, 0.2042895012657e-3);
  expect_close(ours.sm_need, 1.306594250594);
  EXPECT_EQ(ours.num_sms, 2);
  expect_close(ours.sm_time.value, 1.312666871648e-3);
  EXPECT_TRUE(ours.keeps_up);
  EXPECT_EQ(ours.pace, Pace::rdma);
  EXPECT_EQ(deepep_sms(in).num_sms, 18);
}

TEST(SmModel, AnswerIsTheSmallestCountWithinTolerance) {
  for (const char* id : {"h200_ep8", "h200_8x2", "h200_8x4", "b200_ep8", "h200_direct64"}) {
    SCOPED_TRACE(id);
    const DeepepSmInput in = golden_case(id);
    SmMachine machine = machine_of(in);
    for (const double tolerance : {0.0, 0.02, 0.1}) {
      for (const int32_t unit : {1, 2}) {
        machine.sm_granularity = unit;
        const SmPrediction ours = corrected_sms(work_of(in), machine, tolerance);
        EXPECT_EQ(ours.num_sms % unit, 0);
        EXPECT_TRUE(ours.keeps_up);
        EXPECT_LE(ours.sm_time.value, ours.link_time.value * (1 + tolerance) * (1 + 1e-9));
        if (ours.num_sms == unit) continue;
        EXPECT_FALSE(predict_sms(work_of(in), machine, ours.num_sms - unit, tolerance).keeps_up);
      }
    }
  }
}

TEST(SmModel, TooFewSmsAreAllUsedAndSaidSo) {
  DeepepSmInput in = golden_case("b200_ep8");
  in.device_sms = 9;  // 18.5 are needed
  const SmPrediction ours = corrected_sms(work_of(in), machine_of(in));
  EXPECT_EQ(ours.num_sms, 8);  // a multiple of two
  EXPECT_FALSE(ours.keeps_up);
  EXPECT_EQ(ours.pace, Pace::sm);
}

TEST(SmModel, LonelyRankTakesAllSms) {
  const DeepepSmInput in = golden_case("ep1");
  const SmPrediction ours = corrected_sms(work_of(in), machine_of(in));
  EXPECT_EQ(ours.bound, LinkBound::none);
  EXPECT_EQ(ours.num_sms, 132);
  EXPECT_EQ(ours.link_time.value, 0);
}

TEST(SmModel, TimesAddUpAsWritten) {
  const DeepepSmInput in = golden_case("h200_8x2");
  SmMachine machine = machine_of(in);
  machine.first_barrier = microseconds(5);
  machine.last_barrier = microseconds(3);
  machine.fill = microseconds(7);
  machine.notify = microseconds(20);
  const SmWork work = work_of(in);
  const SmPrediction p = predict_sms(work, machine, 12);
  // V = 30 801 920 B, s/2 = 0.996510058: RDMA 0.6138892 ms; epilogue 2 V t / 4800 GB/s.
  const double v = 4096.0 * 7520;
  expect_close(p.link_time.value, v * 0.996510057716 / 50e9);
  expect_close(p.epilogue_time.value, 2 * v * 6.52327953354 / 4800e9);
  expect_close(p.main_time.value, 15e-6 + p.link_time.value);  // 12 SMs keep up
  expect_close(p.total_time.value, p.main_time.value + p.epilogue_time.value);
  EXPECT_EQ(p.pace, Pace::rdma);
  machine.notify = microseconds(5000);
  const SmPrediction slow = predict_sms(work, machine, 12);
  expect_close(slow.main_time.value, 8e-6 + 5e-3);
  EXPECT_EQ(slow.pace, Pace::notify);
}

TEST(SmModel, MoreSmsNeverTakeLonger) {
  const DeepepSmInput in = golden_case("b200_ep8");
  double last = 1;
  for (int32_t n = 1; n <= 148; ++n) {
    const double now = predict_sms(work_of(in), machine_of(in), n).main_time.value;
    EXPECT_LE(now, last);
    last = now;
  }
}

TEST(SmModel, DirectPlacementSavesTheEpilogue) {
  SmWork work = work_of(golden_case("h200_ep8"));
  const SmMachine machine = machine_of(golden_case("h200_ep8"));
  const SmPrediction staged = predict_sms(work, machine, 16);
  work.program.placement = RowPlacement::direct;
  const SmPrediction direct = predict_sms(work, machine, 16);
  EXPECT_EQ(direct.epilogue_bytes, 0);
  expect_close(staged.total_time.value - direct.total_time.value, staged.epilogue_time.value);
  // Expanded: still one copy on the link; placed directly, the other 8 - t rows are copied from the first
  // one.
  work.program.expand = true;
  const SmPrediction placed = predict_sms(work, machine, 16);
  expect_close(placed.nvlink_bytes, direct.nvlink_bytes);
  expect_close(placed.epilogue_bytes, 2 * 4096.0 * 7520 * (8 - 5.29465200038));
  // Staged: the epilogue reads t rows and writes 8.
  work.program.placement = RowPlacement::staged;
  const SmPrediction expanded = predict_sms(work, machine, 16);
  expect_close(expanded.nvlink_bytes, staged.nvlink_bytes);
  expect_close(expanded.epilogue_bytes, 4096.0 * 7520 * (5.29465200038 + 8));
}

/// Combine of bf16 rows.
SmWork combine_of(const std::string& id) {
  SmWork work = work_of(golden_case(id));
  work.direction = Direction::combine;
  work.record = Bytes{14400};
  return work;
}

TEST(SmModel, CombineMovesItsOwnVolumes) {
  // 8 x 2, V = 4096 * 14400, t = 6.52327953354, s = 1.99302011543, O = 14336 bytes.
  const SmMachine machine = machine_of(golden_case("h200_8x2"));
  const double v = 4096.0 * 14400;
  const double output = 4096.0 * 14336;
  const double t = 6.52327953354;
  const double s = 1.99302011543;
  SmWork work = combine_of("h200_8x2");
  const SmPrediction sums = predict_sms(work, machine, 12);
  expect_close(sums.rdma_bytes, v * s / 2);
  expect_close(sums.nvlink_bytes, v * t * 7 / 8);
  expect_close(sums.sm_read_bytes, v * 2 * t);     // expert rows, then what arrived at the forwarder
  expect_close(sums.sm_write_bytes, v * (t + s));  // rows to the forwarder, sums to the send buffer
  expect_close(sums.epilogue_bytes, v * s + output);
  work.program.num_biases = 2;
  expect_close(predict_sms(work, machine, 12).epilogue_bytes, v * s + 3 * output);
  work.program.num_biases = 0;

  // Single reduction: no sum on the way, t copies cross RDMA: 3.27306256622 times as many.
  work.program.multiple_reduction = false;
  const SmPrediction single = predict_sms(work, machine, 12);
  expect_close(single.rdma_bytes, sums.rdma_bytes * 3.27306256622);
  expect_close(single.sm_write_bytes, v * 2 * t);
  expect_close(single.epilogue_bytes, v * t + output);

  // Expanded rows are not even summed at home: 8 copies.
  work.program.expand = true;
  const SmPrediction expanded = predict_sms(work, machine, 12);
  expect_close(expanded.rdma_bytes, v * 8 / 2);
  expect_close(expanded.nvlink_bytes, v * 8 * 7 / 8);
  // With multiple reduction they are summed at home: read 8 rows, send t.
  work.program.multiple_reduction = true;
  const SmPrediction home = predict_sms(work, machine, 12);
  expect_close(home.rdma_bytes, sums.rdma_bytes);
  expect_close(home.sm_read_bytes, v * (8 + t));
}

TEST(SmModel, DirectCombineReturnsEachCopy) {
  const SmPrediction p =
      predict_sms(combine_of("h200_direct16"), machine_of(golden_case("h200_direct16")), 12);
  const double v = 4096.0 * 14400;
  const double t = 6.52327953354;
  expect_close(p.rdma_bytes, v * t / 2);
  expect_close(p.nvlink_bytes, v * t * 7 / 16);
  expect_close(p.sm_read_bytes, v * t);
  expect_close(p.sm_write_bytes, v * t);
  expect_close(p.epilogue_bytes, v * t + 4096.0 * 14336);
}

TEST(SmModel, HotRankStretchesTheLinkThatItSitsBehind) {
  SmWork work = work_of(golden_case("h200_ep8"));
  const SmMachine machine = machine_of(golden_case("h200_ep8"));
  const SmPrediction even = predict_sms(work, machine, 132);
  work.copies.imbalance = 2;
  const SmPrediction hot = predict_sms(work, machine, 132);
  expect_close(hot.link_time.value, 2 * even.link_time.value);
  expect_close(hot.sm_write_bytes, even.sm_write_bytes);  // senders share its load
  work.direction = Direction::combine;
  expect_close(predict_sms(work, machine, 132).sm_write_bytes,
               2 * 4096.0 * 7520 * 5.29465200038);  // it sends alone
}

TEST(SmModel, MissingRateIsAnErrorThatNamesTheOption) {
  const SmWork work = work_of(golden_case("h200_direct16"));
  const SmMachine machine = machine_of(golden_case("h200_direct16"));
  SmMachine broken = machine;
  broken.rdma = {};
  EXPECT_EQ(error_of([&] { corrected_sms(work, broken); }),
            "SM model: rdma is 0 bytes/s, but 100464767 bytes need it; set scale_out.port_rate of the "
            "machine file to a "
            "rate above 0");
  broken = machine;
  broken.nvlink = {};
  EXPECT_NE(error_of([&] { corrected_sms(work, broken); }).find("scale_up.rate"), std::string::npos);
  broken = machine;
  broken.sm_write = {};
  EXPECT_NE(error_of([&] { corrected_sms(work, broken); }).find("gpu.sm_write_rate"), std::string::npos);
  broken = machine;
  broken.hbm = {};
  EXPECT_NE(error_of([&] { corrected_sms(work, broken); }).find("gpu.hbm_rate"), std::string::npos);
  // On one node no byte needs RDMA: no rate is asked for.
  SmMachine one_node = machine_of(golden_case("h200_ep8"));
  one_node.rdma = {};
  EXPECT_TRUE(corrected_sms(work_of(golden_case("h200_ep8")), one_node).keeps_up);
  EXPECT_NE(error_of([&] { predict_sms(work, machine, 133); }).find("num_sms is 133; allowed: 1..132"),
            std::string::npos);
}

TEST(SmModel, CopiesThatContradictEachOtherAreRefused) {
  const SmMachine machine = machine_of(golden_case("h200_ep8"));
  SmWork work = work_of(golden_case("h200_ep8"));
  work.copies.imbalance = 0.5;  // the fullest rank cannot be below the mean
  EXPECT_EQ(error_of([&] { corrected_sms(work, machine); }),
            "SM model: copies.imbalance is 0.5; allowed: 1..8 (ranks)");
  work = work_of(golden_case("h200_ep8"));
  work.program.expand = true;
  work.copies.selections = 0;
  EXPECT_NE(error_of([&] { corrected_sms(work, machine); }).find("copies.selections is 0"),
            std::string::npos);
}

TEST(GateCopies, UniformGateHasTheClosedForm) {
  const Shape shape = uniform_shape(16, 256, 8, 128, 7168);
  const GateCopies copies = expected_copies(shape, {}, {16, 8});
  expect_close(copies.ranks, 6.52327953354);
  expect_close(copies.nodes, 1.99302011543);
  EXPECT_EQ(copies.selections, 8);
}

TEST(GateCopies, MaskedChoicesAreBinomial) {
  // E 4, R 2, K 2, p 1/2. One choice left (2 * 1/4): 1 rank. Two left (1/4): 2 (1 - C(2,2)/C(4,2)) = 5/3
  // ranks.
  const Shape small = uniform_shape(2, 4, 2, 16, 256);
  const GateCopies half = expected_copies(small, {.masked_ratio = 0.5}, {2, 2});
  expect_close(half.ranks, 0.5 + 0.25 * 5 / 3);
  expect_close(half.nodes, 0.75);
  EXPECT_EQ(half.selections, 1);
  const GateCopies none = expected_copies(small, {.masked_ratio = 1}, {2, 2});
  EXPECT_EQ(none.ranks, 0);
  EXPECT_EQ(none.nodes, 0);
  // The worked number of the header: E 256, R 8, K 8.
  const Shape shape = uniform_shape(8, 256, 8, 16, 256);
  expect_close(expected_copies(shape, {.masked_ratio = 0.5}, {8, 8}).ranks, 3.24264, kSixDigits);
}

TEST(GateCopies, GroupLimitStopsTheSpread) {
  // One of two groups, groups = nodes: exactly one node; inside it 128 experts on 8 ranks.
  const Shape shape = uniform_shape(16, 256, 8, 16, 256);
  const RoutingSpec gate{.kind = RoutingKind::group_limited, .groups = 2, .group_topk = 1};
  const GateCopies copies = expected_copies(shape, gate, {16, 8});
  expect_close(copies.nodes, 1);
  expect_close(copies.ranks, 5.33935689538);  // expected_distinct(128, 8, 8)
  // RDMA volume halves against the ungrouped s = 1.993, and the pace moves to NVLink.
  SmWork work = work_of(golden_case("h200_8x2"));
  work.copies = copies;
  const SmPrediction p = corrected_sms(work, machine_of(golden_case("h200_8x2")));
  expect_close(p.rdma_bytes, 4096.0 * 7520 / 2);
}

TEST(GateCopies, CountedInATableOfAnyGate) {
  // 4 ranks on 2 nodes, 8 experts (2 a rank), K 2, T = {2, 1, 0, 0}: copies to ranks {0,3}, {0}, {3,2};
  // masked once.
  Shape shape = uniform_shape(4, 8, 2, 2, 256);
  shape.tokens = {2, 1, 0, 0};
  const Routing routing = Routing::from_table(shape, {0, 7, -1, 1, 6, 4});
  const GateCopies copies = counted_copies(shape, routing, {4, 2});
  expect_close(copies.ranks, 5.0 / 3);
  expect_close(copies.nodes, 4.0 / 3);  // {0,1}, {0}, {1}
  expect_close(copies.selections, 5.0 / 3);
  expect_close(copies.imbalance, 2 / (5.0 / 4));  // ranks 0 and 3 get two of five
  shape.tokens = {0, 0, 0, 0};
  EXPECT_EQ(counted_copies(shape, Routing::from_table(shape, {}), {4, 2}).imbalance, 1);
}

TEST(GateCopies, OtherGatesPointToCounting) {
  const Shape shape = uniform_shape(2, 4, 2, 16, 256);
  EXPECT_NE(error_of([&] {
              expected_copies(shape, {.kind = RoutingKind::zipf}, {2, 2});
            }).find("counted_copies()"),
            std::string::npos);
}

TEST(SmModel, QueuePairsAreOnePerChannelWithinTheBudget) {
  EXPECT_EQ(corrected_qps({.num_sms = 12, .channels_per_sm = 8, .allocated = 129}), 97);
  EXPECT_EQ(corrected_qps({.num_sms = 12, .channels_per_sm = 8, .allocated = 65}),
            61);                                                   // 64 -> 5 for each SM
  EXPECT_EQ(corrected_qps({.num_sms = 14, .allocated = 17}), 15);  // direct
  EXPECT_EQ(corrected_qps({.num_sms = 14, .allocated = 9}), 9);    // shared between SMs
  EXPECT_EQ(corrected_qps({.num_sms = 14, .allocated = 1}), 1);
  // 1023 peers, 32 768 connections: 32 queue pairs; 31 for data, 24 of them equally on 12 SMs.
  EXPECT_EQ(
      corrected_qps(
          {.num_sms = 12, .channels_per_sm = 8, .allocated = 129, .peers = 1023, .nic_connections = 32768}),
      25);
  EXPECT_NE(error_of([] { corrected_qps({.allocated = 8, .peers = 100, .nic_connections = 99}); }).find("99"),
            std::string::npos);
}

}  // namespace
}  // namespace plumb

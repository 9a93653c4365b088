// Knees of sweeps: a worked number, and the sweeps that were measured on two GPUs.
#include "model/sm_knee.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model/analytic.h"
#include "model/error.h"
#include "model/plans/builders.h"

namespace plumb {
namespace {

std::vector<SweepTime> sweep(std::initializer_list<std::pair<int32_t, double>> times) {
  std::vector<SweepTime> out;
  for (const auto& [sms, us] : times) out.push_back({sms, {us * 1e-6}});
  return out;
}

TEST(SmKnee, IsWhereTheBestTimePlusAShareIsMet) {
  // 5 % above 100 us are met 4 (110 - 105) / (110 - 100) = 2 SMs behind 8.
  EXPECT_DOUBLE_EQ(knee_of(sweep({{4, 200}, {8, 110}, {12, 100}}), 0.05), 10);
  // The best time need not be the last: 12 of a sweep that rises again; 105 us lie 2 behind 8.
  EXPECT_DOUBLE_EQ(knee_of(sweep({{4, 200}, {8, 110}, {12, 100}, {16, 120}}), 0.05), 10);
  EXPECT_DOUBLE_EQ(knee_of(sweep({{4, 101}, {8, 100}}), 0.05), 4);
  EXPECT_DOUBLE_EQ(knee_of(sweep({{4, 100}}), 0.05), 4);
  EXPECT_THROW(knee_of({}, 0.05), LogicError);
  EXPECT_THROW(knee_of(sweep({{8, 100}, {4, 101}}), 0.05), LogicError);
}

/// The committed traces of experiments/two_gpus.yaml beside what the committed costs predict.
struct TwoGpus {
  std::vector<Experiment> experiments;
  std::vector<CalibratedPoint> points;
};

TwoGpus two_gpus() {
  const std::string root = PLUMB_SOURCE_DIR "/experiments";
  TwoGpus all;
  all.experiments =
      read_experiments(root + "/two_gpus.yaml", {"machine.costs=../topologies/costs/plumb_nvlink.yaml"});
  for (size_t i = 0; i < all.experiments.size(); ++i) {
    const Experiment& e = all.experiments[i];
    const std::string file = root + "/results/two_gpus/traces/point" + std::to_string(i) + "-cuda.csv";
    std::ifstream in(file);
    const Trace trace = read_csv(in, file);
    const Plan plan = make_plan(e, make_routing(e), !e.program.multiple_reduction);
    EXPECT_EQ(to_string(trace.header.plan), to_string(plan.digest())) << e.label;
    const Fabric fabric = build_fabric(e.machine);
    const Trace predicted = AnalyticExecutor(e.machine, fabric, e.machine.costs).run(plan);
    all.points.push_back({.label = e.label,
                          .plan = plan.digest(),
                          .traces = {},
                          .repeats = 1,
                          .is_held_out = i % 2 == 1,
                          .measured = trace.total,
                          .before = {},
                          .after = predicted.total,
                          .error = predicted.total.value / trace.total.value - 1});
  }
  return all;
}

/// The sweeps have points at 4, 8, 12, 16, 24 ... SMs. Where time stops to fall as 1 / SMs (20 % above the
/// best: dispatch gains another 17 % behind the bend) the prediction is off by no more than a step of them.
/// Large expanded dispatches run other code from 48 SMs on, which the model does not have: they gain until
/// there, where the model is flat. docs/validation.md has the figures.
TEST(SmKnee, OfTheSweepsOnTwoGpusIsPredictedToAStep) {
  const TwoGpus all = two_gpus();
  const std::vector<SmSweep> sweeps = sm_sweeps(all.experiments, all.points);
  ASSERT_EQ(sweeps.size(), 15u);  // five kinds of call at 128, 4096 and 8192 tokens
  EXPECT_EQ(sweeps[0].label, "dispatch fp8 128 tokens");
  for (const SmSweep& s : sweeps) {
    ASSERT_EQ(s.measured.size(), 8u) << s.label;
    const double measured = knee_of(s.measured, 0.20);
    const double predicted = knee_of(s.predicted, 0.20);
    const bool is_large_expand = s.label.starts_with("expand") && !s.label.ends_with(" 128 tokens");
    if (is_large_expand)
      EXPECT_GT(measured, predicted + 16) << s.label << ": the model has learnt of it; say so";
    else
      EXPECT_NEAR(predicted, measured, 4) << s.label;
  }
}

TEST(SmKnee, PointsOfASweepDifferInTheirSmsOnly) {
  std::vector<Experiment> experiments(5);
  std::vector<CalibratedPoint> points(5);
  const int32_t sms[] = {16, 4, 8, 4, 0};
  for (size_t i = 0; i < 5; ++i) {
    experiments[i].label = points[i].label = "call " + std::to_string(i);
    experiments[i].program.num_sms = sms[i];
    points[i].measured = points[i].after = {static_cast<double>(i) + 1};
  }
  experiments[3].shape.topk = 7;  // another call; the last has no SMs of its own
  const std::vector<SmSweep> sweeps = sm_sweeps(experiments, points);
  ASSERT_EQ(sweeps.size(), 1u);
  EXPECT_EQ(sweeps[0].label, "call");
  ASSERT_EQ(sweeps[0].measured.size(), 3u);
  EXPECT_EQ(sweeps[0].measured[0].sms, 4);
  EXPECT_EQ(sweeps[0].measured[2].sms, 16);
  EXPECT_EQ(sweeps[0].measured[2].time.value, 1);
  points.pop_back();
  points.erase(points.begin());  // two points have no bend
  EXPECT_TRUE(sm_sweeps(experiments, points).empty());
}

}  // namespace
}  // namespace plumb

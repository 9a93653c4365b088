// Calibration on runs whose constants are known: the analytic executor makes the traces.
#include "model/calibrate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "model/analytic.h"
#include "model/error.h"
#include "tests/model/fabric_machines.h"

namespace plumb {
namespace {

Machine two_gpus() {
  Machine m = machine_of(1, SwitchedDomain{.ranks = 2, .planes = 1}, NoScaleOut{}, 0);
  m.gpu.name = "NVIDIA H200";
  m.gpu.sms.value = 132;
  m.gpu.hbm_rate.value = gigabytes_per_second(4000);
  return m;
}

/// Two ranks send each other `bytes` with 4 SMs; a copy of `copied` bytes follows in phase "place".
Plan exchange(int64_t bytes, int64_t copied = 0) {
  Plan plan(Program{}, Grouping{.ranks = 2, .scaleup = 2});
  plan.add_phase({.name = "dispatch", .engine = Engine::sm, .sms = 4});
  plan.add_phase({.name = "place", .engine = Engine::sm, .sms = 4});
  for (Rank r : {0, 1}) {
    Op op;
    op.link = Link::scale_up;
    op.src = r;
    op.dst = 1 - r;
    op.messages = op.rows = 1;
    op.bytes = bytes;
    plan.add(op);
  }
  for (Rank r : {0, 1}) {
    if (copied == 0) break;
    Op op;
    op.kind = OpKind::copy;
    op.phase = 1;
    op.src = op.dst = r;
    op.messages = op.rows = 1;
    op.bytes = copied;
    plan.add(op, {{.op = 1 - r, .on = On::arrived}});
  }
  return plan;
}

Costs costs_of(double share, double fixed_us) {
  Costs costs;
  costs.name = "start";
  costs.scale_up_share = {.value = share, .source = "assumed for a test"};
  costs.memory_share = {.value = 0.8, .source = "measured of something \"else\""};
  costs.fixed = {{.phases = {"dispatch"},
                  .covers = {},
                  .time = {microseconds(fixed_us), "assumed for a test"},
                  .per_doubling = {}}};
  return costs;
}

/// Points of one machine and, when `truth` is given, a run of each with its total times a factor.
class Points {
 public:
  explicit Points(const Machine& machine = two_gpus()) : machine_(machine), fabric_(build_fabric(machine_)) {}

  Points& add(const std::string& label, Plan plan, const Costs& truth, double factor = 1) {
    plans_.push_back(std::move(plan));
    points.push_back(
        {.label = label, .plan = plans_.back(), .machine = machine_, .fabric = fabric_, .traces = {}});
    points.back().traces.push_back(run(points.size() - 1, truth, factor));
    return *this;
  }

  Trace run(size_t point, const Costs& truth, double factor = 1, int32_t repeat = 0) const {
    Trace trace = AnalyticExecutor(machine_, fabric_, truth).run(points[point].plan);
    trace.header.repeat = repeat;
    trace.total = trace.total * factor;
    return trace;
  }

  Seconds estimate(size_t point, const Costs& costs) const {
    return AnalyticExecutor(machine_, fabric_, costs).estimate(points[point].plan).total;
  }

  std::vector<CalibrationPoint> points;

 private:
  const Machine machine_;
  const Fabric fabric_;
  std::deque<Plan> plans_;
};

constexpr std::array<int64_t, 8> kBytes = {100'000,   200'000,   400'000,   800'000,
                                           1'600'000, 3'200'000, 6'400'000, 12'800'000};

/// One point for each size, called a, b, c ...; measured times are off by the factors given, in turn.
Points sizes(const Costs& truth, const std::vector<double>& factors = {1}) {
  Points out;
  for (size_t i = 0; i < kBytes.size(); ++i)
    out.add(std::string(1, static_cast<char>('a' + i)), exchange(kBytes[i]), truth,
            factors[i % factors.size()]);
  return out;
}

std::string error_of(const std::function<void()>& action, ErrorKind kind = ErrorKind::usage) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
}

const std::vector<std::string> kShareAndFixed = {"scale_up_share", "fixed.0.time"};

TEST(Calibrate, RecoversTheConstantsOfExactRuns) {
  const Points p = sizes(costs_of(0.7, 5));
  const Calibration c = calibrate(p.points, costs_of(0.9, 1), {.fit = kShareAndFixed});
  ASSERT_EQ(c.parameters.size(), 2u);
  // Values are rounded to six digits: 5e-6 of them at most.
  EXPECT_NEAR(c.parameters[0].after, 0.7, 0.7 * 1e-5);
  EXPECT_NEAR(c.parameters[1].after, 5e-6, 5e-6 * 1e-5);
  EXPECT_EQ(c.parameters[0].before, 0.9);
  EXPECT_EQ(c.costs.scale_up_share.value, c.parameters[0].after);
  EXPECT_EQ(c.costs.fixed[0].time.value.value, c.parameters[1].after);
  EXPECT_LT(c.fit.rms, 1e-5);
  EXPECT_LT(c.held_out.rms, 1e-5);
  EXPECT_GT(c.before.rms, 0.2);
}

TEST(Calibrate, FeedsAreFittedWhenNamed) {
  // 4 SMs of 4 + 2 reach 2/3 of the link: a share of the link would do the same, so a default fit leaves
  // feeds.
  Costs truth = costs_of(0.9, 5), start = costs_of(0.9, 1);
  truth.sm.feeds = {{.phases = {"dispatch"},
                     .share = {},
                     .half_sms = {.value = 2, .source = "assumed so"},
                     .own_rows = {}}};
  truth.sm.feeds[0].share.value = 1;
  start.sm.feeds = truth.sm.feeds;
  start.sm.feeds[0].half_sms.value = 5;
  truth.sm.links = start.sm.links = {};
  const Points p = sizes(truth);
  const Calibration named = calibrate(p.points, start, {.fit = {"sm.feeds.0.half_sms", "fixed.0.time"}});
  EXPECT_NEAR(named.parameters[0].after, 2, 2e-5);
  EXPECT_NEAR(named.parameters[1].after, 5e-6, 5e-11);
  EXPECT_NE(to_yaml(named, {.name = "fitted"}).find("half_sms: {value: 2, source: \"fitted on"),
            std::string::npos);
  for (const FittedParameter& f : calibrate(p.points, start, {}).parameters)
    EXPECT_EQ(f.name.find("feeds"), std::string::npos) << f.name;
}

TEST(Calibrate, ErrorsOfConstantsStayWithinThoseOfTheNoise) {
  const Costs truth = costs_of(0.7, 5);
  const std::vector<double> noise = {1.01, 1, 0.99, 1, 0.99, 1, 1.01, 1};  // of a, c, e, g, which are fitted
  const Points p = sizes(truth, noise);
  const Calibration c = calibrate(p.points, costs_of(0.9, 1), {.fit = kShareAndFixed});
  // Relative times change by -w per d log(share), w = the part that bytes take, and by 1/T per second of
  // fixed time. With J of these columns the error of the solution is (J^T J)^-1 J^T e; |e| <= 1 % each, 10 %
  // more for curvature.
  double ss = 0, st = 0, tt = 0;
  std::vector<std::array<double, 2>> rows;
  for (size_t i = 0; i < kBytes.size(); i += 2) {
    const double total = p.estimate(i, truth).value;
    rows.push_back({-static_cast<double>(kBytes[i]) / (400e9 * 0.7) / total, 1 / total});
    ss += rows.back()[0] * rows.back()[0];
    st += rows.back()[0] * rows.back()[1];
    tt += rows.back()[1] * rows.back()[1];
  }
  double share_bound = 0, time_bound = 0;
  for (const auto& [s, t] : rows) {
    share_bound += 0.011 * std::abs((tt * s - st * t) / (ss * tt - st * st));
    time_bound += 0.011 * std::abs((ss * t - st * s) / (ss * tt - st * st));
  }
  EXPECT_LT(share_bound, 0.05);  // the bound says something
  EXPECT_NEAR(c.parameters[0].after, 0.7, 0.7 * share_bound);
  EXPECT_NEAR(c.parameters[1].after, 5e-6, time_bound);
  EXPECT_GT(std::abs(c.parameters[0].after - 0.7) / 0.7, 1e-4);  // noise does move them
  EXPECT_GT(c.parameters[0].standard_error, 0);
  EXPECT_LT(c.parameters[0].standard_error, 0.7 * share_bound * 2);
  EXPECT_GT(c.parameters[1].standard_error, 0);
}

TEST(Calibrate, EverySecondPointIsHeldOutAndJudged) {
  const Costs truth = costs_of(0.7, 5);
  // b, d, f, h are measured 10 % slower than the rest.
  const Points p = sizes(truth, {1, 1.1});
  const std::vector<CalibrationPoint> reversed(p.points.rbegin(),
                                               p.points.rend());  // labels decide, not the order
  const Calibration c = calibrate(reversed, costs_of(0.9, 1), {.fit = kShareAndFixed});
  std::string held;
  for (const CalibratedPoint& point : c.points) held += point.is_held_out ? point.label : "";
  EXPECT_EQ(held, "bdfh");
  EXPECT_NEAR(c.parameters[0].after, 0.7, 0.7 * 1e-5);  // they do not pull the fit
  // 1 / 1.1 - 1 = -9.09 %
  EXPECT_EQ(c.held_out.count, 4);
  EXPECT_NEAR(c.held_out.rms, 1 - 1 / 1.1, 1e-4);
  EXPECT_NEAR(c.held_out.median, 1 - 1 / 1.1, 1e-4);
  EXPECT_NEAR(c.held_out.worst, 1 / 1.1 - 1, 1e-4);
  EXPECT_EQ(c.fit.count, 4);
  EXPECT_LT(c.fit.rms, 1e-5);
  for (const CalibratedPoint& point : c.points)
    EXPECT_NEAR(point.error, point.after / point.measured - 1, 1e-12);
}

TEST(Calibrate, NumbersInLabelsCountByTheirValue) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  for (const std::string label :
       {"tokens=1024 sms=8", "tokens=64 sms=16", "tokens=64 sms=8", "tokens=256 sms=8"})
    p.add(label, exchange(1000 * static_cast<int64_t>(p.points.size() + 1)), truth);
  const Calibration c = calibrate(p.points, truth, {.fit = {"fixed.0.time"}});
  std::string order;
  for (const CalibratedPoint& point : c.points)
    order += point.label + (point.is_held_out ? " held out; " : "; ");
  EXPECT_EQ(order,
            "tokens=64 sms=8; tokens=64 sms=16 held out; tokens=256 sms=8; tokens=1024 sms=8 held out; ");
}

TEST(Calibrate, HeldOutPointsCanBeNamed) {
  const Points p = sizes(costs_of(0.7, 5));
  const Costs start = costs_of(0.9, 1);
  const Calibration none =
      calibrate(p.points, start, {.fit = kShareAndFixed, .held_out = std::vector<std::string>{}});
  EXPECT_EQ(none.held_out.count, 0);
  EXPECT_EQ(none.fit.count, 8);
  const Calibration one =
      calibrate(p.points, start, {.fit = kShareAndFixed, .held_out = std::vector<std::string>{"c"}});
  EXPECT_EQ(one.held_out.worst_label, "c");
  EXPECT_EQ(error_of([&] { calibrate(p.points, start, {.held_out = std::vector<std::string>{"x"}}); }),
            "no measured point is called 'x'; there are: 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'");
}

TEST(Calibrate, RefusesWhatThePointsDoNotDetermine) {
  const Points p = sizes(costs_of(0.7, 5));
  Costs start = costs_of(0.9, 1);
  start.fixed.push_back(start.fixed.front());
  EXPECT_EQ(error_of([&] {
              calibrate(p.points, start,
                        {.fit = {"scale_up_share", "scale_up_barrier", "fixed.0.time", "fixed.1.time"}});
            }),
            "the points do not determine these parameters at the start:\n"
            "  scale_up_barrier: no time that was measured depends on it\n"
            "  fixed.1.time: changes the times as fixed.0.time would\n"
            "fit fewer, or measure points that tell them apart");
}

TEST(Calibrate, RefusesPointsThatAreNearlyAlike) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  p.add("a", exchange(1'000'000), truth)
      .add("b", exchange(1'001'000), truth)
      .add("c", exchange(1'002'000), truth);
  const std::string error = error_of(
      [&] { calibrate(p.points, truth, {.fit = kShareAndFixed, .held_out = std::vector<std::string>{}}); });
  EXPECT_NE(error.find("  fixed.0.time: changes the times as scale_up_share would\n"), std::string::npos)
      << error;
}

TEST(Calibrate, RefusesMoreParametersThanTimes) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  p.add("a", exchange(1'000'000), truth).add("b", exchange(2'000'000), truth);
  EXPECT_EQ(error_of([&] { calibrate(p.points, truth, {.fit = kShareAndFixed}); }),
            "2 parameters cannot be fitted to 1 measured times (1 points are held out): scale_up_share, "
            "fixed.0.time");
}

TEST(Calibrate, RefusesUnknownParameters) {
  const Points p = sizes(costs_of(0.7, 5));
  const std::string error =
      error_of([&] { calibrate(p.points, costs_of(0.9, 1), {.fit = {"scale_up_shar"}}); });
  EXPECT_EQ(error.substr(0, error.find(';')),
            "'scale_up_shar' is no parameter of costs 'start', did you mean 'scale_up_share'?");
  EXPECT_NE(error.find("fixed.0.time"), std::string::npos);
  EXPECT_NE(error_of([&] {
              calibrate(p.points, costs_of(0.9, 1), {.fit = {"sm.rates"}});
            }).find("neither costs nor machine give an SM rate"),
            std::string::npos);
}

TEST(Calibrate, ChoosesWhatTheTimesDependOn) {
  const Points p = sizes(costs_of(0.7, 5));
  const Calibration c = calibrate(p.points, costs_of(0.9, 1), {});
  ASSERT_EQ(c.parameters.size(), 2u);
  EXPECT_EQ(c.parameters[0].name, "scale_up_share");
  EXPECT_EQ(c.parameters[1].name, "fixed.0.time");
  const auto reason = [&](const std::string& name) {
    for (const LeftOutParameter& left : c.left_out)
      if (left.name == name) return left.reason;
    return std::string();
  };
  EXPECT_EQ(reason("scale_out_share"), "no time that was measured depends on it");
  EXPECT_EQ(c.parameters.size() + c.left_out.size(), calibration_parameters(c.costs).size());
}

TEST(Calibrate, TimesOfPhasesTellApartWhatTotalsDoNot) {
  Costs truth = costs_of(0.7, 0);
  truth.memory_share.value = 0.5;
  truth.fixed.clear();
  Costs start = truth;
  start.scale_up_share.value = 0.9;
  start.memory_share.value = 0.8;
  Points p;
  for (size_t i = 0; i < kBytes.size(); ++i)  // as many bytes copied as sent: totals see one sum
    p.add(std::string(1, static_cast<char>('a' + i)), exchange(kBytes[i] * 100, kBytes[i] * 100), truth);
  CalibrationOptions options{.fit = {"scale_up_share", "memory_share"}};
  EXPECT_NE(error_of([&] { calibrate(p.points, start, options); }).find("memory_share: changes the times as"),
            std::string::npos);
  options.use_phases = true;
  const Calibration c = calibrate(p.points, start, options);
  EXPECT_NEAR(c.parameters[0].after, 0.7, 0.7 * 1e-5);
  EXPECT_NEAR(c.parameters[1].after, 0.5, 0.5 * 1e-5);
}

TEST(Calibrate, ParametersStopAtTheirBounds) {
  // Runs that are faster than the latency allows: no time is left for the fixed cost.
  const Costs truth = costs_of(0.7, 0);
  const Points p = sizes(truth, {0.9});
  const Calibration c = calibrate(p.points, costs_of(0.7, 3), {.fit = {"fixed.0.time"}});
  EXPECT_EQ(c.parameters[0].after, 0);
  EXPECT_TRUE(c.parameters[0].is_at_bound);
  EXPECT_TRUE(std::isnan(c.parameters[0].standard_error));
  EXPECT_NE(c.costs.fixed[0].time.source.find("at its bound"), std::string::npos);
}

/// Runs at 96 GB/s; the start has the network at 40 GB/s, and SMs that cannot do more than 80 GB/s.
Points bound_by_sms(Costs& start) {
  start = costs_of(0.1, 1);
  start.sm.rates = {{.gpus = {}, .rate = {gigabytes_per_second(20), "assumed for a test"}}};
  Costs truth = costs_of(0.7, 1);
  truth.sm.rates = {{.gpus = {}, .rate = {gigabytes_per_second(24), "assumed for a test"}}};
  return sizes(truth);
}

TEST(Calibrate, RefusesAParameterThatNoLongerMattersWhereTheFitEnds) {
  Costs start;
  const Points p = bound_by_sms(start);
  EXPECT_EQ(error_of([&] { calibrate(p.points, start, {.fit = {"scale_up_share"}}); }),
            "the points do not determine these parameters where the fit ended:\n"
            "  scale_up_share: no time that was measured depends on it\n"
            "fit fewer, or measure points that tell them apart");
}

TEST(Calibrate, SetsAsideWhatNoLongerMattersAndGoesOn) {
  Costs start;
  const Points p = bound_by_sms(start);
  const Calibration c = calibrate(p.points, start, {});
  // The share grows until SMs are the limit, then their rate does; in the end the slower of both is at 96
  // GB/s, and the times say of the other one only that it is not slower.
  const double by_share = c.costs.scale_up_share.value * 400e9;
  const double by_sms = sm_rate(c.costs.sm, "NVIDIA H200")->value * 4;
  EXPECT_NEAR(std::min(by_share, by_sms), 96e9, 96e9 * 1e-5);
  EXPECT_NEAR(c.costs.fixed[0].time.value.value, 1e-6, 1e-6 * 1e-4);
  ASSERT_EQ(c.parameters.size(), 3u);
  const FittedParameter& other = c.parameters[2];
  EXPECT_FALSE(other.is_determined);
  EXPECT_TRUE(std::isnan(other.standard_error));
  EXPECT_EQ(other.name, by_share > by_sms ? "scale_up_share" : "sm.rates");
  EXPECT_NE(to_yaml(c, {.name = "x"}).find("not determined"), std::string::npos);
  EXPECT_LT(c.held_out.rms, 1e-5);
}

TEST(Calibrate, TakesTheLowerMedianOfRepeats) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  p.add("a", exchange(1'000'000), truth);
  p.points[0].traces.push_back(p.run(0, truth, 4, 1));
  p.points[0].traces.push_back(p.run(0, truth, 2, 2));
  p.points[0].traces.push_back(p.run(0, truth, 8, 3));
  const Calibration c = calibrate(p.points, truth, {.fit = {"fixed.0.time"}});
  EXPECT_EQ(c.points[0].repeats, 4);
  EXPECT_NEAR(c.points[0].measured / p.estimate(0, truth), 2, 1e-12);
}

TEST(CalibrateAssign, MatchesByPlanAndRefusesOthers) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  p.add("a", exchange(1000), truth).add("b", exchange(2000), truth);
  Trace of_b = p.run(1, truth, 1, 1);
  assign(p.points, of_b, "b.csv");
  ASSERT_EQ(p.points[1].traces.size(), 2u);
  EXPECT_EQ(error_of([&] { assign(p.points, of_b, "again.csv"); }),
            "trace 'again.csv' was given before (point 'b')");

  Trace other = of_b;
  other.header.plan = {.high = 1, .low = 2};
  EXPECT_EQ(error_of([&] { assign(p.points, other, "x.csv"); }, ErrorKind::mismatch),
            fmt::format(
                "trace 'x.csv' is of plan 00000000000000010000000000000002, which no point has; there are:\n"
                "  'a': {}\n  'b': {}",
                to_string(p.points[0].plan.digest()), to_string(p.points[1].plan.digest())));
  other = of_b;
  other.header.machine = "elsewhere";
  EXPECT_EQ(error_of([&] { assign(p.points, other, "x.csv"); }, ErrorKind::mismatch),
            "trace 'x.csv' was made on machine 'elsewhere', the point of its plan is of machine 'test'");
  other = of_b;
  other.header.complete = false;
  EXPECT_EQ(error_of([&] { assign(p.points, other, "x.csv"); }, ErrorKind::mismatch),
            "trace 'x.csv' is of a run that ended early");
  other = of_b;
  other.header.executor = "cuda";
  EXPECT_EQ(error_of([&] { assign(p.points, other, "x.csv"); }),
            "trace 'x.csv' is of cuda, another one of analytic; fit to one executor at a time");
  other.header.executor = "host";
  EXPECT_EQ(error_of([&] { assign(p.points, other, "x.csv"); }),
            "trace 'x.csv' is of the host executor, which times the CPU; allowed: analytic, sim, cuda");
}

TEST(CalibrateAssign, RefusesTwoPointsOfOnePlan) {
  const Costs truth = costs_of(0.7, 5);
  Points p;
  p.add("a", exchange(1000), truth).add("b", exchange(1000), truth);
  EXPECT_EQ(error_of([&] { assign(p.points, p.run(0, truth, 1, 1), "x.csv"); }),
            "trace 'x.csv' fits points 'a' and 'b', which have the same plan; choose one with overrides");
}

/// A folder that is gone afterwards.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(std::filesystem::path(testing::TempDir()) / name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Costs reload(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / (name + ".yaml")) << text;
    return load_costs(path_.string(), name);
  }

 private:
  std::filesystem::path path_;
};

TEST(CalibrateFile, OverlayReadsBackAsTheFittedCosts) {
  Folder folder("plumb-calibrate-overlay");
  Costs start = costs_of(0.9, 1);
  start.describes = "a test";
  start.sm.rates = {{.gpus = {"H100", "H200"}, .rate = {gigabytes_per_second(30), "assumed for a test"}},
                    {.gpus = {}, .rate = {gigabytes_per_second(10), "assumed for a test"}}};
  start = folder.reload("start", to_yaml(start, "start"));
  Costs truth = start;
  truth.sm.rates[0].rate.value = gigabytes_per_second(24.2);
  truth.fixed[0].time.value = microseconds(5);
  const Points p = sizes(truth, {1.002, 1, 0.998});
  const Calibration c = calibrate(p.points, start, {.fit = {"sm.rates", "fixed.0.time"}});

  const std::string text = to_yaml(c, {.name = "fitted", .extends = "start"});
  const Costs read = folder.reload("fitted", text);
  // The rate is of this GPU alone; what the start says of others stays.
  ASSERT_EQ(read.sm.rates.size(), 3u);
  EXPECT_EQ(read.sm.rates[0].gpus, std::vector<std::string>{"NVIDIA H200"});
  EXPECT_EQ(read.sm.rates[0].rate.value.value, c.parameters[0].after);
  EXPECT_EQ(read.sm.rates[1].rate.value, gigabytes_per_second(30));
  EXPECT_EQ(read.fixed[0].time.value.value, c.parameters[1].after);
  EXPECT_EQ(sm_rate(read.sm, "NVIDIA H200"), read.sm.rates[0].rate.value);
  EXPECT_NEAR(read.sm.rates[0].rate.value.value, 24.2e9, 24.2e9 * 0.01);
  // Each fitted value says where it is from.
  EXPECT_EQ(read.fixed[0].time.source.find(fmt::format(
                "fitted on 4 points of analytic traces (digest {}), residual ", to_string(c.traces))),
            0u)
      << read.fixed[0].time.source;
  EXPECT_NE(read.fixed[0].time.source.find(" % rms, held out 4 points 0."), std::string::npos);
  EXPECT_NE(read.fixed[0].time.source.find(", standard error "), std::string::npos);
  // Nothing else stands in the overlay, and all of it is inherited.
  EXPECT_EQ(text.find("memory_share"), std::string::npos);
  EXPECT_EQ(to_yaml(read, ""), to_yaml(c.costs, ""));
  // The points stand in its heading.
  EXPECT_NE(text.find(fmt::format("#   held-out {:.3f} ", microseconds(c.points[1].measured))),
            std::string::npos);
  EXPECT_NE(text.find(to_string(c.points[1].traces)), std::string::npos);
}

TEST(CalibrateFile, WithoutAStartBesideItHoldsAllValues) {
  Folder folder("plumb-calibrate-all");
  Costs start = costs_of(0.9, 1);
  start.describes = "a test";
  start.fill_links = {Link::scale_out};
  start.sm.free_phases = {"notify*"};
  start.sm.row_time = {nanoseconds(1.5), "assumed for a test"};
  start.sm.factors = {{.phases = {"combine_*"},
                       .gpus = {"H200"},
                       .factor = {.value = 1.247, .source = "assumed for a test"}}};
  start.fixed[0].covers = {"notify"};
  start.fixed[0].per_doubling = {microseconds(0.1), "assumed for a test"};
  start.fixed[0].base_ranks = 8;
  start.fixed[0].per_sm = {nanoseconds(50), "assumed for a test"};
  start.sm.factors[0].streamed = true;
  start.sm.feeds = {{.phases = {"up"},
                     .share = {.value = 0.9, .source = "assumed for a test"},
                     .half_sms = {},
                     .own_rows = {.value = 0.25, .source = "assumed for a test"},
                     .pushed = true}};
  const Points p = sizes(costs_of(0.7, 5));
  const Calibration c = calibrate(p.points, start, {.fit = kShareAndFixed});
  const Costs read = folder.reload("fitted", to_yaml(c, {.name = "fitted", .extends = ""}));
  EXPECT_EQ(read.describes, "a test");
  EXPECT_EQ(read.memory_share.value, 0.8);
  EXPECT_EQ(read.memory_share.source, "measured of something \"else\"");
  EXPECT_EQ(read.fill_links, start.fill_links);
  EXPECT_EQ(read.sm.free_phases, start.sm.free_phases);
  EXPECT_EQ(read.sm.row_time.value, nanoseconds(1.5));
  EXPECT_EQ(read.sm.factors[0].factor.value, 1.247);
  EXPECT_EQ(read.fixed[0].covers, start.fixed[0].covers);
  EXPECT_EQ(read.fixed[0].per_doubling.value, microseconds(0.1));
  EXPECT_EQ(read.fixed[0].base_ranks, 8);
  EXPECT_EQ(read.fixed[0].per_sm.value, nanoseconds(50));
  EXPECT_TRUE(read.sm.factors[0].streamed);
  ASSERT_EQ(read.sm.feeds.size(), 1u);
  EXPECT_EQ(read.sm.feeds[0].share.value, 0.9);
  EXPECT_EQ(read.sm.feeds[0].half_sms.value, 0);
  EXPECT_EQ(read.sm.feeds[0].own_rows.value, 0.25);
  EXPECT_TRUE(read.sm.feeds[0].pushed);
  EXPECT_EQ(read.scale_up_share.value, c.parameters[0].after);
  EXPECT_EQ(to_yaml(read, ""), to_yaml(c.costs, ""));
}

TEST(CalibrateFile, ShippedCostsKeepTheirValuesWhenWritten) {
  const std::filesystem::path shipped = std::filesystem::path(PLUMB_SOURCE_DIR) / "topologies/costs";
  Folder folder("plumb-calibrate-shipped");
  for (const std::string name :
       {"plumb", "deepep_v1", "deepep_v2", "deepep_v1_low_latency", "hybrid_ep", "plumb_nvlink_form"}) {
    const Costs costs = load_costs(shipped.string(), name);
    const Costs read = folder.reload(name, to_yaml(costs, name));
    EXPECT_EQ(to_yaml(read, name), to_yaml(costs, name));
    EXPECT_EQ(read.scale_out_latency.value, costs.scale_out_latency.value);
    ASSERT_EQ(read.fixed.size(), costs.fixed.size());
    for (size_t i = 0; i < read.fixed.size(); ++i)
      EXPECT_EQ(read.fixed[i].time.value, costs.fixed[i].time.value);
  }
}

TEST(CalibrateFile, SamePointsGiveTheSameBytesInAnyOrder) {
  const Costs truth = costs_of(0.7, 5), start = costs_of(0.9, 1);
  Points p = sizes(truth, {1.01, 0.99, 1});
  for (size_t i = 0; i < p.points.size(); ++i) p.points[i].traces.push_back(p.run(i, truth, 0.98, 1));
  const std::string text = to_yaml(calibrate(p.points, start, {.fit = kShareAndFixed}), {.name = "fitted"});
  std::vector<CalibrationPoint> reversed(p.points.rbegin(), p.points.rend());
  for (CalibrationPoint& point : reversed) std::reverse(point.traces.begin(), point.traces.end());
  EXPECT_EQ(to_yaml(calibrate(reversed, start, {.fit = kShareAndFixed}), {.name = "fitted"}), text);
  p.points[1].traces[0].total = p.points[1].traces[0].total * 1.5;
  EXPECT_NE(to_yaml(calibrate(p.points, start, {.fit = kShareAndFixed}), {.name = "fitted"}), text);
}

}  // namespace
}  // namespace plumb

// Experiment files: sections, sweeps, points, overrides, placement.
#include "model/experiment.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "model/error.h"
#include "model/ledger.h"

namespace plumb {
namespace {

const std::string kRoot = PLUMB_SOURCE_DIR;

class ExperimentFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string write(const std::string& more) {
    path_ = (std::filesystem::temp_directory_path() /
             ("plumb-experiment-" + std::to_string(::getpid()) + ".yaml"))
                .string();
    std::ofstream(path_) << "schema: plumb.experiment/1\nmachine: {file: " << kRoot
                         << "/topologies/h200-cx7.yaml, nodes: 2}\n"
                            "shape: {experts: 32, topk: 4, hidden: 256, tokens_per_rank: 8}\n"
                         << more;
    return path_;
  }

  std::string error_of(const std::string& more) {
    try {
      read_experiments(write(more));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  std::string path_;
};

TEST_F(ExperimentFile, ReadsEverySectionAndTakesRanksFromTheMachine) {
  const auto all =
      read_experiments(write("program: {kind: dispatch, mode: hybrid, expand: true, num_sms: 12}\n"
                             "routing: {kind: zipf, exponent: 0.5, seed: 7, masked: 10 %}\n"
                             "run: {on: [analytic], host_window: 128 B, expert: scaled, seed: 3}\n"
                             "published: some-row\n"));
  ASSERT_EQ(all.size(), 1u);
  const Experiment& e = all[0];
  EXPECT_EQ(e.shape.ranks, 16);
  EXPECT_EQ(e.shape.tokens, std::vector<int32_t>(16, 8));
  EXPECT_EQ(e.grouping().nodes(), 2);
  EXPECT_TRUE(e.program.expand);
  EXPECT_EQ(e.program.num_sms, 12);
  EXPECT_EQ(e.routing.kind, RoutingKind::zipf);
  EXPECT_DOUBLE_EQ(e.routing.masked_ratio, 0.1);
  EXPECT_EQ(e.run.on, std::vector<std::string>{"analytic"});
  EXPECT_EQ(e.run.host.window_bytes, 128);
  EXPECT_EQ(e.run.expert, ExpertFunction::scaled);
  EXPECT_EQ(e.published, std::vector<std::string>{"some-row"});
  EXPECT_EQ(e.machine.costs.name, "plumb");  // of the library that a dispatch belongs to
}

TEST_F(ExperimentFile, TheWorldOfRealRunsIsChosenOrAutomatic) {
  const auto world_of = [&](const char* run) {
    return read_experiments(write(std::string("program: {kind: dispatch}\n") + run))[0].run.world;
  };
  EXPECT_EQ(world_of(""), WorldChoice::automatic);
  EXPECT_EQ(world_of("run: {world: auto}\n"), WorldChoice::automatic);
  EXPECT_EQ(world_of("run: {world: local}\n"), WorldChoice::local);
  EXPECT_EQ(world_of("run: {world: nvlink}\n"), WorldChoice::nvlink);
  const std::string text = error_of("program: {kind: dispatch}\nrun: {world: gin}\n");
  for (const char* expected : {"'world'", "'gin'", "auto", "local", "nvlink"})
    EXPECT_NE(text.find(expected), std::string::npos) << text;
}

TEST_F(ExperimentFile, FewerRanksThanANodeFormOneGroup) {
  const auto all = read_experiments(write("program: {kind: dispatch}\n"), {"shape.ranks=4"});
  EXPECT_EQ(all[0].grouping().ranks, 4);
  EXPECT_EQ(all[0].grouping().scaleup, 4);
  EXPECT_NE(error_of("program: {kind: dispatch}\nsweep: {shape.ranks: [12]}\n").find("12 ranks do not fit"),
            std::string::npos);
}

TEST_F(ExperimentFile, SweepIsAProductWithTheFirstKeySlowest) {
  const auto all = read_experiments(
      write("program: {kind: dispatch}\nsweep: {program.num_sms: [4, 8], shape.topk: [1, 2, 3]}\n"));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[2].label, "program.num_sms=4 shape.topk=3");
  EXPECT_EQ(all[3].label, "program.num_sms=8 shape.topk=1");
  EXPECT_EQ(all[3].program.num_sms, 8);
  EXPECT_EQ(all[5].shape.topk, 3);
}

TEST_F(ExperimentFile, PointsCarryNamesAndTheirOwnKeys) {
  const auto all = read_experiments(write(
      "program: {kind: dispatch}\npoints:\n  - {name: one, program.kind: combine}\n  - {shape.topk: 2}\n"));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].label, "one");
  EXPECT_EQ(all[0].program.kind, ProgramKind::combine);
  EXPECT_EQ(all[1].label, "shape.topk=2");
  EXPECT_NE(error_of("program: {kind: dispatch}\npoints: [{shape.topk: 2}]\nsweep: {shape.topk: [1]}\n")
                .find("stands beside 'sweep'"),
            std::string::npos);
}

TEST_F(ExperimentFile, AutomaticCountsAreThoseOfTheModels) {
  const auto all = read_experiments(write("program: {kind: dispatch, mode: hybrid}\n"));
  const Routing routing = make_routing(all[0]);
  const Program program = resolved_program(all[0], routing);
  EXPECT_GT(program.num_sms, 0);
  EXPECT_LE(program.num_sms, 132);
  EXPECT_GT(program.num_qps, program.num_sms);  // hybrid: queue pairs for each channel of an SM
  EXPECT_EQ(all[0].program.num_sms, 0);
}

TEST_F(ExperimentFile, PlacementPutsReplicasIntoThePlan) {
  const auto all =
      read_experiments(write("program: {kind: dispatch, num_sms: 8}\n"
                             "routing: {kind: hot_expert, hot_index: 5, hot_fraction: 0.9}\n"
                             "placement: {policy: global, physical_experts: 48}\n"));
  const Experiment& e = all[0];
  EXPECT_EQ(e.logical_shape.experts, 32);
  EXPECT_EQ(e.shape.experts, 48);
  // The hot expert has replicas, so the fullest rank receives less than without.
  const auto most_received = [](const Experiment& experiment) {
    const Routing routing = make_routing(experiment);
    std::vector<int64_t> slots(static_cast<size_t>(experiment.shape.ranks));
    for (Rank r = 0; r < experiment.shape.ranks; ++r)
      for (const int32_t expert : routing.rows(r))
        if (expert >= 0) ++slots[static_cast<size_t>(experiment.shape.rank_of(expert))];
    return *std::max_element(slots.begin(), slots.end());
  };
  const auto plain =
      read_experiments(write("program: {kind: dispatch, num_sms: 8}\nrouting: {kind: hot_expert, hot_index: "
                             "5, hot_fraction: 0.9}\n"));
  EXPECT_LT(most_received(e), most_received(plain[0]));
}

TEST_F(ExperimentFile, BackgroundTrafficIsOverlaid) {
  const auto all = read_experiments(
      write("program: {kind: dispatch, num_sms: 8}\n"
            "background: [{kind: background, pattern: incast, message: 1 kB, traffic_class: 2}]\n"));
  const Routing routing = make_routing(all[0]);
  const Plan plan = make_plan(all[0], routing, false);
  const auto phase = plan.find_phase("background0.background");
  ASSERT_TRUE(phase.has_value());
  EXPECT_EQ(account(plan).total(*phase).bytes, 15 * 1000);  // 15 ranks to rank 0
}

/// Without the name of the file, which differs from run to run.
std::string without(const std::string& path, std::string text) {
  for (size_t at; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
  return text;
}

TEST_F(ExperimentFile, ProblemsOfPointsStandInTheirLinesOrNameThePoint) {
  const std::string error = error_of(
      "program: {kind: dispatch}\n"
      "points:\n"
      "  - {name: good, shape.topk: 2}\n"
      "  - {name: large, shape.topk: 40}\n"
      "  - {name: typo, shape.topkk: 2}\n"
      "  - {name: odd, shape.experts: 33}\n"
      "  - {name: nested, sim.events: \"[{kind: rank_speed, rank: 1, factr: 0.5}]\"}\n"
      "  - name: through\n"
      "    shape.topk.x: 3\n");
  EXPECT_EQ(without(path_, error),
            ":3:8: error: the shape breaks these limits:\n"
            "  experts is 33, not a multiple of ranks 16; nearest allowed: 32 or 48 (point 'odd')\n"
            "shape: {experts: 32, topk: 4, hidden: 256, tokens_per_rank: 8}\n"
            "       ^\n"
            ":7:31: error: 'topk' is 40, allowed 1 .. 32\n"
            "  - {name: large, shape.topk: 40}\n"
            "                              ^~\n"
            ":8:24: error: unknown key 'topkk' in 'shape' (did you mean 'topk'?)\n"
            "  - {name: typo, shape.topkk: 2}\n"
            "                       ^~~~~\n"
            ":10:32: error: missing key 'factor' in 'sim.events[0]'\n"
            "  - {name: nested, sim.events: \"[{kind: rank_speed, rank: 1, factr: 0.5}]\"}\n"
            "                               ^\n"
            ":10:32: error: unknown key 'factr' in 'sim.events[0]' (did you mean 'factor'?)\n"
            "  - {name: nested, sim.events: \"[{kind: rank_speed, rank: 1, factr: 0.5}]\"}\n"
            "                               ^~~~~\n"
            ":12:5: error: cannot set 'shape.topk.x=3': 'shape.topk' is '4', not a mapping\n"
            "    shape.topk.x: 3\n"
            "    ^~~~~~~~~~~~");
}

TEST_F(ExperimentFile, ProblemsOfSweepsStandAtTheValueAndComeOnce) {
  EXPECT_EQ(without(path_, error_of("program: {kind: dispatch}\n"
                                    "sweep: {shape.topk: [2, 40], shape.hidden: [256, 512]}\n")),
            ":5:25: error: 'topk' is 40, allowed 1 .. 32\n"
            "sweep: {shape.topk: [2, 40], shape.hidden: [256, 512]}\n"
            "                        ^~");
  EXPECT_NE(error_of("program: {kind: dispatch}\nsweep: {shape.hidden: [256, 31], shape.topk: [2, 3]}\n")
                .find("(point 'shape.hidden=31 shape.topk=2' and 1 more)"),
            std::string::npos);
}

TEST_F(ExperimentFile, AProblemOfAllPointsNamesNone) {
  EXPECT_EQ(without(path_, error_of("program: {kind: dispatch, kin: 1}\n"
                                    "points: [{shape.topk: 2}, {shape.topk: 4}]\n")),
            ":4:27: error: unknown key 'kin' in 'program' (did you mean 'kind'?)\n"
            "program: {kind: dispatch, kin: 1}\n"
            "                          ^~~");
}

TEST_F(ExperimentFile, AListInAPointIsGivenAsText) {
  EXPECT_EQ(without(path_, error_of("program: {kind: dispatch}\npoints: [{sim.events: [1, 2]}]\n")),
            ":5:23: error: no single value; a list or mapping is given as text in quotes\n"
            "points: [{sim.events: [1, 2]}]\n"
            "                      ^");
}

TEST_F(ExperimentFile, ProblemsOfAllSectionsComeTogether) {
  const std::string text = error_of(
      "program: {kind: dispatch, num_biases: 3, num_sms: 500}\nrouting: {kind: unifrom}\nrun: {on: [gpu]}\n");
  for (const char* expected : {"'num_biases' is 3, allowed 0 .. 2", "did you mean 'uniform'?",
                               "'gpu' is no executor", "num_sms is 500, 'h200-cx7' has 132 SMs"})
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
}

}  // namespace
}  // namespace plumb

// The command line as a user meets it: exit codes, texts of errors, the JSON contract of docs/json.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/tools/cli.h"

namespace plumb {
namespace {

TEST_F(Cli, ProbeWithoutAGpuSaysWhyBeforeItWrites) {
  const std::string file = (folder_ / "here.yaml").string();
  const Output out = plumb("probe --seconds 0.1 -o " + file);
  if (out.exit_code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(out.exit_code, 3) << out.errors;
  EXPECT_NE(out.errors.find("GPU"), std::string::npos) << out.errors;
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(plumb("probe --seconds 0").exit_code, 2);
}

/// Four points of experiments/two_gpus.yaml and their committed traces.
TEST_F(Cli, CalibratePrintsTheKneesOfSweepsOfSms) {
  const std::string text =
      "schema: plumb.experiment/1\nname: two_gpus\n"
      "machine: {file: " PLUMB_SOURCE_DIR "/topologies/h200x2.yaml, costs: " PLUMB_SOURCE_DIR
      "/topologies/costs/plumb_nvlink_form.yaml}\n"
      "program: {kind: dispatch, mode: direct, placement: direct}\n"
      "shape: {ranks: 2, experts: 256, topk: 8, hidden: 7168, tokens_per_rank: 128, dtype: fp8}\n"
      "routing: {kind: uniform, seed: 1}\nrun: {on: [analytic]}\npoints:\n";
  std::string points;
  std::string traces;
  const int sms[] = {4, 8, 12, 16};
  for (int i = 0; i < 4; ++i) {
    points += "  - {name: 128 tokens " + std::to_string(sms[i]) +
              " SMs, program.num_sms: " + std::to_string(sms[i]) + "}\n";
    traces += " experiments/results/two_gpus/traces/point" + std::to_string(3 + i) + "-cuda.csv";
  }
  const std::string file = write("sweep.yaml", text + points);
  const std::string command =
      "calibrate " + file + " --fit fixed.0.time -o " + (folder_ / "fit.yaml").string() + " --knee ";
  const Output out = plumb(command + "15 --trace" + traces);
  EXPECT_EQ(out.exit_code, 0) << out.errors;
  EXPECT_NE(out.text.find("knees of sweeps"), std::string::npos) << out.text;
  EXPECT_NE(out.text.find(" of 1 sweeps (15.00 % above the best time)"), std::string::npos) << out.text;
  const Json report = json(command + "15 --json --trace" + traces);
  ASSERT_EQ(report["knees"].size(), 1u);
  EXPECT_EQ(report["knees"][0]["sweep"], "128 tokens");
  EXPECT_EQ(report["knees"][0]["points"], 4);
  for (const char* knee : {"measured_sms", "predicted_sms"}) {
    EXPECT_GE(report["knees"][0][knee], 4);
    EXPECT_LE(report["knees"][0][knee], 16);
  }
  const Output wrong = plumb(command + "101 --trace" + traces);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.errors.find("--knee is 101; allowed: 0 .. 100"), std::string::npos) << wrong.errors;
}

TEST_F(Cli, HelpOfEveryCommandShowsAnExample) {
  for (const std::string command : {"check", "plan", "run", "compare", "calibrate", "sms", "buffers", "topo",
                                    "probe", "trace", "validate"}) {
    const Output out = plumb(command + " --help");
    EXPECT_EQ(out.exit_code, 0) << command;
    EXPECT_NE(out.text.find("Example:\n  plumb " + command), std::string::npos) << out.text;
  }
  EXPECT_EQ(plumb("--help").exit_code, 0);
  EXPECT_EQ(plumb("--version").exit_code, 0);
}

TEST_F(Cli, BadUsageEndsWithTwoAndNamesTheCommands) {
  for (const std::string arguments :
       {"", "nothing", "run", "sms --ranks 16", "sms --machine x --ranks 0", "run a b c"}) {
    const Output out = plumb(arguments);
    EXPECT_EQ(out.exit_code, 2) << arguments;
    EXPECT_NE(out.errors.find("plumb: error: "), std::string::npos) << arguments;
    EXPECT_NE(out.errors.find("check, plan, run"), std::string::npos) << arguments;
    EXPECT_EQ(out.text, "");
  }
  const Output missing = plumb("run " + (folder_ / "none.yaml").string());
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.errors.find("none.yaml"), std::string::npos);
}

TEST_F(Cli, CheckPrintsAllProblemsOfAllFiles) {
  const std::string first = write("first.yaml",
                                  "schema: plumb.experiment/1\n"
                                  "machine: {file: " PLUMB_SOURCE_DIR
                                  "/topologies/h200-cx7.yaml}\n"
                                  "program: {kind: dispatch, num_sm: 4}\n"
                                  "shape: {experts: 256, topkk: 8, hidden: 7168, tokens_per_rank: 1}\n");
  const std::string second = write("second.yaml", "schema: plumb.experiment/1\nschema: plumb.experiment/1\n");
  const Output out = plumb("check " + first + " " + second);
  EXPECT_EQ(out.exit_code, 2);
  for (const std::string& expected :
       {first + ":3:27: error: unknown key 'num_sm' in 'program' (did you mean 'num_sms'?)",
        first + ":4:23: error: unknown key 'topkk' in 'shape' (did you mean 'topk'?)",
        first + ":4:", second + ":2:1: error: "})
    EXPECT_NE(out.errors.find(expected), std::string::npos) << expected << "\n" << out.errors;
  EXPECT_NE(out.errors.find("program: {kind: dispatch, num_sm: 4}\n                          ^~~~~~"),
            std::string::npos)
      << out.errors;
  EXPECT_NE(out.errors.find("'topk'"), std::string::npos);  // the missing key is named too
  EXPECT_EQ(out.errors.back(), '\n');
  EXPECT_EQ(plumb("check experiments/lineup.yaml experiments/hybrid-small.yaml").exit_code, 0);
}

TEST_F(Cli, CheckTakesEveryShippedFile) {
  std::string files;
  const fs::path root = PLUMB_SOURCE_DIR;
  const auto add = [&](const fs::path& file) {
    if (file.extension() == ".yaml") files += " " + file.string();
  };
  for (const std::string where : {"topologies", "topologies/costs"})
    for (const auto& entry : fs::directory_iterator(root / where)) add(entry.path());
  for (const auto& entry : fs::recursive_directory_iterator(root / "experiments"))
    if (entry.path().parent_path().filename() != "published")  // records, which plumb validate reads
      add(entry.path());
  const Output out = plumb("check" + files);
  EXPECT_EQ(out.exit_code, 0) << out.errors;
}

TEST_F(Cli, RunKeepsItsContract) {
  const Json out = json("run " + experiment() + " --json");
  EXPECT_EQ(out["schema"], "plumb.run/1");
  EXPECT_TRUE(out["complete"]);
  EXPECT_EQ(out["digest"].get<std::string>().size(), 32u);
  ASSERT_EQ(out["executors"].size(), 2u);
  for (const Json& executor : out["executors"]) {
    EXPECT_TRUE(executor["ledger_ok"]);
    EXPECT_TRUE(executor.contains("time_us"));
    EXPECT_GT(executor["phases"].size(), 5u);
    for (const Json& phase : executor["phases"])
      EXPECT_TRUE(phase.contains("name") && phase.contains("bytes"));
  }
  EXPECT_EQ(out["executors"][0]["name"], "host");
  EXPECT_EQ(out["executors"][1]["name"], "analytic");
  EXPECT_GT(out["executors"][1]["time_us"], out["executors"][1]["lower_us"]);
  EXPECT_EQ(json("plan " + experiment() + " --json")["digest"], out["digest"]);
}

TEST_F(Cli, RunGivesTheSameBytesTwiceAndInAnyOrderOfKeys) {
  const std::string path = experiment();
  const std::string once = plumb("run " + path + " --json").text;
  EXPECT_EQ(once, plumb("run " + path + " --json --jobs 1").text);
  const std::string turned = write("e.yaml",
                                   "run: {on: [host, analytic]}\n"
                                   "shape: {tokens_per_rank: 8, hidden: 256, topk: 4, experts: 32}\n"
                                   "program: {num_sms: 8, mode: hybrid, kind: round_trip}\n"
                                   "machine: {nodes: 2, file: " PLUMB_SOURCE_DIR
                                   "/topologies/h200-cx7.yaml}\n"
                                   "schema: plumb.experiment/1\n");
  EXPECT_EQ(once, plumb("run " + turned + " --json").text);
}

TEST_F(Cli, SweepRunsTheProductOfItsLists) {
  const Json out = json("run " + experiment("sweep: {program.num_sms: [4, 8], shape.topk: [1, 2, 3]}\n") +
                        " --on analytic --json");
  ASSERT_EQ(out["points"].size(), 6u);
  EXPECT_EQ(out["points"][1]["label"], "program.num_sms=4 shape.topk=2");
  EXPECT_EQ(out["points"][5]["label"], "program.num_sms=8 shape.topk=3");
  EXPECT_NE(out["points"][0]["digest"], out["points"][5]["digest"]);
}

TEST_F(Cli, RunTakesThePointsThatAPatternNames) {
  const std::string run = "run " + experiment("sweep: {program.num_sms: [4, 8], shape.topk: [1, 2, 3]}\n") +
                          " --on analytic --json";
  const Json all = json(run), some = json(run + " --only '*topk=2'");
  ASSERT_EQ(some["points"].size(), 2u);
  EXPECT_EQ(some["points"][0], all["points"][1]);
  EXPECT_EQ(some["points"][1], all["points"][4]);
  const Output none = plumb(run + " --only '*topk=4'");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.errors.find("has no such point; its 6 points go from 'program.num_sms=4 shape.topk=1' to "
                             "'program.num_sms=8 shape.topk=3'"),
            std::string::npos)
      << none.errors;
}

TEST_F(Cli, PlanTakesOnePointOfASweep) {
  const std::string path = experiment("sweep: {shape.topk: [1, 2]}\n");
  const Json run = json("run " + path + " --on analytic --json");
  EXPECT_EQ(json("plan " + path + " --point 1 --json")["digest"], run["points"][1]["digest"]);
  for (const std::string& point : {std::string(), std::string(" --point 2")}) {
    const Output out = plumb("plan " + path + point);
    EXPECT_EQ(out.exit_code, 2);
    EXPECT_NE(out.errors.find("has 2 points; choose one with --point 0 .. 1"), std::string::npos)
        << out.errors;
  }
}

TEST_F(Cli, B48_EnvironmentOverridesTheServiceLevelWithAWarning) {
  const std::string run = "run " + experiment() + " --on analytic --set program.traffic_class=3 --json";
  const Json given = json(run);
  EXPECT_EQ(given["points"][0]["service_level"], (Json{{"value", 3}, {"origin", "program"}}));
  ::setenv("PLUMB_SL", "0", 1);
  const Output overridden = plumb(run);
  ::setenv("PLUMB_SL", "300", 1);
  const Output refused = plumb(run);
  ::unsetenv("PLUMB_SL");
  EXPECT_EQ(overridden.exit_code, 0);
  EXPECT_NE(overridden.errors.find("warning"), std::string::npos);
  EXPECT_EQ(Json::parse(overridden.text)["points"][0]["service_level"],
            (Json{{"value", 0}, {"origin", "environment PLUMB_SL"}}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.errors.find("300"), std::string::npos) << refused.errors;
}

TEST_F(Cli, UnknownCommandIsNamedWithTheNearest) {
  const Output out = plumb("rum experiments/lineup.yaml");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("unknown command 'rum' (did you mean 'run'?)"), std::string::npos) << out.errors;
}

TEST_F(Cli, ResultThatDoesNotReachItsReaderEndsWithThree) {
  const Output out = plumb("topo topologies/h200x2.yaml >/dev/full");
  EXPECT_EQ(out.exit_code, 3);
  EXPECT_NE(out.errors.find("cannot write to standard output"), std::string::npos) << out.errors;
}

TEST_F(Cli, OutputFollowsALink) {
  fs::create_symlink(folder_ / "target.csv", folder_ / "link.csv");
  ASSERT_EQ(
      plumb("run " + experiment() + " --on analytic --csv " + (folder_ / "link.csv").string()).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.csv"));
  EXPECT_GT(fs::file_size(folder_ / "target.csv"), 0u);
}

TEST_F(Cli, NewRunLeavesNoTraceOfTheLastOne) {
  const std::string target = (folder_ / "out").string();
  const std::string sweep = experiment("sweep: {shape.topk: [1, 2]}\n");
  ASSERT_EQ(plumb("run " + sweep + " --on analytic -o " + target).exit_code, 0);
  EXPECT_TRUE(fs::exists(target + "/point1-analytic.csv"));
  // A trace of one point fits its own plan only.
  EXPECT_EQ(
      plumb("compare " + target + "/point1-analytic.csv --experiment " + sweep + " --point 1").exit_code, 0);
  EXPECT_EQ(
      plumb("compare " + target + "/point1-analytic.csv --experiment " + sweep + " --point 0").exit_code, 1);
  ASSERT_EQ(plumb("run " + experiment() + " --on analytic -o " + target).exit_code, 0);
  EXPECT_FALSE(fs::exists(target + "/point1-analytic.csv"));
  EXPECT_TRUE(Json::parse(read(target + "/result.json"))["complete"]);
}

TEST_F(Cli, AutomaticSmsCountThePlacedExperts) {
  // 32 logical experts on 48 slots: the gate knows 32, so a group-limited spec does not describe the placed
  // table.
  const std::string placed =
      "placement: {policy: global, physical_experts: 48}\n"
      "routing: {kind: group_limited, groups: 16, group_topk: 8}\n";
  const Json out = json("plan " + experiment(placed) + " --set program.num_sms=0 --json");
  EXPECT_NE(out["program"].get<std::string>().find("num_sms="), std::string::npos);
  EXPECT_EQ(plumb("plan " + experiment(placed) + " --set placement.policy=default").exit_code, 2);
}

TEST_F(Cli, CheckFindsARoutingThatDoesNotFit) {
  const Output hot = plumb("check " + experiment("routing: {kind: hot_rank, hot_ratio: 999}\n"));
  EXPECT_EQ(hot.exit_code, 2);
  EXPECT_NE(hot.errors.find("e.yaml:6:17: error: "), std::string::npos) << hot.errors;
  const Output replay = plumb("check " + experiment("routing: {kind: replay, file: none.csv}\n"));
  EXPECT_EQ(replay.exit_code, 2);
  EXPECT_NE(replay.errors.find("none.csv"), std::string::npos) << replay.errors;
}

TEST_F(Cli, SmsBeyondTheDeviceAreRefusedWithPlace) {
  const Output out =
      plumb("check " + write("sms.yaml", read(experiment()) + "sweep: {program.num_sms: [500]}\n"));
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("num_sms is 500, 'h200-cx7' has 132 SMs"), std::string::npos) << out.errors;
}

TEST_F(Cli, RequestsThatContradictThemselvesAreRefused) {
  for (const std::string& options :
       {std::string("--on analytic --dump d"), std::string("--on host,host"), std::string("--jobs -1")})
    EXPECT_EQ(plumb("run " + experiment() + " " + options).exit_code, 2) << options;
  EXPECT_EQ(plumb("compare x.csv --point 1").exit_code, 2);
  EXPECT_EQ(plumb("sms --machine topologies/h200-cx7.yaml --ranks 16 --nvlink-gbs -5").exit_code, 2);
  EXPECT_EQ(plumb("sms --machine topologies/h200-cx7.yaml --ranks 2048 --experts 2048").exit_code, 2);
}

TEST_F(Cli, FailingPointIsMarkedAndTheOthersStay) {
  // Two points, the second asks for more host memory than allowed.
  const Output out = plumb("run " + experiment("sweep: {shape.tokens_per_rank: [1, 4096]}\n") +
                           " --on host --set 'run.host_memory=1 MB' --json");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("shape.tokens_per_rank=4096"), std::string::npos) << out.errors;
  const Json result = Json::parse(out.text);
  EXPECT_FALSE(result["complete"]);
  EXPECT_TRUE(result["points"][0]["executors"][0]["ledger_ok"]);
  EXPECT_TRUE(result["points"][1].contains("error"));
}

TEST_F(Cli, CudaRunsOrSaysWhatIsMissing) {
  const Output out = plumb("run " + experiment() + " --on host,cuda --json");
#ifdef PLUMB_HAS_HW
  if (out.exit_code == 0) {  // there is a GPU
    const Json cuda = Json::parse(out.text)["executors"][1];
    EXPECT_EQ(cuda["name"], "cuda");
    EXPECT_EQ(cuda["clock"], "globaltimer");
    EXPECT_TRUE(cuda["ledger_ok"]);
    EXPECT_NE(cuda["note"].get<std::string>().find("bytes equal the host's"), std::string::npos);
    return;
  }
  EXPECT_NE(out.errors.find("no GPU: "), std::string::npos) << out.errors;
#else
  EXPECT_NE(out.errors.find("executor 'cuda' is not in this build: built without CUDA\n"), std::string::npos)
      << out.errors;
#endif
  EXPECT_EQ(out.exit_code, 3);
}

TEST_F(Cli, DumpWritesRowsAndIndex) {
  const std::string target = (folder_ / "rows").string();
  const Output out = plumb("run " + experiment() + " --on host --dump " + target);
  EXPECT_EQ(out.exit_code, 0) << out.errors;
  const Json index = Json::parse(read(fs::path(target) / "index.json"));
  EXPECT_TRUE(index["complete"]);
  EXPECT_FALSE(index.empty());
}

TEST_F(Cli, B53_OutputThatCannotBeWrittenIsRefusedBeforeTheRun) {
  const std::string path = experiment();
  write("file", "not a folder");
  for (const std::string& target : {(folder_ / "file").string(), std::string("/proc/nothing/here")}) {
    for (const std::string option : {" -o ", " --dump "}) {
      const Output out = plumb("run " + path + option + target);
      EXPECT_EQ(out.exit_code, 3) << option << target;
      EXPECT_NE(out.errors.find(target), std::string::npos) << out.errors;
      EXPECT_EQ(out.text, "");
    }
    EXPECT_EQ(plumb("run " + path + " --csv " + target + "/x.csv").exit_code, 3);
  }
}

TEST_F(Cli, B53_FullDiskLeavesNoPartialResult) {
  const Output out = plumb("run " + experiment() + " --csv /dev/full/x.csv");
  EXPECT_EQ(out.exit_code, 3);
}

TEST_F(Cli, CompareNamesTheSlowRankOfATraceWithWaits) {
  const std::string target = (folder_ / "out").string();
  ASSERT_EQ(plumb("run " + experiment() + " --on analytic -o " + target).exit_code, 0);
  std::string text = read(target + "/analytic.csv");
  // All wait 1 us for each other, but 50 us for rank 2.
  std::string waits = "#waits: 6\n";
  for (const char* pair : {"0,1,1000", "0,2,1000", "1,0,1000", "1,2,1000", "2,0,50000", "2,1,50000"})
    waits += std::string("#wait: ") + pair + "\n";
  write("waits.csv", text.insert(text.find("#spans:"), waits));
  const std::string path = (folder_ / "waits.csv").string();
  const Output out = plumb("compare " + path);
  EXPECT_NE(out.text.find("slow sender rank 2: wait 50.000 us, typical 1.000 us\n"), std::string::npos)
      << out.text << out.errors;
  const Json json = Json::parse(plumb("compare --json " + path).text);
  EXPECT_EQ(json["waits"]["analytic"]["findings"][0]["source"], 2);
  EXPECT_EQ(json["waits"]["analytic"]["wait_us"][2][1], 50.0);
}

TEST_F(Cli, TracesAreWrittenComparedAndConverted) {
  const std::string target = (folder_ / "out").string();
  ASSERT_EQ(plumb("run " + experiment() + " -o " + target).exit_code, 0);
  const Output compared = plumb("compare " + target + "/host.csv " + target + "/analytic.csv");
  EXPECT_EQ(compared.exit_code, 0) << compared.errors;
  ASSERT_EQ(plumb("compare " + target + "/host.csv " + target + "/analytic.csv --csv " + target + "/c.csv")
                .exit_code,
            0);
  EXPECT_NE(read(target + "/c.csv").find("\ntotal,analytic,"), std::string::npos);
  EXPECT_NE(compared.text.find("combine_reduce"), std::string::npos);
  ASSERT_EQ(plumb("run " + experiment() + " --set shape.topk=2 -o " + target + "2").exit_code, 0);
  const Output differ = plumb("compare " + target + "/host.csv " + target + "2/analytic.csv");
  EXPECT_EQ(differ.exit_code, 1);
  const Output converted = plumb("trace " + target + "/analytic.csv --chrome " + target + "/chrome.json");
  EXPECT_EQ(converted.exit_code, 0) << converted.errors;
  EXPECT_TRUE(Json::parse(read(target + "/chrome.json")).contains("traceEvents"));
  write("broken.csv", "no trace\n");
  const Output broken = plumb("compare " + (folder_ / "broken.csv").string());
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_NE(broken.errors.find("broken.csv:1:1: error:"), std::string::npos) << broken.errors;
}

TEST_F(Cli, SmsGivesTheCountsOfDeepepsReadme) {
  // README of DeepEP V2: 12 SMs for 8x2 and 6 for 8x4 on SM90, 24 for EP8 on SM100.
  const auto sms = [this](const std::string& machine, int ranks, const std::string& mode) {
    return json("sms --machine topologies/" + machine + ".yaml --ranks " + std::to_string(ranks) +
                " --experts 256 --topk 8 --mode " + mode + " --json");
  };
  const Json two = sms("h200-cx7", 16, "hybrid");
  EXPECT_EQ(two["deepep"]["sms"], 12);
  EXPECT_EQ(two["deepep"]["qps"], 129);
  EXPECT_GT(two["ours"]["sms"], 0);
  EXPECT_NEAR(two["deepep"]["terms"]["expected_ranks"], 6.52327953354, 1e-9);
  EXPECT_EQ(sms("h200-cx7", 32, "hybrid")["deepep"]["sms"], 6);
  EXPECT_EQ(sms("b200-cx7", 8, "direct")["deepep"]["sms"], 24);
  EXPECT_EQ(sms("h800-cx7", 16, "hybrid")["deepep"]["sms"], 8);
}

TEST_F(Cli, B16_GivenBandwidthWinsAndIsEchoed) {
  const Json out = json(
      "sms --machine topologies/h200-cx7.yaml --ranks 16 --experts 256 --topk 8 --mode hybrid --rdma-gbs 25 "
      "--json");
  EXPECT_EQ(out["deepep"]["inputs"]["rdma_gbs"], 25.0);
  EXPECT_EQ(out["deepep"]["sms"], 6);  // golden case h200_8x2_half_rate_nic
}

TEST_F(Cli, BuffersNameTheLargestBatch) {
  const Json out =
      json("buffers --ranks 16 --experts 448 --topk 8 --hidden 5120 --tokens 1840 --limit 32GiB --json");
  // 34 291 715 584 B = 31.937 GiB at 1840 tokens; 32 GiB hold 1843 (one token more needs 18 634 240 B).
  EXPECT_EQ(out["buffers"]["deepep_v1_low_latency"]["bytes"], 34291715584);
  EXPECT_EQ(out["buffers"]["deepep_v1_low_latency"]["largest_tokens"], 1843);
  EXPECT_LT(out["buffers"]["ours_expected"]["bytes"], out["buffers"]["ours_worst_case"]["bytes"]);
}

TEST_F(Cli, TopoShowsRoutesAndRefusesRanksThatAreNot) {
  const Json routes = json("topo topologies/h800-cx7.yaml 0 9 --json");
  double share = 0;
  for (const Json& route : routes) share += route["share"].get<double>();
  EXPECT_DOUBLE_EQ(share, 1.0);
  const Output out = plumb("topo topologies/h800-cx7.yaml 0 999");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("rank 999 is not in 'h800-cx7', allowed 0 .. 31"), std::string::npos)
      << out.errors;
}

TEST_F(Cli, PlanOfUnknownOverrideNamesTheKey) {
  const Output out = plumb("plan " + experiment() + " --set shape.topkk=3");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("topkk"), std::string::npos) << out.errors;
}

TEST_F(Cli, ValidateMeetsItsTargets) {
  const std::string csv = (folder_ / "rows.csv").string();
  const Json out = json("validate --on analytic --json --csv " + csv);
  const std::string rows = read(csv);
  EXPECT_EQ(rows.rfind("id,family,set,executor,unit,published,predicted,error\n", 0), 0u);
  EXPECT_EQ(static_cast<size_t>(std::count(rows.begin(), rows.end(), '\n')), out["rows"].size() + 1);
  const Json& held_out = out["summary"]["analytic"]["held_out"];
  EXPECT_GE(held_out["count"], 60);
  EXPECT_LE(held_out["median_error"], 0.10);
  EXPECT_LE(held_out["worst_error"], 0.25);
  for (const Json& row : out["rows"])
    for (const char* field : {"id", "published", "predicted", "error", "set"})
      EXPECT_TRUE(row.contains(field)) << row;
}

}  // namespace
}  // namespace plumb

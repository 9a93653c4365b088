// The findings that experiments/*/README.md state, on the reduced form of each experiment.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/cli.h"

namespace plumb {
namespace {

class Experiments : public Cli {
 protected:
  /// Executors of each point of experiments/NAME/reduced.yaml by label and name.
  std::map<std::string, std::map<std::string, Json>> run_reduced(const std::string& name) const {
    const Json out = json("run experiments/" + name + "/reduced.yaml --jobs 1 --json");
    EXPECT_TRUE(out.value("complete", false)) << name;
    std::map<std::string, std::map<std::string, Json>> points;
    for (const Json& point : out["points"])
      for (const Json& executor : point["executors"]) points[point["label"]][executor["name"]] = executor;
    return points;
  }
};

/// "slow sender 5" or "bad path 5 13" of each finding.
std::set<std::string> findings(const Json& executor) {
  std::set<std::string> result;
  for (const Json& finding : executor["sim"]["findings"]) {
    std::string text = finding["cause"];
    for (const char* end : {"source", "destination"})
      if (finding.contains(end)) text += " " + std::to_string(finding[end].get<int>());
    result.insert(text);
  }
  return result;
}

TEST_F(Experiments, ScalingSimIsNotBelowTheBoundAndHybridBeatsDirectOverInfiniband) {
  auto points = run_reduced("scaling");
  ASSERT_EQ(points.size(), 8u);
  for (auto& [label, on] : points)
    EXPECT_GE(on["sim"]["time_us"].get<double>(), on["analytic"]["lower_us"].get<double>()) << label;
  for (const std::string fabric : {"ep2048-fattree", "ep2048-dragonfly"})
    EXPECT_LT(points[fabric + " 64 hybrid"]["sim"]["time_us"].get<double>(),
              points[fabric + " 64 direct"]["sim"]["time_us"].get<double>())
        << fabric;
}

TEST_F(Experiments, IsolationNeedsAPreferredLaneAndNotOnlyAnOwnOne) {
  auto points = run_reduced("isolation");
  const double alone = points["alone"]["sim"]["time_us"];
  const auto program = [&](const std::string& label) {
    return points[label]["sim"]["program_us"].get<double>();
  };
  for (const std::string traffic : {"kv", "checkpoint"}) {
    EXPECT_GT(program(traffic + ", same lane"), 1.3 * alone) << traffic;
    // Two lanes of equal weight: at a link that both fill the dispatch keeps half of it.
    EXPECT_GT(program(traffic + ", own lane 1:1"), 1.3 * alone) << traffic;
    EXPECT_LT(program(traffic + ", own lane 3:1"), program(traffic + ", own lane 1:1")) << traffic;
    EXPECT_LT(program(traffic + ", low lane"), 1.02 * alone) << traffic;
  }
  // Who is preferred does not cost the incast anything: its last link is as busy as before.
  const auto background = [&](const std::string& label) {
    return points[label]["sim"]["background"][0]["end_us"].get<double>();
  };
  EXPECT_LT(background("checkpoint, low lane"), 1.02 * background("checkpoint, own lane 1:1"));
  // Congestion control alone never makes an undisturbed dispatch faster, and C-AQM's small windows cost a
  // tenth.
  for (const std::string kind : {"infiniband", "dcqcn", "caqm"})
    EXPECT_GT(points["alone, " + kind]["sim"]["time_us"].get<double>(), 0.999 * alone) << kind;
  EXPECT_GT(points["alone, caqm"]["sim"]["time_us"].get<double>(), 1.1 * alone);
}

TEST_F(Experiments, AdaptiveRoutingBeatsHashesUnderLoadAndAroundASlowLink) {
  auto points = run_reduced("routing");
  const auto time = [&](const std::string& label) { return points[label]["sim"]["time_us"].get<double>(); };
  EXPECT_LT(time("healthy, adaptive") * 1.3, time("healthy, by_flow"));
  EXPECT_LT(time("healthy, adaptive") * 1.1, time("healthy, by_destination"));
  EXPECT_LT(time("healthy, spread"), time("healthy, adaptive") * 1.1);
  // A random choice does not see that a link is slow.
  EXPECT_LT(time("uplink at a quarter, adaptive") * 1.5, time("uplink at a quarter, spread"));
  EXPECT_LT(time("uplink at a quarter, adaptive"), time("healthy, adaptive") * 1.2);
}

TEST_F(Experiments, KneeOfTheSmSweepIsWhereTheModelPutsIt) {
  auto points = run_reduced("sm_sweep");
  // The fewest SMs within 2 % of the best time.
  const auto knee = [&](const std::string& executor) {
    std::map<int, double> times;
    for (auto& [label, on] : points)
      times[std::stoi(label.substr(label.find('=') + 1))] = on[executor]["time_us"];
    double best = 1e9;
    for (const auto& [sms, time] : times) best = std::min(best, time);
    for (const auto& [sms, time] : times)
      if (time <= 1.02 * best) return sms;
    return 0;
  };
  EXPECT_NEAR(knee("sim"), knee("analytic"), 2);
  // plumb sms --ranks 16 --experts 256 --topk 8 --mode hybrid: 9.
  const Json sms =
      json("sms --machine topologies/h200-cx7.yaml --ranks 16 --experts 256 --topk 8 --mode hybrid --json");
  EXPECT_NEAR(knee("sim"), sms["ours"]["sms"].get<int>(), 2);
  for (auto& [label, on] : points) {
    const double simulated = on["sim"]["time_us"];
    EXPECT_NEAR(simulated, on["analytic"]["time_us"].get<double>(), 0.06 * simulated) << label;
  }
}

TEST_F(Experiments, DiagnosisNamesTheSlowSender) {
  auto points = run_reduced("diagnosis");
  using Names = std::set<std::string>;
  EXPECT_EQ(findings(points["healthy"]["sim"]), Names{});
  EXPECT_EQ(findings(points["hybrid, healthy"]["sim"]), Names{});
  EXPECT_EQ(findings(points["rank 5 at 0.1"]["sim"]), Names{"slow sender 5"});
  EXPECT_EQ(findings(points["rank 5 at 0.5"]["sim"]), Names{});  // less than twice the time
  EXPECT_EQ(findings(points["NIC 5 out at 0.3"]["sim"]), Names{"slow sender 5"});
  // In hybrid mode the ranks that forward what came late are blamed, too; all paths named begin at rank 5.
  EXPECT_EQ(findings(points["hybrid, NIC 5 out at 0.3"]["sim"]),
            (Names{"slow sender 13", "slow sender 21", "slow sender 29", "bad path 5 13", "bad path 5 21",
                   "bad path 5 29"}));
  // A slow receiver holds the others up too, in a lossless network; it is named with some paths between them.
  const Names slow_receiver = findings(points["NIC 5 in at 0.3"]["sim"]);
  EXPECT_EQ(slow_receiver.count("slow receiver 5"), 1u);
  for (const std::string& name : slow_receiver)
    EXPECT_TRUE(name == "slow receiver 5" || name.rfind("bad path", 0) == 0) << name;
}

TEST_F(Experiments, TheLinkBehindASlowReceiverIsTheOneWithAQueueAndNoStall) {
  const WithoutGnuplot quick;
  // The tables of links show it, too: links before it stall for credits, itself it never does.
  const Output out = plumb("run experiments/diagnosis/reduced.yaml --jobs 1 --on sim -o " + folder_.string());
  ASSERT_EQ(out.exit_code, 0) << out.errors;
  std::istringstream table(read(folder_ / "point4-links.csv"));
  std::string line;
  std::string found;
  double most = 0;
  std::getline(table, line);
  ASSERT_EQ(line,
            "link,from,to,class,network,rate_gb_per_s,bytes,utilisation,peak_waiting_bytes,peak_buffer_bytes,"
            "stalled_us,starved");
  while (std::getline(table, line)) {
    std::vector<std::string> cells;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
    ASSERT_EQ(cells.size(), 12u);
    if (std::stod(cells[10]) > 0 || std::stod(cells[8]) <= most) continue;
    most = std::stod(cells[8]);
    found = cells[1] + " -> " + cells[2];
  }
  EXPECT_EQ(found, "leaf 0.5 -> nic 0.5");
}

}  // namespace
}  // namespace plumb

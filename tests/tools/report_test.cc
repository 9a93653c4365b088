// What a simulated run leaves in its folder: tables, the page, and the object `sim` of the JSON.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>

#include "tests/tools/cli.h"

namespace plumb {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// Cells of a CSV without quotes; all rows have as many as the first.
Rows rows(const fs::path& path) {
  Rows result;
  std::istringstream in(read(path));
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells;
    std::istringstream rest(line);
    for (std::string cell; std::getline(rest, cell, ',');) cells.push_back(cell);
    EXPECT_TRUE(result.empty() || cells.size() == result.front().size()) << line;
    result.push_back(cells);
  }
  return result;
}

size_t column(const Rows& table, const std::string& name) {
  const auto& header = table.front();
  const auto at = std::find(header.begin(), header.end(), name);
  EXPECT_NE(at, header.end()) << name;
  return static_cast<size_t>(at - header.begin());
}

class Report : public Cli {
 protected:
  bool has_gnuplot() const { return std::system("gnuplot --version >/dev/null 2>&1") == 0; }

  /// Runs the small experiment on the simulator; the files are in folder_/NAME.
  Output simulate(const std::string& name, const std::string& more = "") const {
    return plumb("run " + experiment("name: small <&> 'one'\n") + " --on sim -o " +
                 (folder_ / name).string() + " " + more);
  }
};

TEST_F(Report, PageHasPicturesAndNeedsNothingElse) {
  if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  const Output out = simulate("out");
  ASSERT_EQ(out.exit_code, 0) << out.errors;
  EXPECT_EQ(out.errors, "");
  const std::string page = read(folder_ / "out/report.html");
  EXPECT_LT(page.size(), size_t{2} << 20);
  // Phases, link classes, links, lanes, waits.
  const std::regex picture("<svg");
  EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), picture), {}), 5);
  const std::set<std::string> allowed = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"};
  const std::regex address("https?://[^\"'<> ]*");
  for (std::sregex_iterator at(page.begin(), page.end(), address), end; at != end; ++at)
    EXPECT_TRUE(allowed.count(at->str())) << at->str();
  for (const char* outside : {"src=", "<link", "<script", "@import", "file:"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(page.find("GNUPLOT"), std::string::npos);
  EXPECT_NE(page.find("small &lt;&amp;> 'one': phases of each rank"), std::string::npos);
  EXPECT_EQ(page.find("<&>"), std::string::npos);
}

TEST_F(Report, NamesAreEscaped) {
  const WithoutGnuplot fast;
  ASSERT_EQ(simulate("out").exit_code, 0);
  const std::string page = read(folder_ / "out/report.html");
  EXPECT_NE(page.find("<h1>small &lt;&amp;&gt; &#39;one&#39;</h1>"), std::string::npos);
  EXPECT_EQ(page.find("<&>"), std::string::npos);
}

TEST_F(Report, FilesAreTheSameEachTime) {
  ASSERT_EQ(simulate("first").exit_code, 0);
  ASSERT_EQ(simulate("second").exit_code, 0);
  for (const char* file : {"report.html", "links.csv", "lanes.csv", "waits.csv", "sim.csv", "result.json"})
    EXPECT_EQ(read(folder_ / "first" / file), read(folder_ / "second" / file)) << file;
}

TEST_F(Report, PageWithoutGnuplotHasItsTables) {
  const WithoutGnuplot nowhere;
  ASSERT_EQ(simulate("out").exit_code, 0);
  const std::string page = read(folder_ / "out/report.html");
  EXPECT_NE(page.find("Pictures need gnuplot"), std::string::npos);
  EXPECT_EQ(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("<h2>Hot links</h2>"), std::string::npos);
}

TEST_F(Report, LanesOfALinkAddUpToItsBytes) {
  const WithoutGnuplot fast;
  ASSERT_EQ(simulate("out").exit_code, 0);
  const Rows links = rows(folder_ / "out/links.csv");
  const Rows lanes = rows(folder_ / "out/lanes.csv");
  ASSERT_GT(links.size(), 16u);
  std::map<std::string, int64_t> of_lanes;
  for (size_t i = 1; i < lanes.size(); ++i)
    of_lanes[lanes[i][column(lanes, "link")]] += std::stoll(lanes[i][column(lanes, "bytes")]);
  EXPECT_FALSE(of_lanes.empty());
  for (size_t i = 1; i < links.size(); ++i) {
    const std::string& link = links[i][column(links, "link")];
    const double use = std::stod(links[i][column(links, "utilisation")]);
    EXPECT_TRUE(use > 0 && use <= 1) << use;
    if (of_lanes.count(link) == 0) continue;  // the second part of a NIC that packets pass
    EXPECT_EQ(std::stoll(links[i][column(links, "bytes")]), of_lanes[link]) << link;
    of_lanes.erase(link);
  }
  EXPECT_TRUE(of_lanes.empty());
}

TEST_F(Report, JsonNamesHotLinksByUse) {
  const Json out = json("run " + experiment() + " --on host,sim --json");
  EXPECT_FALSE(out["executors"][0].contains("sim"));
  const Json& sim = out["executors"][1]["sim"];
  ASSERT_EQ(sim["hot_links"].size(), 10u);
  for (size_t i = 1; i < 10; ++i)
    EXPECT_GE(sim["hot_links"][i - 1]["utilisation"], sim["hot_links"][i]["utilisation"]);
  // Packets pass the NICs: their links to and from GPUs belong to those of the wire.
  for (const Json& link : sim["hot_links"])
    EXPECT_TRUE(link["class"] != "nic -> leaf" && link["class"] != "nic -> gpu") << link["link"];
  EXPECT_GT(sim["counts"]["packet_hops"], sim["counts"]["packets"]);
  EXPECT_EQ(sim["findings"].size(), sim["findings_count"]);
  int64_t links = 0;
  for (const Json& c : sim["classes"])
    if (c["network"] == "scale_up") links += c["links"].get<int64_t>();
  const Json topo = json("topo " PLUMB_SOURCE_DIR "/topologies/h200-cx7.yaml --nodes 2 --json");
  EXPECT_EQ(links, topo["links"]["scale_up"]["directed_cables"]);
}

TEST_F(Report, SlowRankIsFoundAndPrinted) {
  // Rank 3 copies and issues 50 times slower than the others: all that others wait for comes from it.
  const std::string file = write("slow.yaml",
                                 "schema: plumb.experiment/1\n"
                                 "machine: {file: " PLUMB_SOURCE_DIR
                                 "/topologies/h200-cx7.yaml, nodes: 1}\n"
                                 "program: {kind: dispatch, mode: direct, num_sms: 8}\n"
                                 "shape: {experts: 32, topk: 4, hidden: 1024, "
                                 "tokens_per_rank: 64}\n"
                                 "sim: {events: [{kind: rank_speed, rank: 3, at: 0 us, "
                                 "factor: 0.02}]}\n");
  const Output out = plumb("run " + file + " --on sim");
  ASSERT_EQ(out.exit_code, 0) << out.errors;
  EXPECT_NE(out.text.find("waits:\n  slow sender rank 3: wait "), std::string::npos) << out.text;
}

TEST_F(Report, FilesOfAnEarlierRunGo) {
  const WithoutGnuplot fast;
  ASSERT_EQ(simulate("out").exit_code, 0);
  ASSERT_EQ(plumb("run " + experiment() + " --on analytic -o " + (folder_ / "out").string()).exit_code, 0);
  for (const char* file : {"report.html", "links.csv", "lanes.csv", "waits.csv", "sim.csv"})
    EXPECT_FALSE(fs::exists(folder_ / "out" / file)) << file;
}

TEST_F(Report, FolderThatCannotBeMadeIsRefusedBeforeTheRun) {
  write("file", "");
  const Output out = simulate("file/out");
  EXPECT_EQ(out.exit_code, 3);
  EXPECT_NE(out.errors.find("cannot write '"), std::string::npos) << out.errors;
  EXPECT_EQ(out.text, "");
}

TEST_F(Report, RunThatDoesNotEndStillHasItsPage) {
  const WithoutGnuplot fast;
  const Output out = simulate("out", "--set sim.time_limit=25us");
  EXPECT_EQ(out.exit_code, 1) << out.errors;
  const std::string page = read(folder_ / "out/report.html");
  EXPECT_NE(page.find("the run ended early"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "out/links.csv"));
}

TEST_F(Report, AnEventThatStopsTheRunLeavesAnIncompleteResult) {
  const WithoutGnuplot fast;
  const std::string dead = "sim: {events: [{kind: link_down, link: 'nic 0.0 -> leaf 0.0'}]}\n";
  const Output out = plumb("run " + experiment(dead) + " --on sim -o " + (folder_ / "out").string());
  EXPECT_EQ(out.exit_code, 1) << out.errors;
  EXPECT_NE(out.errors.find("nic 0.0 -> leaf 0.0 is down"), std::string::npos) << out.errors;
  EXPECT_NE(out.errors.find("phase "), std::string::npos) << out.errors;
  const Json result = Json::parse(read(folder_ / "out/result.json"));
  EXPECT_FALSE(result["complete"]);
  EXPECT_EQ(result["points"][0]["exit_code"], 1);
}

TEST_F(Report, B35_TheSameBytesWithOneAndTwoProcessesAndInAnyOrderOfKeys) {
  const WithoutGnuplot fast;
  const std::string sweep = "name: same\nsweep: {shape.topk: [2, 4], sim.fidelity: [packet, flow]}\n";
  const auto run = [&](const std::string& path, const std::string& name, const std::string& more) {
    const Output out = plumb("run " + path + " --on analytic,sim -o " + (folder_ / name).string() + more);
    EXPECT_EQ(out.exit_code, 0) << out.errors;
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ / name))
      files[entry.path().filename().string()] = read(entry.path());
    return files;
  };
  const auto once = run(experiment(sweep), "one", " --jobs 1");
  EXPECT_GT(once.size(), 16u);  // result.json, and of each point 2 traces, links.csv, lanes.csv and a page
  EXPECT_EQ(once, run(experiment(sweep), "two", " --jobs 2"));
  const std::string turned = write("t.yaml",
                                   "sweep: {shape.topk: [2, 4], sim.fidelity: [packet, flow]}\n"
                                   "shape: {tokens_per_rank: 8, hidden: 256, topk: 4, experts: 32}\n"
                                   "name: same\n"
                                   "program: {num_sms: 8, mode: hybrid, kind: round_trip}\n"
                                   "machine: {nodes: 2, file: " PLUMB_SOURCE_DIR
                                   "/topologies/h200-cx7.yaml}\n"
                                   "schema: plumb.experiment/1\n");
  EXPECT_EQ(once, run(turned, "turned", ""));
  // Another seed of the simulator: the same plan, bytes and ledger; the seed stands in the result.
  const auto other = run(experiment(sweep), "other", " --set sim.seed=7");
  const Json a = Json::parse(once.at("result.json")), b = Json::parse(other.at("result.json"));
  EXPECT_NE(once, other);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a["points"][i]["digest"], b["points"][i]["digest"]);
    EXPECT_EQ(a["points"][i]["executors"][1]["bytes"], b["points"][i]["executors"][1]["bytes"]);
    EXPECT_TRUE(b["points"][i]["executors"][1]["ledger_ok"]);
    EXPECT_NE(b["points"][i]["executors"][1]["note"].get<std::string>().find("seed 7"), std::string::npos);
  }
}

TEST_F(Report, B36_FilesDoNotGrowWithTheTraffic) {
  // 64 times the tokens: the same ranks, links, lanes and bins, numbers with a few digits more.
  const WithoutGnuplot fast;
  const auto size = [&](const std::string& name, const std::string& tokens) {
    EXPECT_EQ(simulate(name, "--set shape.tokens_per_rank=" + tokens).exit_code, 0);
    uintmax_t sum = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) sum += fs::file_size(entry.path());
    return static_cast<double>(sum);
  };
  EXPECT_LE(size("long", "512"), 1.5 * size("short", "8"));
}

TEST_F(Report, B36_ATooCostlyRunIsRefusedWithItsEstimate) {
  const Output out = simulate("out", "--set sim.max_events=1000");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("sim: the run would take about "), std::string::npos) << out.errors;
  EXPECT_FALSE(Json::parse(read(folder_ / "out/result.json"))["complete"]);
}

TEST_F(Report, CheckNamesPointsThatTheSimulatorWouldRefuse) {
  const std::string path = experiment(
      "sweep: {machine.nodes: [1, 2]}\n"
      "sim: {events: [{kind: link_down, link: 'nic 1.0 -> leaf 0.0'}, {kind: rank_dead, rank: 3}]}\n");
  const Output out = plumb("check " + path);
  EXPECT_EQ(out.exit_code, 2);
  // One node has no NIC of node 1; two have.
  EXPECT_NE(out.errors.find("point machine.nodes=1: sim: the machine has no link 'nic 1.0 -> leaf 0.0'"),
            std::string::npos)
      << out.errors;
  EXPECT_EQ(out.errors.find("point machine.nodes=2"), std::string::npos) << out.errors;
  const std::string ranks = experiment("sim: {events: [{kind: rank_dead, rank: 16}]}\n");
  EXPECT_NE(plumb("check " + ranks).errors.find("rank 16, the plan has 16"), std::string::npos);
}

TEST_F(Report, CheckReadsFlowEfficiencyFiles) {
  EXPECT_EQ(plumb("check topologies/fidelity/flow_efficiency.yaml").exit_code, 0);
  const Output out = plumb("check " + write("f.yaml",
                                            "schema: plumb.flow_efficiency/1\n"
                                            "rows: [{kind: x, policy: split, ranks: [4, 2], bytes_per_pair: "
                                            "[1, 2], ratio: 1, spread: 0}]\n"));
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("[smallest, largest]"), std::string::npos) << out.errors;
}

TEST_F(Report, ChromeTraceOfASimulatedRunHasASpanPerRankAndPhase) {
  const WithoutGnuplot fast;
  ASSERT_EQ(simulate("out").exit_code, 0);
  const std::string chrome = (folder_ / "trace.json").string();
  ASSERT_EQ(plumb("trace " + (folder_ / "out/sim.csv").string() + " --chrome " + chrome).exit_code, 0);
  std::set<std::pair<int, std::string>> spans;
  size_t count = 0;
  const Json trace = Json::parse(read(chrome));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++count;
    spans.emplace(event["pid"].get<int>(), event["name"].get<std::string>());
    EXPECT_GE(event["dur"], 0);
  }
  EXPECT_EQ(spans.size(), count);
  for (int rank = 0; rank < 16; ++rank) EXPECT_TRUE(spans.count({rank, "rail"})) << rank;
}

}  // namespace
}  // namespace plumb

// plumb run: every point of an experiment on its executors, lined up in one table.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "model/error.h"
#include "model/host_dump.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/point.h"
#include "tools/process_pool.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  std::string experiment;
  std::vector<std::string> on;
  std::vector<std::string> set;
  std::string folder;
  std::string dump;
  std::string csv;
  int32_t jobs = 0;
  bool json = false;
};

/// What a point may write.
constexpr std::array<std::string_view, 8> kPointFiles = {
    "host.csv", "analytic.csv", "sim.csv", "cuda.csv", "links.csv", "lanes.csv", "waits.csv", "report.html"};

std::string prefix_of(size_t point, size_t points) {
  return points == 1 ? "" : fmt::format("point{}-", point);
}

/// One line per point, executor and phase.
Table phase_table(const Json& points) {
  Table table(
      {"point", "executor", "phase", "time_us", "lower_us", "bottleneck", "messages", "bytes", "ledger_ok"});
  for (const Json& point : points)
    for (const Json& executor : point.value("executors", Json::array())) {
      const auto add = [&](const Json& row, const std::string& name) {
        table.add({point["label"], executor["name"], name, number(row["time_us"]), number(row["lower_us"]),
                   row["bottleneck"], std::to_string(row["messages"].get<int64_t>()),
                   std::to_string(row["bytes"].get<int64_t>()),
                   executor["ledger_ok"].get<bool>() ? "yes" : "no"});
      };
      for (const Json& phase : executor["phases"]) add(phase, phase["name"]);
      add(executor, "total");
    }
  return table;
}

/// What stands under an executor: whether all bytes arrived, or its time; beside a published row the time
/// that the row counts.
std::string cell(const Json& executor, const Json& published) {
  const std::string name = executor["name"];
  if (name == "host") return executor["ledger_ok"].get<bool>() ? "bytes ok" : "BYTES DIFFER";
  if (!published.is_null() && published.contains("predicted_us") && published["predicted_us"].contains(name))
    return number(published["predicted_us"][name]);
  return number(executor["time_us"]);
}

/// The three-way table: one line per point, a column per executor, the published figure and the errors.
std::string lineup(const Json& points, const std::vector<std::string>& on) {
  std::vector<std::string> header = {"point", "ranks"};
  for (const std::string& name : on) header.push_back(name == "host" ? "host" : name + " us");
  header.insert(header.end(), {"published us", "row"});
  for (const std::string& name : on)
    if (name != "host") header.push_back(name + " error");
  Table table(header);
  for (const Json& point : points) {
    if (point.contains("error")) continue;
    Json published = point["published"];
    if (published.empty()) published.push_back(nullptr);
    for (const Json& row : published) {
      std::vector<std::string> cells = {
          point["label"].get<std::string>().empty() ? "all" : point["label"].get<std::string>(),
          std::to_string(point["ranks"].get<int32_t>())};
      for (const Json& executor : point["executors"]) cells.push_back(cell(executor, row));
      cells.push_back(row.is_null() ? "-" : number(row.value("published_us", 0.0)));
      cells.push_back(row.is_null() ? "-"
                                    : fmt::format("{} ({})", row["id"].get<std::string>(),
                                                  row["unit"] == "us" ? "us" : "GB/s"));
      for (const std::string& name : on)
        if (name != "host")
          cells.push_back(row.is_null() || !row.contains("error") || !row["error"].contains(name)
                              ? "-"
                              : percent(row["error"][name]));
      table.add(cells);
    }
  }
  return table.text();
}

/// Who waits for whom much longer than others, of each point: nothing when there is nobody.
std::string findings(const Json& points) {
  constexpr size_t kMostLines = 10;  // of a point
  std::string text;
  for (const Json& point : points)
    for (const Json& executor : point.value("executors", Json::array())) {
      if (!executor.contains("sim") || executor["sim"]["findings"].empty()) continue;
      const std::string label = point["label"];
      text += fmt::format("waits{}{}:\n", label.empty() ? "" : " of ", label);
      const Json& list = executor["sim"]["findings"];
      for (size_t i = 0; i < std::min(list.size(), kMostLines); ++i)
        text += "  " + list[i]["text"].get<std::string>() + "\n";
      const auto count = executor["sim"]["findings_count"].get<size_t>();
      if (count > kMostLines) text += fmt::format("  and {} more\n", count - kMostLines);
    }
  return text;
}

Json run_all(const Options& options, const std::vector<Experiment>& experiments, int& exit_code) {
  // Points that share a GPU would time each other.
  const auto& on = experiments.front().run.on;
  const int32_t jobs = std::find(on.begin(), on.end(), "cuda") != on.end() ? 1 : options.jobs;
  const auto results =
      run_pieces(static_cast<int32_t>(experiments.size()), jobs, experiments.front().name, [&](int32_t i) {
        const auto index = static_cast<size_t>(i);
        const std::string prefix = prefix_of(index, experiments.size());
        return run_point(experiments[index],
                         {.trace_folder = options.folder, .dump_folder = options.dump, .prefix = prefix})
            .dump();
      });
  Json points = Json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].error.empty()) {
      points.push_back(Json::parse(results[i].text));
      continue;
    }
    exit_code = std::max(exit_code, results[i].exit_code);
    std::fprintf(stderr, "plumb: error: %s%s%s\n", experiments[i].label.c_str(),
                 experiments[i].label.empty() ? "" : ": ", results[i].error.c_str());
    points.push_back(
        {{"label", experiments[i].label}, {"error", results[i].error}, {"exit_code", results[i].exit_code}});
  }
  return points;
}

void check_request(const Options& options, const std::vector<Experiment>& experiments) {
  const auto& on = experiments.front().run.on;
  for (size_t i = 0; i < on.size(); ++i)
    if (std::count(on.begin(), on.end(), on[i]) > 1) fail_usage("executor '{}' is named twice", on[i]);
  if (options.jobs < 0) fail_usage("--jobs is {}, allowed 0 (one per core) or more", options.jobs);
  if (options.dump.empty()) return;
  if (experiments.size() != 1)
    fail_usage("--dump takes one point, '{}' has {}; choose with --set", options.experiment,
               experiments.size());
  if (std::find(on.begin(), on.end(), "host") == on.end())
    fail_usage("--dump writes the rows of the host: run --on host");
}

/// Until the run has ended the folder holds a result that says so; files of an earlier run go.
void start_folder(const std::string& folder, const std::string& name) {
  check_writable_folder(folder);
  const Json running = {
      {"schema", "plumb.run/1"}, {"experiment", name}, {"complete", false}, {"points", Json::array()}};
  write_file(folder + "/result.json", running.dump(2) + "\n");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const size_t dash = file.rfind('-');
    const std::string ending = dash == std::string::npos ? file : file.substr(dash + 1);
    const bool is_ours = dash == std::string::npos || file.rfind("point", 0) == 0;
    if (is_ours && std::find(kPointFiles.begin(), kPointFiles.end(), ending) != kPointFiles.end())
      std::filesystem::remove(entry.path());
  }
}

int run(const Options& options) {
  auto experiments = read_experiments(options.experiment, options.set);
  if (!options.on.empty())
    for (Experiment& e : experiments) e.run.on = options.on;
  check_request(options, experiments);
  if (!options.csv.empty()) check_writable_file(options.csv);
  if (!options.dump.empty()) check_dump_directory(options.dump);
  if (!options.folder.empty()) start_folder(options.folder, experiments.front().name);

  int exit_code = 0;
  const Json points = run_all(options, experiments, exit_code);
  Json out = {
      {"schema", "plumb.run/1"}, {"experiment", experiments.front().name}, {"complete", exit_code == 0}};
  if (points.front().contains("digest")) {
    out["digest"] = points.front()["digest"];
    out["executors"] = points.front()["executors"];
  }
  for (const Json& point : points)
    for (const Json& executor : point.value("executors", Json::array()))
      if (!executor["ledger_ok"].get<bool>())
        exit_code = std::max(exit_code, static_cast<int>(ErrorKind::mismatch));
  out["points"] = points;
  for (Json& point : out["points"]) point.erase("table");

  if (!options.csv.empty()) write_file(options.csv, phase_table(points).csv());
  if (!options.folder.empty()) write_file(options.folder + "/result.json", out.dump(2) + "\n");
  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
    return exit_code;
  }
  if (points.size() == 1 && points.front().contains("table"))
    std::printf("%s\n", points.front()["table"].get<std::string>().c_str());
  const auto is_done = [](const Json& point) { return !point.contains("error"); };
  if (std::any_of(points.begin(), points.end(), is_done))
    std::printf("%s", lineup(points, experiments.front().run.on).c_str());
  std::printf("%s", findings(points).c_str());
  return exit_code;
}

}  // namespace

Action configure_run(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("experiment", options->experiment, "experiment file")->required();
  app.add_option("--on", options->on, "executors: host, analytic, sim, cuda")->delimiter(',');
  app.add_option("--set", options->set, "override a key, e.g. shape.topk=4")->take_all();
  app.add_option("-o,--out", options->folder,
                 "write traces, result.json and the page of a simulated run here");
  app.add_option("--dump", options->dump, "write the rows that the host run delivered to this folder");
  app.add_option("--csv", options->csv, "write phases, times and bytes to this file");
  app.add_option("--jobs", options->jobs, "points at a time, 0 = one per core");
  app.add_flag("--json", options->json, "print the result as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

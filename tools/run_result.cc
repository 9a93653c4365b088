// Joins, writes and prints the points of a run.
#include "tools/run_result.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "model/error.h"
#include "tools/output.h"
#include "tools/table.h"

namespace plumb {
namespace {

/// What a point may write.
constexpr std::array<std::string_view, 8> kPointFiles = {
    "host.csv", "analytic.csv", "sim.csv", "cuda.csv", "links.csv", "lanes.csv", "waits.csv", "report.html"};

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

/// Beside background traffic: when the program itself ended, and when the background and how fast it was.
/// Nothing when no point has any.
std::string background_table(const Json& points) {
  Table table(
      {"point", "executor", "program us", "of median rank", "background", "ended us", "GB/s of all ranks"});
  bool is_empty = true;
  for (const Json& point : points)
    for (const Json& executor : point.value("executors", Json::array()))
      for (const Json& traffic : executor.value("background", Json::array())) {
        is_empty = false;
        table.add({point["label"].get<std::string>().empty() ? "all" : point["label"], executor["name"],
                   number(executor["program_us"]), number(executor["program_median_us"]), traffic["name"],
                   number(traffic["end_us"]), number(traffic["gb_per_s"])});
      }
  return is_empty ? "" : "\n" + table.text();
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

/// The point that a file of the folder belongs to, -1 = none.
int64_t point_of(const std::string& file) {
  constexpr std::string_view kPrefix = "point";
  const size_t dash = file.rfind('-');
  const std::string ending = dash == std::string::npos ? file : file.substr(dash + 1);
  if (std::find(kPointFiles.begin(), kPointFiles.end(), ending) == kPointFiles.end()) return -1;
  if (dash == std::string::npos) return 0;
  if (file.rfind(kPrefix, 0) != 0) return -1;
  int64_t point = -1;
  const char* end = file.data() + dash;
  const auto [rest, error] = std::from_chars(file.data() + kPrefix.size(), end, point);
  return error == std::errc() && rest == end ? point : -1;
}

}  // namespace

std::string prefix_of(size_t point, size_t points) {
  return points == 1 ? "" : fmt::format("point{}-", point);
}

Json run_json(const RunResult& result) {
  const Json& points = result.points;
  const bool is_complete =
      std::none_of(points.begin(), points.end(), [](const Json& point) { return point.contains("error"); });
  Json out = {{"schema", "plumb.run/1"}, {"experiment", result.experiment}, {"complete", is_complete}};
  if (points.front().contains("digest")) {
    out["digest"] = points.front()["digest"];
    out["executors"] = points.front()["executors"];
  }
  out["points"] = points;
  for (Json& point : out["points"]) point.erase("table");
  return out;
}

int exit_code_of(const RunResult& result) {
  int code = 0;
  for (const Json& point : result.points) {
    code = std::max(code, point.value("exit_code", 0));
    for (const Json& executor : point.value("executors", Json::array()))
      if (!executor["ledger_ok"].get<bool>()) code = std::max(code, static_cast<int>(ErrorKind::mismatch));
  }
  return code;
}

void print_tables(const RunResult& result) {
  const Json& points = result.points;
  if (points.size() == 1 && points.front().contains("table"))
    std::printf("%s\n", points.front()["table"].get<std::string>().c_str());
  const auto is_done = [](const Json& point) { return !point.contains("error"); };
  if (std::any_of(points.begin(), points.end(), is_done))
    std::printf("%s", lineup(points, result.on).c_str());
  std::printf("%s", background_table(points).c_str());
  std::printf("%s", findings(points).c_str());
}

int publish(const RunResult& result, const ResultFiles& files) {
  const std::string text = run_json(result).dump(2) + "\n";
  if (!files.csv.empty()) write_file(files.csv, phase_table(result.points).csv());
  if (!files.folder.empty()) write_file(files.folder + "/result.json", text);
  if (files.print_json)
    std::printf("%s", text.c_str());
  else
    print_tables(result);
  return exit_code_of(result);
}

void remove_point_files(const std::string& folder, int32_t index, int32_t count) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int64_t point = point_of(entry.path().filename().string());
    std::error_code ignored;  // another part may have removed it
    if (point >= 0 && point % count == index) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace plumb

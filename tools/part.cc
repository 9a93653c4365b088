// Which part this process is, part files, and joining them.
#include "tools/part.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "model/digest.h"
#include "model/error.h"
#include "tools/output.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "plumb.run_part/1";

std::optional<int32_t> whole(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int32_t> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const auto value = whole(text);
  if (!value) fail_usage("--part auto: {} is '{}', which is no whole number", name, text);
  return value;
}

int32_t needed(const char* name, const char* beside) {
  const auto value = variable(name);
  if (!value) fail_usage("--part auto: {} is set, but {} is not", beside, name);
  return *value;
}

/// Which of the processes that an MPI or srun started together this is.
std::optional<Part> process_part() {
  struct Engine {
    const char* rank;
    const char* size;
  };
  // SLURM_NTASKS will not do: it stands in the batch script, too, which runs once.
  static constexpr Engine kEngines[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                        {"PMI_RANK", "PMI_SIZE"},
                                        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const Engine& engine : kEngines)
    if (const auto size = variable(engine.size)) return Part{needed(engine.rank, engine.size), *size};
  return std::nullopt;
}

std::optional<Part> array_part() {
  const auto task = variable("SLURM_ARRAY_TASK_ID");
  if (!task) return std::nullopt;
  const int32_t count = needed("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID");
  const int32_t first = variable("SLURM_ARRAY_TASK_MIN").value_or(0);
  const int32_t step = variable("SLURM_ARRAY_TASK_STEP").value_or(1);
  const int32_t index = (*task - first) / std::max(step, 1);
  if (step < 1 || index < 0 || index >= count || first + index * step != *task)
    fail_usage(
        "--part auto: SLURM_ARRAY_TASK_ID is {}, the array's {} tasks start at {} in steps of {}; give "
        "--part "
        "I/N to single tasks of an array",
        *task, count, first, step);
  return Part{index, count};
}

Part automatic() {
  const auto process = process_part();
  const auto task = array_part();
  if (!process && !task)
    fail_usage(
        "--part auto: none of OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS, SLURM_ARRAY_TASK_ID is "
        "set; start it with mpirun, srun or as a Slurm array, or give --part I/N");
  const Part inner = process.value_or(Part{});
  const Part outer = task.value_or(Part{});
  return {outer.index * inner.count + inner.index, outer.count * inner.count};
}

std::string name_of(const Part& part) { return fmt::format("result.{}-of-{}.json", part.index, part.count); }

/// The part that a file holds, by its name.
std::optional<Part> part_of(const std::string& file) {
  constexpr std::string_view kStart = "result.", kMiddle = "-of-", kEnd = ".json";
  const size_t middle = file.find(kMiddle);
  if (!file.starts_with(kStart) || !file.ends_with(kEnd) || middle == std::string::npos) return std::nullopt;
  const auto index = whole(std::string_view(file).substr(kStart.size(), middle - kStart.size()));
  const size_t after = middle + kMiddle.size();
  if (after + kEnd.size() > file.size()) return std::nullopt;
  const auto count = whole(std::string_view(file).substr(after, file.size() - kEnd.size() - after));
  if (!index || !count) return std::nullopt;
  return Part{*index, *count};
}

std::vector<Part> parts_in(const std::string& folder) {
  std::vector<Part> parts;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const auto part = part_of(entry.path().filename().string())) parts.push_back(*part);
  return parts;
}

Json read_part(const std::string& folder, const Part& part) {
  const std::string path = folder + "/" + name_of(part);
  if (!fs::exists(path))
    fail_usage("part {} of {} is missing: there is no '{}'", part.index, part.count, path);
  const Json json = Json::parse(read_file(path), nullptr, false);
  if (json.is_discarded() || !json.is_object() || json.value("schema", "") != kSchema)
    fail_usage("'{}' is no part of a run: it does not have schema {}", path, kSchema);
  if (!json.value("ended", false))
    fail_usage("part {} of {} has not ended: '{}' says so; wait for it, or run it again with --part {}/{}",
               part.index, part.count, path, part.index, part.count);
  return json;
}

}  // namespace

Part parse_part(std::string_view text) {
  Part part;
  if (text == "auto") {
    part = automatic();
  } else {
    const size_t slash = text.find('/');
    const auto index = whole(text.substr(0, slash));
    const auto count = slash == std::string_view::npos ? std::nullopt : whole(text.substr(slash + 1));
    if (!index || !count) fail_usage("--part is '{}', allowed: I/N with 0 <= I < N, e.g. 0/4, or auto", text);
    part = {*index, *count};
  }
  if (part.count < 1 || part.index < 0 || part.index >= part.count)
    fail_usage("--part {} is part {} of {}; parts of N are 0 .. N - 1", text, part.index, part.count);
  return part;
}

std::string run_digest(const std::string& experiment_file, const std::vector<std::string>& overrides,
                       const std::vector<Experiment>& points) {
  DigestBuilder digest;
  digest.add(std::string_view(PLUMB_VERSION)).add(read_file(experiment_file));
  for (const std::string& text : overrides) digest.add(text);
  for (const std::string& name : points.front().run.on) digest.add(name);
  std::set<std::string> machines;
  for (const Experiment& point : points) {
    digest.add(point.label);
    machines.insert(point.machine_file);
  }
  for (const std::string& file : machines) digest.add(read_file(file));
  return to_string(digest.finish());
}

void start_part(const std::string& folder, const Part& part, const std::string& digest) {
  check_writable_folder(folder);
  std::error_code ignored;  // another part may have removed it
  fs::remove(folder + "/result.json", ignored);
  for (const Part& other : parts_in(folder))
    if (other.count != part.count) fs::remove(folder + "/" + name_of(other), ignored);
  remove_point_files(folder, part.index, part.count);
  const Json running = {
      {"schema", kSchema}, {"digest", digest}, {"part", part.index}, {"parts", part.count}, {"ended", false}};
  write_file(folder + "/" + name_of(part), running.dump(2) + "\n");
}

void write_part(const std::string& folder, const Part& part, const std::string& digest,
                const RunResult& result, const std::vector<size_t>& indices, size_t total) {
  Json out = {{"schema", kSchema},   {"digest", digest},      {"part", part.index},
              {"parts", part.count}, {"ended", true},         {"experiment", result.experiment},
              {"on", result.on},     {"points_total", total}, {"points", Json::array()}};
  for (size_t i = 0; i < indices.size(); ++i)
    out["points"].push_back({{"index", indices[i]}, {"point", result.points[i]}});
  write_file(folder + "/" + name_of(part), out.dump(2) + "\n");
}

void remove_parts(const std::string& folder) {
  for (const Part& part : parts_in(folder)) fs::remove(folder + "/" + name_of(part));
}

RunResult merge_parts(const std::string& folder) {
  if (!fs::is_directory(folder)) fail_usage("'{}' is no folder", folder);
  const std::vector<Part> found = parts_in(folder);
  if (found.empty())
    fail_usage("'{}' holds no parts (result.I-of-N.json); `plumb run EXP --part I/N -o {}` makes them",
               folder, folder);
  const int32_t count = found.front().count;
  for (const Part& part : found)
    if (part.count != count || part.index < 0 || part.index >= count)
      fail_usage("'{}' holds parts of different runs: {} and {}", folder, name_of(found.front()),
                 name_of(part));
  RunResult result;
  std::string digest;
  std::map<size_t, Json> points;
  size_t total = 0;
  for (int32_t i = 0; i < count; ++i) {
    Json part = read_part(folder, {i, count});
    if (i == 0) {
      digest = part["digest"];
      result.experiment = part["experiment"];
      result.on = part["on"].get<std::vector<std::string>>();
      total = part["points_total"];
    } else if (part["digest"] != digest) {
      fail_usage(
          "parts 0 and {} of '{}' are of different runs ('{}' and '{}'): experiment, machine files, --set, "
          "--on and version must be equal",
          i, folder, result.experiment, part["experiment"].get<std::string>());
    }
    for (Json& entry : part["points"]) points[entry["index"]] = std::move(entry["point"]);
  }
  result.points = Json::array();
  for (size_t i = 0; i < total; ++i) {
    if (!points.contains(i)) fail_usage("'{}': point {} of {} stands in no part", folder, i, total);
    result.points.push_back(std::move(points[i]));
  }
  return result;
}

}  // namespace plumb

// plumb run: every point of an experiment on its executors, lined up in one table.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "model/error.h"
#include "model/host_dump.h"
#include "model/validate.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/part.h"
#include "tools/point.h"
#include "tools/process_pool.h"
#include "tools/run_result.h"

namespace plumb {
namespace {

struct Options {
  std::string experiment;
  std::vector<std::string> on;
  std::vector<std::string> set;
  std::string folder;
  std::string dump;
  std::string csv;
  std::string part;
  std::string only = "*";  // pattern of names of points
  int32_t jobs = 0;
  bool json = false;
};

Json run_all(const Options& options, const std::vector<Experiment>& experiments,
             const std::vector<size_t>& indices) {
  // Points that share a GPU would time each other.
  const auto& on = experiments.front().run.on;
  const int32_t jobs = std::find(on.begin(), on.end(), "cuda") != on.end() ? 1 : options.jobs;
  const auto results =
      run_pieces(static_cast<int32_t>(indices.size()), jobs, experiments.front().name, [&](int32_t i) {
        const size_t index = indices[static_cast<size_t>(i)];
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
    const std::string& label = experiments[indices[i]].label;
    std::fprintf(stderr, "plumb: error: %s%s%s\n", label.c_str(), label.empty() ? "" : ": ",
                 results[i].error.c_str());
    points.push_back({{"label", label}, {"error", results[i].error}, {"exit_code", results[i].exit_code}});
  }
  return points;
}

void check_request(const Options& options, const std::vector<Experiment>& experiments) {
  const auto& on = experiments.front().run.on;
  for (size_t i = 0; i < on.size(); ++i)
    if (std::count(on.begin(), on.end(), on[i]) > 1) fail_usage("executor '{}' is named twice", on[i]);
  if (options.jobs < 0) fail_usage("--jobs is {}, allowed 0 (one per core) or more", options.jobs);
  if (!options.part.empty() && options.folder.empty())
    fail_usage("--part needs -o FOLDER, where all parts meet");
  if (!options.part.empty() && !options.csv.empty())
    fail_usage("--csv holds all points: give it to `plumb merge FOLDER`, not to a part");
  if (options.dump.empty()) return;
  if (experiments.size() != 1)
    fail_usage("--dump takes one point, '{}' has {}; choose with --only or --set", options.experiment,
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
  remove_parts(folder);
  remove_point_files(folder, 0, 1);
}

int run_part(const Options& options, const std::vector<Experiment>& experiments) {
  const Part part = parse_part(options.part);
  const std::string digest = run_digest(options.experiment, options.set, experiments);
  start_part(options.folder, part, digest);
  std::vector<size_t> indices;
  for (size_t i = 0; i < experiments.size(); ++i)
    if (i % static_cast<size_t>(part.count) == static_cast<size_t>(part.index)) indices.push_back(i);
  const RunResult result = {.experiment = experiments.front().name,
                            .on = experiments.front().run.on,
                            .points = run_all(options, experiments, indices)};
  write_part(options.folder, part, digest, result, indices, experiments.size());
  if (options.json)
    std::printf("%s\n", result.points.dump(2).c_str());
  else
    print_tables(result);
  std::fprintf(stderr, "part %d of %d: %zu of %zu points; when all have ended: plumb merge %s\n", part.index,
               part.count, indices.size(), experiments.size(), options.folder.c_str());
  return exit_code_of(result);
}

/// The points whose names fit --only.
std::vector<Experiment> chosen_points(const Options& options) {
  std::vector<Experiment> all = read_experiments(options.experiment, options.set), chosen;
  for (const Experiment& e : all)
    if (fits_pattern(options.only, e.label)) chosen.push_back(e);
  if (chosen.empty())
    fail_usage("--only '{}': '{}' has no such point; its {} points go from '{}' to '{}'", options.only,
               options.experiment, all.size(), all.front().label, all.back().label);
  return chosen;
}

int run(const Options& options) {
  auto experiments = chosen_points(options);
  if (!options.on.empty())
    for (Experiment& e : experiments) e.run.on = options.on;
  check_request(options, experiments);
  if (!options.csv.empty()) check_writable_file(options.csv);
  if (!options.dump.empty()) check_dump_directory(options.dump);
  if (!options.part.empty()) return run_part(options, experiments);
  if (!options.folder.empty()) start_folder(options.folder, experiments.front().name);

  std::vector<size_t> all(experiments.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const RunResult result = {.experiment = experiments.front().name,
                            .on = experiments.front().run.on,
                            .points = run_all(options, experiments, all)};
  return publish(result, {.folder = options.folder, .csv = options.csv, .print_json = options.json});
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
  app.add_option("--only", options->only, "points whose name fits this pattern, e.g. '*512 direct'");
  app.add_option("--part", options->part,
                 "only the points I, I + N, ... of a run shared by N processes: I/N, or auto");
  app.add_flag("--json", options->json, "print the result as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

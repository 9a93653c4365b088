// plumb check: validates files by their `schema` and prints all problems of all of them.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "model/error.h"
#include "model/experiment.h"
#include "model/machine.h"
#include "model/validate.h"
#include "tools/command.h"

namespace plumb {
namespace {

std::string schema_of(const std::string& path) {
  ConfigFile file = ConfigFile::load(path);
  ConfigMap root = file.root();
  const std::string schema = root.text("schema");
  for (const std::string& key : root.keys()) root.ignore(key);
  file.finish();
  return schema;
}

void check_file(const std::string& path) {
  const std::string schema = schema_of(path);
  if (schema == "plumb.experiment/1") {
    read_experiments(path);
  } else if (schema == "plumb.machine/1") {
    build_fabric(read_machine(path));
  } else if (schema == "plumb.costs/1") {
    const std::filesystem::path file(path);
    load_costs(file.has_parent_path() ? file.parent_path().string() : ".", file.stem().string());
  } else if (schema == "plumb.validation/1") {
    read_validation(path);
  } else {
    ConfigFile file = ConfigFile::load(path);
    ConfigMap root = file.root();
    root.fail("schema", fmt::format("'schema' is '{}', allowed: plumb.experiment/1, plumb.machine/1, "
                                    "plumb.costs/1, plumb.validation/1",
                                    schema));
    for (const std::string& key : root.keys()) root.ignore(key);
    file.finish();
  }
}

int run(const std::vector<std::string>& files) {
  std::vector<Problem> problems;
  std::string others;
  for (const std::string& path : files) {
    try {
      check_file(path);
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    } catch (const Error& error) {
      others += fmt::format("{}: error: {}\n", path, error.what());
    }
  }
  if (!problems.empty()) std::fprintf(stderr, "%s", render(problems).c_str());
  std::fprintf(stderr, "%s", others.c_str());
  if (!problems.empty() || !others.empty()) return static_cast<int>(ErrorKind::usage);
  std::printf("%zu files ok\n", files.size());
  return 0;
}

}  // namespace

Action configure_check(CLI::App& app) {
  auto files = std::make_shared<std::vector<std::string>>();
  app.add_option("files", *files, "experiment, machine or costs files")->required();
  return [files] { return run(*files); };
}

}  // namespace plumb

// plumb merge: joins the parts of a run into one result.
#include <cstdio>
#include <memory>

#include "tools/command.h"
#include "tools/output.h"
#include "tools/part.h"

namespace plumb {
namespace {

int run(const ResultFiles& files) {
  if (!files.csv.empty()) check_writable_file(files.csv);
  const RunResult result = merge_parts(files.folder);
  for (const Json& point : result.points)
    if (point.contains("error")) {
      const std::string label = point["label"];
      std::fprintf(stderr, "plumb: error: %s%s%s\n", label.c_str(), label.empty() ? "" : ": ",
                   point["error"].get<std::string>().c_str());
    }
  return publish(result, files);
}

}  // namespace

Action configure_merge(CLI::App& app) {
  auto files = std::make_shared<ResultFiles>();
  app.add_option("folder", files->folder, "folder of the parts; result.json is written there")->required();
  app.add_option("--csv", files->csv, "write phases, times and bytes to this file");
  app.add_flag("--json", files->print_json, "print the result as JSON");
  return [files] { return run(*files); };
}

}  // namespace plumb

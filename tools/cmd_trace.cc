// plumb trace: converts a trace for a timeline viewer.
#include <cstdio>
#include <memory>
#include <sstream>

#include "model/error.h"
#include "model/trace.h"
#include "tools/command.h"
#include "tools/output.h"

namespace plumb {
namespace {

struct Options {
  std::string trace;
  std::string chrome;
};

int run(const Options& options) {
  check_writable_file(options.chrome);
  std::istringstream text(read_file(options.trace));
  const Trace trace = read_csv(text, options.trace);
  std::ostringstream out;
  write_chrome(out, trace);
  write_file(options.chrome, out.str());
  std::printf("%s: %zu spans of %s, open it in https://ui.perfetto.dev\n", options.chrome.c_str(),
              trace.spans.size(), trace.header.executor.c_str());
  return 0;
}

}  // namespace

Action configure_trace(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("trace", options->trace, "trace file (CSV)")->required();
  app.add_option("--chrome", options->chrome, "Chrome trace JSON to write")->required();
  return [options] { return run(*options); };
}

}  // namespace plumb

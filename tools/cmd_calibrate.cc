// placeholder until model/calibrate.h
#include "tools/command.h"
namespace plumb {
Action configure_calibrate(CLI::App& app) {
  (void)app;
  return [] { return 0; };
}
}  // namespace plumb

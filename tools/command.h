// The subcommands of `plumb`: one table, one file each (cmd_*.cc).
#pragma once

#include <functional>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

namespace plumb {

/// Runs a command and returns the exit code: 0 ok, 1 a check failed or results differ. Errors are thrown.
using Action = std::function<int()>;

struct Command {
  const char* name;
  const char* summary;
  const char* example;                 // shown by --help
  Action (*configure)(CLI::App& app);  // declares the options and returns what runs the command
};

std::span<const Command> commands();

Action configure_check(CLI::App& app);
Action configure_plan(CLI::App& app);
Action configure_probe(CLI::App& app);
Action configure_run(CLI::App& app);
Action configure_merge(CLI::App& app);
Action configure_compare(CLI::App& app);
Action configure_calibrate(CLI::App& app);
Action configure_sms(CLI::App& app);
Action configure_buffers(CLI::App& app);
Action configure_topo(CLI::App& app);
Action configure_trace(CLI::App& app);
Action configure_validate(CLI::App& app);

}  // namespace plumb

// The `plumb` binary: parses the command line, runs one command, maps errors to exit codes.
#include <array>
#include <cstdio>
#include <exception>

#include "model/error.h"
#include "tools/command.h"

namespace plumb {

std::span<const Command> commands() {
  static constexpr std::array kCommands = {
      Command{"check", "validate YAML files and print all their errors",
              "plumb check experiments/lineup.yaml topologies/h800-cx7.yaml", configure_check},
      Command{"plan", "build and print the plan of an experiment",
              "plumb plan experiments/hybrid-small.yaml --ledger", configure_plan},
      Command{"run", "run an experiment on its executors and line the results up",
              "plumb run experiments/lineup.yaml --on host,analytic", configure_run},
      Command{"merge", "join the parts of a run that processes of a cluster shared", "plumb merge out",
              configure_merge},
      Command{"compare", "line up traces of one plan", "plumb compare out/analytic.csv out/host.csv",
              configure_compare},
      Command{"calibrate", "fit the constants of an implementation to traces",
              "plumb calibrate experiments/hybrid-small.yaml --trace out/analytic.csv -o out/costs.yaml",
              configure_calibrate},
      Command{"sms", "how many SMs and QPs: DeepEP's model and ours, every term",
              "plumb sms --machine topologies/h200-cx7.yaml --ranks 16 --experts 256 --topk 8 --mode hybrid",
              configure_sms},
      Command{"buffers", "sizes of communication buffers and the largest batch that fits",
              "plumb buffers --ranks 16 --scaleup 8 --experts 256 --topk 8 --hidden 7168 --tokens 4096",
              configure_buffers},
      Command{"topo", "summary of a machine's fabric, or the routes between two ranks",
              "plumb topo topologies/h800-cx7.yaml 0 9", configure_topo},
      Command{"probe", "measure the GPUs of this machine and write a machine file",
              "plumb probe -o out/here.yaml --base topologies/h200x2.yaml", configure_probe},
      Command{"trace", "convert a trace for a timeline viewer",
              "plumb trace out/analytic.csv --chrome out/trace.json", configure_trace},
      Command{"validate", "predict every published measurement and print the errors",
              "plumb validate --on analytic,sim --only 'deepep-v1-ll*'", configure_validate},
  };
  return kCommands;
}

namespace {

/// Names a first word that is no command; CLI11 would only say that a command is missing.
void check_command(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (std::string_view(argv[1]) == command.name) return;
    names.push_back(command.name);
  }
  const std::string near = nearest_name(argv[1], names);
  std::string known;
  for (const std::string_view name : names) known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  fail_usage("unknown command '{}'{}; commands: {}", argv[1],
             near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), known);
}

int run(int argc, char** argv) {
  check_command(argc, argv);
  CLI::App app("Plumbline: predicts, simulates and runs the communication of mixture-of-experts models.",
               "plumb");
  app.set_version_flag("--version", "plumb " PLUMB_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->footer(std::string("Example:\n  ") + command.example);
    actions.emplace_back(sub, command.configure(*sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::string known;
    for (const Command& command : commands()) known += std::string(known.empty() ? "" : ", ") + command.name;
    std::fprintf(stderr, "plumb: error: %s\nSee `plumb --help`; commands: %s.\n", error.what(),
                 known.c_str());
    return static_cast<int>(ErrorKind::usage);
  }
  for (const auto& [sub, action] : actions)
    if (sub->parsed()) {
      const int code = action();
      // A result that did not reach its reader is no result.
      if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(ErrorKind::environment, "cannot write to standard output");
      return code;
    }
  return static_cast<int>(ErrorKind::usage);
}

}  // namespace
}  // namespace plumb

int main(int argc, char** argv) {
  try {
    return plumb::run(argc, argv);
  } catch (const plumb::ConfigError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const plumb::Error& error) {
    std::fprintf(stderr, "plumb: error: %s\n", error.what());
    return static_cast<int>(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plumb: internal error: %s\n", error.what());
    return static_cast<int>(plumb::ErrorKind::environment);
  }
}

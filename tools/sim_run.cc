// Runs a plan on the simulator and writes what it saw.
#include "tools/sim_run.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "model/error.h"
#include "sim/flow_efficiency.h"
#include "sim/flow_network.h"
#include "sim/sim_executor.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/sim_tables.h"

#ifdef PLUMB_HAS_SIMGRID
#include "sim/simgrid/drive.h"
#endif

namespace plumb {
namespace {

/// On a terminal alone, in a line that is written over.
void print_progress(double done, Seconds now) {
  static const bool is_terminal = isatty(STDERR_FILENO) == 1;
  static const auto start = std::chrono::steady_clock::now();
  if (!is_terminal) return;
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double left = done > 0 ? spent * (1 - done) / done : 0;
  std::fprintf(stderr, "\rsim: %5.1f %% landed, %.3f us simulated, about %.0f s left   ", done * 100,
               now.value * 1e6, left);
}

void warn_of_cost(const std::string& title, const sim::RunCost& cost) {
  constexpr Seconds kLong{300};
  if (cost.cpu.value > kLong.value)
    std::fprintf(stderr, "plumb: warning: %s: %s\n", title.c_str(), sim::to_string(cost).c_str());
}

std::vector<WaitFinding> findings_of(const sim::SimReport& report) {
  return report.waits ? diagnose(*report.waits) : std::vector<WaitFinding>();
}

void write_files(const RunSights& run, const PointOptions& options) {
  if (options.trace_folder.empty()) return;
  const std::string start = options.trace_folder + "/" + options.prefix;
  std::vector<LinkSight> links = sights(run.report);
  std::erase_if(links, [](const LinkSight& s) { return s.bytes == 0 && s.peak_waiting == 0; });
  write_file(start + "links.csv", link_table(run.fabric, run.report.timeline, links).csv());
  write_file(start + "lanes.csv", lane_table(run.fabric, run.report).csv());
  if (run.report.waits) write_file(start + "waits.csv", wait_csv(*run.report.waits));
  write_file(start + "report.html", report_page(run));
}

/// What measured runs of both fidelities say of a flow run like this.
Json efficiency_json(const Experiment& e, const Plan& plan) {
  int64_t pairs = 0, bytes = 0;
  for (const Op& op : plan.ops()) {
    if (op.link == Link::local || op.bytes == 0) continue;
    ++pairs;
    bytes += op.bytes;
  }
  const auto table = sim::FlowEfficiency::load(shipped_file("topologies/fidelity/flow_efficiency.yaml"));
  const auto found = table.efficiency(e.machine.name, sim::flow_policy(e.sim.routing[1]), e.shape.ranks,
                                      pairs > 0 ? bytes / pairs : 0);
  if (!found) return {{"calibrated", false}};
  return {{"calibrated", true}, {"packet_over_flow", found->ratio}, {"spread", found->spread}};
}

}  // namespace

SimulatedRun run_simulated(const Experiment& e, const Fabric& fabric, const Plan& plan,
                           const PointOptions& options) {
  sim::SimExecutor executor(e.machine, fabric, e.machine.costs, e.sim);
  executor.set_progress(print_progress);
  if (e.sim.clock == SimClock::simgrid) {
#ifdef PLUMB_HAS_SIMGRID
    executor.set_driver(sim::drive_under_simgrid);
#else
    throw Error(ErrorKind::environment, "sim.clock is simgrid, but this build found no SimGrid");
#endif
  }
  const std::string title = e.label.empty() ? e.name : e.name + ", " + e.label;
  if (e.sim.fidelity == Fidelity::packet) warn_of_cost(title, executor.cost(plan));
  const sim::SimReport& report = executor.report();
  SimulatedRun run;
  try {
    run.trace = executor.run(plan);
  } catch (const Error&) {
    const Trace& partial = executor.partial();
    if (partial.header.executor.empty()) throw;
    write_trace(options, partial);
    write_files({title, partial, fabric, report, findings_of(report)}, options);
    throw;
  }
  const std::vector<WaitFinding> findings = findings_of(report);
  run.json = sim_json(fabric, report, findings);
  if (e.sim.fidelity == Fidelity::flow) {
    run.json["efficiency"] = efficiency_json(e, plan);
    const Json& known = run.json["efficiency"];
    run.trace.header.note +=
        known["calibrated"].get<bool>()
            ? fmt::format("; packets took {:.2f} +- {:.2f} times as long in measured runs of this kind",
                          known["packet_over_flow"].get<double>(), known["spread"].get<double>())
            : "; outside the calibrated range: how packets would differ is not known";
    if (!known["calibrated"].get<bool>())
      std::fprintf(
          stderr,
          "plumb: warning: %s: flow fidelity outside the calibrated range; run some points as packets\n",
          title.c_str());
  }
  write_files({title, run.trace, fabric, report, findings}, options);
  return run;
}

}  // namespace plumb

// plumb probe: measures the GPUs of this machine and writes them as a machine file.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/machine.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/table.h"
#ifdef PLUMB_HAS_HW
#include "hw/probe.h"
#include "hw/probe_machine.h"
#endif

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string machine_file;
  std::string base;
  std::string sweeps;
  double seconds = 20;
  bool json = false;
};

#ifdef PLUMB_HAS_HW

double rounded(double v) { return std::stod(fmt::format("{:.5g}", v)); }

Json spread_json(const hw::Spread& s) {
  return {{"us", rounded(s.median_us)},
          {"p10_us", rounded(s.low_us)},
          {"p90_us", rounded(s.high_us)},
          {"repeats", s.repeats}};
}

Json probe_json(const hw::Probe& probe) {
  Json out = {{"schema", "plumb.probe/1"},
              {"environment",
               {{"gpu", probe.gpu},
                {"gpus", probe.gpus},
                {"peers", probe.has_peers()},
                {"sms", probe.sms},
                {"l2_bytes", probe.l2_bytes},
                {"memory_bytes", probe.memory_bytes},
                {"memory_gbs_nominal", rounded(probe.memory_gbs)},
                {"links", probe.links},
                {"link_gbs", probe.link_gbs},
                {"driver", probe.driver},
                {"cuda_driver", probe.cuda_driver},
                {"cuda_runtime", probe.cuda_runtime},
                {"date", probe.date}}},
              {"seconds", rounded(probe.seconds)},
              {"points", Json::array()},
              {"times", Json::array()}};
  for (const hw::ProbePoint& p : probe.points) {
    Json row = {{"how", p.how},           {"path", p.path},   {"way", p.way},
                {"sms", p.sms},           {"bytes", p.bytes}, {"caches", p.is_cold ? "cold" : "warm"},
                {"gbs", rounded(p.gbs())}};
    row.update(spread_json(p.time));
    out["points"].push_back(row);
  }
  for (const hw::ProbeTime& t : probe.times) {
    Json row = {{"name", t.name}, {"what", t.what}};
    row.update(spread_json(t.time));
    out["times"].push_back(row);
  }
  return out;
}

/// A line per mover and path: GB/s at some numbers of SMs; then the times.
void print(const hw::Probe& probe) {
  std::printf("%d x %s, driver %s; %d SMs; GB/s of payload, median\n", probe.gpus, probe.gpu.c_str(),
              probe.driver.c_str(), probe.sms);
  const std::vector<int32_t> shown = {1, 4, 8, 16, 32, 64, probe.sms};
  std::vector<std::string> header = {"how", "path", "way"};
  for (const int32_t sms : shown) header.push_back(fmt::format("{} SMs", sms));
  Table rates(header);
  Table engines({"how", "path", "bytes", "GB/s", "us"});
  std::string last;
  for (const hw::ProbePoint& p : probe.points) {
    if (p.sms == 0) {
      engines.add({p.how, p.path, std::to_string(p.bytes), number(p.gbs()), number(p.time.median_us)});
      continue;
    }
    const std::string key = p.how + p.path + p.way;
    if (key == last) continue;
    last = key;
    std::vector<std::string> row = {p.how, p.path, p.way.empty() ? "-" : p.way};
    for (const int32_t sms : shown) {
      const hw::ProbePoint* at = probe.find(p.how, p.path, p.way, sms);
      row.push_back(at == nullptr ? "-" : number(at->gbs()));
    }
    rates.add(row);
  }
  std::printf("%s\n%s\n", rates.text().c_str(), engines.text().c_str());
  Table times({"time", "us", "10 %", "90 %", "what"});
  for (const hw::ProbeTime& t : probe.times)
    times.add({t.name, number(t.time.median_us), number(t.time.low_us), number(t.time.high_us), t.what});
  std::printf("%s", times.text().c_str());
}

int run(const Options& options) {
  for (const std::string& file : {options.machine_file, options.sweeps})
    if (!file.empty()) check_writable_file(file);
  std::optional<Machine> base;
  if (!options.base.empty()) base = read_machine(options.base);
  const hw::Probe probe = hw::run_probe({.seconds = options.seconds});
  const Json json = probe_json(probe);
  if (!options.sweeps.empty()) write_file(options.sweeps, json.dump(1) + "\n");
  if (!options.machine_file.empty()) {
    const std::string name = std::filesystem::path(options.machine_file).stem().string();
    write_file(options.machine_file, hw::machine_file(probe, name, base ? &*base : nullptr));
  }
  if (options.json)
    std::printf("%s\n", json.dump(2).c_str());
  else
    print(probe);
  return 0;
}

#else

int run(const Options&) {
  throw Error(ErrorKind::environment,
              "probe measures GPUs, and this build has no CUDA: configure with PLUMB_CUDA=ON");
}

#endif

}  // namespace

Action configure_probe(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("-o,--out", options->machine_file, "write a machine file; its name is that of the file");
  app.add_option("--base", options->base,
                 "machine file that gives what cannot be measured: names, nominal rates");
  app.add_option("--sweeps", options->sweeps, "write all that was measured to this file, as JSON");
  app.add_option("--seconds", options->seconds, "time for repetitions, in all")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_flag("--json", options->json, "print all that was measured as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

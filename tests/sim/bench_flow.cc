// The flow network beside the packet network: expert-parallel dispatch, top-8, rows of 7408 bytes, one
// message per pair of ranks. `bench_flow` prints CPU seconds, memory and the ratio of simulated times for a
// decode step (128 tokens per rank) on the EP2048 fat tree, and checks the targets of the flows. `bench_flow
// --efficiency` measures the rows of topologies/fidelity/flow_efficiency.yaml and prints that file;
// `bench_flow --flow ranks [relative batch]` and `--packet ranks` run one of them alone.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/machine.h"
#include "sim/flow_network.h"
#include "sim/packet_network.h"
#include "tests/sim/expert_traffic.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr double kMostSeconds = 6, kMostMegabytes = 150;  // of 2048 ranks as flows

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

double resident_megabytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) / 1024;
}

struct Case {
  std::string kind;
  Fabric fabric;
  ExpertTraffic traffic;
  FlowPolicy policy = FlowPolicy::split;
};

PacketSettings packets_for(const Case& c) {
  PacketSettings settings = packet_settings();
  for (NetworkSettings& network : settings.networks)
    if (c.policy == FlowPolicy::hash) network.policy = RoutePolicy::by_flow;
  return settings;
}

struct Outcome {
  double cpu = 0, megabytes = 0, microseconds = 0;
  int64_t messages = 0, mean_bytes = 0, solutions = 0;
};

template <class AnyNetwork, class Settings>
Outcome run(const Case& c, const Settings& settings) {
  Dispatch traffic(c.traffic);
  const double start = cpu_seconds();
  AnyNetwork network(c.fabric, settings, traffic);
  network.wake_all();
  network.run();
  Outcome result = {.cpu = cpu_seconds() - start,
                    .megabytes = static_cast<double>(network.memory_bytes()) / 1048576,
                    .microseconds = static_cast<double>(traffic.last) * 1e-6,
                    .messages = traffic.arrived,
                    .mean_bytes = traffic.bytes / std::max<int64_t>(1, traffic.arrived)};
  if (traffic.arrived != traffic.drawn)
    fail_usage("{} of {} messages arrived", traffic.arrived, traffic.drawn);
  if constexpr (std::is_same_v<AnyNetwork, FlowNetwork>) result.solutions = network.counts().solutions;
  return result;
}

Outcome run_flows(const Case& c, double relative_batch = FlowSettings().relative_batch) {
  FlowSettings settings = flow_settings(packets_for(c));
  settings.relative_batch = relative_batch;
  return run<FlowNetwork>(c, settings);
}
Outcome run_packets(const Case& c) { return run<PacketNetwork>(c, packets_for(c)); }

Fabric machine_fabric(const std::string& name, int32_t nodes) {
  return build_fabric(read_machine(PLUMB_SOURCE_DIR "/topologies/" + name + ".yaml", nodes));
}

int32_t ranks_per_node(const std::string& name) {
  return read_machine(PLUMB_SOURCE_DIR "/topologies/" + name + ".yaml").ranks_per_node();
}

Case decode(Rank ranks) {
  return {"ep2048-fattree", machine_fabric("ep2048-fattree", ranks / 8), {.ranks = ranks, .per_pair = true}};
}

void print(const char* what, Rank ranks, const Outcome& o) {
  fmt::print(
      "{:7} {:5} ranks  {:8} messages of {:6} B  {:6} solutions  {:6.2f} CPU s  {:6.1f} MB held  {:6.0f} MB "
      "resident  {:.2f} us\n",
      what, ranks, o.messages, o.mean_bytes, o.solutions, o.cpu, o.megabytes, resident_megabytes(),
      o.microseconds);
  std::fflush(stdout);
}

/// Flows first: what is resident after them is theirs.
bool speed(const std::vector<Rank>& sizes) {
  bool ok = true;
  std::vector<double> times;
  for (Rank ranks : sizes) {
    const Outcome flows = run_flows(decode(ranks));
    print("flows", ranks, flows);
    times.push_back(flows.microseconds);
    ok &= ranks < 2048 || (flows.cpu <= kMostSeconds && resident_megabytes() <= kMostMegabytes);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Outcome packets = run_packets(decode(sizes[i]));
    print("packets", sizes[i], packets);
    fmt::print("        packet / flow time {:.3f}\n", packets.microseconds / times[i]);
  }
  fmt::print("{}\n", ok ? "ok" : "TARGET MISSED");
  return ok;
}

/// What is measured of a kind of fabric: a row of the file stands between two neighbouring sizes.
struct Plan {
  std::string kind;
  std::vector<int32_t> nodes;  // leaf_spine: ranks
};

/// One size: decode and prefill.
struct Point {
  Rank ranks = 0;
  Range<int64_t> bytes{INT64_MAX, 0};
  Range<double> ratio{1e300, 0};
};

Case efficiency_case(const Plan& plan, int32_t nodes, int32_t tokens, FlowPolicy policy) {
  if (plan.kind == "leaf_spine") {
    const int32_t down = nodes >= 256 ? 16 : 8;
    return {plan.kind,
            leaf_spine({.ranks = nodes, .down = down, .spines = down}),
            {.ranks = nodes, .tokens = tokens, .per_pair = true},
            policy};
  }
  const int32_t per_node = ranks_per_node(plan.kind);
  const Rank ranks = nodes * per_node;
  return {plan.kind,
          machine_fabric(plan.kind, nodes),
          {.ranks = ranks, .tokens = tokens, .per_pair = true, .ranks_per_node = per_node},
          policy};
}

Point measure(const Plan& plan, int32_t nodes, FlowPolicy policy) {
  Point point;
  fmt::print("  #");
  for (int32_t tokens : {128, 1024}) {
    const Case c = efficiency_case(plan, nodes, tokens, policy);
    const Outcome flows = run_flows(c), packets = run_packets(c);
    const double ratio = packets.microseconds / flows.microseconds;
    point.ranks = c.traffic.ranks;
    point.bytes = {std::min(point.bytes.min, flows.mean_bytes), std::max(point.bytes.max, flows.mean_bytes)};
    point.ratio = {std::min(point.ratio.min, ratio), std::max(point.ratio.max, ratio)};
    fmt::print(" {} ranks, {} tokens, {} B: {:.1f} / {:.1f} us = {:.3f};", c.traffic.ranks, tokens,
               flows.mean_bytes, packets.microseconds, flows.microseconds, ratio);
  }
  fmt::print("\n");
  std::fflush(stdout);
  return point;
}

void efficiency() {
  const std::vector<Plan> plans = {{"leaf_spine", {16, 64, 128, 256}},
                                   {"ep2048-fattree", {2, 8, 32}},
                                   {"ep2048-dragonfly", {2, 8, 32}},
                                   {"cloudmatrix384", {2, 4, 8}},
                                   {"ub-mesh-pod", {1, 2, 4}}};
  fmt::print(
      "# How much longer packets take than flows: simulated time of a dispatch (top-8 at random, rows of "
      "7408 B,\n"
      "# one message per pair; 128 and 1024 tokens per rank) as packets over that as flows. 32 queue pairs, "
      "MTU\n"
      "# 4096, one lane of 64 KiB a cable or what a link needs; packets adaptive (split) or by flow (hash). "
      "A row covers\n"
      "# what lies between its runs; ratio is the middle of their smallest and largest, spread half of the\n"
      "# difference. Comments: packet / flow time.\n"
      "# Measured by: build/dev/tests/sim/bench_flow --efficiency > "
      "topologies/fidelity/flow_efficiency.yaml\n"
      "schema: plumb.flow_efficiency/1\n"
      "rows:\n");
  for (const Plan& plan : plans)
    for (FlowPolicy policy : {FlowPolicy::split, FlowPolicy::hash}) {
      std::vector<Point> points;
      for (int32_t nodes : plan.nodes) points.push_back(measure(plan, nodes, policy));
      for (size_t i = 0; i + 1 < points.size(); ++i) {
        const Point &a = points[i], &b = points[i + 1];
        const double low = std::min(a.ratio.min, b.ratio.min), high = std::max(a.ratio.max, b.ratio.max);
        const bool is_last = i + 2 == points.size();
        fmt::print(
            "  - {{kind: {}, policy: {}, ranks: [{}, {}], bytes_per_pair: [{}, {}], ratio: {:.3f}, spread: "
            "{:.3f}}}\n",
            plan.kind, policy == FlowPolicy::split ? "split" : "hash", a.ranks,
            is_last ? b.ranks : b.ranks - 1, std::min(a.bytes.min, b.bytes.min),
            std::max(a.bytes.max, b.bytes.max), (low + high) / 2, (high - low) / 2);
      }
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace plumb::sim

int main(int argc, char** argv) {
  using namespace plumb::sim;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--efficiency") {
    efficiency();
    return 0;
  }
  if (argc > 2 && (what == "--flow" || what == "--packet")) {
    const plumb::Rank ranks = std::atoi(argv[2]);
    const Case c = decode(ranks);
    const double batch = argc > 3 ? std::atof(argv[3]) : FlowSettings().relative_batch;
    print(what.c_str() + 2, ranks, what == "--flow" ? run_flows(c, batch) : run_packets(c));
    return 0;
  }
  std::vector<plumb::Rank> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {64, 128, 256, 512, 1024, 2048};
  return speed(sizes) ? 0 : 1;
}

// Plans on small machines, for tests of the sim executor.
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "model/error.h"
#include "model/plans/builders.h"
#include "sim/sim_executor.h"
#include "tests/model/fabric_machines.h"

namespace plumb::sim {

inline constexpr double kUpRate = 400e9;  // of the test machines, bytes per second

struct Site {
  explicit Site(Machine m) : machine(std::move(m)) {
    machine.gpu.name = "Test GPU";
    machine.gpu.sms.value = 100;
    machine.gpu.hbm_rate.value = gigabytes_per_second(4000);
    machine.gpu.sm_write_rate.value = gigabytes_per_second(50);
    machine.gpu.copy_engine_rate.value = gigabytes_per_second(2000);
    fabric = build_fabric(machine);
  }
  Trace run(const Plan& plan, const SimOptions& options = {}, const Costs& costs = {}) const {
    return SimExecutor(machine, fabric, costs, options).run(plan);
  }
  double latency(Link link, Rank a, Rank b) const { return fabric.latency(link, a, b).value; }
  Machine machine;
  Fabric fabric;
};

/// Four GPUs on one switch.
inline const Site& node() {
  static const Site site(machine_of(1, SwitchedDomain{.ranks = 4, .planes = 1}, NoScaleOut{}, 0));
  return site;
}
/// Two nodes of four GPUs, rails.
inline const Site& rails() {
  static const Site site(two_tiers(true, 2));
  return site;
}

inline Op put(PhaseId phase, Rank src, Rank dst, Link link, int64_t bytes, int32_t rows = 1) {
  return {.kind = OpKind::put,
          .link = link,
          .phase = phase,
          .src = src,
          .dst = dst,
          .messages = rows,
          .rows = rows,
          .bytes = bytes};
}
inline Op local(OpKind kind, PhaseId phase, Rank r, int64_t bytes = 0, int32_t rows = 0) {
  return {.kind = kind, .phase = phase, .src = r, .dst = r, .rows = rows, .bytes = bytes};
}
inline Plan empty_plan(int32_t ranks = 4) { return Plan({}, {ranks, std::min(ranks, 4)}); }
inline Phase phase(std::string name, Engine engine = Engine::none, int32_t sms = 0) {
  Phase p;
  p.name = std::move(name);
  p.engine = engine;
  p.sms = sms;
  return p;
}
/// Bytes on an NVLink wire: one header byte per packet of 4096.
inline double up_seconds(int64_t bytes) {
  return static_cast<double>(bytes + (bytes + 4095) / 4096) / kUpRate;
}

inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline Plan build(ProgramKind kind, const Shape& shape, const Grouping& grouping, Program program = {},
                  uint64_t seed = 1) {
  program.kind = kind;
  if (program.num_sms == 0) program.num_sms = 12;
  if (kind == ProgramKind::engram) program.fetches = 2, program.table_rows = 64 * grouping.ranks;
  if (kind >= ProgramKind::send_recv && program.message.count == 0) program.message = Bytes{100000};
  const Routing routing = Routing::generate(shape, {.kind = RoutingKind::uniform, .seed = seed});
  return build_plan({.shape = shape, .routing = routing, .program = program, .grouping = grouping});
}

inline Shape shape_of(int32_t ranks, int32_t tokens, int32_t experts_per_rank = 2) {
  Shape s;
  s.ranks = ranks;
  s.experts = ranks * experts_per_rank;
  s.topk = std::min(4, s.experts);
  s.hidden = 1024;
  s.tokens.assign(static_cast<size_t>(ranks), tokens);
  s.max_tokens = tokens;
  return s;
}

}  // namespace plumb::sim

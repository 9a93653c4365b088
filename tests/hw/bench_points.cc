// Points from experiments, targets, traces.
#include "tests/hw/bench_points.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "model/error.h"

namespace plumb::hw {
namespace {

constexpr int32_t kGraphTokens = 512;  // up to which a call is short enough to be replayed

void require_served(const Experiment& e) {
  const bool is_call = e.program.kind == ProgramKind::dispatch || e.program.kind == ProgramKind::combine;
  const auto& tokens = e.shape.tokens;
  if (is_call && e.shape.ranks == 2 && e.program.mode == Mode::direct &&
      e.program.placement == RowPlacement::direct && e.shape.hidden % 128 == 0 && tokens[0] == tokens[1] &&
      tokens[0] > 0)
    return;
  fail_usage(
      "point '{}' is {} of {} ranks; allowed: dispatch and combine, mode direct, placement direct, 2 ranks "
      "of as "
      "many tokens each, hidden a multiple of 128",
      e.label, to_string(e.program), e.shape.ranks);
}

}  // namespace

std::vector<BenchPoint> bench_points(const std::vector<Experiment>& experiments) {
  std::vector<BenchPoint> points;
  const auto add = [&](BenchPoint p) {
    points.push_back(p);
    p.graph = true;
    if (p.tokens <= kGraphTokens) points.push_back(p);
  };
  std::vector<std::pair<int32_t, bool>> exchanged;
  for (size_t i = 0; i < experiments.size(); ++i) {
    const Experiment& e = experiments[i];
    require_served(e);
    const bool is_combine = e.program.kind == ProgramKind::combine;
    const BenchPoint p{.tokens = e.shape.tokens[0],
                       .sms = e.program.num_sms,
                       .hidden = e.shape.hidden,
                       .call = is_combine ? BenchCall::combine : BenchCall::dispatch,
                       .fp8 = !is_combine && e.shape.dispatch_type == DType::fp8_e4m3,
                       .expand = e.program.expand,
                       .cached = e.program.cached,
                       .experiment = static_cast<int32_t>(i)};
    add(p);
    const std::pair payload(p.tokens, p.fp8);
    if (p.expand || std::find(exchanged.begin(), exchanged.end(), payload) != exchanged.end()) continue;
    exchanged.push_back(payload);
    BenchPoint nccl = p;
    nccl.call = BenchCall::nccl, nccl.sms = 0, nccl.cached = false;
    add(nccl);
  }
  std::stable_sort(points.begin(), points.end(), [](const BenchPoint& a, const BenchPoint& b) {
    return std::tuple(a.tokens, a.expand) < std::tuple(b.tokens, b.expand);
  });
  return points;
}

std::optional<double> target_us(const BenchPoint& p) {
  if (p.call == BenchCall::nccl || p.expand || p.cached || p.hidden != 7168) return {};
  if (p.is_combine() == p.fp8) return {};
  if (p.tokens == 128 && p.graph) return p.is_combine() ? 17 : 14;
  if (p.tokens == 4096 && p.sms == 24) return p.is_combine() ? 180 : 100;
  if (p.tokens == 8192 && p.sms == 64) return p.is_combine() ? 350 : 185;
  if (p.tokens == 8192 && p.sms == 16) return p.is_combine() ? 400 : 200;
  return {};
}

Trace bench_trace(const Experiment& experiment, double us, const std::string& note) {
  const Plan plan = make_plan(experiment, make_routing(experiment), false);
  Trace trace;
  trace.header.executor = "cuda";
  trace.header.plan = plan.digest();
  trace.header.program = to_string(plan.program());
  trace.header.machine = experiment.machine.name;
  trace.header.clock = "globaltimer";
  trace.header.seed = experiment.routing.seed;
  trace.header.note = note;
  const std::vector<LedgerEntry> totals = account_phases(plan);
  for (size_t p = 0; p < plan.phases().size(); ++p) {
    trace.header.phases.push_back(plan.phases()[p].name);
    trace.phase_times.push_back({.time = {},
                                 .lower = {},
                                 .bottleneck = "",
                                 .messages = totals[p].messages,
                                 .bytes = totals[p].bytes});
  }
  trace.ledger = account(plan);
  trace.total = {us * 1e-6};
  return trace;
}

}  // namespace plumb::hw

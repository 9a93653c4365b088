// From a machine and a shape to the inputs of the SM models, and the automatic counts.
#include "model/sm_choice.h"

#include <algorithm>

#include "model/schedule.h"

namespace plumb {
namespace {

constexpr double kDeepepLinkShare = 0.9;  // of the reported link rates: DeepEP deep_ep/utils/envs.py
constexpr int32_t kV1Sms = 24;            // DeepEP V1 tests/test_internode.py
constexpr int32_t kHybridQps = 129;       // what DeepEP V2 allocates: 16 channels for each of 8 SMs, and one
constexpr int32_t kDirectQps = 17;

bool is_v2_kind(ProgramKind kind) {
  return kind == ProgramKind::dispatch || kind == ProgramKind::combine || kind == ProgramKind::round_trip;
}

GateCopies copies_of(const SmChoiceInput& in) {
  if (in.table != nullptr) return counted_copies(in.shape, *in.table, in.grouping);
  if (in.routing.kind == RoutingKind::uniform || in.routing.kind == RoutingKind::group_limited)
    return expected_copies(in.shape, in.routing, in.grouping);
  return counted_copies(in.shape, Routing::generate(in.shape, in.routing), in.grouping);
}

}  // namespace

DeepepSmInput deepep_input(const SmChoiceInput& in, Mode mode) {
  const bool is_hybrid = mode == Mode::hybrid;
  const ScaleUp& up = in.machine.scale_up;
  const double reported = (up.reported_rate.value.value > 0 ? up.reported_rate : up.rate).value.value;
  return {.experts = in.shape.experts,
          .topk = in.shape.topk,
          .scaleout = is_hybrid ? in.grouping.nodes() : 1,
          .scaleup = is_hybrid ? in.grouping.scaleup : in.grouping.ranks,
          .nvlink_ranks = in.grouping.scaleup,
          .rdma_gbs = in.grouping.nodes() > 1 ? gigabytes_per_second(in.machine.scale_out_rate()) : 0,
          .nvlink_gbs = kDeepepLinkShare * reported * 1e-9,
          .device_sms = static_cast<int32_t>(in.machine.gpu.sms.value),
          .prefers_overlap = true,
          .allows_hybrid = is_hybrid,
          .allocated_qps = deepep_allocated_qps(is_hybrid, false)};
}

SmWork sm_work(const SmChoiceInput& in, const Program& program, Direction direction) {
  const int32_t most =
      in.shape.tokens.empty() ? 0 : *std::max_element(in.shape.tokens.begin(), in.shape.tokens.end());
  const TokenLayout record =
      direction == Direction::dispatch ? in.shape.dispatch_layout() : in.shape.combine_layout();
  return {.direction = direction,
          .program = program,
          .grouping = in.grouping,
          .copies = copies_of(in),
          .tokens = most,
          .record = Bytes{record.record_bytes},
          .output_row = Bytes{2 * int64_t{in.shape.hidden}}};
}

SmMachine sm_machine(const SmChoiceInput& in) {
  const Machine& m = in.machine;
  const Costs& costs = m.costs;
  const BytesPerSecond write = sm_rate(costs.sm, m.gpu.name).value_or(m.gpu.sm_write_rate.value);
  return {.rdma = m.scale_out_rate() * costs.scale_out_share.value,
          .nvlink = m.scale_up.rate.value * costs.scale_up_share.value,
          .hbm = m.gpu.hbm_rate.value * costs.memory_share.value,
          .sm_read = m.gpu.sm_read_rate.value,
          .sm_write = write,
          .device_sms = static_cast<int32_t>(m.gpu.sms.value),
          .sm_granularity = 1,
          .first_barrier = costs.scale_up_barrier.value,
          .last_barrier = costs.scale_up_barrier.value,
          .notify = costs.scale_up_latency.value,
          .fill = costs.scale_up_latency.value};
}

Program choose_sms_and_qps(const SmChoiceInput& in, Program program) {
  const bool is_v1 = program.kind == ProgramKind::v1_dispatch || program.kind == ProgramKind::v1_combine;
  if (program.num_sms == 0 && is_v1)
    program.num_sms = std::min(kV1Sms, static_cast<int32_t>(in.machine.gpu.sms.value));
  if (!is_v2_kind(program.kind)) return program;
  if (program.num_sms == 0) {
    const auto sms = [&](Direction direction) {
      return corrected_sms(sm_work(in, program, direction), sm_machine(in)).num_sms;
    };
    program.num_sms = program.kind == ProgramKind::dispatch ? sms(Direction::dispatch)
                      : program.kind == ProgramKind::combine
                          ? sms(Direction::combine)
                          : std::max(sms(Direction::dispatch), sms(Direction::combine));
  }
  if (program.num_qps == 0 && in.grouping.nodes() > 1) {
    const bool is_hybrid = program.mode == Mode::hybrid;
    program.num_qps = corrected_qps({.num_sms = program.num_sms,
                                     .channels_per_sm = is_hybrid ? 8 : 1,
                                     .allocated = is_hybrid ? kHybridQps : kDirectQps,
                                     .peers = is_hybrid ? in.grouping.nodes() : in.grouping.ranks,
                                     .nic_connections = 0});
  }
  return program;
}

}  // namespace plumb

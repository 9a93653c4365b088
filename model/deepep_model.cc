// DeepEP V2's analytic model, term by term as its source writes it.
#include "model/deepep_model.h"

#include <algorithm>
#include <cmath>

#include "model/deepep_workspace.h"
#include "model/error.h"
#include "model/routing.h"
#include "model/schedule.h"

namespace plumb {

namespace {

void require_range(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail_usage("DeepEP SM model: {} is {}; allowed: {}..{}", field, value, low, high);
}

void require_rate(std::string_view field, double value, bool allows_zero, std::string_view hint) {
  if (std::isfinite(value) && (value > 0 || (allows_zero && value == 0))) return;
  fail_usage("DeepEP SM model: {} is {}; allowed: finite and {} 0; {}", field, value,
             allows_zero ? ">=" : ">", hint);
}

constexpr int32_t kMaxCount = 1 << 20;  // far beyond any machine; keeps every product below 2^63

void validate(const DeepepSmInput& in) {
  require_range("scaleout", in.scaleout, 1, kMaxCount);
  require_range("scaleup", in.scaleup, 1, kMaxCount);
  const int64_t ranks = int64_t{in.scaleout} * in.scaleup;
  require_range("ranks", ranks, 1, kMaxCount);
  require_range("nvlink_ranks", in.nvlink_ranks, 1, ranks);
  require_range("experts", in.experts, 1, kMaxCount);
  require_range("topk", in.topk, 1, in.experts);
  require_range("device_sms", in.device_sms, 1, kMaxCount);
  require_range("allocated_qps", in.allocated_qps, 1, kMaxCount);
  if (ranks % in.nvlink_ranks != 0)
    fail_usage("DeepEP SM model: {} ranks do not fill NVLink domains of {}", ranks, in.nvlink_ranks);
  if (in.experts % ranks != 0) {
    const int64_t below = in.experts / ranks * ranks;
    fail_usage(
        "DeepEP SM model: {} experts are not divisible by {} ranks; the nearest legal numbers are {} and {}",
        in.experts, ranks, std::max(below, ranks), below + ranks);
  }
  if (in.gate_groups != 0)
    fail_usage(
        "DeepEP SM model: gate_groups is {}, but group-limited gates are not modelled (allowed: 0); "
        "use corrected_sms() with expected_copies() of the gate",
        in.gate_groups);
  const bool is_hybrid = in.scaleout > 1;
  require_rate("rdma_gbs", in.rdma_gbs, !is_hybrid,
               "set the rate of the scale-out network (scale_out.port_rate)");
  require_rate("nvlink_gbs", in.nvlink_gbs, !is_hybrid,
               "set the rate of the scale-up network (scale_up.rate)");
  require_rate("sm_read_gbs", in.sm_read_gbs, false, "set the read rate of one SM (gpu.sm_read_rate)");
  require_rate("sm_write_gbs", in.sm_write_gbs, false, "set the write rate of one SM (gpu.sm_write_rate)");
}

void add_traffic(const DeepepSmInput& in, DeepepSmTerms& out) {
  const double ranks = in.scaleout * in.scaleup;
  const double t = out.expected_ranks;
  out.sm_read += 1 / t;
  if (in.scaleout > 1) {
    out.sm_write += 1 / t;                                            // send buffer
    out.sm_write += (1 / t) * (out.expected_scaleout / in.scaleout);  // own node, written at once
    out.rdma_traffic += (1 / t) * (out.expected_scaleout * (1 - 1.0 / in.scaleout));
    out.sm_read += out.expected_scaleout / t;  // forward warps
    out.sm_write += 1;
    out.nvlink_traffic += 1 - 1.0 / in.scaleup;
    return;
  }
  if (ranks > in.nvlink_ranks) out.sm_write += 1 / t;  // send buffer
  out.sm_write += in.nvlink_ranks / ranks;
  out.nvlink_traffic += in.nvlink_ranks / ranks * (1 - 1.0 / in.nvlink_ranks);
  out.rdma_traffic += (ranks - in.nvlink_ranks) / ranks;
}

void add_bound(const DeepepSmInput& in, DeepepSmTerms& out) {
  const bool is_rdma = in.scaleout > 1 && out.rdma_traffic / in.rdma_gbs > out.nvlink_traffic / in.nvlink_gbs;
  out.bounded_traffic = is_rdma ? out.rdma_traffic : out.nvlink_traffic;
  out.bounded_gbs = is_rdma ? in.rdma_gbs : in.nvlink_gbs;
  out.raw = in.device_sms;
  if (out.bounded_traffic <= 0) return;
  out.bound = is_rdma ? LinkBound::rdma : LinkBound::nvlink;
  out.read_need = out.bounded_gbs / out.bounded_traffic * out.sm_read / in.sm_read_gbs;
  out.write_need = out.bounded_gbs / out.bounded_traffic * out.sm_write / in.sm_write_gbs;
  out.raw = std::max(out.read_need, out.write_need);
}

}  // namespace

std::string_view to_string(LinkBound bound) {
  switch (bound) {
    case LinkBound::none:
      return "none";
    case LinkBound::nvlink:
      return "nvlink";
    case LinkBound::rdma:
      return "rdma";
  }
  PLUMB_CHECK(false, "LinkBound {}", static_cast<int>(bound));
  return "";
}

DeepepSmTerms deepep_sms(const DeepepSmInput& in) {
  validate(in);
  DeepepSmTerms out;
  out.expected_ranks = expected_distinct(in.experts, in.scaleout * in.scaleup, in.topk);
  out.expected_scaleout = in.scaleout > 1 ? expected_distinct(in.experts, in.scaleout, in.topk) : 0;
  add_traffic(in, out);
  add_bound(in, out);
  const double wanted = std::min(std::ceil(out.raw * 1.25), 1e9);
  out.before_floor_and_cap =
      static_cast<int32_t>(round_up(std::max<int64_t>(4, static_cast<int64_t>(wanted)), 2));
  const int32_t floored =
      in.prefers_overlap ? out.before_floor_and_cap : std::max(out.before_floor_and_cap, 64);
  out.num_sms = std::min(floored, in.device_sms);
  out.num_qps = deepep_qps(out.num_sms, in.allows_hybrid, in.allocated_qps);
  return out;
}

int32_t deepep_qps(int32_t num_sms, bool allows_hybrid, int32_t allocated) {
  require_range("num_sms", num_sms, 1, kMaxCount);
  require_range("allocated_qps", allocated, 1, kMaxCount);
  return std::min(allows_hybrid ? num_sms * 16 + 1 : std::min(num_sms, 9), allocated);
}

int32_t deepep_allocated_qps(bool allows_hybrid, bool nic_has_fast_atomics) {
  if (!allows_hybrid) return 17;
  return nic_has_fast_atomics ? 65 : 129;
}

CopiesPerToken copies_per_token(int32_t experts, int32_t topk, const Grouping& grouping) {
  const int32_t nodes = grouping.nodes();
  const double away = 1 - 1.0 / nodes;  // share of nodes that are not the own one
  CopiesPerToken out;
  out.expected_ranks = expected_distinct(experts, grouping.ranks, topk);
  out.expected_nodes = nodes > 1 ? expected_distinct(experts, nodes, topk) : 0;
  out.rdma_direct = out.expected_ranks * away;
  out.rdma_hybrid = out.expected_nodes * away;
  out.nvlink_direct = out.expected_ranks * (grouping.scaleup - 1) / grouping.ranks;
  out.nvlink_hybrid = out.expected_ranks * (1 - 1.0 / grouping.scaleup);
  out.combine_multiple = out.rdma_hybrid;
  out.combine_single = out.rdma_direct;
  out.combine_single_expand = topk * away;
  return out;
}

double physical_rate(double logical, int32_t groups) {
  require_range("groups", groups, 1, kMaxCount);
  return logical * (1 - 1.0 / groups);
}

double implied_seconds(int64_t tokens, double copies, int64_t row_bytes, double logical_bytes_per_second) {
  require_rate("logical rate", logical_bytes_per_second, false, "an implied time needs a published rate");
  return static_cast<double>(tokens) * copies * static_cast<double>(row_bytes) / logical_bytes_per_second;
}

ImpliedSmRates implied_sm_rates(const DeepepSmInput& in, double logical_gbs, int32_t num_sms) {
  require_range("num_sms", num_sms, 1, kMaxCount);
  require_rate("logical_gbs", logical_gbs, false, "implied SM rates need a published rate");
  const DeepepSmTerms terms = deepep_sms(in);
  if (terms.bound == LinkBound::none)
    fail_usage("DeepEP SM model: no link carries traffic, so no rate is implied");
  // A logical rate counts node copies in hybrid mode, rank copies otherwise; the volumes are per rank copy.
  const double copies = in.scaleout > 1 ? terms.expected_scaleout : terms.expected_ranks;
  const double copy_gbs = logical_gbs * terms.expected_ranks / copies;
  return {.sm_write_gbs = copy_gbs * terms.sm_write / num_sms,
          .sm_read_gbs = copy_gbs * terms.sm_read / num_sms,
          .link_utilisation = copy_gbs * terms.bounded_traffic / terms.bounded_gbs};
}

std::vector<std::string> deepep_refusals(const DeepepCall& call) {
  std::vector<std::string> out;
  const auto limit = [&](std::string_view what, int64_t value, int64_t high) {
    if (value > high) out.push_back(fmt::format("{} is {}; DeepEP allows at most {}", what, value, high));
  };
  const auto multiple = [&](std::string_view what, int64_t value, int64_t unit) {
    if (unit > 0 && value % unit != 0)
      out.push_back(fmt::format("{} is {}; DeepEP needs a multiple of {}", what, value, unit));
  };
  const int64_t ranks = int64_t{call.scaleout} * call.scaleup;
  const int64_t local_experts = ceil_div(call.experts, std::max<int64_t>(1, ranks));
  const bool is_hybrid = call.scaleout > 1;
  multiple("number of experts", call.experts, ranks);
  limit("number of ranks", ranks, kDeepepMaxRanks);
  limit("number of experts", call.experts, kDeepepMaxExperts);
  limit("number of experts per rank", local_experts, kDeepepMaxLocalExperts);
  limit("topk", call.topk, 32);
  multiple("bytes of a hidden row", int64_t{call.hidden} * call.element_bytes, 32);
  multiple("hidden", call.hidden, 256);  // combine
  limit("tokens of a rank", call.tokens, call.max_tokens);
  if (is_hybrid) {
    limit("scale-out ranks", call.scaleout, 32);
    limit("scale-up ranks", call.scaleup, 64);
    if (!call.is_cached) limit("scale-up ranks plus experts per rank", call.scaleup + local_experts, 128);
    limit("SMs", call.num_sms, 160);
  }
  if (call.device_sms > 0) limit("SMs", call.num_sms, call.device_sms);
  if (call.allocated_qps > 0) limit("queue pairs", call.num_qps, call.allocated_qps);
  return out;
}

}  // namespace plumb

// Our analytic model: volumes by the table of predict_sms(), then times.
#include "model/sm_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/error.h"

namespace plumb {

namespace {

constexpr int32_t kMaxCount = 1 << 20;

void require_range(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) fail_usage("SM model: {} is {}; allowed: {}..{}", field, value, low, high);
}

void require_number(std::string_view field, double value, double high) {
  if (!(value >= 0 && value <= high)) fail_usage("SM model: {} is {}; allowed: 0..{}", field, value, high);
}

/// Rate of a resource that `bytes` must pass.
double needed_rate(std::string_view field, BytesPerSecond rate, double bytes, std::string_view option) {
  if (std::isfinite(rate.value) && rate.value > 0) return rate.value;
  if (bytes == 0 && rate.value == 0) return 1;  // never used
  fail_usage("SM model: {} is {} bytes/s, but {:.0f} bytes need it; set {} to a rate above 0", field,
             rate.value, bytes, option);
}

void validate(const SmWork& work, const SmMachine& machine) {
  require_range("grouping.ranks", work.grouping.ranks, 1, kMaxCount);
  require_range("grouping.scaleup", work.grouping.scaleup, 1, work.grouping.ranks);
  if (work.grouping.ranks % work.grouping.scaleup != 0)
    fail_usage("SM model: {} ranks do not fill nodes of {}", work.grouping.ranks, work.grouping.scaleup);
  require_range("tokens", work.tokens, 0, int64_t{1} << 40);
  require_range("record bytes", work.record.count, 1, int64_t{1} << 40);
  require_range("output row bytes", work.output_row.count, 0, int64_t{1} << 40);
  require_number("copies.selections", work.copies.selections, kMaxCount);
  require_number("copies.ranks", work.copies.ranks, work.grouping.ranks);
  require_number("copies.nodes", work.copies.nodes, work.grouping.nodes());
  if (!(work.copies.imbalance >= 1 && work.copies.imbalance <= work.grouping.ranks))
    fail_usage("SM model: copies.imbalance is {}; allowed: 1..{} (ranks)", work.copies.imbalance,
               work.grouping.ranks);
  if (work.program.expand && work.copies.selections < work.copies.ranks)
    fail_usage("SM model: copies.selections is {}; the expand layout needs at least copies.ranks, {}",
               work.copies.selections, work.copies.ranks);
  require_range("device_sms", machine.device_sms, 1, kMaxCount);
  require_range("sm_granularity", machine.sm_granularity, 1, machine.device_sms);
  for (const Seconds time : {machine.first_barrier, machine.last_barrier, machine.notify, machine.fill})
    require_number("a fixed time (barrier, notify or fill)", time.value, 1e6);
}

/// The five volumes, in the letters of predict_sms().
void add_volumes(const SmWork& work, SmPrediction& out) {
  const Program& program = work.program;
  const double v = static_cast<double>(work.tokens) * static_cast<double>(work.record.count);
  const double ranks = work.grouping.ranks;
  const double nodes = work.grouping.nodes();
  const double scaleup = work.grouping.scaleup;
  const double t = work.copies.ranks;
  const double s = work.copies.nodes;
  const double h = work.copies.imbalance;
  const bool is_dispatch = work.direction == Direction::dispatch;
  const bool is_hybrid = program.mode == Mode::hybrid && nodes > 1;
  const bool is_staged = program.placement == RowPlacement::staged;
  const double q = program.expand ? work.copies.selections : t;
  const bool is_summed = is_dispatch || program.multiple_reduction;
  const double c = is_summed ? t : q;
  const double f = is_summed ? s : c;

  if (is_hybrid) {
    out.rdma_bytes = v * f * (1 - 1 / nodes);
    out.nvlink_bytes = v * c * h * (1 - 1 / scaleup);
    out.sm_read_bytes = is_dispatch ? v * (1 + s) : v * (h * q + c);
    out.sm_write_bytes = is_dispatch ? v * (1 + s / nodes + c) : v * (h * c + f);
  } else {
    out.rdma_bytes = v * c * h * (ranks - scaleup) / ranks;
    out.nvlink_bytes = v * c * h * (scaleup - 1) / ranks;
    const double send_buffer = ranks > scaleup ? 1 : 0;
    out.sm_read_bytes = is_dispatch ? v : v * h * q;
    out.sm_write_bytes = is_dispatch ? v * (send_buffer + c * scaleup / ranks) : v * h * c;
  }
  const double output = static_cast<double>(work.tokens) * static_cast<double>(work.output_row.count);
  if (is_dispatch)
    out.epilogue_bytes = v * h * (is_staged ? t + q : 2 * (q - t));
  else
    out.epilogue_bytes = v * (is_hybrid ? f : c) + (1 + program.num_biases) * output;
}

/// Seconds that the busier side of one SM would need for all of the rank's bytes.
double one_sm_seconds(const SmMachine& machine, const SmPrediction& volumes) {
  const double write = needed_rate("sm_write", machine.sm_write, volumes.sm_write_bytes, "gpu.sm_write_rate");
  const double read = needed_rate("sm_read", machine.sm_read, volumes.sm_read_bytes, "gpu.sm_read_rate");
  return std::max(volumes.sm_write_bytes / write, volumes.sm_read_bytes / read);
}

/// Volumes and everything that does not depend on the number of SMs.
SmPrediction link_terms(const SmWork& work, const SmMachine& machine) {
  validate(work, machine);
  SmPrediction out;
  add_volumes(work, out);
  out.rdma_time.value = out.rdma_bytes / needed_rate("rdma", machine.rdma, out.rdma_bytes,
                                                     "scale_out.port_rate of the machine file");
  out.nvlink_time.value = out.nvlink_bytes / needed_rate("nvlink", machine.nvlink, out.nvlink_bytes,
                                                         "scale_up.rate of the machine file");
  out.link_time = std::max(out.rdma_time, out.nvlink_time);
  if (out.link_time.value > 0) {
    out.bound = out.rdma_time > out.nvlink_time ? LinkBound::rdma : LinkBound::nvlink;
    out.sm_need = one_sm_seconds(machine, out) / out.link_time.value;
  }
  out.epilogue_time.value =
      out.epilogue_bytes / needed_rate("hbm", machine.hbm, out.epilogue_bytes, "gpu.hbm_rate");
  return out;
}

Pace pace_of(const SmPrediction& in, Seconds data, Seconds notify) {
  if (notify > data) return Pace::notify;
  if (in.sm_time > in.link_time) return Pace::sm;
  if (in.bound == LinkBound::none) return Pace::none;
  return in.bound == LinkBound::rdma ? Pace::rdma : Pace::nvlink;
}

}  // namespace

std::string_view to_string(Pace pace) {
  switch (pace) {
    case Pace::none:
      return "none";
    case Pace::notify:
      return "notify";
    case Pace::nvlink:
      return "nvlink";
    case Pace::rdma:
      return "rdma";
    case Pace::sm:
      return "sm";
  }
  PLUMB_CHECK(false, "Pace {}", static_cast<int>(pace));
  return "";
}

GateCopies expected_copies(const Shape& shape, const RoutingSpec& spec, const Grouping& grouping) {
  const bool is_grouped = spec.kind == RoutingKind::group_limited;
  if (!is_grouped && spec.kind != RoutingKind::uniform)
    fail_usage("no closed form for a gate of kind {}; allowed: uniform, group_limited; use counted_copies()",
               to_string(spec.kind));
  if (!(spec.masked_ratio >= 0 && spec.masked_ratio <= 1))
    fail_usage("masked_ratio is {}; allowed: 0..1", spec.masked_ratio);
  const auto hit = [&](int32_t groups, int32_t choices) {
    return is_grouped
               ? expected_distinct_group_limited(shape.experts, groups, choices, spec.groups, spec.group_topk)
               : expected_distinct(shape.experts, groups, choices);
  };
  const double keep = 1 - spec.masked_ratio;
  GateCopies out;
  out.selections = shape.topk * keep;
  double ways = 1;  // C(K, j)
  for (int32_t j = 1; j <= shape.topk; ++j) {
    ways = ways * (shape.topk - j + 1) / j;
    const double weight = ways * std::pow(keep, j) * std::pow(spec.masked_ratio, shape.topk - j);
    if (weight == 0) continue;
    out.ranks += weight * hit(grouping.ranks, j);
    out.nodes += weight * hit(grouping.nodes(), j);
  }
  return out;
}

GateCopies counted_copies(const Shape& shape, const Routing& routing, const Grouping& grouping) {
  std::vector<int64_t> received(static_cast<size_t>(grouping.ranks), 0);
  std::vector<int32_t> table;
  std::vector<Rank> targets;
  int64_t nodes = 0;
  int64_t selections = 0;
  for (Rank r = 0; r < shape.ranks; ++r) {
    routing.rows(r, table);
    for (size_t at = 0; at < table.size(); at += static_cast<size_t>(shape.topk)) {
      const std::span<const int32_t> row = std::span(table).subspan(at, static_cast<size_t>(shape.topk));
      selections += std::ranges::count_if(row, [](int32_t expert) { return expert >= 0; });
      destinations(shape, row, targets);
      int32_t last_node = kNone;
      for (const Rank target : targets) {  // ascending
        ++received[static_cast<size_t>(target)];
        if (grouping.node(target) != last_node) ++nodes;
        last_node = grouping.node(target);
      }
    }
  }
  int64_t copies = 0;
  for (const int64_t n : received) copies += n;
  GateCopies out;
  if (copies == 0) return out;
  const auto tokens = static_cast<double>(shape.total_tokens());
  out.ranks = static_cast<double>(copies) / tokens;
  out.nodes = static_cast<double>(nodes) / tokens;
  out.selections = static_cast<double>(selections) / tokens;
  out.imbalance =
      static_cast<double>(*std::ranges::max_element(received)) * grouping.ranks / static_cast<double>(copies);
  return out;
}

SmPrediction predict_sms(const SmWork& work, const SmMachine& machine, int32_t num_sms, double tolerance) {
  SmPrediction out = link_terms(work, machine);
  require_range("num_sms", num_sms, 1, machine.device_sms);
  require_number("tolerance", tolerance, 1e6);
  out.num_sms = num_sms;
  out.sm_time.value = one_sm_seconds(machine, out) / num_sms;
  // One part in 1e12 forgives the rounding of the count that was solved for.
  out.keeps_up = out.sm_time.value <= out.link_time.value * (1 + tolerance) * (1 + 1e-12);
  const Seconds data = machine.fill + std::max(out.link_time, out.sm_time);
  out.main_time = machine.first_barrier + std::max(machine.notify, data) + machine.last_barrier;
  out.total_time = out.main_time + out.epilogue_time;
  out.pace = pace_of(out, data, machine.notify);
  return out;
}

SmPrediction corrected_sms(const SmWork& work, const SmMachine& machine, double tolerance) {
  const SmPrediction terms = link_terms(work, machine);
  require_number("tolerance", tolerance, 1e6);
  const int64_t unit = machine.sm_granularity;
  const int64_t all = machine.device_sms / unit * unit;
  int64_t wanted = all;
  if (terms.bound != LinkBound::none) {
    const double count = std::ceil(terms.sm_need / (1 + tolerance) * (1 - 1e-12));
    wanted =
        count < static_cast<double>(all) ? std::max(unit, round_up(static_cast<int64_t>(count), unit)) : all;
  }
  return predict_sms(work, machine, static_cast<int32_t>(std::min(wanted, all)), tolerance);
}

int32_t corrected_qps(const QpNeed& need) {
  require_range("num_sms", need.num_sms, 1, kMaxCount);
  require_range("channels_per_sm", need.channels_per_sm, 1, 1024);
  require_range("allocated", need.allocated, 1, kMaxCount);
  require_range("peers", need.peers, 1, kMaxCount);
  require_range("nic_connections", need.nic_connections, 0, std::numeric_limits<int64_t>::max());
  int64_t limit = need.allocated;
  if (need.nic_connections > 0) limit = std::min(limit, need.nic_connections / need.peers);
  if (limit < 1)
    fail_usage("SM model: nic_connections {} do not allow one queue pair to each of {} peers",
               need.nic_connections, need.peers);
  int64_t data = std::min(int64_t{need.num_sms} * need.channels_per_sm, limit - 1);
  if (data > need.num_sms) data -= data % need.num_sms;
  return static_cast<int32_t>(std::max<int64_t>(1, data + 1));
}

}  // namespace plumb

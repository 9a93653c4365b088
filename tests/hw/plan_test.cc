// The kernels do what the plan says: same ledger as the plan, same bytes as the host executor that ran it.
#include <cstring>

#include "hw/ledger.h"
#include "model/host.h"
#include "model/plans/builders.h"
#include "tests/hw/rig.h"

namespace plumb::hw::test {
namespace {

struct Options {
  bool fp8 = false;
  bool expand = false;
  bool multiple_reduction = true;
  int32_t biases = 0;
  double masked = 0;
};

Shape shape_of(const Options& o) {
  Shape shape = uniform_shape(4, 32, 6, 50, 384);
  shape.tokens = {50, 0, 37, 1};
  shape.dispatch_type = o.fp8 ? DType::fp8_e4m3 : DType::bf16;
  shape.alignment = o.expand ? 8 : 1;
  return shape;
}

/// The batch of the host executor as a case for the device.
Case case_of(const Shape& shape, const HostExecutor& host, const Options& o) {
  Case c;
  c.ranks = shape.ranks;
  c.experts = shape.experts;
  c.topk = shape.topk;
  c.hidden = shape.hidden;
  c.max_tokens = shape.max_tokens;
  c.tokens = shape.tokens;
  c.fp8 = o.fp8;
  c.expand = c.zero_padding = o.expand;
  c.alignment = shape.alignment;
  c.scale_packs = shape.scale_packs();
  c.biases = o.biases;
  c.sms = 6;
  const TokenLayout layout = shape.dispatch_layout();
  for (Rank r = 0; r < shape.ranks; ++r) {
    std::vector<int32_t> ids;
    std::vector<float> weights;
    std::vector<uint8_t> x;
    std::vector<uint32_t> scales;
    const int32_t tokens = shape.tokens[static_cast<size_t>(r)];
    std::vector<uint16_t> bias(2 * static_cast<size_t>(tokens) * static_cast<size_t>(shape.hidden));
    std::vector<float> values(static_cast<size_t>(shape.hidden));
    for (int32_t t = 0; t < tokens; ++t) {
      const auto choices = host.batch().choices(r, t);
      ids.insert(ids.end(), choices.begin(), choices.end());
      for (int32_t k = 0; k < shape.topk; ++k) weights.push_back(host.batch().weight(r, t, k));
      const auto row = host.result().row("input", r, t);
      const auto* bytes = reinterpret_cast<const uint8_t*>(row.data());
      x.insert(x.end(), bytes + layout.hidden, bytes + layout.hidden + layout.hidden_bytes);
      const size_t first = scales.size();
      scales.resize(first + static_cast<size_t>(c.scale_packs));
      std::memcpy(scales.data() + first, bytes + layout.scales, static_cast<size_t>(c.scale_packs) * 4);
      for (int32_t b = 0; b < o.biases; ++b) {
        host.batch().bias(b, r, t, values);
        for (size_t i = 0; i < values.size(); ++i)
          bias[(static_cast<size_t>(b * tokens + t)) * values.size() + i] = bf16_rounded(values[i]);
      }
    }
    c.ids.push_back(ids);
    c.weights.push_back(weights);
    c.x.push_back(x);
    c.scales.push_back(scales);
    c.bias.push_back(bias);
  }
  return c;
}

void expect_received(const Case& c, const plumb::Received& host, const Received& device, Rank r) {
  const auto rows = static_cast<int64_t>(host.rows);
  const auto bytes = [](const std::vector<std::byte>& v) {
    const auto* first = reinterpret_cast<const uint8_t*>(v.data());
    return std::vector<uint8_t>(first, first + v.size());
  };
  EXPECT_EQ(download<uint8_t>(device.x, rows * c.row_bytes()), bytes(host.x)) << "rank " << r;
  EXPECT_EQ(download<uint8_t>(device.scales, rows * c.scale_packs * 4), bytes(host.scales)) << "rank " << r;
  const auto copies = static_cast<int64_t>(host.copy_source.size());
  EXPECT_EQ(download<int32_t>(device.source, copies), host.copy_source) << "rank " << r;
  if (!c.expand) {
    EXPECT_EQ(download<int32_t>(device.topk_idx, rows * c.topk), host.topk_idx) << "rank " << r;
  }
  EXPECT_EQ(download<float>(device.weights, c.expand ? rows : rows * c.topk), host.weights) << "rank " << r;
}

void run(const Options& o) {
  const Shape shape = shape_of(o);
  const Routing routing = Routing::generate(shape, {.seed = 4, .masked_ratio = o.masked});
  Program program;
  program.kind = ProgramKind::round_trip;
  program.placement = RowPlacement::direct;
  program.expand = program.zero_padding = o.expand;
  program.multiple_reduction = o.multiple_reduction;
  program.num_biases = o.biases;
  const Grouping grouping{.ranks = shape.ranks, .scaleup = shape.ranks};
  const Plan plan = build_plan(
      {.shape = shape, .routing = routing, .program = program, .grouping = grouping, .items = true});
  HostExecutor host({.shape = shape,
                     .routing = routing,
                     .seed = 7,
                     .expert = ExpertFunction::scaled,
                     .values = {},
                     .options = {}});
  host.run(plan);
  const HostResult& result = host.result();

  const Case c = case_of(shape, host, o);
  Rig rig(c);
  const auto received = rig.dispatch();
  rig.finish();
  const int64_t row_bytes = 2 * int64_t{c.hidden};
  std::vector<CombineInput> inputs;
  for (Rank r = 0; r < c.ranks; ++r) {
    const auto at = static_cast<size_t>(r);
    expect_received(c, result.received(r), received[at], r);
    for (int64_t slot = 0; slot < result.rows("expert_out", r); ++slot)
      if (result.is_written("expert_out", r, slot))
        check(cudaMemcpy(static_cast<char*>(rig.buffers[at].expert_out()) + slot * row_bytes,
                         result.row("expert_out", r, slot).data(), static_cast<size_t>(row_bytes),
                         cudaMemcpyHostToDevice),
              "answers");
    inputs.push_back(rig.combine_input(at, received[at].handle));
  }
  rig.combine(inputs, {.multiple_reduction = o.multiple_reduction, .num_sms = c.sms, .counted = true});
  rig.finish();
  for (Rank r = 0; r < c.ranks; ++r) {
    const auto at = static_cast<size_t>(r);
    EXPECT_EQ(download<uint16_t>(rig.out[at].get(), int64_t{c.tokens[at]} * c.hidden), result.combined(r).x)
        << "rank " << r;
  }
  const Ledger measured = measured_ledger(plan, rig.buffers);
  EXPECT_EQ(difference(plan, account(plan), measured), "");
}

TEST(GpuPlan, PlainBf16MovesTheBytesAndTheLedgerOfItsPlan) {
  PLUMB_NEED_DEVICE();
  run({});
}
TEST(GpuPlan, PlainFp8WithBiasesAndMasksMovesTheBytesAndTheLedgerOfItsPlan) {
  PLUMB_NEED_DEVICE();
  run({.fp8 = true, .biases = 2, .masked = 0.3});
}
TEST(GpuPlan, ExpandedRowsMoveTheBytesAndTheLedgerOfTheirPlan) {
  PLUMB_NEED_DEVICE();
  run({.fp8 = true, .expand = true, .biases = 1});
}
TEST(GpuPlan, SingleReductionOfExpandedRowsMovesTheBytesAndTheLedgerOfItsPlan) {
  PLUMB_NEED_DEVICE();
  run({.expand = true, .multiple_reduction = false, .masked = 0.5});
}

}  // namespace
}  // namespace plumb::hw::test

// Buffer sizes: every part is a product of named factors, so that its formula is printed from what was
// computed.
#include "model/buffers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "model/deepep_workspace.h"
#include "model/error.h"
#include "model/layout.h"

namespace plumb {

namespace {

/// A number of a formula and how it is called there.
struct Factor {
  std::string name;
  int64_t value = 0;
};

[[noreturn]] void does_not_fit(std::string_view what, std::string_view formula) {
  fail_usage("size of '{}' does not fit 63 bits: {}; use fewer tokens, ranks or a smaller hidden size", what,
             formula);
}

std::string formula_of(std::span<const Factor> factors) {
  std::string names;
  std::string values;
  for (const Factor& factor : factors) {
    const std::string_view glue = names.empty() ? "" : " * ";
    names += fmt::format("{}{}", glue, factor.name);
    values += fmt::format("{}{}", glue, factor.value);
  }
  return names + " = " + values;
}

BufferPart product(std::string name, const std::vector<Factor>& factors) {
  BufferPart part{std::move(name), Bytes{1}, formula_of(factors)};
  const bool has_zero = std::ranges::any_of(factors, [](const Factor& f) { return f.value == 0; });
  if (has_zero) {
    part.bytes = {};
    return part;
  }
  for (const Factor& factor : factors)
    if (__builtin_mul_overflow(part.bytes.count, factor.value, &part.bytes.count))
      does_not_fit(part.name, part.formula);
  return part;
}

int64_t rounded(std::string_view what, int64_t bytes, int64_t unit) {
  if (bytes > std::numeric_limits<int64_t>::max() - unit)
    does_not_fit(what, fmt::format("{} rounded up to {}", bytes, unit));
  return round_up(bytes, unit);
}

/// `part` rounded up to `unit`, said so in its formula.
BufferPart rounded(BufferPart part, int64_t unit) {
  part.bytes.count = rounded(part.name, part.bytes.count, unit);
  part.formula += fmt::format(", rounded up to {}", unit);
  return part;
}

BufferUse use_of(std::string name, std::vector<BufferPart> parts) {
  BufferUse use{std::move(name), std::move(parts), {}};
  for (const BufferPart& part : use.parts)
    if (__builtin_add_overflow(use.total.count, part.bytes.count, &use.total.count))
      does_not_fit(use.name, fmt::format("sum of its parts, reached at '{}'", part.name));
  return use;
}

BufferPlan plan_of(std::string name, std::vector<BufferUse> uses, int64_t unit) {
  BufferPlan plan{std::move(name), std::move(uses), Bytes{unit}, {}};
  plan.total.count = rounded(plan.name, plan.largest().total.count, unit);
  return plan;
}

void require_range(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail_usage("buffer size: {} is {}; allowed: {}..{}", field, value, low, high);
}

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

/// Rows of one area as factors, before the bytes of a row.
struct RowArea {
  std::string name;
  std::vector<Factor> rows;
};

struct EpAreas {
  std::vector<RowArea> dispatch;
  std::vector<RowArea> combine;
};

struct EpRanks {
  int32_t scaleout = 1;
  int32_t scaleup = 1;
  int32_t nvlink_ranks = 1;
  int32_t max_tokens = 0;
  int32_t topk = 1;
  bool multiple_reduction = true;

  bool is_hybrid() const { return scaleout > 1; }
  bool has_far_peers() const { return scaleup != nvlink_ranks; }  // direct: peers without NVLink
};

void require_ranks(const EpRanks& in) {
  require_range("scaleout", in.scaleout, 1, kMaxInt);
  require_range("scaleup", in.scaleup, 1, kMaxInt);
  require_range("nvlink_ranks", in.nvlink_ranks, 1, in.scaleup);
  if (in.is_hybrid() && in.has_far_peers())
    fail_usage("buffer size: hybrid mode needs scaleup = nvlink_ranks; found {} and {}", in.scaleup,
               in.nvlink_ranks);
  require_range("max_tokens", in.max_tokens, 1, kMaxInt);
  require_range("topk", in.topk, 1, 32);
}

/// The receive slots of a combine: one per rank (node) while there are at most K, else one per selection.
Factor slots(std::string group, int64_t groups, const EpRanks& in) {
  if (!in.multiple_reduction) return {"K", in.topk};
  return {fmt::format("min({}, K)", group), std::min<int64_t>(groups, in.topk)};
}

EpAreas direct_areas(const EpRanks& in) {
  const Factor ranks{"R", in.scaleup};
  const Factor tokens{"T", in.max_tokens};
  const Factor far{"(peers without NVLink: 0 or 1)", in.has_far_peers() ? 1 : 0};
  std::vector<Factor> back{far, ranks, tokens};
  if (!in.multiple_reduction) back.push_back({"K", in.topk});
  return {{{"send", {far, tokens}}, {"receive", {ranks, tokens}}},
          {{"send", back}, {"receive", {slots("R", in.scaleup, in), tokens}}}};
}

/// `slack`: rows that rounding the tokens of a channel may add per node.
EpAreas hybrid_areas(const EpRanks& in, int64_t slack) {
  const Factor nodes{"SO", in.scaleout};
  const Factor tokens{"T", in.max_tokens};
  const Factor padded = slack == 0 ? tokens : Factor{fmt::format("(T + {})", slack), in.max_tokens + slack};
  std::vector<Factor> sums{nodes, padded};
  if (!in.multiple_reduction) sums.push_back({"K", in.topk});
  return {{{"scale-up receive", {{"SU", in.scaleup}, nodes, tokens}},
           {"scale-out send", {tokens}},
           {"scale-out receive", {nodes, padded}}},
          {{"scale-up receive", {slots("SU", in.scaleup, in), nodes, tokens}},
           {"scale-out send", sums},
           {"scale-out receive", {slots("SO", in.scaleout, in), tokens}}}};
}

BufferUse use_of(std::string name, const std::vector<RowArea>& areas, int64_t row_bytes) {
  std::vector<BufferPart> parts;
  for (const RowArea& area : areas) {
    std::vector<Factor> factors = area.rows;
    factors.push_back({"b", row_bytes});
    parts.push_back(product(area.name, factors));
  }
  return use_of(std::move(name), std::move(parts));
}

/// Replaces the rows of an area by ceil(copies T (1 + margin)) where that is less.
void expect(RowArea& area, std::string_view symbol, double copies, const ExactWindowSpec& in) {
  const double rows = std::ceil(copies * in.max_tokens * (1 + in.margin));
  const BufferPart worst = product(area.name, area.rows);  // in rows
  if (rows >= static_cast<double>(worst.bytes.count)) return;
  area.rows = {{fmt::format("ceil({} * T * (1 + {}))", symbol, in.margin), static_cast<int64_t>(rows)}};
}

void require_expectations(const ExactWindowSpec& in) {
  const auto require = [](std::string_view field, double value, double high) {
    if (!(value >= 0 && value <= high))
      fail_usage("buffer size: {} is {}; allowed: 0..{}", field, value, high);
  };
  const double ranks = static_cast<double>(in.scaleout) * in.scaleup;
  require("expected_ranks", in.expected_ranks, std::min<double>(ranks, in.topk));
  if (in.scaleout > 1)
    require("expected_nodes", in.expected_nodes, std::min<double>(in.scaleout, in.expected_ranks));
  require("margin", in.margin, 1e6);
}

void expect(EpAreas& areas, const ExactWindowSpec& in) {
  const std::string_view near_symbol = in.multiple_reduction ? "t" : "K";
  const std::string_view far_symbol = in.multiple_reduction ? "s" : "K";
  const double near = in.multiple_reduction ? in.expected_ranks : in.topk;
  const double far = in.multiple_reduction ? in.expected_nodes : in.topk;
  if (in.scaleout == 1) {
    expect(areas.dispatch[1], "t", in.expected_ranks, in);
    for (RowArea& area : areas.combine) expect(area, near_symbol, near, in);
    return;
  }
  expect(areas.dispatch[0], "t", in.expected_ranks, in);
  expect(areas.dispatch[2], "s", in.expected_nodes, in);
  expect(areas.combine[0], near_symbol, near, in);
  expect(areas.combine[1], far_symbol, far, in);
  expect(areas.combine[2], far_symbol, far, in);
}

}  // namespace

const BufferUse& BufferPlan::largest() const {
  PLUMB_CHECK(!uses.empty(), "buffer plan '{}' has no use", name);
  return *std::ranges::max_element(uses, {}, [](const BufferUse& use) { return use.total; });
}

std::string to_string(const BufferPlan& plan) {
  std::string text = fmt::format("{}: {} B\n", plan.name, plan.total.count);
  for (const BufferUse& use : plan.uses) {
    text += fmt::format("  {}: {} B\n", use.name, use.total.count);
    for (const BufferPart& part : use.parts)
      text += fmt::format("    {}: {} B  ({})\n", part.name, part.bytes.count, part.formula);
  }
  return text;
}

BufferPlan deepep_buffer(const EpBufferSpec& spec) {
  constexpr int32_t kTopkWhenUnset = 32;
  constexpr int64_t kMaxChannels = 8 * 160;  // channels per SM * SMs
  const EpRanks ranks{.scaleout = spec.scaleout,
                      .scaleup = spec.scaleup,
                      .nvlink_ranks = spec.nvlink_ranks,
                      .max_tokens = spec.max_tokens,
                      .topk = spec.topk == 0 ? kTopkWhenUnset : spec.topk,
                      .multiple_reduction = spec.multiple_reduction};
  require_ranks(ranks);
  require_range("hidden", spec.hidden, 32, kMaxInt - 31);
  const int64_t hidden_bytes = int64_t{spec.hidden} * (spec.is_fp8 ? 1 : 2);
  if (hidden_bytes % kRecordAlignment != 0)
    fail_usage("buffer size: hidden {} gives rows of {} bytes; allowed: multiples of {} bytes", spec.hidden,
               hidden_bytes, kRecordAlignment);
  const auto packs = static_cast<int32_t>(spec.is_fp8 ? ceil_div(spec.hidden, 32) : 0);
  const int64_t dispatch =
      token_layout({.hidden_bytes = hidden_bytes, .scale_packs = packs, .topk = ranks.topk}).record_bytes;
  const int64_t combine =
      token_layout({.hidden_bytes = int64_t{spec.hidden} * 2, .topk = ranks.topk, .is_dispatch = false})
          .record_bytes;
  const EpAreas areas = ranks.is_hybrid() ? hybrid_areas(ranks, kMaxChannels) : direct_areas(ranks);
  return plan_of("DeepEP V2 buffer hint",
                 {use_of("dispatch", areas.dispatch, dispatch), use_of("combine", areas.combine, combine)},
                 kWindowAlignment);
}

BufferPlan exact_window(const ExactWindowSpec& spec) {
  const EpRanks ranks{.scaleout = spec.scaleout,
                      .scaleup = spec.scaleup,
                      .nvlink_ranks = spec.nvlink_ranks,
                      .max_tokens = spec.max_tokens,
                      .topk = spec.topk,
                      .multiple_reduction = spec.multiple_reduction};
  require_ranks(ranks);
  require_range("dispatch_row_bytes", spec.dispatch_row_bytes, 1, std::numeric_limits<int64_t>::max());
  require_range("combine_row_bytes", spec.combine_row_bytes, 1, std::numeric_limits<int64_t>::max());
  EpAreas areas = ranks.is_hybrid() ? hybrid_areas(ranks, 0) : direct_areas(ranks);
  if (spec.sizing == Sizing::expected) {
    require_expectations(spec);
    expect(areas, spec);
  }
  return plan_of(spec.sizing == Sizing::expected ? "exact-placement window (expected)"
                                                 : "exact-placement window (worst case)",
                 {use_of("dispatch", areas.dispatch, spec.dispatch_row_bytes),
                  use_of("combine", areas.combine, spec.combine_row_bytes)},
                 kWindowAlignment);
}

BufferPlan low_latency_buffer(const LowLatencyBufferSpec& spec) {
  require_range("max_tokens", spec.max_tokens, 1, kMaxInt);
  require_range("hidden", spec.hidden, 128, kMaxInt);
  require_range("experts", spec.experts, 1, kMaxInt);
  if (spec.hidden % 128 != 0)
    fail_usage("buffer size: hidden is {}; low latency needs a multiple of 128", spec.hidden);
  const Factor two{"2", 2};
  const Factor experts{"E", spec.experts};
  const Factor tokens{"T", spec.max_tokens};
  const Factor dispatch{"d", low_latency_dispatch_slot_bytes(spec.hidden)};
  const Factor combine{"c", low_latency_combine_slot_bytes(spec.hidden)};
  const BufferPart dispatch_send = product("send", {two, tokens, dispatch});
  const BufferPart combine_send = product("send", {two, experts, tokens, combine});
  const Factor& slot = dispatch.value > combine.value ? dispatch : combine;
  BufferPart signals{"signals", {}, fmt::format("2 * round_up(4 E, 128), E = {}", spec.experts)};
  signals.bytes.count = 2 * round_up(int64_t{spec.experts} * 4, 128);
  return plan_of("DeepEP V1 low-latency buffer",
                 {use_of("dispatch and combine",
                         {dispatch_send.bytes > combine_send.bytes ? dispatch_send : combine_send,
                          product("receive", {two, experts, tokens, slot}), std::move(signals)})},
                 1);
}

BufferPlan v1_normal_buffer(const V1NormalBufferSpec& spec) {
  constexpr int32_t kPeers = 8;  // NVLink peers of V1, at most
  // Of a queued row: source metadata, and room for 128 expert ids of 8 bytes, 128 weights and 128 scales.
  constexpr int64_t kExtras = 8 + 128 * 8 + 128 * 4 + 128 * 4;
  require_range("ranks", spec.ranks, 1, kMaxInt);
  require_range("num_sms", spec.num_sms, 2, kMaxInt);
  require_range("hidden_bytes", spec.hidden_bytes, 1, kMaxInt);
  require_range("nvlink_chunk_rows", spec.nvlink_chunk_rows, 1, kMaxInt);
  require_range("rdma_chunk_rows", spec.rdma_chunk_rows, 1, kMaxInt);
  if (spec.num_sms % 2 != 0)
    fail_usage("buffer size: num_sms is {}; V1 pairs SMs into channels", spec.num_sms);
  if (spec.ranks > kPeers && spec.ranks % kPeers != 0)
    fail_usage("buffer size: ranks is {}; V1 needs up to {} or a multiple of it", spec.ranks, kPeers);
  const int64_t nodes = std::max(spec.ranks / kPeers, 1);
  const Factor channels{"C", spec.num_sms / 2};
  const Factor peers{"P", std::min(spec.ranks, kPeers)};
  const Factor rails{"N", nodes};
  const Factor row{"(h + 2056)", spec.hidden_bytes + kExtras};
  std::vector<BufferUse> uses = {
      use_of("NVLink", {product("queue heads", {channels, peers, {"(2 N + 3)", 2 * nodes + 3}, {"4", 4}}),
                        product("queues", {channels, peers, {"chunk", spec.nvlink_chunk_rows}, row})})};
  const auto total = [](std::string name, BufferUse use) {
    return plan_of(std::move(name), {std::move(use)}, 128);
  };
  BufferPlan plan = total("DeepEP V1 normal buffer", std::move(uses[0]));
  if (nodes == 1) return plan;
  const Factor rdma_row{"(h + 2072)", spec.hidden_bytes + kExtras + 16};
  BufferPlan rdma =
      total("RDMA",
            use_of("RDMA",
                   {product("queue heads", {channels, rails, {"18", 2 * kPeers + 2}, {"8", 8}}),
                    product("queues", {channels, rails, {"chunk", spec.rdma_chunk_rows}, rdma_row, {"2", 2}}),
                    {"slack", Bytes{1 << 20}, "2^20"}}));
  // Both memories exist at the same time, so the total is their sum.
  plan.uses.push_back(std::move(rdma.uses[0]));
  plan.total = plan.total + rdma.total;
  return plan;
}

BufferPlan deepep_workspace_buffer() {
  constexpr DeepepWorkspace at = deepep_workspace();
  const std::array<std::pair<std::string_view, int64_t>, 12> starts{
      {{"NVLink barrier", at.nvlink_barrier},
       {"notify reduction", at.notify_reduction},
       {"scale-up rank counts", at.scaleup_rank_counts},
       {"scale-up expert counts", at.scaleup_expert_counts},
       {"slot counters", at.slot_counters},
       {"scale-out rank counts", at.scaleout_rank_counts},
       {"scale-out expert counts", at.scaleout_expert_counts},
       {"scale-out tails", at.scaleout_tails},
       {"scale-up tails", at.scaleup_tails},
       {"ring counts", at.ring_counts},
       {"gather signals", at.gather_signals},
       {"end", at.end}}};
  std::vector<BufferPart> parts;
  for (size_t i = 0; i + 1 < starts.size(); ++i)
    parts.push_back({std::string(starts[i].first), Bytes{starts[i + 1].second - starts[i].second},
                     fmt::format("offset {}", starts[i].second)});
  return plan_of("DeepEP V2 workspace", {use_of("all", std::move(parts))}, kWindowAlignment);
}

BufferPlan handle_buffer(const HandleSpec& spec) {
  require_range("scaleout", spec.scaleout, 1, kMaxInt);
  require_range("scaleup", spec.scaleup, 1, kMaxInt);
  require_range("tokens", spec.tokens, 0, spec.max_tokens);
  require_range("topk", spec.topk, 1, 32);
  require_range("channels", spec.channels, 1, kMaxInt);
  require_range("local_experts", spec.local_experts, 1, kMaxInt - 1);
  require_range("received_rows", spec.received_rows, 0, std::numeric_limits<int64_t>::max());
  const Factor word{"4", 4};
  const Factor topk{"K", spec.topk};
  std::vector<BufferPart> parts;
  if (spec.scaleout == 1) {
    parts.push_back(product("slot index", {{"T", spec.tokens}, topk, word}));
  } else {
    const Factor channels{"C", spec.channels};
    const Factor per_channel{"m", ceil_div(spec.max_tokens, spec.channels)};
    const int64_t rows = product("rows", {{"SO", spec.scaleout}, per_channel}).bytes.count + 1;
    const Factor rows_and_end{"(SO m + 1)", rows};
    parts.push_back(product("slot index", {channels, {"SO", spec.scaleout}, per_channel, topk, word}));
    parts.push_back(
        product("forward metadata", {channels, rows_and_end, {"(2 + 2K)", 2 + 2 * spec.topk}, word}));
    parts.push_back(product("linked list", {channels, rows_and_end, {"SU", spec.scaleup}, word}));
  }
  parts.push_back(product("receive metadata", {{"n", spec.received_rows}, {"(K + 2)", spec.topk + 2}, word}));
  parts.push_back(product("rank prefix sums", {{"SU", spec.scaleup}, word}));
  parts.push_back(product("expert prefix sums", {{"(L + 1)", spec.local_experts + 1}, word}));
  parts.push_back(product("expert counts", {{"L", spec.local_experts}, word}));
  return plan_of("DeepEP V2 dispatch handle", {use_of("all", std::move(parts))}, 1);
}

BufferPlan engram_buffer(const EngramBufferSpec& spec) {
  require_range("rows_per_rank", spec.rows_per_rank, 0, std::numeric_limits<int64_t>::max());
  require_range("max_fetched_rows", spec.max_fetched_rows, 0, std::numeric_limits<int64_t>::max());
  require_range("hidden", spec.hidden, 1, kMaxInt);
  require_range("element_bytes", spec.element_bytes, 1, 16);
  const Factor row{"b", engram_row_bytes(spec.hidden, spec.element_bytes)};
  return plan_of(
      "engram",
      {use_of("all", {rounded(product("GPU: fetched rows", {{"rows", spec.max_fetched_rows}, row}),
                              kWindowAlignment),
                      rounded(product("CPU: own rows of the table", {{"rows", spec.rows_per_rank}, row}),
                              kWindowAlignment)})},
      kWindowAlignment);
}

BufferPlan ring_buffer(int64_t max_tensor_bytes, int32_t inflight) {
  require_range("max_tensor_bytes", max_tensor_bytes, 1,
                std::numeric_limits<int64_t>::max() - kRecordAlignment);
  require_range("inflight", inflight, 1, kMaxInt);
  return plan_of(
      "pipeline-parallel ring",
      {use_of("all", {product("slots", {{"{send, receive} x {previous, next}", 4},
                                        {"inflight", inflight},
                                        {"round_up(bytes, 32)", ring_slot_bytes(max_tensor_bytes)}})})},
      kWindowAlignment);
}

BufferPlan gather_buffer(int32_t ranks, const std::vector<GatherTensor>& tensors) {
  require_range("ranks", ranks, 1, kMaxInt);
  std::vector<BufferPart> parts;
  for (const GatherTensor& tensor : tensors) {
    require_range("elements", tensor.elements, 0, std::numeric_limits<int64_t>::max());
    require_range("element_bytes", tensor.element_bytes, 1, 16);
    const std::vector<Factor> factors{
        {"R", ranks}, {"elements", tensor.elements}, {"bytes", tensor.element_bytes}};
    parts.push_back(rounded(product(fmt::format("tensor {}", parts.size()), factors), kRecordAlignment));
  }
  return plan_of("all-gather session", {use_of("all", std::move(parts))}, kWindowAlignment);
}

int32_t largest_tokens(const BufferOfTokens& buffer, Bytes limit) {
  if (buffer(1).total > limit) return 0;
  const auto fits = [&](int32_t tokens) {
    try {
      return buffer(tokens).total <= limit;
    } catch (
        const Error&) {  // right for one token, so the only thing wrong is that the size does not fit 63 bits
      return false;
    }
  };
  int64_t low = 1;  // fits
  int64_t high = kMaxInt + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(static_cast<int32_t>(middle)))
      low = middle;
    else
      high = middle;
  }
  return static_cast<int32_t>(low);
}

BufferPlan require_fit(const BufferOfTokens& buffer, int32_t tokens, Bytes limit) {
  BufferPlan plan = buffer(tokens);
  if (plan.total <= limit) return plan;
  const int32_t largest = largest_tokens(buffer, limit);
  fail_usage(
      "{} for {} tokens per rank needs {} bytes; the limit is {} bytes; the largest number of tokens that "
      "fits is {}",
      plan.name, tokens, plan.total.count, limit.count, largest);
}

}  // namespace plumb

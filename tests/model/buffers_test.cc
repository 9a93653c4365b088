// Buffer sizes: DeepEP's numbers, 128-bit arithmetic over random shapes, limits and the largest batch.
#include "model/buffers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "model/deepep_workspace.h"
#include "model/error.h"
#include "model/layout.h"
#include "tests/model/golden.h"

namespace plumb {
namespace {

__extension__ using Int128 = __int128;

constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

int64_t part_bytes(const BufferUse& use, std::string_view name) {
  for (const BufferPart& part : use.parts)
    if (part.name == name) return part.bytes.count;
  ADD_FAILURE() << "no part " << name;
  return -1;
}

EpBufferSpec golden_spec(const nlohmann::json& in) {
  return {.scaleout = in.at("scaleout"),
          .scaleup = in.at("scaleup"),
          .nvlink_ranks = in.at("nvlink_ranks"),
          .max_tokens = in.at("T_max"),
          .hidden = in.at("H"),
          .topk = in.at("K"),
          .is_fp8 = in.at("fp8"),
          .multiple_reduction = in.at("multiple_reduction")};
}

TEST(Buffers, HintEqualsDeepep) {
  const std::vector<std::pair<std::string, std::string>> names{{"send", "send"},
                                                               {"recv", "receive"},
                                                               {"scaleup_recv", "scale-up receive"},
                                                               {"scaleout_send", "scale-out send"},
                                                               {"scaleout_recv", "scale-out receive"}};
  for (const auto& c : golden("buffer_hint").at("cases")) {
    SCOPED_TRACE(c.at("id"));
    const BufferPlan plan = deepep_buffer(golden_spec(c.at("inputs")));
    const auto& out = c.at("outputs");
    for (const BufferUse& use : plan.uses) {
      const auto& expected = out.at(use.name);
      ASSERT_EQ(use.parts.size(), expected.size());
      for (const auto& [key, name] : names) {
        if (!expected.contains(key)) continue;
        EXPECT_EQ(part_bytes(use, name), expected.at(key).get<int64_t>()) << name;
      }
      EXPECT_EQ(use.total.count, out.at(use.name + "_total").get<int64_t>());
    }
    EXPECT_EQ(plan.largest().name, out.at("winner").get<std::string>());
    EXPECT_EQ(plan.total.count, out.at("hint").get<int64_t>());
  }
}

TEST(Buffers, FormulaShowsNamesAndNumbers) {
  const BufferPlan plan =
      deepep_buffer({.scaleup = 8, .nvlink_ranks = 8, .max_tokens = 4096, .hidden = 7168, .topk = 8});
  EXPECT_EQ(plan.uses[0].parts[1].formula, "R * T * b = 8 * 4096 * 14464");
  EXPECT_EQ(to_string(plan),
            "DeepEP V2 buffer hint: 473956352 B\n"
            "  dispatch: 473956352 B\n"
            "    send: 0 B  ((peers without NVLink: 0 or 1) * T * b = 0 * 4096 * 14464)\n"
            "    receive: 473956352 B  (R * T * b = 8 * 4096 * 14464)\n"
            "  combine: 471859200 B\n"
            "    send: 0 B  ((peers without NVLink: 0 or 1) * R * T * b = 0 * 8 * 4096 * 14400)\n"
            "    receive: 471859200 B  (min(R, K) * T * b = 8 * 4096 * 14400)\n");
}

TEST(Buffers, LowLatencyEqualsDeepepV1) {
  for (const auto& c : golden("v1_low_latency_buffer").at("cases")) {
    const BufferPlan plan =
        low_latency_buffer({.max_tokens = c.at("T"), .hidden = c.at("H"), .experts = c.at("E")});
    const BufferUse& use = plan.uses[0];
    EXPECT_EQ(part_bytes(use, "send"), 2 * c.at("send").get<int64_t>());
    EXPECT_EQ(part_bytes(use, "receive"), 2 * c.at("recv").get<int64_t>());
    EXPECT_EQ(part_bytes(use, "signals"), 2 * c.at("signal").get<int64_t>());
    EXPECT_EQ(plan.total.count, c.at("total").get<int64_t>());
    if (c.contains("gib"))
      expect_close(std::ldexp(plan.total.count, -30), c.at("gib").get<double>(), kSixDigits);
  }
}

TEST(Buffers, WorkspaceEqualsDeepep) {
  const BufferPlan plan = deepep_workspace_buffer();
  EXPECT_EQ(plan.uses[0].total.count, golden("workspace").at("total").get<int64_t>());
  EXPECT_EQ(plan.total.count, golden("workspace").at("aligned").get<int64_t>());
}

TEST(Buffers, HandleEqualsDeepep) {
  for (const auto& c : golden("handle_bytes").at("cases")) {
    SCOPED_TRACE(c.at("id"));
    const BufferPlan plan = handle_buffer({.scaleout = c.at("scaleout"),
                                           .scaleup = c.at("scaleup"),
                                           .max_tokens = c.at("T_max"),
                                           .tokens = c.at("tokens"),
                                           .topk = c.at("K"),
                                           .channels = c.at("channels"),
                                           .local_experts = c.at("local_experts"),
                                           .received_rows = c.at("recv")});
    const BufferUse& use = plan.uses[0];
    int64_t total = 0;
    const auto expect_part = [&](const char* name, const char* key) {
      if (!c.contains(key)) return;
      EXPECT_EQ(part_bytes(use, name), c.at(key).get<int64_t>());
      total += c.at(key).get<int64_t>();
    };
    expect_part("slot index", "slot_idx");
    expect_part("forward metadata", "forward_metadata");
    expect_part("linked list", "linked_list");
    expect_part("receive metadata", "recv_metadata");
    expect_part("rank prefix sums", "psum_rank");
    expect_part("expert prefix sums", "psum_expert");
    expect_part("expert counts", "unaligned");
    EXPECT_EQ(plan.total.count, total);
  }
}

TEST(Buffers, OtherBuffersEqualDeepep) {
  for (const auto& c : golden("other_buffers").at("cases")) {
    SCOPED_TRACE(c.at("id"));
    if (c.at("kind") == "engram") {
      EXPECT_EQ(engram_row_bytes(c.at("hidden"), c.at("itemsize")), c.at("entry").get<int64_t>());
      const BufferPlan plan = engram_buffer({.rows_per_rank = c.at("entries"),
                                             .max_fetched_rows = c.at("max_tokens"),
                                             .hidden = c.at("hidden"),
                                             .element_bytes = c.at("itemsize")});
      EXPECT_EQ(plan.uses[0].parts[0].bytes.count, c.at("gpu").get<int64_t>());
      EXPECT_EQ(plan.uses[0].parts[1].bytes.count, c.at("cpu").get<int64_t>());
    } else if (c.at("kind") == "pp") {
      EXPECT_EQ(ring_buffer(c.at("max_tensor_bytes"), c.at("inflight")).total.count,
                c.at("buffer").get<int64_t>());
    } else {
      std::vector<GatherTensor> tensors;
      for (const auto& t : c.at("tensors")) tensors.push_back({.elements = t[0], .element_bytes = t[1]});
      const BufferPlan plan = gather_buffer(c.at("ranks"), tensors);
      EXPECT_EQ(plan.uses[0].total.count, c.at("session").get<int64_t>());
      EXPECT_EQ(plan.total.count, c.at("buffer").get<int64_t>());
      for (size_t i = 0; i < tensors.size(); ++i)
        EXPECT_EQ(plan.uses[0].parts[i].bytes.count,
                  gather_bytes(c.at("ranks"), tensors[i].elements, tensors[i].element_bytes));
    }
  }
}

ExactWindowSpec direct64() {
  return {.scaleup = 64,
          .nvlink_ranks = 8,
          .max_tokens = 4096,
          .topk = 8,
          .dispatch_row_bytes = 7520,
          .combine_row_bytes = 14400,
          .expected_ranks = 7.67575019177,  // E 256
          .margin = 0.25};
}

TEST(Buffers, ExactWindowAtWorstNeedsWhatDeepepNeeds) {
  // bf16, so that the hint assumes the record that travels. Direct: equal; hybrid: less the slack of 1280
  // rows a node, in the scale-out receive area of dispatch (SO * 1280 * 14464) and the send area of combine
  // (SO * 1280 * 14400).
  for (const auto& c : golden("buffer_hint").at("cases")) {
    const EpBufferSpec spec = golden_spec(c.at("inputs"));
    if (spec.is_fp8 || spec.topk == 0 || spec.hidden != 7168) continue;
    SCOPED_TRACE(c.at("id"));
    const BufferPlan plan = exact_window({.scaleout = spec.scaleout,
                                          .scaleup = spec.scaleup,
                                          .nvlink_ranks = spec.nvlink_ranks,
                                          .max_tokens = spec.max_tokens,
                                          .topk = spec.topk,
                                          .dispatch_row_bytes = 14464,
                                          .combine_row_bytes = 14400,
                                          .multiple_reduction = spec.multiple_reduction});
    const int64_t slack = spec.scaleout > 1 ? int64_t{1280} * spec.scaleout : 0;
    const int64_t sends = spec.multiple_reduction ? 1 : spec.topk;
    const auto& out = c.at("outputs");
    EXPECT_EQ(plan.uses[0].total.count, out.at("dispatch_total").get<int64_t>() - slack * 14464);
    EXPECT_EQ(plan.uses[1].total.count, out.at("combine_total").get<int64_t>() - slack * sends * 14400);
  }
}

TEST(Buffers, ExactWindowHoldsExpectedRowsAndMargin) {
  ExactWindowSpec spec = direct64();
  spec.sizing = Sizing::expected;
  const BufferPlan plan = exact_window(spec);
  // t T 1.25 = 39299.84: 39 300 rows; combine sends and receives as many. min(R, K) T = 32 768 is less than
  // 39 300, so the combine's receive area stays at its worst case.
  EXPECT_EQ(part_bytes(plan.uses[0], "receive"), int64_t{39300} * 7520);
  EXPECT_EQ(part_bytes(plan.uses[0], "send"), int64_t{4096} * 7520);
  EXPECT_EQ(part_bytes(plan.uses[1], "send"), int64_t{39300} * 14400);
  EXPECT_EQ(part_bytes(plan.uses[1], "receive"), int64_t{32768} * 14400);
  EXPECT_EQ(plan.uses[0].parts[1].formula, "ceil(t * T * (1 + 0.25)) * b = 39300 * 7520");
}

TEST(Buffers, HybridWindowHoldsExpectedRowsAtEachHop) {
  // 8 x 8, t 7.67575, s 5.294652, no margin: t T = 31439.87, s T = 21686.89. K T = 32 768 for a single
  // reduction.
  ExactWindowSpec spec = direct64();
  spec.scaleout = 8;
  spec.scaleup = 8;
  spec.sizing = Sizing::expected;
  spec.expected_nodes = 5.29465200038;
  spec.margin = 0;
  const BufferPlan plan = exact_window(spec);
  EXPECT_EQ(part_bytes(plan.uses[0], "scale-up receive"), int64_t{31440} * 7520);
  EXPECT_EQ(part_bytes(plan.uses[0], "scale-out send"), int64_t{4096} * 7520);
  EXPECT_EQ(part_bytes(plan.uses[0], "scale-out receive"), int64_t{21687} * 7520);
  EXPECT_EQ(part_bytes(plan.uses[1], "scale-up receive"), int64_t{31440} * 14400);
  EXPECT_EQ(part_bytes(plan.uses[1], "scale-out send"), int64_t{21687} * 14400);
  EXPECT_EQ(part_bytes(plan.uses[1], "scale-out receive"), int64_t{21687} * 14400);
  spec.multiple_reduction = false;
  const BufferPlan single = exact_window(spec);
  for (const char* name : {"scale-up receive", "scale-out send", "scale-out receive"})
    EXPECT_EQ(part_bytes(single.uses[1], name), int64_t{32768} * 14400);
}

TEST(Buffers, ExpectedWindowNeverExceedsWorst) {
  ExactWindowSpec spec = direct64();
  const BufferPlan worst = exact_window(spec);
  spec.sizing = Sizing::expected;
  for (const double margin : {0.0, 0.5, 10.0, 1e6}) {
    spec.margin = margin;
    const BufferPlan plan = exact_window(spec);
    for (size_t use = 0; use < 2; ++use)
      for (size_t i = 0; i < plan.uses[use].parts.size(); ++i)
        EXPECT_LE(plan.uses[use].parts[i].bytes, worst.uses[use].parts[i].bytes);
  }
  EXPECT_EQ(exact_window(spec).total, worst.total);  // a margin of a million reaches every worst case
}

TEST(Buffers, LargestTokensIsTheLastThatFits) {
  for (const Sizing sizing : {Sizing::worst_case, Sizing::expected}) {
    const BufferOfTokens buffer = [sizing](int32_t tokens) {
      ExactWindowSpec spec = direct64();
      spec.sizing = sizing;
      spec.max_tokens = tokens;
      return exact_window(spec);
    };
    for (const int64_t limit : {int64_t{1} << 24, int64_t{1} << 30, int64_t{80} << 30}) {
      const int32_t largest = largest_tokens(buffer, Bytes{limit});
      ASSERT_GT(largest, 0);
      EXPECT_LE(buffer(largest).total.count, limit);
      EXPECT_GT(buffer(largest + 1).total.count, limit);
    }
    EXPECT_EQ(largest_tokens(buffer, Bytes{1}), 0);
  }
}

TEST(Buffers, LargestTokensStopsAtTheLargestInteger) {
  // 96 bytes a token: 2^31 - 1 tokens need 206 158 430 112 bytes, below 2^38.
  const BufferOfTokens tiny = [](int32_t tokens) {
    return deepep_buffer({.max_tokens = tokens, .hidden = 32, .topk = 1});
  };
  EXPECT_EQ(largest_tokens(tiny, Bytes{int64_t{1} << 38}), std::numeric_limits<int32_t>::max());
}

TEST(Buffers, ErrorsNameFieldAndAllowedValues) {
  const EpBufferSpec good{.scaleup = 8, .nvlink_ranks = 8, .max_tokens = 16, .hidden = 256, .topk = 8};
  EpBufferSpec bad = good;
  bad.max_tokens = 0;
  EXPECT_EQ(error_of([&] { deepep_buffer(bad); }), "buffer size: max_tokens is 0; allowed: 1..2147483647");
  bad = good;
  bad.topk = 33;
  EXPECT_EQ(error_of([&] { deepep_buffer(bad); }), "buffer size: topk is 33; allowed: 1..32");
  bad = good;
  bad.hidden = 1000;
  EXPECT_EQ(error_of([&] { deepep_buffer(bad); }),
            "buffer size: hidden 1000 gives rows of 2000 bytes; allowed: multiples of 32 bytes");
  bad = good;
  bad.scaleout = 2;
  bad.nvlink_ranks = 4;
  EXPECT_EQ(error_of([&] { deepep_buffer(bad); }),
            "buffer size: hybrid mode needs scaleup = nvlink_ranks; found 8 and 4");
  ExactWindowSpec window = direct64();
  window.sizing = Sizing::expected;
  window.margin = std::nan("");
  EXPECT_EQ(error_of([&] { exact_window(window); }), "buffer size: margin is nan; allowed: 0..1000000");
  window = direct64();
  window.sizing = Sizing::expected;
  window.expected_ranks = 8.5;
  EXPECT_EQ(error_of([&] { exact_window(window); }), "buffer size: expected_ranks is 8.5; allowed: 0..8");
  EXPECT_EQ(error_of([] { low_latency_buffer({.max_tokens = 1, .hidden = 200, .experts = 8}); }),
            "buffer size: hidden is 200; low latency needs a multiple of 128");
}

/// max(dispatch, combine) of DeepEP's hint before rounding, in 128 bits, written from its formulas.
Int128 hint_in_128_bits(const EpBufferSpec& s) {
  const Int128 k = s.topk;
  const Int128 t = s.max_tokens;
  const Int128 so = s.scaleout;
  const Int128 su = s.scaleup;
  const auto up32 = [](Int128 n) { return (n + 31) / 32 * 32; };
  const Int128 h = s.hidden;
  const Int128 dispatch_row = (s.is_fp8 ? up32(h) + up32((h + 31) / 32 * 4) : up32(2 * h)) + up32(12 * k + 4);
  const Int128 combine_row = up32(2 * h) + up32(8 * k);
  Int128 dispatch = 0;
  Int128 combine = 0;
  if (so == 1) {
    const Int128 far = su == s.nvlink_ranks ? 0 : 1;
    dispatch = far * t + su * t;
    combine = s.multiple_reduction ? far * su * t + std::min(su, k) * t : far * su * t * k + k * t;
  } else {
    dispatch = su * so * t + t + so * (t + 1280);
    combine = s.multiple_reduction ? std::min(su, k) * so * t + std::min(so, k) * t + so * (t + 1280)
                                   : k * so * t + k * t + so * (t + 1280) * k;
  }
  return std::max(dispatch * dispatch_row, combine * combine_row);
}

TEST(FieldCases, B06_RandomBigHintsEqual128BitArithmetic) {
  std::mt19937_64 random(6);
  const auto draw = [&](int bits) {
    return static_cast<int32_t>(random() >> (64 - 1 - random() % static_cast<uint64_t>(bits)));
  };
  int fitting = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    EpBufferSpec s{.scaleout = 1 + draw(22),
                   .scaleup = 1 + draw(22),
                   .max_tokens = 1 + draw(30),
                   .hidden = 32 * (1 + draw(24)),
                   .topk = 1 + static_cast<int32_t>(random() % 32),
                   .is_fp8 = random() % 2 == 0,
                   .multiple_reduction = random() % 2 == 0};
    if (random() % 2 == 0) s.scaleout = 1;
    s.nvlink_ranks = s.scaleout > 1 || random() % 2 == 0 ? s.scaleup : 1;
    constexpr Int128 kUnit = kWindowAlignment;
    const Int128 exact = (hint_in_128_bits(s) + kUnit - 1) / kUnit * kUnit;
    if (exact > kMaxBytes) {
      EXPECT_NE(error_of([&] { deepep_buffer(s); }).find("does not fit 63 bits"), std::string::npos);
      ++refused;
    } else if (exact < kMaxBytes - 2 * kUnit) {
      const BufferPlan plan = deepep_buffer(s);
      EXPECT_EQ(plan.total.count, static_cast<int64_t>(exact));
      for (const BufferUse& use : plan.uses)
        for (const BufferPart& part : use.parts) EXPECT_GE(part.bytes.count, 0);
      ++fitting;
    }
  }
  EXPECT_GT(fitting, 500);  // both sides of the border are really visited
  EXPECT_GT(refused, 100);
}

TEST(FieldCases, B06_RandomBigLowLatencyAndHandlesEqual128BitArithmetic) {
  std::mt19937_64 random(7);
  const auto draw = [&](int bits) {
    return static_cast<int32_t>(random() >> (64 - 1 - random() % static_cast<uint64_t>(bits)));
  };
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    const LowLatencyBufferSpec s{
        .max_tokens = 1 + draw(30), .hidden = 128 * (1 + draw(23)), .experts = 1 + draw(29)};
    const Int128 h = s.hidden;
    const Int128 d = 16 + 2 * h;
    const Int128 c = 2 * h + h / 32;
    const Int128 e = s.experts;
    const Int128 exact = 2 * std::max(s.max_tokens * d, e * s.max_tokens * c) +
                         2 * e * s.max_tokens * std::max(c, d) + 2 * ((4 * e + 127) / 128 * 128);
    if (exact > kMaxBytes) {
      EXPECT_NE(error_of([&] { low_latency_buffer(s); }).find("does not fit 63 bits"), std::string::npos);
      ++refused;
    } else {
      EXPECT_EQ(low_latency_buffer(s).total.count, static_cast<int64_t>(exact));
    }
  }
  EXPECT_GT(refused, 20);
  // One handle beyond 2^32: 16 nodes of 64, T 131072, C 1280, m = 103: linked list 1280 * (16 * 103 + 1) * 64
  // * 4.
  const BufferPlan handle = handle_buffer({.scaleout = 16,
                                           .scaleup = 64,
                                           .max_tokens = 131072,
                                           .tokens = 131072,
                                           .topk = 32,
                                           .channels = 1280,
                                           .local_experts = 2,
                                           .received_rows = int64_t{131072} * 1024});
  EXPECT_EQ(part_bytes(handle.uses[0], "linked list"), int64_t{1280} * 1649 * 256);
  EXPECT_EQ(part_bytes(handle.uses[0], "receive metadata"),
            int64_t{131072} * 1024 * 34 * 4);  // 18 253 611 008
}

TEST(FieldCases, B06_SizesGrowStrictly) {
  // In tokens, ranks and top-k (single reduction: K slots), all other things equal; unrounded totals of one
  // use.
  EpBufferSpec base{.scaleup = 8,
                    .nvlink_ranks = 1,
                    .max_tokens = 149796,
                    .hidden = 7168,
                    .topk = 8,
                    .multiple_reduction = false};
  const auto sum = [](const EpBufferSpec& s) { return deepep_buffer(s).uses[1].total.count; };
  EpBufferSpec more = base;
  ++more.max_tokens;
  EXPECT_GT(sum(more), sum(base));
  more = base;
  ++more.scaleup;
  EXPECT_GT(sum(more), sum(base));
  more = base;
  ++more.topk;
  EXPECT_GT(sum(more), sum(base));
}

TEST(FieldCases, B06_SizeBeyond63BitsIsAnErrorNotASmallNumber) {
  EXPECT_EQ(error_of([] {
              deepep_buffer({.scaleup = 1 << 20,
                             .nvlink_ranks = 1 << 20,
                             .max_tokens = 2147483647,
                             .hidden = 7168,
                             .topk = 8});
            }),
            "size of 'receive' does not fit 63 bits: R * T * b = 1048576 * 2147483647 * 14464; use fewer "
            "tokens, ranks "
            "or a smaller hidden size");
  EXPECT_NE(error_of([] {
              engram_buffer({.rows_per_rank = kMaxBytes, .max_fetched_rows = 1, .hidden = 128});
            }).find("does not fit"),
            std::string::npos);
  // 4 * (2^61 - 32) = 2^63 - 128 fits, its rounding up to 2 MiB does not.
  EXPECT_NE(error_of([] { ring_buffer((int64_t{1} << 61) - 32, 1); }).find("does not fit"),
            std::string::npos);
}

BufferPlan b08(int32_t tokens) {
  return low_latency_buffer({.max_tokens = tokens, .hidden = 5120, .experts = 384 + 64});
}

TEST(FieldCases, B08_LowLatencySizesWithRedundantExperts) {
  // GiB to three decimals, as published in the thread.
  const std::vector<std::pair<int32_t, double>> published{
      {1536, 26.660}, {1840, 31.937}, {1856, 32.214}, {2048, 35.547}};
  for (const auto& [tokens, gib] : published)
    EXPECT_NEAR(std::ldexp(static_cast<double>(b08(tokens).total.count), -30), gib, 0.0005);
}

TEST(FieldCases, B08_LimitNamesTheLargestLegalBatch) {
  // 4 * 448 * 10400 = 18 636 800 bytes a token + 3584 of signals; (16 * (2^31 - 1) - 1 - 3584) / 18 636 800 =
  // 1843.6.
  EXPECT_EQ(largest_tokens(b08, kLowLatencyLimit), 1843);
  EXPECT_EQ(require_fit(b08, 1840, kLowLatencyLimit).total, b08(1840).total);
  EXPECT_EQ(error_of([] { require_fit(b08, 1856, kLowLatencyLimit); }),
            "DeepEP V1 low-latency buffer for 1856 tokens per rank needs 34589904384 bytes; the limit is "
            "34359738351 "
            "bytes; the largest number of tokens that fits is 1843");
}

TEST(FieldCases, B08_UnsetTopkIsSizedFor32) {
  EpBufferSpec spec{.scaleup = 8, .nvlink_ranks = 8, .max_tokens = 4096, .hidden = 7168, .topk = 8};
  const Bytes with_8 = deepep_buffer(spec).total;
  spec.topk = 32;
  const Bytes with_32 = deepep_buffer(spec).total;
  spec.topk = 0;
  EXPECT_EQ(deepep_buffer(spec).total, with_32);
  EXPECT_LT(with_8, with_32);
}

TEST(FieldCases, B08_HintCoversTheBytesReallyTouched) {
  // Worst routing: every token of each of 8 ranks lands on this rank, in records of the type that travels.
  for (const bool is_fp8 : {false, true}) {
    const EpBufferSpec spec{
        .scaleup = 8, .nvlink_ranks = 8, .max_tokens = 4096, .hidden = 7168, .topk = 8, .is_fp8 = is_fp8};
    const TokenLayout record =
        token_layout({.hidden_bytes = is_fp8 ? 7168 : 14336, .scale_packs = is_fp8 ? 56 : 0, .topk = 8});
    EXPECT_GE(deepep_buffer(spec).total.count, area_bytes(8, 4096, record.record_bytes));
  }
}

TEST(V1NormalBuffer, CountsQueuesOfBothMemories) {
  // C = 10, P = 8, N = 2: NVLink 10*8*7*4 + 10*8*256*16392 = 335710400, a multiple of 128 after
  // rounding; RDMA 10*2*18*8 + 2*10*2*128*16408 + 2^20 = 85060416.
  const BufferPlan plan = v1_normal_buffer({.ranks = 16, .num_sms = 20, .hidden_bytes = 14336});
  ASSERT_EQ(plan.uses.size(), 2u);
  EXPECT_EQ(plan.total.count, int64_t{335710464} + 85060480);
  EXPECT_EQ(v1_normal_buffer({.ranks = 8, .num_sms = 20, .hidden_bytes = 14336}).uses.size(), 1u);
  EXPECT_THROW(v1_normal_buffer({.ranks = 12, .num_sms = 20, .hidden_bytes = 14336}), Error);
  EXPECT_THROW(v1_normal_buffer({.ranks = 8, .num_sms = 21, .hidden_bytes = 14336}), Error);
}

}  // namespace
}  // namespace plumb

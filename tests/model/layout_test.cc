// Byte layout against DeepEP's, and the properties that kernels rely on.
#include "model/layout.h"

#include "model/deepep_workspace.h"
#include "tests/model/golden.h"

namespace plumb {
namespace {

// Usable in constant expressions, as device code needs: H 7168, K 8, fp8 with one fp32 scale per 128
// elements.
static_assert(token_layout({.hidden_bytes = 7168, .scale_packs = 56, .topk = 8}).record_bytes ==
              7168 + 224 + 128);
static_assert(deepep_workspace().end == 12820528);
static_assert(reduction_word(3) + reduction_word(0) + reduction_word(7) == 12884901898ULL);

TEST(Layout, TokenRecordEqualsDeepep) {
  for (const auto& c : golden("token_layout").at("cases")) {
    SCOPED_TRACE(c.at("id"));
    const TokenLayout layout =
        token_layout({.hidden_bytes = c.at("H").get<int64_t>() * c.at("elem_bytes").get<int64_t>(),
                      .scale_packs = c.at("sf_packs"),
                      .topk = c.at("K"),
                      .is_dispatch = c.at("dispatch")});
    const auto& at = c.at("offsets");
    EXPECT_EQ(layout.hidden_bytes, c.at("hidden_bytes").get<int64_t>());
    EXPECT_EQ(layout.scales_bytes, c.at("sf_bytes").get<int64_t>());
    EXPECT_EQ(layout.metadata_raw, c.at("metadata_raw").get<int64_t>());
    EXPECT_EQ(layout.metadata_bytes, c.at("metadata_bytes").get<int64_t>());
    EXPECT_EQ(layout.record_bytes, c.at("wire_bytes").get<int64_t>());
    EXPECT_EQ(layout.shared_bytes, c.at("smem_bytes").get<int64_t>());
    EXPECT_EQ(layout.hidden, at.at("hidden").get<int64_t>());
    EXPECT_EQ(layout.scales, at.at("sf").get<int64_t>());
    EXPECT_EQ(layout.expert_ids, at.at("topk_idx").get<int64_t>());
    EXPECT_EQ(layout.weights, at.at("weights").get<int64_t>());
    EXPECT_EQ(layout.mbarrier, at.at("mbarrier").get<int64_t>());
    if (at.at("src_token").is_null()) continue;  // combine records have neither
    EXPECT_EQ(layout.source, at.at("src_token").get<int64_t>());
    EXPECT_EQ(layout.links, at.at("linked_list").get<int64_t>());
  }
}

TEST(Layout, RowThatDeepepRefusesIsPadded) {
  // H 1000 bf16 = 2000 bytes, no multiple of 32: DeepEP asserts; here the scales start at the next multiple,
  // 2016.
  const auto& error = golden("token_layout").at("error");
  const int64_t hidden = error.at("H").get<int64_t>() * error.at("elem_bytes").get<int64_t>();
  ASSERT_NE(hidden % kRecordAlignment, 0);
  const TokenLayout layout = token_layout({.hidden_bytes = hidden, .topk = 8});
  EXPECT_EQ(layout.hidden_bytes, 2000);
  EXPECT_EQ(layout.scales, 2016);
  EXPECT_EQ(layout.record_bytes, 2016 + 128);
}

TEST(Layout, PartsAreAlignedAndDoNotOverlap) {
  for (int32_t topk = 1; topk <= 32; ++topk) {
    for (const int32_t packs : {0, 1, 14, 56}) {
      for (const bool is_dispatch : {false, true}) {
        const TokenLayout l = token_layout(
            {.hidden_bytes = 7168, .scale_packs = packs, .topk = topk, .is_dispatch = is_dispatch});
        EXPECT_EQ(l.scales % kRecordAlignment, 0);
        EXPECT_EQ(l.expert_ids % kRecordAlignment, 0);
        EXPECT_EQ(l.record_bytes % kRecordAlignment, 0);
        EXPECT_GE(l.scales, l.hidden + l.hidden_bytes);
        EXPECT_GE(l.expert_ids, l.scales + 4 * packs);
        EXPECT_EQ(l.weights, l.expert_ids + 4 * topk);
        EXPECT_GE(l.record_bytes, l.weights + 4 * topk + (is_dispatch ? 4 + 4 * topk : 0));
      }
    }
  }
}

TEST(Layout, WorkspaceOffsetsEqualDeepep) {
  const auto& section = golden("workspace");
  constexpr DeepepWorkspace at = deepep_workspace();
  const std::vector<int64_t> starts{
      at.nvlink_barrier, at.notify_reduction,     at.scaleup_rank_counts,    at.scaleup_expert_counts,
      at.slot_counters,  at.scaleout_rank_counts, at.scaleout_expert_counts, at.scaleout_tails,
      at.scaleup_tails,  at.ring_counts,          at.gather_signals,         at.end};
  const auto& parts = section.at("parts");
  ASSERT_EQ(parts.size() + 1, starts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    SCOPED_TRACE(parts[i].at("name"));
    EXPECT_EQ(starts[i], parts[i].at("offset").get<int64_t>());
    EXPECT_EQ(starts[i + 1] - starts[i], parts[i].at("bytes").get<int64_t>());
  }
  EXPECT_EQ(at.end, section.at("total").get<int64_t>());
  EXPECT_EQ(round_up(at.end, kWindowAlignment), section.at("aligned").get<int64_t>());
}

TEST(Layout, WorstCaseRowsEqualDeepep) {
  for (const auto& c : golden("worst_case_counts").at("cases")) {
    EXPECT_EQ(worst_case_rows(c.at("R"), c.at("T_max")), c.at("recv").get<int64_t>());
    EXPECT_EQ(worst_case_expanded_rows({.ranks = c.at("R"),
                                        .max_tokens = c.at("T_max"),
                                        .topk = c.at("K"),
                                        .local_experts = c.at("local_experts"),
                                        .alignment = c.at("alignment")}),
              c.at("expanded").get<int64_t>());
  }
}

TEST(Layout, CountsCrossMemoryEncoded) {
  const auto& section = golden("count_encoding");
  for (const auto& c : section.at("cases")) {
    const auto value = c.at("value").get<int64_t>();
    EXPECT_EQ(encode_count(value), c.at("stored").get<int64_t>());
    EXPECT_EQ(decode_count(encode_count(value)), value);
    EXPECT_TRUE(is_ready(encode_count(value)));
  }
  EXPECT_EQ(decode_count(0), section.at("zero_memory_decodes_to").get<int64_t>());
  EXPECT_FALSE(is_ready(0));
}

TEST(Layout, ReductionWordCountsAndSums) {
  for (const auto& c : golden("reduction_word").at("cases")) {
    uint64_t word = 0;
    uint64_t sum = 0;
    for (const auto& count : c.at("contributions")) {
      word += reduction_word(count.get<uint32_t>());
      sum += count.get<uint32_t>();
    }
    EXPECT_EQ(word, c.at("word").get<uint64_t>());
    EXPECT_EQ(contributors(word), c.at("contributions").size());
    EXPECT_EQ(reduced_sum(word), sum);
  }
}

TEST(Layout, BenchmarkBytesEqualDeepep) {
  const auto& cases = golden("bench_accounting").at("cases");
  const int64_t fp8 = bench_row_bytes(7168, 56 * 4, 8);
  EXPECT_EQ(fp8, cases[0].at("row").get<int64_t>());
  EXPECT_EQ(bench_row_bytes(7168 * 2, 0, 8), cases[1].at("row").get<int64_t>());
  // A log of EP16: rows times row bytes, over its time.
  const auto& log = cases[2];
  EXPECT_EQ(log.at("tokens").get<int64_t>() * fp8, log.at("bytes").get<int64_t>());
  expect_close(log.at("bytes").get<double>() / (log.at("us").get<double>() * 1e-6) * 1e-9,
               log.at("gbs").get<double>(), kSixDigits);
}

TEST(Layout, LowLatencyMessagesEqualDeepep) {
  for (const auto& c : golden("v1_low_latency_buffer").at("cases")) {
    EXPECT_EQ(low_latency_dispatch_slot_bytes(c.at("H")), c.at("dispatch_msg").get<int64_t>());
    EXPECT_EQ(low_latency_combine_slot_bytes(c.at("H")), c.at("combine_msg").get<int64_t>());
  }
  // 128 tokens, top-8: 1024 selections each way.
  const auto& table = golden("readme_v1").at("low_latency");
  EXPECT_EQ(1024 * low_latency_dispatch_bytes(7168, true), table.at("dispatch_bytes").get<int64_t>());
  EXPECT_EQ(1024 * low_latency_combine_bytes(7168), table.at("combine_bytes").get<int64_t>());
}

TEST(Layout, OtherRecordsAreMultiplesOf32) {
  EXPECT_EQ(engram_row_bytes(128, 2), 256);  // exact
  EXPECT_EQ(engram_row_bytes(100, 1), 128);
  EXPECT_EQ(ring_slot_bytes(33), 64);
  EXPECT_EQ(gather_bytes(8, 1000003, 2), 16000064);  // 16 000 048 rounded up
  EXPECT_EQ(gather_bytes(8, 17, 4), 544);            // = 17 * 32
}

TEST(Layout, RowsOfAnAreaFollowEachOther) {
  // 3 owners of 5 rows of 96 bytes.
  int64_t next = 0;
  for (int64_t owner = 0; owner < 3; ++owner)
    for (int64_t row = 0; row < 5; ++row, next += 96) EXPECT_EQ(row_offset(owner, row, 5, 96), next);
  EXPECT_EQ(area_bytes(3, 5, 96), next);
}

TEST(FieldCases, B06_RowOffsetsPassThe32BitBorders) {
  constexpr int64_t kRow = 14336;  // H 7168, bf16
  // 2^31 / 14336 = 149796.57..., 2^32 / 14336 = 299593.14...
  EXPECT_EQ(area_bytes(1, 149796, kRow), 2147475456);
  EXPECT_EQ(area_bytes(1, 149797, kRow), 2147489792);
  EXPECT_EQ(area_bytes(1, 299593, kRow), 4294965248);
  EXPECT_EQ(area_bytes(1, 299594, kRow), 4294979584);
  EXPECT_EQ(area_bytes(8, 131072, kRow), 15032385536);
  EXPECT_EQ(area_bytes(64 * 8, 131072, kRow), 962072674304);
  EXPECT_EQ(row_offset(511, 131071, 131072, kRow) + kRow, 962072674304);
}

}  // namespace
}  // namespace plumb

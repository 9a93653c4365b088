// The golden file as a whole: no section without a test, and the sections that belong to no single component.
#include "tests/model/golden.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "model/buffers.h"
#include "model/deepep_model.h"
#include "model/error.h"
#include "model/program.h"
#include "model/routing.h"
#include "model/sm_model.h"

namespace plumb {
namespace {

TEST(Golden, EverySectionHasATest) {
  // Section -> test file that reads it. A new section fails here until it has one.
  const std::map<std::string, std::string> tested_in{{"meta", "golden"},
                                                     {"expected_distinct", "golden"},
                                                     {"article_corrections", "golden"},
                                                     {"bad_inputs", "golden"},
                                                     {"sm_model", "deepep_model"},
                                                     {"sm_model_thresholds", "deepep_model"},
                                                     {"qp_model", "deepep_model"},
                                                     {"volume_per_token", "deepep_model"},
                                                     {"readme_v2", "deepep_model"},
                                                     {"readme_v1", "deepep_model"},
                                                     {"calibration_from_readme", "deepep_model"},
                                                     {"qp_mapping", "schedule"},
                                                     {"warps_and_channels", "schedule"},
                                                     {"nvlink_barrier", "schedule"},
                                                     {"channel_partition", "schedule"},
                                                     {"token_layout", "layout"},
                                                     {"workspace", "layout"},
                                                     {"worst_case_counts", "layout"},
                                                     {"count_encoding", "layout"},
                                                     {"reduction_word", "layout"},
                                                     {"bench_accounting", "layout"},
                                                     {"buffer_hint", "buffers"},
                                                     {"v1_low_latency_buffer", "buffers"},
                                                     {"other_buffers", "buffers"},
                                                     {"handle_bytes", "buffers"},
                                                     {"functional", "host"},
                                                     {"combine_rounding", "host"}};
  std::set<std::string> sections;
  for (const auto& [name, content] : golden("").items()) sections.insert(name);
  EXPECT_EQ(sections.size(), 27U);
  for (const auto& [name, file] : tested_in) EXPECT_TRUE(sections.contains(name)) << name;
  for (const std::string& name : sections) {
    ASSERT_TRUE(tested_in.contains(name)) << name;
    std::ifstream file(std::string(PLUMB_SOURCE_DIR "/tests/model/") + tested_in.at(name) + "_test.cc");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (tested_in.at(name) == "host") continue;
    EXPECT_NE(text.find("golden(\"" + name + "\")"), std::string::npos) << name;
  }
}

TEST(Golden, DescribesTheVersionThatTheFormulasComeFrom) {
  EXPECT_EQ(golden("meta").at("deepep_version").get<std::string>().substr(0, 14), "2.1.0 (dd758ca");
}

TEST(Golden, ExpectedDistinctEqualsExactFractions) {
  for (const auto& c : golden("expected_distinct").at("cases")) {
    SCOPED_TRACE(c.dump());
    const double hit = expected_distinct(c.at("E"), c.at("G"), c.at("K"));
    expect_close(hit, c.at("expected").get<double>());
    const auto& fraction = c.at("fraction");
    expect_close(hit, std::stod(fraction[0].get<std::string>()) / std::stod(fraction[1].get<std::string>()));
    expect_close(expected_distinct_limit(c.at("G"), c.at("K")), c.at("infinite_experts_limit").get<double>());
  }
}

TEST(Golden, ArticleCorrectionsFollowFromTheModel) {
  const auto& items = golden("article_corrections").at("items");
  ASSERT_EQ(items.size(), 5U);
  // Claim: about a quarter of a rank, mostly local, at R 256.
  const double ranks = expected_distinct(2048, 256, 8);
  expect_close(ranks, items[0].at("right").get<double>());
  expect_close(ranks / 256, items[0].at("local_probability").get<double>());
  expect_close(expected_distinct(512, 64, 8), items[1].at("right").get<double>());
  // Claim: more experts cut the number of ranks a lot; they cut it by at most 1.3 %, towards the limit.
  const std::vector<int32_t> experts{256, 512, 1024, 2048};
  for (size_t i = 0; i < experts.size(); ++i)
    expect_close(expected_distinct(experts[i], 64, 8), items[2].at("right")[i].get<double>());
  expect_close(expected_distinct_limit(64, 8), items[2].at("limit").get<double>());
  expect_close(expected_distinct(256, 8, 8), items[3].at("right").get<double>());
  // Claim: 24 instead of 64 SMs cost almost nothing.
  const auto& rows = golden("readme_v2").at("rows");
  const auto loss = [&](const char* key) {
    return 1 - rows[4].at(key).get<double>() / rows[3].at(key).get<double>();
  };
  expect_close(loss("dispatch_gbs"), items[4].at("right").at("dispatch_loss").get<double>(), kSixDigits);
  expect_close(loss("combine_gbs"), items[4].at("right").at("combine_loss").get<double>(), kSixDigits);
}

/// 2 nodes of 8, within every limit of DeepEP.
DeepepCall good_call() {
  return {.scaleout = 2,
          .scaleup = 8,
          .experts = 256,
          .topk = 8,
          .hidden = 7168,
          .tokens = 128,
          .max_tokens = 128,
          .num_sms = 12,
          .device_sms = 132,
          .num_qps = 129,
          .allocated_qps = 129};
}

/// Changes the good call and returns what DeepEP would say.
template <class Change>
std::vector<std::string> refusals(const Change& change) {
  DeepepCall call = good_call();
  change(call);
  return deepep_refusals(call);
}

std::string only_refusal(const std::vector<std::string>& all) {
  EXPECT_EQ(all.size(), 1U);
  return all.empty() ? "" : all.front();
}

TEST(Golden, DeepepRefusesWithFoundAndAllowedValues) {
  EXPECT_TRUE(deepep_refusals(good_call()).empty());
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) { c.experts = 250; })),
            "number of experts is 250; DeepEP needs a multiple of 16");
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) { c.topk = 33; })),
            "topk is 33; DeepEP allows at most 32");
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) { c.tokens = 129; })),
            "tokens of a rank is 129; DeepEP allows at most 128");
  // NVL72: 72 ranks in a domain.
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) {
              c.scaleup = 72;
              c.experts = 288;
            })),
            "scale-up ranks is 72; DeepEP allows at most 64");
  // 121 experts a rank: 8 + 121 notify threads; a cached call needs none.
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) { c.experts = 16 * 121; })),
            "scale-up ranks plus experts per rank is 129; DeepEP allows at most 128");
  EXPECT_TRUE(refusals([](DeepepCall& c) {
                c.experts = 16 * 121;
                c.is_cached = true;
              }).empty());
  EXPECT_EQ(only_refusal(refusals([](DeepepCall& c) {
              c.num_sms = 161;
              c.device_sms = 200;
            })),
            "SMs is 161; DeepEP allows at most 160");
}

TEST(Golden, BadInputsGetAnErrorBeforeAnythingRuns) {
  const Shape shape = uniform_shape(4, 8, 2, 4, 256);
  const auto throws = [](const std::function<void()>& call) { EXPECT_THROW(call(), Error); };
  const auto changed = [&](const std::function<void(Shape&)>& change) {
    Shape bad = shape;
    change(bad);
    throws([&] { validate(bad); });
  };
  const auto deepep_refuses = [](const std::function<void(DeepepCall&)>& change) {
    EXPECT_FALSE(refusals(change).empty());
  };
  const auto table_with = [&](int32_t a, int32_t b) {
    std::vector<int32_t> table(4 * 4 * 2, kNone);
    table[0] = a;
    table[1] = b;
    throws([&] { Routing::from_table(shape, table); });
  };
  // What we check on the host, before anything runs.
  const std::map<std::string, std::function<void()>> checked{
      {"E % R != 0", [&] { changed([](Shape& s) { s.experts = 10; }); }},
      {"num_tokens > T_max", [&] { changed([](Shape& s) { s.tokens[1] = 5; }); }},
      {"hidden bytes % 16 != 0", [&] { changed([](Shape& s) { s.hidden = 100; }); }},  // 100 bytes of fp8
      {"hidden bytes % 32 != 0", [&] { deepep_refuses([](DeepepCall& c) { c.hidden = 1000; }); }},
      {"combine input not BF16",  // cannot be written: a combine record is bf16 whatever dispatch is
       [&] { EXPECT_EQ(shape.combine_layout().hidden_bytes, 2 * shape.hidden); }},
      {"K > 32",
       [&] {
         changed([](Shape& s) {
           s.experts = 64;
           s.topk = 33;
         });
       }},
      {"R > 1024 or E > 2048 or E/R > 256",  // ours allows them; DeepEP's refusal is named
       [&] {
         deepep_refuses([](DeepepCall& c) { c.experts = 4096; });
         deepep_refuses([](DeepepCall& c) { c.scaleout = 256; });
       }},
      {"hybrid: scale-out > 32 or scale-up > 64",
       [&] { deepep_refuses([](DeepepCall& c) { c.scaleout = 64; }); }},
      {"hybrid: scale-up + local experts > 128, no cached handle",
       [&] { deepep_refuses([](DeepepCall& c) { c.experts = 16 * 121; }); }},
      {"zero padding without expand", [&] { throws([] { validate(Program{.zero_padding = true}); }); }},
      {"num_qps > allocated", [&] { deepep_refuses([](DeepepCall& c) { c.num_qps = 130; }); }},
      {"buffer smaller than the need of the call",
       [&] {
         const auto buffer = [](int32_t tokens) {
           return deepep_buffer(
               {.scaleup = 8, .nvlink_ranks = 8, .max_tokens = tokens, .hidden = 7168, .topk = 8});
         };
         throws([&] { require_fit(buffer, 4096, Bytes{473956351}); });
       }},
      {"two equal experts in one row", [&] { table_with(5, 5); }},
      {"expert id >= E", [&] { table_with(8, 0); }},
      {"SMs > device SMs; hybrid: SMs > 160", [&] {
         deepep_refuses([](DeepepCall& c) { c.num_sms = 133; });
         throws([] { predict_sms({.grouping = {2, 2}, .record = Bytes{32}}, {.device_sms = 8}, 9); });
       }}};
  // What only a running job can see; tested where it runs.
  const std::set<std::string> at_run_time{
      "cached handle with topk_idx, or host sync, or changed E/alignment/T_max",
      "T_max differs between ranks", "weights on combine with expand and single reduction",
      "peer never arrives"};
  std::set<std::string> items;
  for (const auto& item : golden("bad_inputs").at("items")) {
    const std::string what = item.at("what");
    items.insert(what);
    SCOPED_TRACE(what);
    if (at_run_time.contains(what)) continue;
    ASSERT_TRUE(checked.contains(what));
    checked.at(what)();
  }
  EXPECT_EQ(items.size(), checked.size() + at_run_time.size());
}

}  // namespace
}  // namespace plumb

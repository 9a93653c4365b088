// DeepEP's SM and QP model number by number, and what its published tables imply.
#include "model/deepep_model.h"

#include <string>
#include <vector>

#include "model/error.h"
#include "model/layout.h"
#include "model/routing.h"
#include "tests/model/deepep_cases.h"
#include "tests/model/golden.h"

namespace plumb {
namespace {

TEST(DeepepModel, EveryTermEqualsDeepep) {
  const auto& cases = golden("sm_model").at("cases");
  EXPECT_EQ(cases.size(), 31U);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.at("id"));
    const DeepepSmTerms terms = deepep_sms(golden_input(c.at("inputs")));
    const auto& out = c.at("outputs");
    const auto value = [&](const char* key) {
      return out.at(key).is_null() ? 0.0 : out.at(key).get<double>();
    };
    expect_close(terms.expected_ranks, value("expected_ranks"));
    expect_close(terms.expected_scaleout, value("expected_scaleout"));
    expect_close(terms.sm_read, value("sm_read"));
    expect_close(terms.sm_write, value("sm_write"));
    expect_close(terms.rdma_traffic, value("rdma_traffic"));
    expect_close(terms.nvlink_traffic, value("nvlink_traffic"));
    EXPECT_EQ(to_string(terms.bound), out.at("bound").get<std::string>());
    expect_close(terms.bounded_traffic, value("bounded_traffic"));
    expect_close(terms.bounded_gbs, value("bounded_gbs"));
    expect_close(terms.read_need, value("read_need"));
    expect_close(terms.write_need, value("write_need"));
    expect_close(terms.raw, value("raw"));
    EXPECT_EQ(terms.before_floor_and_cap, out.at("before_floor_and_cap").get<int32_t>());
    EXPECT_EQ(terms.num_sms, out.at("num_sms").get<int32_t>());
    EXPECT_EQ(terms.num_qps, out.at("num_qps").get<int32_t>());
  }
}

TEST(DeepepModel, ErrorsNameTheOptionWhereDeepepFails) {
  std::vector<std::string> seen;
  for (const auto& c : golden("sm_model").at("errors")) {
    const std::string id = c.at("id");
    seen.push_back(id);
    DeepepSmInput in = golden_case("h200_8x2");
    if (id == "hybrid_no_rdma_rate") {
      in.rdma_gbs = 0;
      EXPECT_EQ(
          error_of([&] { deepep_sms(in); }),
          "DeepEP SM model: rdma_gbs is 0; allowed: finite and > 0; set the rate of the scale-out network "
          "(scale_out.port_rate)");
    } else if (id == "hybrid_no_nvlink_rate") {
      in.nvlink_gbs = 0;
      EXPECT_EQ(
          error_of([&] { deepep_sms(in); }),
          "DeepEP SM model: nvlink_gbs is 0; allowed: finite and > 0; set the rate of the scale-up network "
          "(scale_up.rate)");
    } else if (id == "direct_no_nvlink_rate") {
      in = golden_case("h200_ep8");
      in.nvlink_gbs = 0;
      EXPECT_EQ(deepep_sms(in).num_sms, c.at("num_sms").get<int32_t>());
    } else if (id == "indivisible") {
      in.scaleout = c.at("inputs").at("scaleout");
      EXPECT_EQ(error_of([&] { deepep_sms(in); }),
                "DeepEP SM model: 256 experts are not divisible by 24 ranks; the nearest legal numbers are "
                "240 and 264");
    } else if (id == "grouped_gate") {
      in.gate_groups = c.at("inputs").at("num_scaleout_topk");
      EXPECT_NE(error_of([&] { deepep_sms(in); }).find("use corrected_sms()"), std::string::npos);
    } else {
      ADD_FAILURE() << "unknown error case " << id;
    }
  }
  EXPECT_EQ(seen.size(), 5U);
  DeepepSmInput in = golden_case("h200_ep8");
  in.nvlink_gbs = -1;
  EXPECT_NE(error_of([&] { deepep_sms(in); }).find("nvlink_gbs is -1"), std::string::npos);
}

TEST(DeepepModel, ThresholdsLieWhereDeepepsDo) {
  const auto& items = golden("sm_model_thresholds").at("items");
  ASSERT_EQ(items.size(), 3U);
  DeepepSmInput hybrid = golden_case("h200_8x2");
  const auto border = items[0].at("value").get<double>();
  hybrid.nvlink_gbs = border * (1 - 1e-9);
  EXPECT_EQ(deepep_sms(hybrid).bound, LinkBound::nvlink);
  hybrid.nvlink_gbs = border * (1 + 1e-9);
  EXPECT_EQ(deepep_sms(hybrid).bound, LinkBound::rdma);
  DeepepSmInput ep8 = golden_case("b200_ep8");
  const auto sms = [&](double nvlink_gbs) {
    ep8.nvlink_gbs = nvlink_gbs;
    return deepep_sms(ep8).num_sms;
  };
  const auto low = items[1].at("value").get<double>();
  const auto high = items[2].at("value").get<double>();
  EXPECT_EQ(sms(low), 22);  // exclusive
  EXPECT_EQ(sms(low * (1 + 1e-9)), 24);
  EXPECT_EQ(sms(high), 24);  // inclusive
  EXPECT_EQ(sms(high * (1 + 1e-9)), 26);
}

TEST(DeepepModel, QueuePairsEqualDeepep) {
  const auto& section = golden("qp_model");
  for (const auto& c : section.at("cases"))
    EXPECT_EQ(deepep_qps(c.at("num_sms"), c.at("allow_hybrid"), c.at("allocated")),
              c.at("num_qps").get<int32_t>());
  const auto& automatic = section.at("auto_allocated");
  EXPECT_EQ(deepep_allocated_qps(true, false), automatic.at("hybrid").get<int32_t>());
  EXPECT_EQ(deepep_allocated_qps(true, true), automatic.at("hybrid_fast_atomic_nic").get<int32_t>());
  EXPECT_EQ(deepep_allocated_qps(false, true), automatic.at("direct").get<int32_t>());
}

TEST(DeepepModel, VolumesPerTokenEqualTheReference) {
  for (const auto& c : golden("volume_per_token").at("cases")) {
    SCOPED_TRACE(c.dump());
    const int32_t scaleout = c.at("scaleout");
    const int32_t scaleup = c.at("scaleup");
    const CopiesPerToken copies = copies_per_token(c.at("E"), c.at("K"), {scaleout * scaleup, scaleup});
    const auto value = [&](const char* key) { return c.at(key).is_null() ? 0.0 : c.at(key).get<double>(); };
    expect_close(copies.expected_ranks, value("expected_ranks"));
    expect_close(copies.expected_nodes, value("expected_scaleout"));
    expect_close(copies.rdma_direct, value("rdma_copies_direct"));
    expect_close(copies.rdma_hybrid, value("rdma_copies_hybrid"));
    expect_close(copies.nvlink_direct, value("nvlink_copies_direct"));
    expect_close(copies.nvlink_hybrid, value("nvlink_copies_hybrid"));
    expect_close(copies.combine_multiple, value("combine_rdma_copies_multiple_reduction"));
    expect_close(copies.combine_single, value("combine_rdma_copies_single_reduction_non_expand"));
    expect_close(copies.combine_single_expand, value("combine_rdma_copies_single_reduction_expand"));
    if (scaleout > 1) expect_close(copies.rdma_direct / copies.rdma_hybrid, value("rdma_saving"));
  }
}

/// The machine that a row of the README ran on.
DeepepSmInput readme_machine(const nlohmann::json& row) {
  const bool is_sm90 = row.at("arch") == "SM90";
  DeepepSmInput in = golden_case(is_sm90 ? "h200_8x2" : "b200_8x2_cx7");
  in.scaleout = row.at("scaleout");
  return in;
}

TEST(DeepepModel, ReadmeTableFollowsFromVolumes) {
  const int64_t fp8 = bench_row_bytes(7168, 224, 8);
  const int64_t bf16 = bench_row_bytes(14336, 0, 8);
  for (const auto& row : golden("readme_v2").at("rows")) {
    SCOPED_TRACE(row.dump());
    const int32_t scaleout = row.at("scaleout");
    const int32_t scaleup = row.at("scaleup");
    const int64_t tokens = row.at("tokens");
    const int32_t groups = scaleout > 1 ? scaleout : scaleup;
    const CopiesPerToken copies = copies_per_token(row.at("E"), row.at("K"), {scaleout * scaleup, scaleup});
    const double on_bottleneck = scaleout > 1 ? copies.expected_nodes : copies.expected_ranks;
    expect_close(on_bottleneck, row.at("expected_copies_on_bottleneck").get<double>());
    const double dispatch = row.at("dispatch_gbs").get<double>();
    const double combine = row.at("combine_gbs").get<double>();
    expect_close(physical_rate(dispatch, groups), row.at("physical_dispatch_gbs").get<double>());
    expect_close(physical_rate(combine, groups), row.at("physical_combine_gbs").get<double>());
    const double dispatch_seconds = implied_seconds(tokens, on_bottleneck, fp8, dispatch * 1e9);
    expect_close(dispatch_seconds * 1e6, row.at("implied_dispatch_us").get<double>(), kSixDigits);
    expect_close(implied_seconds(tokens, on_bottleneck, bf16, combine * 1e9) * 1e6,
                 row.at("implied_combine_us").get<double>(), kSixDigits);
    const double nvlink_bytes = static_cast<double>(tokens * fp8) * copies.nvlink_hybrid;
    expect_close(nvlink_bytes / dispatch_seconds * 1e-9,
                 row.at("implied_nvlink_physical_dispatch_gbs").get<double>(), kSixDigits);
  }
}

TEST(DeepepModel, LegacyTablesFollowFromVolumes) {
  const auto& section = golden("readme_v1");
  for (const auto& row : section.at("normal")) {
    if (row.at("physical_dispatch_gbs").is_null()) continue;  // one node: NVLink, logical as published
    const int32_t nodes = row.at("ep").get<int32_t>() / 8;
    expect_close(physical_rate(row.at("dispatch_gbs"), nodes), row.at("physical_dispatch_gbs").get<double>());
    expect_close(physical_rate(row.at("combine_gbs"), nodes), row.at("physical_combine_gbs").get<double>());
  }
  const auto& table = section.at("low_latency");
  const double selections = table.at("tokens").get<double>() * table.at("K").get<double>();
  const double dispatch = selections * static_cast<double>(low_latency_dispatch_bytes(table.at("H"), true));
  const double combine = selections * static_cast<double>(low_latency_combine_bytes(table.at("H")));
  for (const auto& row : table.at("rows")) {
    expect_close(dispatch / row.at("dispatch_us").get<double>() * 1e-3,
                 row.at("dispatch_gbs_computed").get<double>(), kSixDigits);
    expect_close(combine / row.at("combine_us").get<double>() * 1e-3,
                 row.at("combine_gbs_computed").get<double>(), kSixDigits);
    expect_close(dispatch / 50e9 * 1e6, row.at("dispatch_us_at_50gbs").get<double>(), kSixDigits);
    expect_close(combine / 50e9 * 1e6, row.at("combine_us_at_50gbs").get<double>(), kSixDigits);
    // The published latency is a rounded average, so the published bandwidth lies 0.5 to 2.1 % below.
    EXPECT_LT(row.at("dispatch_gbs_published").get<double>(), row.at("dispatch_gbs_computed").get<double>());
  }
}

TEST(DeepepModel, ReadmeImpliesPerSmRates) {
  const auto& rows = golden("calibration_from_readme").at("rows");
  const auto& published = golden("readme_v2").at("rows");
  ASSERT_EQ(rows.size(), published.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].dump());
    DeepepSmInput in = readme_machine(published[i]);
    const int32_t sms = rows[i].at("sms");
    in.prefers_overlap = sms < 64;
    const ImpliedSmRates rates = implied_sm_rates(in, published[i].at("dispatch_gbs"), sms);
    expect_close(rates.sm_write_gbs, rows[i].at("sm_write_gbs_per_sm").get<double>(), kFiveDigits);
    expect_close(rates.sm_read_gbs, rows[i].at("sm_read_gbs_per_sm").get<double>(), kFiveDigits);
    expect_close(rates.link_utilisation, rows[i].at("link_utilisation").get<double>(), kFiveDigits);
    EXPECT_EQ(deepep_sms(in).num_sms, rows[i].at("model_sms").get<int32_t>());
  }
}

TEST(DeepepModel, ExpectedRowsMatchAPublishedLog) {
  // EP16, 8192 tokens: 8192 t rows expected, 53 498 in the log.
  const auto& c = golden("bench_accounting").at("cases")[3];
  const double rows = c.at("T").get<double>() * expected_distinct(c.at("E"), 16, c.at("K"));
  expect_close(rows, c.at("tokens").get<double>());
  expect_close(53498 / rows - 1, c.at("relative_difference_from_aws").get<double>(), kSixDigits);
}

}  // namespace
}  // namespace plumb

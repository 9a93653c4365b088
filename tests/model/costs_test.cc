// Costs files: what they extend, which GPU and program take which numbers, and what is refused.
#include "model/costs.h"

#include <gtest/gtest.h>

#include "model/config.h"
#include "model/error.h"

namespace plumb {
namespace {

const std::string kCosts = PLUMB_SOURCE_DIR "/topologies/costs";

TEST(Costs, FilesExtendEachOther) {
  const Costs v1 = load_costs(kCosts, "deepep_v1"), efa = load_costs(kCosts, "deepep_v1_efa");
  EXPECT_EQ(efa.scale_out_share.value, 0.80);
  EXPECT_EQ(efa.scale_up_share.value, v1.scale_up_share.value);
  EXPECT_EQ(efa.fixed.size(), v1.fixed.size());
  EXPECT_THROW(load_costs(kCosts, "no_such_library"), Error);
  EXPECT_THROW(load_costs(kCosts, "../h200x2"), Error);
}

TEST(Costs, GpusAreMatchedByWholeWords) {
  const Costs v1 = load_costs(kCosts, "deepep_v1");
  EXPECT_EQ(sm_rate(v1.sm, "NVIDIA H200 SXM")->value, 20.5e9);
  EXPECT_EQ(sm_rate(v1.sm, "NVIDIA B200")->value, 32.6e9);
  EXPECT_FALSE(sm_rate(v1.sm, "NVIDIA GB200").has_value());
  EXPECT_EQ(sm_factor(v1.sm, "combine_up", "NVIDIA B200", false), 1.11);
  EXPECT_EQ(sm_factor(v1.sm, "dispatch", "NVIDIA B200", false), 1);
}

TEST(Costs, ProgramsChooseTheirLibrary) {
  EXPECT_EQ(default_costs(ProgramKind::v1_combine), "deepep_v1");
  EXPECT_EQ(default_costs(ProgramKind::low_latency_dispatch), "deepep_v1_low_latency");
  EXPECT_EQ(default_costs(ProgramKind::all_gather), "plumb");
}

TEST(Costs, FeedsAndStreamedFactorsAreRead) {
  ConfigFile file = ConfigFile::parse(
      "name: mine\nsm:\n  factors: [{phases: [copy], streamed: true, factor: {value: 2, source: assumed "
      "here}}]\n"
      "  feeds:\n    - {phases: [disp*], half_sms: {value: 2, source: assumed here}}\n"
      "    - {phases: [up], pushed: true, share: {value: 0.95, source: assumed here}}\n"
      "    - {phases: [up], share: {value: 0.9, source: assumed here}}\n",
      "costs.yaml");
  const Costs costs = read_costs(file.root());
  file.finish();
  EXPECT_EQ(sm_factor(costs.sm, "copy", "any", true), 2);
  EXPECT_EQ(sm_factor(costs.sm, "copy", "any", false), 1);
  ASSERT_NE(sm_feed(costs.sm, "dispatch", false), nullptr);
  EXPECT_EQ(part_of_link(*sm_feed(costs.sm, "dispatch", false), 6), 6.0 / 8);
  EXPECT_EQ(part_of_link(*sm_feed(costs.sm, "up", false), 6), 0.9);
  EXPECT_DOUBLE_EQ(part_of_link(*sm_feed(costs.sm, "up", true), 6), 0.95);
  EXPECT_EQ(sm_feed(costs.sm, "combine", false), nullptr);
  EXPECT_TRUE(load_costs(kCosts, "plumb").sm.feeds.empty());  // absent by default
}

TEST(Costs, AFeedOfNoPhaseIsAnError) {
  ConfigFile file = ConfigFile::parse(
      "name: mine\nsm: {feeds: [{half_sms: {value: 2, source: assumed here}}]}\n", "costs.yaml");
  read_costs(file.root());
  EXPECT_THROW(file.finish(), ConfigError);
}

TEST(Costs, AnUnknownClassOfPathIsAnError) {
  ConfigFile file = ConfigFile::parse("name: mine\nfill_links: [nvlink]\n", "costs.yaml");
  read_costs(file.root());
  try {
    file.finish();
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("'nvlink' is no class of path; allowed: local, scale_up, scale_out"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace plumb

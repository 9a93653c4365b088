// The stored ratio of packet and flow times: reading, look-up, and the shipped file.
#include "sim/flow_efficiency.h"

#include <gtest/gtest.h>

namespace plumb::sim {
namespace {

const std::string kText =
    "schema: plumb.flow_efficiency/1\n"
    "rows:\n"
    "  - {kind: leaf_spine, policy: split, ranks: [16, 256], bytes_per_pair: [7408, 60000], ratio: 1.05, "
    "spread: "
    "0.02}\n";

TEST(FlowEfficiency, AnswersInsideTheRangeOnly) {
  const FlowEfficiency table = FlowEfficiency::parse(kText, "e.yaml");
  for (int64_t ranks : {16, 64, 256}) {
    const auto found = table.efficiency("leaf_spine", FlowPolicy::split, ranks, 10'000);
    ASSERT_TRUE(found.has_value()) << ranks;
    EXPECT_EQ(found->ratio, 1.05);
    EXPECT_EQ(found->spread, 0.02);
  }
  EXPECT_FALSE(table.efficiency("leaf_spine", FlowPolicy::split, 15, 10'000));
  EXPECT_FALSE(table.efficiency("leaf_spine", FlowPolicy::split, 257, 10'000));
  EXPECT_FALSE(table.efficiency("leaf_spine", FlowPolicy::split, 64, 7407));
  EXPECT_FALSE(table.efficiency("leaf_spine", FlowPolicy::split, 64, 60'001));
  EXPECT_FALSE(table.efficiency("leaf_spine", FlowPolicy::hash, 64, 10'000));
  EXPECT_FALSE(table.efficiency("dragonfly", FlowPolicy::split, 64, 10'000));
}

std::string problems_of(const std::string& text) {
  try {
    FlowEfficiency::parse(text, "e.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FlowEfficiency, WrongRowsAreNamed) {
  const std::string overlapping =
      kText +
      "  - {kind: leaf_spine, policy: split, ranks: [256, 512], bytes_per_pair: [1, 9000], "
      "ratio: 1, spread: 0}\n";
  EXPECT_NE(problems_of(overlapping).find("overlaps row 0"), std::string::npos) << problems_of(overlapping);
  const std::string turned =
      "schema: plumb.flow_efficiency/1\n"
      "rows:\n"
      "  - {kind: x, policy: split, ranks: [9, 1], bytes_per_pair: [1, 2], ratio: 1, spread: 0, rato: 1}\n";
  EXPECT_NE(problems_of(turned).find("must be [smallest, largest]"), std::string::npos)
      << problems_of(turned);
  EXPECT_NE(problems_of(turned).find("rato"), std::string::npos);
}

TEST(FlowEfficiency, ShippedFileIsRead) {
  const FlowEfficiency table =
      FlowEfficiency::load(PLUMB_SOURCE_DIR "/topologies/fidelity/flow_efficiency.yaml");
  EXPECT_GE(table.rows().size(), 10u);
  for (const EfficiencyRow& row : table.rows()) {
    // Packets lose time where flows do not. They may win where adaptive routing beats equal splitting: meshes
    // and dragonflies. Whole factors would be a mistake in either network.
    EXPECT_GT(row.ratio + row.spread, 0.9) << row.kind;
    EXPECT_LT(row.ratio, 1.6) << row.kind;
    EXPECT_TRUE(table.efficiency(row.kind, row.policy, row.ranks.min, row.bytes_per_pair.max)) << row.kind;
  }
}

}  // namespace
}  // namespace plumb::sim

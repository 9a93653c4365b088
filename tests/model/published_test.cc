// The public record: complete, and refused when it is not.
#include "model/published.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "model/error.h"

namespace plumb {
namespace {

const std::string kDirectory = PLUMB_SOURCE_DIR "/experiments/published/";

/// A file of the test's own directory with that text.
std::string file_of(const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / "plumb_published_test.yaml";
  std::ofstream(path) << text;
  return path.string();
}

std::string error_of(const std::string& text) {
  try {
    read_published(file_of(text));
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

std::string entry(const std::string& id, const std::string& values) {
  return "  - {id: " + id + ", system: S, op: dispatch, source: here, " + values + "}\n";
}

TEST(Published, RecordHasAllItsRows) {
  // 561 rows, as the record's own count says.
  const std::vector<PublishedRow> rows = read_published(kDirectory + "published.yaml");
  EXPECT_EQ(rows.size(), 561u);
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [](const auto& r) { return r.id == "deepep-v1-ll-2025-06-ep32-combine"; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->system, "DeepEP V1");
  EXPECT_EQ(row->topology, "8x4");
  EXPECT_EQ(row->unit, "us");
  EXPECT_EQ(row->value, 273);
  EXPECT_EQ(row->tokens, 128);
}

TEST(Published, SilentFieldsAreEmptyOrZero) {
  const std::vector<PublishedRow> rows = read_published(kDirectory + "published.yaml");
  EXPECT_EQ(rows[0].gpu, "");
  EXPECT_EQ(rows[0].experts, 0);
  EXPECT_EQ(rows[0].unit, "logical_rdma");  // it has a bandwidth and no latency
}

TEST(Published, HostRowsAreOneForEachNumberOfSms) {
  const std::vector<PublishedRow> rows = read_published(kDirectory + "peers_h200x2.yaml");
  const std::string id = "h200x2:DeepEP V2 dispatch fp8 T8192 24sm kernel_us";
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.id == id; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->sms, 24);
  EXPECT_EQ(row->value, 214.7);
  EXPECT_EQ(row->quantity, "kernel");
  EXPECT_EQ(row->system, "DeepEP V2 (dd758ca, NCCL 2.30.7)");
}

TEST(Published, RefusesRowsWithoutValueUnitOrUniqueId) {
  EXPECT_NE(
      error_of("schema: 1\nentries:\n" + entry("a", "ep: 8")).find("neither latency_us nor bandwidth_gbs"),
      std::string::npos);
  EXPECT_NE(error_of("schema: 1\nentries:\n" + entry("a", "bandwidth_gbs: 4")).find("has no bandwidth_kind"),
            std::string::npos);
  EXPECT_NE(error_of("schema: 1\nentries:\n" + entry("a", "latency_us: 4") + entry("a", "latency_us: 5"))
                .find("two rows have the id 'a'"),
            std::string::npos);
  EXPECT_NE(error_of("schema: 1\nentries:\n" + entry("a", "latency_us: 4, colour: red")).find("colour"),
            std::string::npos);
}

}  // namespace
}  // namespace plumb

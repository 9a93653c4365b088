// The house rules that a program can check: who includes whom, sizes of files, and that the maps name every
// file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = PLUMB_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<fs::path> sources_of(const std::string& component) {
  std::vector<fs::path> result;
  if (!fs::exists(kRoot / component)) return result;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / component)) {
    const std::string extension = entry.path().extension();
    if (extension == ".h" || extension == ".cuh" || extension == ".cc" || extension == ".cu")
      result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<std::string> includes_of(const fs::path& path) {
  static const std::regex pattern("#include [<\"]([^>\"]+)[>\"]");
  const std::string text = read(path);
  std::vector<std::string> result;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    result.push_back((*it)[1]);
  return result;
}

bool begins_with_any(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const auto& p) { return text.rfind(p, 0) == 0; });
}

TEST(Layering, ComponentsIncludeOnlyWhatStandsBelowThem) {
  // What a component must not include (own headers are included from the root).
  const std::map<std::string, std::vector<std::string>> forbidden = {
      {"model", {"sim/", "kernels/", "hw/", "tools/", "cuda", "nccl", "simgrid/"}},
      {"sim", {"kernels/", "hw/", "tools/", "cuda", "nccl"}},
      {"kernels", {"sim/", "hw/", "tools/", "simgrid/"}},
      {"hw", {"sim/", "tools/", "simgrid/"}},
  };
  for (const auto& [component, prefixes] : forbidden)
    for (const auto& path : sources_of(component))
      for (const auto& include : includes_of(path))
        EXPECT_FALSE(begins_with_any(include, prefixes)) << path << " includes " << include;
}

TEST(Layering, ThirdPartyStaysOutOfHeaders) {
  // Included by sources only; the one place that knows SimGrid's versions.
  const fs::path internal = kRoot / "sim/simgrid/compat.h";
  for (const std::string component : {"model", "sim"})
    for (const auto& path : sources_of(component)) {
      if (path.extension() != ".h") continue;
      for (const auto& include : includes_of(path))
        EXPECT_NE(include, "sim/simgrid/compat.h") << path << " passes SimGrid's headers on";
      if (path == internal) continue;
      for (const auto& include : includes_of(path))
        EXPECT_FALSE(begins_with_any(include, {"yaml-cpp/", "Eigen/", "simgrid/", "nlohmann/", "xxhash"}))
            << path << " includes " << include;
    }
}

TEST(Layering, OnlyTheCouplingKnowsSimGrid) {
  for (const auto& path : sources_of("sim")) {
    if (path.parent_path() == kRoot / "sim/simgrid") continue;
    for (const auto& include : includes_of(path))
      EXPECT_FALSE(begins_with_any(include, {"simgrid/", "sim/simgrid/"})) << path << " includes " << include;
  }
}

TEST(Layering, KernelsSeeOnlyDeviceSafeModelHeaders) {
  const std::set<std::string> allowed = {"model/hd.h", "model/ids.h", "model/layout.h", "model/schedule.h",
                                         "model/token_pools.h"};
  for (const auto& path : sources_of("kernels"))
    for (const auto& include : includes_of(path))
      if (include.rfind("model/", 0) == 0) {
        EXPECT_TRUE(allowed.count(include)) << path << " includes " << include;
      }
  for (const auto& header : allowed)
    for (const auto& include : includes_of(kRoot / header))
      EXPECT_TRUE(include == "cstdint" || allowed.count(include)) << header << " includes " << include;
}

TEST(Layering, FilesStayInTheirBudget) {
  for (const std::string component : {"model", "sim", "kernels", "hw", "tools"})
    for (const auto& path : sources_of(component)) {
      const std::string text = read(path);
      const auto lines = std::count(text.begin(), text.end(), '\n');
      EXPECT_LE(lines, path.extension() == ".h" ? 200 : 500) << path;
    }
}

TEST(Map, NamesEveryFileOfItsComponent) {
  for (const std::string component : {"model", "sim", "sim/simgrid", "kernels", "hw"}) {
    if (!fs::exists(kRoot / component)) continue;
    const fs::path map = kRoot / component / "README.md";
    if (sources_of(component).empty()) continue;
    ASSERT_TRUE(fs::exists(map)) << map;
    const std::string text = read(map);
    for (const auto& path : sources_of(component)) {
      // A folder with a map of its own speaks for itself.
      if (path.parent_path() != kRoot / component && fs::exists(path.parent_path() / "README.md")) continue;
      // A header stands for its source.
      if (path.extension() == ".cc" && fs::exists(fs::path(path).replace_extension(".h"))) continue;
      const std::string name = fs::relative(path, kRoot / component);
      EXPECT_NE(text.find("`" + name + "`"), std::string::npos) << map << " lacks " << name;
    }
  }
}

}  // namespace

// Machine files: the ones that ship, what reading refuses and in which words.
#include "model/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "model/error.h"

namespace plumb {
namespace {

/// A small machine, complete: 4 nodes of 8 GPUs, one NIC each, leaves of 4 rails.
constexpr const char* kSmall = R"(schema: plumb.machine/1
name: small
nodes: {default: 2, min: 1, max: 4}
gpu:
  name: test GPU
  sms: {value: 132, source: assumed for a test}
  hbm_rate: {value: 4800 GB/s, source: assumed for a test}
  sm_read_rate: {value: 200 GB/s, source: assumed for a test}
  sm_write_rate: {value: 50 GB/s, source: assumed for a test}
  copy_rate: {value: 1953 GB/s, source: assumed for a test}
  copy_engine_rate: {value: 2113 GB/s, source: assumed for a test}
scale_up:
  topology: switched
  ranks: 8
  planes: 4
  rate: {value: 450 GB/s, source: assumed for a test}
  latency: {value: 355 ns, source: assumed for a test}
scale_out:
  topology: fat_tree
  nics_per_node: 8
  down: [4, 8]
  up: [4, 0]
  radix: 64
  port_rate: {value: 400 Gbit/s, source: assumed for a test}
  nic_latency: {value: 1 us, source: assumed for a test}
  hop_latency: {value: 450 ns, source: assumed for a test}
  mtu_bytes: {value: 4096, source: assumed for a test}
)";

constexpr const char* kLanes = R"(lanes:
  count: 2
  buffer: {value: 64 KiB, source: assumed for a test}
  credit_unit: {value: 64 B, source: assumed for a test}
  sl_to_vl: [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
  high: [{lane: 1, weight: 4}]
  low: [{lane: 0, weight: 64}]
  high_limit: 0
  adaptive_levels: [1]
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  PLUMB_CHECK(at != std::string::npos, "no '{}'", from);
  return text.replace(at, from.size(), to);
}

Machine read(const std::string& text, int32_t nodes = 0) {
  ConfigFile file = ConfigFile::parse(text, "m.yaml");
  Machine machine = read_machine(file.root(), nodes);
  file.finish();
  return machine;
}

/// "line: message" of each problem, joined by newlines.
std::string problems_of(const std::string& text, int32_t nodes = 0) {
  try {
    read(text, nodes);
  } catch (const ConfigError& e) {
    std::string result;
    for (const Problem& p : e.problems())
      result += fmt::format("{}{}: {}", result.empty() ? "" : "\n", p.where.line, p.message);
    return result;
  }
  return "";
}

std::vector<std::string> machine_files() {
  std::vector<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator(PLUMB_SOURCE_DIR "/topologies"))
    if (entry.path().extension() == ".yaml") result.push_back(entry.path().string());
  std::sort(result.begin(), result.end());
  return result;
}

TEST(Machine, EveryFileIsReadAndConnectsAllRanks) {
  const auto files = machine_files();
  ASSERT_GE(files.size(), 14u);
  for (const std::string& path : files) {
    const Machine usual = read_machine(path);
    EXPECT_EQ(usual.name, std::filesystem::path(path).stem().string());
    EXPECT_FALSE(usual.description.empty()) << path;
    for (int32_t nodes : {usual.nodes, usual.min_nodes, usual.max_nodes}) {
      const Machine m = read_machine(path, nodes);
      const Fabric fabric = build_fabric(m);
      EXPECT_EQ(fabric.ranks(), nodes * m.ranks_per_node()) << path;
      EXPECT_LT(fabric.memory_bytes(), 50 << 20) << path;
      for (int32_t node : {0, nodes - 1})
        for (int32_t a = 0; a < m.ranks_per_node(); ++a)
          for (int32_t b = 0; b < m.ranks_per_node(); ++b)
            EXPECT_GE(fabric.distance(Link::scale_up, m.grouping().rank(node, a), m.grouping().rank(node, b)),
                      0);
      if (!std::holds_alternative<NoScaleOut>(m.scale_out.topology)) {
        EXPECT_EQ(fabric.unreachable(Link::scale_out), "") << path;
      }
    }
  }
}

TEST(Machine, EveryNumberOfTheFilesHasASource) {
  for (const std::string& path : machine_files()) {
    const Machine m = read_machine(path);
    std::vector<std::string> sources = {m.gpu.sms.source,          m.gpu.hbm_rate.source,
                                        m.gpu.sm_read_rate.source, m.gpu.sm_write_rate.source,
                                        m.gpu.copy_rate.source,    m.gpu.copy_engine_rate.source,
                                        m.scale_up.rate.source,    m.scale_up.latency.source};
    if (!std::holds_alternative<NoScaleOut>(m.scale_out.topology)) {
      sources.push_back(m.scale_out.port_rate.source);
      sources.push_back(m.scale_out.hop_latency.source);
      sources.push_back(m.scale_out.mtu_bytes.source);
    }
    if (m.scale_out.nics_per_node > 0) sources.push_back(m.scale_out.nic_latency.source);
    for (const std::string& source : sources) EXPECT_GT(source.size(), 12u) << path;
  }
}

TEST(Machine, PacketsAreThoseOfTheirKindWhereTheFileIsSilent) {
  // InfiniBand: LRH 8, BTH 12, RETH 16 (first packet), ICRC 4, VCRC 2. UnifiedBus: 4 + 8 + 16 + 16.
  const Machine silent = read(kSmall);
  EXPECT_EQ(silent.packet_form(Link::scale_out).header_bytes.value, 8 + 12 + 16 + 4 + 2);
  EXPECT_EQ(silent.packet_form(Link::scale_out).next_header_bytes.value, 8 + 12 + 4 + 2);
  EXPECT_EQ(silent.packet_form(Link::scale_out).buffer_round_trips.value, 1);
  EXPECT_EQ(silent.packet_form(Link::scale_up).header_bytes.value, 1);
  EXPECT_EQ(silent.packet_form(Link::scale_up).buffer_round_trips.value, 8);
  Machine planes = read_machine(PLUMB_SOURCE_DIR "/topologies/cloudmatrix384.yaml");
  EXPECT_TRUE(planes.is_unified_bus());
  planes.scale_up.packets = planes.scale_out.packets = {};
  for (const Link link : {Link::scale_up, Link::scale_out}) {
    EXPECT_EQ(planes.packet_form(link).header_bytes.value, 4 + 8 + 16 + 16);
    EXPECT_EQ(planes.packet_form(link).buffer_round_trips.value, 1);
  }
  const Machine given = read(with(kSmall, "  mtu_bytes: {value: 4096, source: assumed for a test}",
                                  "  mtu_bytes: {value: 4096, source: assumed for a test}\n"
                                  "  header_bytes: {value: 82, source: assumed for a test}\n"
                                  "  buffer_round_trips: {value: 3, source: assumed for a test}"));
  EXPECT_EQ(given.packet_form(Link::scale_out).header_bytes.value, 82);
  EXPECT_EQ(given.packet_form(Link::scale_out).next_header_bytes.value, 26);
  EXPECT_EQ(given.packet_form(Link::scale_out).buffer_round_trips.value, 3);
}

TEST(Machine, FilesHaveTheRatesOfTheirSources) {
  auto file = [](const char* name) {
    return read_machine(std::string(PLUMB_SOURCE_DIR "/topologies/") + name);
  };
  EXPECT_DOUBLE_EQ(file("h800-cx7.yaml").scale_up.rate.value.value, 200e9);
  EXPECT_DOUBLE_EQ(file("h800-cx7.yaml").scale_out_rate().value, 50e9);  // one 400 Gbit/s port
  EXPECT_DOUBLE_EQ(file("b300.yaml").scale_out_rate().value, 100e9);     // two
  // CloudMatrix384: 7 planes x 28 GB/s a die, and 16 uplinks for 16 dies. 16 dies a node.
  EXPECT_DOUBLE_EQ(file("cloudmatrix384.yaml").scale_out_rate().value, 196e9);
  EXPECT_EQ(file("cloudmatrix384.yaml").ranks(), 256);
  // UB-Mesh: 16 lanes of 112 Gbit/s leave a rack, over 6 (or 22) peers.
  EXPECT_NEAR(file("ub-mesh-pod.yaml").scale_out_rate().value, 224e9, 0.1e9);
  EXPECT_NEAR(file("atlas950-8192.yaml").scale_out_rate().value, 224e9, 0.1e9);
  EXPECT_EQ(file("h200x2.yaml").ranks(), 2);
  EXPECT_DOUBLE_EQ(file("h200x2.yaml").scale_up.store_rate.value.value, 364.5e9);
  EXPECT_DOUBLE_EQ(file("h200x1.yaml").scale_out_rate().value, 0);
}

TEST(Machine, ExampleOfItsDocumentIsRight) {
  std::ifstream in(PLUMB_SOURCE_DIR "/docs/machine.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t begin = text.find("```yaml\n") + 8;
  const Machine m = read(text.substr(begin, text.find("```", begin) - begin));
  // The numbers that the document derives from it.
  const Fabric fabric = build_fabric(m);
  EXPECT_NEAR(fabric.latency(Link::scale_out, 0, 8).value, 2800e-9, 1e-15);
  EXPECT_NEAR(fabric.latency(Link::scale_out, 0, 9).value, 3700e-9, 1e-15);
  EXPECT_EQ(to_string(effective_service_level({.traffic_class = 3}, std::nullopt), *m.lanes),
            "service level 3 (program), lane 1, adaptive routing on");
}

TEST(Machine, NodesComeFromTheFileOrTheCaller) {
  EXPECT_EQ(read(kSmall).ranks(), 16);
  EXPECT_EQ(read(kSmall, 4).ranks(), 32);
  EXPECT_EQ(read(kSmall, 4).grouping().scaleup, 8);
  EXPECT_EQ(problems_of(kSmall, 5), "3: 5 nodes, allowed are 1 to 4");
  EXPECT_EQ(read(with(kSmall, "{default: 2, min: 1, max: 4}", "4")).nodes, 4);
}

TEST(Machine, MissingAndUnknownKeysAreNamed) {
  EXPECT_EQ(problems_of(with(kSmall, "  radix: 64\n", "")), "18: missing key 'radix' in 'scale_out'");
  EXPECT_EQ(problems_of(with(kSmall, "topology: fat_tree", "topology: fat_trees")),
            "19: 'topology' is 'fat_trees', allowed: none, fat_tree, dragonfly, planes, mesh (did you mean "
            "'fat_tree'?)");
  EXPECT_EQ(problems_of(with(kSmall, "  planes: 4\n", "  planes: 4\n  plane: 4\n")).substr(0, 24),
            "16: unknown key 'plane' ");
  EXPECT_EQ(problems_of(with(kSmall, "down: [4, 8]", "down: []")), "21: 'down' is empty");
}

TEST(FieldCases, B25_ReadingReportsPortsWithPlace) {
  EXPECT_EQ(
      problems_of(with(kSmall, "down: [4, 8]", "down: [12, 8]")),
      "21: scale_out.down: tier 1: down 12 ports per leaf, but 4 nodes under one group bring 4 NIC ports to "
      "each rail: no multiple");
  EXPECT_EQ(problems_of(with(kSmall, "radix: 64", "radix: 7")),
            "23: scale_out.radix: tier 1: down 4 + up 4 = 8 ports in use, radix 7");
  EXPECT_EQ(
      problems_of(with(kSmall, "topology: switched\n  ranks: 8\n  planes: 4",
                       "topology: pairs\n  ranks: 8\n  cables: [{between: [0, 1]}, {between: [2, 3]}]")),
      "15: scale_up.cables: no path from rank 0 to rank 2 of a domain");
}

TEST(FieldCases, B52_OneLinkInFourSpellings) {
  const double rate = read(kSmall).scale_out.port_rate.value.value;
  EXPECT_DOUBLE_EQ(rate, 50e9);
  for (const char* text : {"400Gbps", "50GBps", "50000MBps", "50 GB/s"})
    EXPECT_DOUBLE_EQ(read(with(kSmall, "400 Gbit/s", text)).scale_out.port_rate.value.value, rate) << text;
  // 46.566 x 2^30 = 49.99986e9: the text has five digits.
  EXPECT_NEAR(read(with(kSmall, "400 Gbit/s", "46.566GiBps")).scale_out.port_rate.value.value, rate,
              1e-5 * rate);
  EXPECT_NE(problems_of(with(kSmall, "400 Gbit/s", "400")).find("expected a rate with a unit"),
            std::string::npos);
}

TEST(FieldCases, B52_BitsTakenForBytesFallOutOfRange) {
  const auto problem = [](const char* from, const char* to) { return problems_of(with(kSmall, from, to)); };
  EXPECT_EQ(problem("400 Gbit/s", "400 GB/s"),
            "24: 'port_rate' is 400 GB/s, allowed 10.00 GB/s .. 150.0 GB/s (b is a bit, B is a byte)");
  EXPECT_EQ(problem("400 Gbit/s", "50 Gbit/s"),
            "24: 'port_rate' is 50 Gbit/s, allowed 10.00 GB/s .. 150.0 GB/s (b is a bit, B is a byte)");
  EXPECT_EQ(problem("450 GB/s", "450 Gbit/s"),
            "16: 'rate' is 450 Gbit/s, allowed 120.0 GB/s .. 2.500 TB/s (b is a bit, B is a byte)");
  EXPECT_EQ(problem("4800 GB/s", "2000 Gbit/s"),
            "7: 'hbm_rate' is 2000 Gbit/s, allowed 400.0 GB/s .. 30.00 TB/s (b is a bit, B is a byte)");
}

TEST(FieldCases, B16_UnknownNicRateIsAnErrorNotZero) {
  EXPECT_EQ(problems_of(with(kSmall, "  port_rate: {value: 400 Gbit/s, source: assumed for a test}\n", "")),
            "18: missing key 'port_rate' in 'scale_out'");
  // A rate given by hand wins, and is what is reported.
  EXPECT_DOUBLE_EQ(read(with(kSmall, "400 Gbit/s", "200 Gbit/s")).scale_out_rate().value, 25e9);
}

TEST(Lanes, AreReadCompletely) {
  const Machine m = read(std::string(kSmall) + kLanes);
  ASSERT_TRUE(m.lanes.has_value());
  const Lanes& lanes = *m.lanes;
  EXPECT_EQ(lanes.count, 2);
  EXPECT_EQ(lanes.buffer.value.count, 65536);
  EXPECT_EQ(lanes.credit_unit.value.count, 64);
  EXPECT_EQ(lanes.lane(1), 1);
  EXPECT_EQ(lanes.lane(15), 0);
  ASSERT_EQ(lanes.high.size(), 1u);
  EXPECT_EQ(lanes.high[0].lane, 1);
  EXPECT_EQ(lanes.high[0].weight, 4);
  EXPECT_EQ(lanes.high_limit, 0);
  EXPECT_TRUE(lanes.adaptive[1]);
  EXPECT_EQ(std::count(lanes.adaptive.begin(), lanes.adaptive.end(), true), 1);
  EXPECT_FALSE(read(kSmall).lanes.has_value());
}

TEST(Lanes, RefuseWhatLinksCannotDo) {
  const std::string text = std::string(kSmall) + kLanes;
  const auto problem = [&](const std::string& from, const std::string& to) {
    return problems_of(with(text, from, to));
  };
  EXPECT_EQ(problem("[0, 1, 0, 0,", "[0, 1, 0, 2,"), "32: 'sl_to_vl[3]' is 2, allowed 0 .. 1");
  EXPECT_EQ(problem("[0, 1, 0, 0,", "[0, 1, 0,"),
            "32: sl_to_vl has 15 entries, it needs 16: one lane for each service level");
  EXPECT_EQ(problem("weight: 4", "weight: 256"), "33: 'weight' is 256, allowed 0 .. 255");
  EXPECT_EQ(problem("weight: 4", "weight: 0"),
            "32: service level 1 uses lane 1, which has no weight above 0 in high or low: its traffic would "
            "never be "
            "sent");
  EXPECT_EQ(problem("{lane: 0", "{lane: 2"), "34: 'lane' is 2, allowed 0 .. 1");
  EXPECT_EQ(problem("adaptive_levels: [1]", "adaptive_levels: [16]"),
            "36: 'adaptive_levels[0]' is 16, allowed 0 .. 15");
  EXPECT_EQ(problem("64 KiB", "4000 B"),
            "30: lanes.buffer: a lane buffers 4000 bytes, less than one packet of mtu_bytes 4096");
}

TEST(FieldCases, B48_EnvironmentOverridesWithAWarning) {
  const Program program = {.traffic_class = 3};
  const EffectiveLevel own = effective_service_level(program, std::nullopt);
  EXPECT_EQ(own.level, 3);
  EXPECT_EQ(own.origin, "program");
  EXPECT_EQ(own.warning, "");
  const EffectiveLevel other = effective_service_level(program, "0");
  EXPECT_EQ(other.level, 0);
  EXPECT_EQ(other.origin, "environment PLUMB_SL");
  EXPECT_EQ(other.warning, "environment PLUMB_SL=0 overrides service level 3 of the program");
  EXPECT_EQ(effective_service_level(program, "3").warning, "");  // nothing changes
  EXPECT_EQ(effective_service_level(program, "").level, 3);
}

TEST(FieldCases, B48_LevelsOutOfRangeAreRefused) {
  const auto message = [](uint8_t own, std::optional<std::string_view> environment) {
    try {
      effective_service_level({.traffic_class = own}, environment);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(3, "15"), "");
  EXPECT_EQ(message(3, "300"), "service level 300 from environment PLUMB_SL: allowed are 0 to 15");
  EXPECT_EQ(message(3, "-1"), "service level -1 from environment PLUMB_SL: allowed are 0 to 15");
  EXPECT_EQ(message(3, "3x"), "environment PLUMB_SL is '3x': a service level is a whole number from 0 to 15");
  EXPECT_EQ(message(3, "99999999999999999999"),
            "environment PLUMB_SL is '99999999999999999999': a service level is a whole number from 0 to 15");
  EXPECT_EQ(message(200, std::nullopt), "service level 200 from program: allowed are 0 to 15");
  EXPECT_EQ(message(200, "3"), "service level 200 from program: allowed are 0 to 15");
}

TEST(FieldCases, B48_AdaptiveRoutingIsReportedPerLevel) {
  // Adaptive routing on level 1 only, the job on level 0: the report says off.
  const Machine m = read(std::string(kSmall) + kLanes);
  const Program program = {.traffic_class = 0};
  EXPECT_EQ(to_string(effective_service_level(program, std::nullopt), *m.lanes),
            "service level 0 (program), lane 0, adaptive routing off");
  EXPECT_EQ(to_string(effective_service_level(program, "1"), *m.lanes),
            "service level 1 (environment PLUMB_SL), lane 1, adaptive routing on");
}

}  // namespace
}  // namespace plumb

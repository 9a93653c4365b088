// What a probe becomes: statistics, the machine file, the text of nvidia-smi; on a GPU, the probe itself.
#include <gtest/gtest.h>

#include "hw/probe.h"
#include "hw/probe_machine.h"
#include "hw/probe_rig.h"
#include "model/error.h"
#include "tests/hw/rig.h"

namespace plumb::hw::test {
namespace {

/// A probe of made-up numbers: a point of `gbs` GB/s of 16 MB takes 16000 / gbs us.
Probe made_up(int32_t gpus) {
  Probe probe{.gpu = "GPU Nine",
              .driver = "580.1.2",
              .cuda_driver = 13000,
              .cuda_runtime = 13000,
              .date = "2026-01-02",
              .gpus = gpus,
              .peers = PeerAccess(gpus),
              .sms = 100,
              .memory_gbs = 4000,
              .links = 18,
              .link_gbs = 26.5};
  for (int32_t b = 1; b < gpus; ++b)
    for (int32_t a = 0; a < b; ++a) probe.peers.join(a, b);
  const auto add = [&](const char* how, const char* path, const char* way, int32_t sms, double gbs) {
    const double us = 16000 / gbs;
    probe.points.push_back({how, path, way, sms, 16'000'000, true, {us, us * 0.99, us * 1.01, 9}});
  };
  add("load", "local", "", 1, 200);
  add("bulk_copy", "local", "", 1, 50);
  add("bulk_copy", "local", "", 100, 1600);
  add("copy_engine", "local", "", 0, 2000);
  add("copy_engine", "0->1", "push", 0, 400);
  add("copy_engine", "both", "push", 0, 390);
  add("bulk_copy", "both", "push", 100, 360);
  add("bulk_load", "both", "pull", 100, 330);
  probe.times = {{"load_local", "", {0.15, 0.15, 0.15, 9}}, {"load_peer", "", {0.85, 0.85, 0.85, 9}}};
  return probe;
}

Machine read(const std::string& text) {
  ConfigFile file = ConfigFile::parse(text, "probed");
  Machine machine = read_machine(file.root(), 0);
  file.finish();
  return machine;
}

TEST(Probe, WritesWhatItMeasuredWithSources) {
  const Machine m = read(machine_file(made_up(2), "probed", nullptr));
  EXPECT_EQ(m.name, "probed");
  EXPECT_EQ(m.ranks(), 2);
  EXPECT_EQ(m.gpu.sms.value, 100);
  EXPECT_DOUBLE_EQ(m.gpu.hbm_rate.value.value, 4000e9);
  EXPECT_DOUBLE_EQ(m.gpu.sm_read_rate.value.value, 200e9);
  EXPECT_DOUBLE_EQ(m.gpu.sm_write_rate.value.value, 50e9);
  EXPECT_DOUBLE_EQ(m.gpu.copy_rate.value.value, 1600e9);
  EXPECT_DOUBLE_EQ(m.gpu.copy_engine_rate.value.value, 2000e9);
  EXPECT_DOUBLE_EQ(m.scale_up.store_rate.value.value, 360e9);
  EXPECT_DOUBLE_EQ(m.scale_up.load_rate.value.value, 330e9);
  EXPECT_DOUBLE_EQ(m.scale_up.copy_engine_rate.value.value, 390e9);
  EXPECT_DOUBLE_EQ(m.scale_up.reported_rate.value.value, 477e9);  // 18 x 26.5
  EXPECT_NEAR(m.scale_up.latency.value.value, 350e-9, 1e-12);     // (850 - 150) / 2 ns
  EXPECT_EQ(m.gpu.sm_write_rate.source,
            "measured 2 x GPU Nine, driver 580.1.2, CUDA 13.0, 2026-01-02: bulk_copy by 1 "
            "SM, 15 MiB, cold, spread 2.0 %");
  EXPECT_TRUE(m.scale_up.rate.source.starts_with("assumed")) << m.scale_up.rate.source;
}

TEST(Probe, KeepsFromTheBaseWhatCannotBeMeasured) {
  Machine base = read(machine_file(made_up(2), "base", nullptr));
  base.gpu.name = "GPU Nine SXM";
  base.gpu.hbm_rate = {gigabytes_per_second(4800), "datasheet GPU Nine"};
  base.scale_up.rate = {gigabytes_per_second(450), "datasheet GPU Nine"};
  const Machine m = read(machine_file(made_up(2), "probed", &base));
  EXPECT_EQ(m.gpu.name, "GPU Nine SXM");
  EXPECT_DOUBLE_EQ(m.gpu.hbm_rate.value.value, 4800e9);
  EXPECT_EQ(m.scale_up.rate.source, "datasheet GPU Nine");
  EXPECT_DOUBLE_EQ(m.gpu.copy_rate.value.value, 1600e9);
  base.gpu.sms.value = 132;
  EXPECT_THROW(machine_file(made_up(2), "probed", &base), Error);
}

TEST(Probe, OneGpuMakesAMachineWithoutANetwork) {
  const Machine m = read(machine_file(made_up(1), "probed", nullptr));
  EXPECT_EQ(m.ranks(), 1);
  EXPECT_TRUE(m.scale_up.rate.source.starts_with("assumed")) << m.scale_up.rate.source;
}

TEST(FieldCases, B43_TwoIslandsAreNoScaleUpDomainAndOneOfThemIs) {
  Probe probe = made_up(8);
  probe.peers = PeerAccess(8);
  for (const int32_t first : {0, 4})
    for (int32_t a = first; a < first + 4; ++a)
      for (int32_t b = first; b < a; ++b) probe.peers.join(a, b);
  try {
    machine_file(probe, "probed", nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::environment);
    EXPECT_EQ(std::string(error.what()),
              "8 GPUs make no scale-up domain, as 0-4, 0-5, 0-6, 0-7, 1-4, 1-5, 1-6, 1-7 and 8 more do not "
              "reach each other's memory; GPUs 0, 1, 2, 3 do; CUDA_VISIBLE_DEVICES chooses");
  }
  EXPECT_EQ(read(machine_file(made_up(4), "island", nullptr)).ranks_per_node(), 4);
}

TEST(Probe, SpreadIsMedianAndTenths) {
  // 0 .. 10: median 5, 10 % = 1, 90 % = 9, (9 - 1) / 5 = 1.6.
  std::vector<double> us;
  for (int i = 10; i >= 0; --i) us.push_back(i);
  const Spread s = spread_of(us);
  EXPECT_EQ(s.median_us, 5);
  EXPECT_EQ(s.low_us, 1);
  EXPECT_EQ(s.high_us, 9);
  EXPECT_EQ(s.repeats, 11);
  EXPECT_DOUBLE_EQ(s.relative(), 1.6);
}

TEST(Probe, CountsTheLinksThatNvidiaSmiPrints) {
  const Links links = links_of(
      "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: "
      "<inactive>\n");
  EXPECT_EQ(links.count, 2);
  EXPECT_DOUBLE_EQ(links.gbs, 26.562);
  EXPECT_EQ(links_of("No devices were found\n").count, 0);
  EXPECT_EQ(links_of("").count, 0);
}

TEST(Probe, SmCountsEndWithAllSms) {
  EXPECT_EQ(sm_counts(4), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(sm_counts(132).back(), 132);
  EXPECT_EQ(sm_counts(132).front(), 1);
}

TEST(GpuProbe, MeasuresAMachineThatCanBeRead) {
  PLUMB_NEED_DEVICE();
  const Probe probe = run_probe({.seconds = 0.1, .min_repeats = 1, .max_repeats = 1});
  const Machine m = read(machine_file(probe, "probed", nullptr));
  EXPECT_EQ(m.ranks(), probe.gpus);
  // More SMs never copy less than one, and no SM alone copies what all do.
  EXPECT_GT(m.gpu.copy_rate.value.value, 2 * m.gpu.sm_write_rate.value.value);
  for (const ProbeTime& t : probe.times) EXPECT_GT(t.time.median_us, 0) << t.name;
}

}  // namespace
}  // namespace plumb::hw::test

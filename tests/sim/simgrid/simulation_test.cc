// Kernels on SMs and HBM, overlapped with each other and with communication, in closed form; ends of runs.
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <simgrid/s4u.hpp>

#include "sim/simgrid/session.h"
#include "tests/sim/simgrid/coupled.h"

namespace plumb::sim {
namespace {

constexpr GpuSettings kGpu = {.sms = 132, .hbm = gigabytes_per_second(3000)};

/// End dates of kernels that start together on one GPU, in ns.
std::vector<int64_t> ends_of(const std::vector<Kernel>& kernels) {
  const std::string text = run_in_child([&] {
    Simulation simulation(1, kGpu);
    std::vector<double> ends(kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i)
      simulation.add_actor(0, fmt::format("kernel {}", i), [&, i] {
        simulation.execute(0, kernels[i]);
        ends[i] = Simulation::now().value;
      });
    simulation.run();
    std::string lines;
    for (double end : ends) lines += fmt::format("{}\n", std::llround(end * 1e9));
    return lines;
  });
  std::vector<int64_t> result;
  std::istringstream in(text);
  for (int64_t ns; in >> ns;) result.push_back(ns);
  return result;
}

TEST(Kernel, TimeAloneDoesNotDependOnItsSms) {
  for (int32_t sms : {1, 24, 132})
    EXPECT_EQ(ends_of({{.sms = sms, .time = microseconds(200)}}), std::vector<int64_t>{200'000}) << sms;
}

TEST(Kernel, SharesSmsByTheirNumber) {
  // 100 and 64 SMs wanted of 132: both run at 132 / 164 of their speed: 10 us x 164 / 132 = 12.424 us.
  EXPECT_EQ(ends_of({{.sms = 100, .time = microseconds(10)}, {.sms = 64, .time = microseconds(10)}}),
            (std::vector<int64_t>{12'424, 12'424}));
  // 100 and 32: both have all they want.
  EXPECT_EQ(ends_of({{.sms = 100, .time = microseconds(10)}, {.sms = 32, .time = microseconds(7)}}),
            (std::vector<int64_t>{10'000, 7'000}));
}

TEST(Kernel, SharesTheMemory) {
  // 30 MB and 15 MB at 3 TB/s: 1.5 TB/s each until the second one is done after 10 us; the first one has 15
  // MB left, 5 us. Its SM time of 12 us is hidden.
  EXPECT_EQ(ends_of({{.sms = 64, .time = microseconds(12), .hbm_bytes = 30'000'000},
                     {.sms = 64, .time = microseconds(1), .hbm_bytes = 15'000'000}}),
            (std::vector<int64_t>{15'000, 10'000}));
}

TEST(Kernel, OverlapsWithCommunication) {
  // A GEMM of 200 us on 108 SMs beside a send of 4 chunks: each is copied in 5 us by 24 SMs and 65536 B go
  // out in 16 packets, (65536 + 42 + 15 x 26) x 20 ps = 1.31936 us, while the next one is copied. The last
  // lands 20 us + 1.31936 us + 2 x 300 ns after the start; the GEMM is not disturbed. With 132 SMs for the
  // GEMM, both slow down by 156 / 132 while they overlap: the copies take 20 x 156 / 132 = 23.636 us, the
  // GEMM 200 us + 23.636 us x (1 - 132 / 156) = 203.636 us.
  for (int32_t sms : {108, 132}) {
    const std::string text = run_in_child([&] {
      const Fabric fabric = star(2);
      Simulation simulation(2, kGpu);
      Session session(2);
      PacketNetwork network(fabric, packet_settings(), session);
      session.couple(network, simulation);
      double gemm = 0, landed = 0;
      simulation.add_actor(0, "gemm", [&] {
        simulation.execute(0, {.sms = sms, .time = microseconds(200)});
        gemm = Simulation::now().value;
      });
      simulation.add_actor(0, "send", [&] {
        for (int chunk = 0; chunk < 4; ++chunk) {
          simulation.execute(0, {.sms = 24, .time = microseconds(5)});
          session.send(0, {.dst = 1, .bytes = 65536});
        }
      });
      simulation.add_actor(1, "receive", [&] {
        session.wait_arrived(1, {.bytes = 4 * 65536});
        landed = Simulation::now().value;
      });
      simulation.run();
      return fmt::format("{} {}", std::llround(gemm * 1e9), std::llround(landed * 1e9));
    });
    EXPECT_EQ(text, sms == 108 ? "200000 21919" : "203636 25556");
  }
}

std::string failure(const std::function<void()>& body) {
  try {
    run_in_child([&] {
      body();
      return std::string();
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Simulation, WhatAnActorThrowsLeavesTheRun) {
  EXPECT_EQ(failure([] {
              Simulation simulation(2, kGpu);
              simulation.add_actor(0, "good", [] { Simulation::sleep({1}); });
              simulation.add_actor(1, "bad", [] { throw std::runtime_error("rank 1 gave up"); });
              simulation.run();
            }),
            "rank 1 gave up");
}

TEST(Simulation, RefusesWhatMakesNoSense) {
  EXPECT_EQ(failure([] { const Simulation simulation(0, {}); }), "a simulation of 0 ranks with 1 SMs each");
  EXPECT_EQ(failure([] {
              const Simulation one(1, {});
              const Simulation two(1, {});
            }),
            "SimGrid's engine already has hosts; a process can have one simulation");
  EXPECT_EQ(failure([] {
              Simulation simulation(1, kGpu);
              simulation.add_actor(0, "a", [&] { simulation.execute(0, {.sms = 133}); });
              simulation.run();
            }),
            "a kernel on 133 SMs of rank 0, which has 132");
  EXPECT_EQ(failure([] {
              Simulation simulation(1, {.sms = 8});
              simulation.add_actor(0, "a", [&] { simulation.execute(0, {.hbm_bytes = 5}); });
              simulation.run();
            }),
            "a kernel moves 5 bytes of HBM, which is not modelled");
}

TEST(Simulation, ActorsOfOthersThatHangAreNamed) {
  const std::string text = failure([] {
    Simulation simulation(1, {});
    simulation.add_actor(0, "sleeper", [] { simgrid::s4u::this_actor::suspend(); });
    simulation.run();
  });
  EXPECT_NE(text.find("actor 'sleeper' on rank 0 waits for ever"), std::string::npos) << text;
}

}  // namespace
}  // namespace plumb::sim

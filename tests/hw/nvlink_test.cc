// The NVLink world: one process per GPU. The parent touches no CUDA, so that its children may.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "hw/cuda_executor.h"
#include "hw/launch.h"
#include "hw/nvlink_world.h"
#include "hw/processes.h"
#include "model/error.h"
#include "tests/hw/semantics.h"
#include "tests/model/host_case.h"

namespace plumb::hw::test {
namespace {

using namespace std::chrono_literals;
using plumb::test::HostCase;

constexpr int kDiffers = 2;

#define PLUMB_NEED_TWO_GPUS()                                                      \
  do {                                                                             \
    const VisibleGpus gpus_ = visible_gpus();                                      \
    if (gpus_.peers.together() < 2)                                                \
      GTEST_SKIP() << gpus_.peers.together() << " GPUs together " << gpus_.reason; \
  } while (false)

/// Random cases of two ranks, each process with its own rank. Returns the exit code of the process.
int run_cases(const Seat& seat, const NvlinkId& id) {
  check(cudaSetDevice(seat.local_rank), "device of the rank");
  const std::shared_ptr<World> world = make_nvlink_world(id, seat.rank, seat.ranks);
  const char* asked = std::getenv("PLUMB_GPU_CASES");
  const uint64_t cases = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 40;
  int differences = 0;  // both ranks go through all cases, as calls are collective
  for (uint64_t seed = 1; seed <= cases; ++seed) {
    Case c = random_case(seed, seat.ranks);
    c.together = false;
    c.host_sync = seed % 2 == 0;
    differences += run_case(c, world);
  }
  std::printf("rank %d of %d by %s: %llu cases, %d differ\n", seat.rank, seat.ranks, seat.launcher.c_str(),
              static_cast<unsigned long long>(cases), differences);
  return differences == 0 ? 0 : kDiffers;
}

/// Forks two ranks, or is one of those that torchrun or mpirun started.
TEST(GpuNvlink, RandomShapesOfTwoProcessesEqualTheReferenceBitForBit) {
  PLUMB_NEED_TWO_GPUS();
  EXPECT_EQ(launch({.ranks = 2, .run = 120s}, make_nvlink_id, run_cases), 0);
}

HostCase direct_case(ProgramKind kind, int32_t ranks) {
  HostCase c;
  c.shape = uniform_shape(ranks, 16, 4, 40, 256);
  c.shape.dispatch_type = DType::fp8_e4m3;
  plumb::test::Dice dice(7);
  c.table = plumb::test::random_table(c.shape, 10, dice);
  c.scaleup = ranks;
  c.expert = ExpertFunction::weighted;
  c.program.kind = kind;
  if (kind != ProgramKind::combine) c.program.placement = RowPlacement::direct;
  c.program.num_sms = 3;
  return c;
}

Trace run_in(WorldChoice world, const HostCase& c, const Plan& plan) {
  const Routing routing = c.routing();
  CudaExecutor executor(
      {.shape = c.shape, .routing = routing, .seed = c.seed, .expert = c.expert, .values = {}, .options = {}},
      {.repeat = 3,
       .check = CheckBytes::always,
       .world = world,
       .nvlink = {.make_id = make_nvlink_id, .make_world = make_nvlink_world}});
  return executor.run(plan);
}

TEST(FieldCases, B42_RanksTakeAGpuEachWithoutANicAndTheTraceSaysSo) {
  PLUMB_NEED_TWO_GPUS();
  for (const ProgramKind kind : {ProgramKind::dispatch, ProgramKind::combine, ProgramKind::round_trip}) {
    HostCase c = direct_case(kind, 2);
    c.program.expand = kind == ProgramKind::round_trip;
    if (c.program.expand) c.shape.alignment = 8;
    SCOPED_TRACE(to_string(c.program));
    const Plan plan = c.plan();
    const Trace trace = run_in(WorldChoice::automatic, c, plan);
    EXPECT_NE(trace.header.note.find("nvlink world, a GPU for each rank; kernels, 3 SMs for each of 2 ranks"),
              std::string::npos)
        << trace.header.note;
    EXPECT_NE(trace.header.note.find("bytes equal the host's"), std::string::npos);
    EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
    EXPECT_GT(trace.total.value, 1e-6);
    EXPECT_EQ(trace.waits.size(), 2u);
    // Each rank's first stamp is its own t = 0.
    for (Rank rank = 0; rank < 2; ++rank) {
      int64_t first = 1;
      for (const Span& span : trace.spans)
        if (span.rank == rank) first = std::min(first, span.begin_ns);
      EXPECT_EQ(first, 0) << rank;
    }
  }
}

TEST(GpuNvlink, ARankWhoseBytesDifferEndsTheRunInItsError) {
  PLUMB_NEED_TWO_GPUS();
  const HostCase c = direct_case(ProgramKind::dispatch, 2);
  HostCase other = c;
  other.seed = 2;
  const Plan plan = c.plan();
  HostExecutor host = c.executor();
  HostExecutor oracle = other.executor();
  oracle.run(plan);
  try {
    run_forked({.make_id = make_nvlink_id, .make_world = make_nvlink_world}, plan, host.batch(),
               {.oracle = &oracle.result(), .expert = c.expert}, [] { return std::string("a GPU"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);
    const std::string text = error.what();
    EXPECT_EQ(text.substr(6), ": row 0 of 'received' is not the host's") << text;  // "rank 0" or "rank 1"
  }
}

TEST(GpuNvlink, TooFewGpusAreAnErrorWhenAskedForAndTheLocalWorldElse) {
  if (visible_gpus().count == 0) GTEST_SKIP() << "no CUDA device: " << visible_gpus().reason;
  const int32_t together = visible_gpus().peers.together();
  const HostCase c = direct_case(ProgramKind::dispatch, 16);
  if (together >= 16) GTEST_SKIP() << "there are " << together << " GPUs";
  const std::string why = fmt::format("16 ranks, {} GPU{} other's memory", together,
                                      together == 1 ? " that reaches each" : "s that reach each");
  const auto outcomes = run_ranks(1, 60s, [&](Rank, Meeting&) {
    const Plan plan = c.plan();
    const auto error_of = [&](const HostCase& asked) {
      try {
        run_in(WorldChoice::nvlink, asked, asked.plan());
        return std::string();
      } catch (const Error& error) {
        return std::string(error.what());
      }
    };
    EXPECT_EQ(error_of(c), "run.world is nvlink: " + why + "; allowed here: auto, local");
    HostCase engram = c;
    engram.program = {.kind = ProgramKind::engram};
    engram.program.fetches = 1;
    engram.program.table_rows = 16;
    EXPECT_EQ(error_of(engram), "run.world is nvlink: no kernels of engram; allowed here: auto, local");
    // Last: this process uses CUDA from here on.
    const Trace trace = run_in(WorldChoice::automatic, c, plan);
    EXPECT_NE(trace.header.note.find("local world (" + why + "); kernels"), std::string::npos)
        << trace.header.note;
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(failures(outcomes), "");
}

}  // namespace
}  // namespace plumb::hw::test

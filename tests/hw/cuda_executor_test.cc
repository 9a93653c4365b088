// The CUDA executor: kernels and interpreter deliver the host's bytes and the plan's ledger, and their traces
// say honestly what was measured.
#include "hw/cuda_executor.h"

#include <sstream>

#include "hw/kernel_run.h"
#include "model/error.h"
#include "tests/hw/rig.h"
#include "tests/model/host_case.h"

namespace plumb::hw::test {
namespace {

using plumb::test::HostCase;

HostInput input_of(const HostCase& c, const Routing& routing) {
  return {.shape = c.shape,
          .routing = routing,
          .seed = c.seed,
          .expert = c.expert,
          .values = {},
          .options = c.options};
}

Trace run_checked(const HostCase& c, const Plan& plan, int32_t repeat = 1) {
  const Routing routing = c.routing();
  CudaExecutor executor(input_of(c, routing), {.repeat = repeat, .check = CheckBytes::always});
  return executor.run(plan);
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// A round trip of 4 ranks with masks.
HostCase direct_case() {
  HostCase c;
  c.shape = uniform_shape(4, 16, 4, 40, 256);
  plumb::test::Dice dice(7);
  c.table = plumb::test::random_table(c.shape, 10, dice);
  c.scaleup = 4;
  c.expert = ExpertFunction::scaled;
  c.program.kind = ProgramKind::round_trip;
  c.program.placement = RowPlacement::direct;
  c.program.num_sms = 3;
  return c;
}

TEST(CudaExecutor, KernelsDeliverTheBytesAndTheLedgerOfRandomPlans) {
  PLUMB_NEED_DEVICE();
  for (const ProgramKind kind : {ProgramKind::dispatch, ProgramKind::combine, ProgramKind::round_trip})
    for (uint32_t seed = 2000; seed < 2020; ++seed) {
      HostCase c = plumb::test::random_case(kind, seed);
      c.scaleup = c.shape.ranks;
      c.program.mode = Mode::direct;
      if (kind != ProgramKind::combine) c.program.placement = RowPlacement::direct;
      SCOPED_TRACE(fmt::format("{} seed {}", to_string(c.program), seed));
      const Plan plan = c.plan();
      const Trace trace = run_checked(c, plan);
      EXPECT_TRUE(contains(trace.header.note, "; kernels, ")) << trace.header.note;
      EXPECT_TRUE(contains(trace.header.note, "bytes equal the host's")) << trace.header.note;
      EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
      if (HasFailure()) return;
    }
}

TEST(CudaExecutor, TraceOfKernelsHasStampsBytesAndWaits) {
  PLUMB_NEED_DEVICE();
  const HostCase c = direct_case();
  const Plan plan = c.plan();
  const Trace trace = run_checked(c, plan, 5);
  EXPECT_EQ(trace.header.executor, "cuda");
  EXPECT_EQ(trace.header.clock, "globaltimer");
  EXPECT_TRUE(contains(trace.header.note, "3 SMs for each of 4 ranks")) << trace.header.note;
  EXPECT_TRUE(contains(trace.header.note, "median of 5 cold calls")) << trace.header.note;
  EXPECT_GT(trace.total.value, 1e-6);
  EXPECT_LT(trace.total.value, 1.0);
  EXPECT_EQ(trace.waits.size(), 4u * 3u);

  // Each byte stands on one span; spans begin at 0 and never end before they begin.
  const std::vector<LedgerEntry> totals = phase_totals(trace);
  std::vector<int64_t> bytes(totals.size());
  int64_t first = 1;
  for (const Span& span : trace.spans) {
    bytes[static_cast<size_t>(span.phase)] += span.bytes;
    first = std::min(first, span.begin_ns);
    EXPECT_LE(span.begin_ns, span.end_ns);
  }
  EXPECT_EQ(first, 0);
  for (size_t p = 0; p < totals.size(); ++p) EXPECT_EQ(bytes[p], totals[p].bytes) << trace.header.phases[p];
  const auto time = [&](const char* phase) { return trace.phase_times[*plan.find_phase(phase)].time.value; };
  for (const char* phase : {"notify", "counts", "dispatch", "flush", "combine_enter", "combine_reduce"})
    EXPECT_GT(time(phase), 0) << phase;
  // No barrier before an uncached dispatch, experts are not run, reads and sums of combine are one stage.
  for (const char* phase : {"enter", "experts", "combine_up"}) EXPECT_EQ(time(phase), 0) << phase;

  std::ostringstream text;
  write_csv(text, trace);
  std::istringstream in(text.str());
  EXPECT_EQ(read_csv(in, "cuda.csv").waits, trace.waits);
}

TEST(CudaExecutor, CachedDispatchHasAnEntryAndNoCounts) {
  PLUMB_NEED_DEVICE();
  HostCase c = direct_case();
  c.program.kind = ProgramKind::dispatch;
  c.program.cached = true;
  const Plan plan = c.plan();
  const Trace trace = run_checked(c, plan, 2);
  EXPECT_FALSE(plan.find_phase("notify"));
  EXPECT_GT(trace.phase_times[*plan.find_phase("enter")].time.value, 0);
  EXPECT_GT(trace.phase_times[*plan.find_phase("dispatch")].time.value, 0);
}

TEST(CudaExecutor, SaysThatRanksShareTheGpu) {
  PLUMB_NEED_DEVICE();
  HostCase c = direct_case();
  c.program.num_sms = 1000;
  const Trace trace = run_checked(c, c.plan());
  EXPECT_TRUE(contains(trace.header.note, "(not 1000: they share the GPU)")) << trace.header.note;
}

TEST(CudaExecutor, InterpretsWhatKernelsDoNotServeAndSaysWhy) {
  PLUMB_NEED_DEVICE();
  const auto note_of = [](const HostCase& c) {
    const Plan plan = c.plan();
    const Trace trace = run_checked(c, plan, 3);
    EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
    EXPECT_GT(trace.total.value, 0);
    EXPECT_FALSE(trace.waits.empty());
    return trace.header.note;
  };
  HostCase c = direct_case();
  c.program.placement = RowPlacement::staged;
  EXPECT_TRUE(contains(note_of(c),
                       "; interpreter (the kernels place rows directly); median of 3 runs; bytes "
                       "equal the host's"));
  c = direct_case();
  c.scaleup = 2;
  EXPECT_TRUE(contains(note_of(c), "no kernels between 2 scale-up domains"));
  c = direct_case();
  c.program = {.kind = ProgramKind::v1_dispatch};
  EXPECT_TRUE(contains(note_of(c), "no kernels of v1_dispatch"));
  c = direct_case();
  c.program.placement = RowPlacement::staged;
  c.options.window_bytes = 64;
  EXPECT_TRUE(contains(note_of(c), "interpreter"));
}

/// By kernels and by the interpreter.
void expect_both_ways(HostCase c) {
  for (const RowPlacement placement : {RowPlacement::direct, RowPlacement::staged}) {
    c.program.placement = placement;
    SCOPED_TRACE(to_string(c.program));
    const Plan plan = c.plan();
    const Trace trace = run_checked(c, plan);
    EXPECT_EQ(difference(plan, account(plan), trace.ledger), "");
    EXPECT_EQ(contains(trace.header.note, "interpreter"), placement == RowPlacement::staged);
  }
}

TEST(CudaExecutor, PassesTheBatteryOfExecutors) {
  PLUMB_NEED_DEVICE();
  HostCase one_rank = direct_case();
  one_rank.shape = uniform_shape(1, 16, 4, 40, 256);
  one_rank.table.resize(40 * 4);
  one_rank.scaleup = 1;
  expect_both_ways(one_rank);

  HostCase one_token = direct_case();
  one_token.shape.tokens = {0, 0, 1, 0};
  one_token.table = {15, 3, kNone, 4};
  expect_both_ways(one_token);

  HostCase no_token = one_token;
  no_token.shape.tokens = {0, 0, 0, 0};
  no_token.table.clear();
  expect_both_ways(no_token);

  HostCase skewed = direct_case();  // all to the experts 0 .. 3 of rank 0
  for (size_t i = 0; i < skewed.table.size(); ++i) skewed.table[i] = static_cast<int32_t>(i % 4);
  expect_both_ways(skewed);

  const HostCase c = direct_case();
  const Plan empty({.kind = ProgramKind::background}, {.ranks = 4, .scaleup = 4});
  const Trace trace = run_checked(c, empty);
  EXPECT_EQ(trace.total.value, 0);
  EXPECT_TRUE(trace.spans.empty());
}

/// Rank 0 holds tokens [-1,-1], [-1,3], [2,3], whose masked weights are NaN; experts 2 and 3 live on rank 1.
TEST(FieldCases, B02_MaskedChoicesSendNothingByKernelsAndInterpreter) {
  PLUMB_NEED_DEVICE();
  HostCase c = direct_case();
  c.shape = uniform_shape(2, 4, 2, 3, 256);
  c.shape.tokens = {3, 0};
  c.table = {kNone, kNone, kNone, 3, 2, 3};
  c.scaleup = 2;
  c.program.num_biases = 1;
  c.expert = ExpertFunction::weighted;
  expect_both_ways(c);
  c.program.placement = RowPlacement::direct;
  const Plan plan = c.plan();
  const Trace trace = run_checked(c, plan);
  // Token 0 goes nowhere, 1 and 2 once each.
  EXPECT_EQ(trace.ledger.total(*plan.find_phase("dispatch")).messages, 2);
  EXPECT_EQ(trace.ledger.total(*plan.find_phase("dispatch")).bytes,
            2 * c.shape.dispatch_layout().record_bytes);
}

TEST(CudaExecutor, BytesThatAreNotTheHostsAreAnError) {
  PLUMB_NEED_DEVICE();
  const HostCase c = direct_case();
  HostCase other = c;
  other.seed = 2;
  const Plan plan = c.plan();
  HostExecutor host = c.executor();
  HostExecutor oracle = other.executor();
  oracle.run(plan);
  try {
    const auto world = make_local_world(4);
    hw::run_kernels(*world, plan, host.batch(), {.oracle = &oracle.result(), .expert = c.expert});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);
    EXPECT_STREQ(error.what(), "rank 0: row 0 of 'received' is not the host's");
  }
}

TEST(CudaExecutor, WithoutAGpuSaysWhy) {
  std::string_view reason;
  if (device_count(&reason) > 0) GTEST_SKIP() << "there is a GPU";
  const HostCase c = direct_case();
  const Routing routing = c.routing();
  try {
    CudaExecutor executor(input_of(c, routing), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::environment);
    EXPECT_EQ(std::string(error.what()), "no GPU: " + std::string(reason));
  }
}

}  // namespace
}  // namespace plumb::hw::test

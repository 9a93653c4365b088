// The interpreter leaves in the ranks' memories, byte by byte, what the host executor leaves there, with the
// plan's ledger; bad plans end in an error that names who waits for what.
#include "hw/interpreter.h"

#include <algorithm>
#include <cstdlib>

#include "model/compare.h"
#include "model/error.h"
#include "model/host.h"
#include "model/plans/derive.h"
#include "tests/hw/rig.h"
#include "tests/model/host_case.h"

namespace plumb::hw::test {
namespace {

using plumb::test::HostCase;

/// "" when all memories are equal, else where they differ first.
std::string memory_difference(const Plan& plan, const HostMemory& expected, const HostMemory& found) {
  for (size_t i = 0; i < plan.regions().size(); ++i)
    for (Rank r = 0; r < plan.grouping().ranks; ++r) {
      const auto region = static_cast<RegionId>(i);
      for (int64_t slot = 0; slot < expected.rows(region, r); ++slot) {
        const auto a = expected.row(region, r, slot);
        const auto b = found.row(region, r, slot);
        if (!std::equal(a.begin(), a.end(), b.begin(), b.end()))
          return fmt::format("row {} of '{}' on rank {}", slot, plan.regions()[i].name, r);
      }
    }
  return "";
}

InterpreterResult expect_as_host(const HostCase& c, const Plan& plan,
                                 const InterpreterOptions& options = {}) {
  HostExecutor host = c.executor();
  host.run(plan);
  HostMemory memory(plan, c.shape, c.options);
  fill_initial(plan, host.batch(), c.expert, memory);
  InterpreterResult result = interpret(plan, host.batch(), c.expert, options, memory);
  EXPECT_EQ(memory_difference(plan, host.result().memory(), memory), "");
  EXPECT_EQ(difference(plan, account(plan), Ledger(result.moved)), "");
  return result;
}

void expect_random_cases(ProgramKind kind, uint32_t first_seed) {
  const char* asked = std::getenv("PLUMB_GPU_CASES");
  const auto cases = asked != nullptr ? static_cast<uint32_t>(std::strtoul(asked, nullptr, 10)) : 25;
  for (uint32_t seed = first_seed; seed < first_seed + cases; ++seed) {
    HostCase c = plumb::test::random_case(kind, seed);
    c.program.message = Bytes{static_cast<int64_t>(1 + seed * 97 % 40'000)};
    c.program.fetches = static_cast<int32_t>(1 + seed % 7);
    c.program.table_rows = 1 + seed % 50;
    if (kind == ProgramKind::reduce_scatter) c.program.message = Bytes{2 * static_cast<int64_t>(1 + seed)};
    SCOPED_TRACE(fmt::format("{} seed {}", to_string(c.program), seed));
    const Plan plan = c.plan();
    expect_as_host(c, plan, {.blocks = seed % 2 == 0 ? 0 : 1});
    if (testing::Test::HasFailure()) return;
  }
}

class InterpreterRuns : public testing::TestWithParam<ProgramKind> {};

TEST_P(InterpreterRuns, WhatTheHostRunsByteForByte) {
  PLUMB_NEED_DEVICE();
  expect_random_cases(GetParam(), 1000);
}

INSTANTIATE_TEST_SUITE_P(AllPrograms, InterpreterRuns,
                         testing::Values(ProgramKind::dispatch, ProgramKind::combine, ProgramKind::round_trip,
                                         ProgramKind::all_to_all, ProgramKind::v1_dispatch,
                                         ProgramKind::v1_combine, ProgramKind::low_latency_dispatch,
                                         ProgramKind::low_latency_combine, ProgramKind::send_recv,
                                         ProgramKind::all_gather, ProgramKind::reduce_scatter,
                                         ProgramKind::engram, ProgramKind::background),
                         [](const auto& param) { return std::string(to_string(param.param)); });

HostCase round_trip_case() {
  HostCase c;
  c.shape = uniform_shape(8, 32, 4, 30, 512);
  c.shape.dispatch_type = DType::fp8_e4m3;
  plumb::test::Dice dice(5);
  c.table = plumb::test::random_table(c.shape, 10, dice);
  c.scaleup = 4;
  c.expert = ExpertFunction::weighted;
  c.program.kind = ProgramKind::round_trip;
  c.program.mode = Mode::hybrid;
  return c;
}

TEST(Interpreter, RunsBackgroundTrafficBesideAPlan) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  HostCase noise = c;
  noise.program = {.kind = ProgramKind::background};
  noise.program.message = Bytes{100'001};
  const Plan plan = overlay(c.plan(), noise.plan(), "noise.");
  expect_as_host(c, plan);
}

TEST(Interpreter, MovesOnlyTheWindowOfTheHost) {
  PLUMB_NEED_DEVICE();
  HostCase c = round_trip_case();
  c.options.window_bytes = 64;
  const Plan plan = c.plan();
  expect_as_host(c, plan);  // the ledger counts whole rows
}

TEST(Interpreter, StampsOpsInTheOrderOfTheirEdges) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  const Plan plan = c.plan();
  const InterpreterResult result = expect_as_host(c, plan);
  // The global timer ticks in steps: an op may seem to begin up to one tick before its edge was seen.
  constexpr int64_t kTick = 2000;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const OpTimes& times = result.times[static_cast<size_t>(id)];
    EXPECT_LE(times.taken_ns, times.begin_ns);
    EXPECT_LE(times.begin_ns, times.end_ns);
    for (const Dep& dep : plan.deps(id))
      EXPECT_LE(result.times[static_cast<size_t>(dep.op)].end_ns,
                (dep.on == On::stream ? times.end_ns : times.begin_ns) + kTick)
          << id;
  }
  for (const Span& span : spans_of(plan, result)) EXPECT_LE(span.begin_ns, span.end_ns);
  EXPECT_EQ(waits_of(plan, result).size(), 8u * 7u);
}

TEST(OpTimes, ARankWaitsOnlyWhileNoneOfItsBlocksWorks) {
  Plan plan({.kind = ProgramKind::background}, {.ranks = 2, .scaleup = 2});
  const PhaseId phase = plan.add_phase({.name = "flags", .row_bytes = 8});
  const auto put = [&](Rank src, Rank dst) {
    return Op{
        .link = Link::scale_up, .phase = phase, .src = src, .dst = dst, .messages = 1, .rows = 1, .bytes = 8};
  };
  const OpId sent = plan.add(put(0, 1));
  plan.add({.kind = OpKind::wait, .phase = phase, .src = 1, .dst = 1}, {{sent, On::arrived}});
  plan.add(put(1, 0));
  const int32_t barrier = plan.add_barrier({.link = Link::scale_up, .members = 2});
  const OpId join = plan.add({.kind = OpKind::barrier, .phase = phase, .src = 0, .dst = 0, .rows = barrier});
  plan.add({.kind = OpKind::barrier, .phase = phase, .src = 1, .dst = 1, .rows = barrier});
  plan.add({.kind = OpKind::wait, .phase = phase, .src = 0, .dst = 0}, {{join, On::arrived}});
  InterpreterResult result;
  // Rank 1 waits for rank 0 from 10 to 100, but another block of it works from 30 to 60: 60 ns. Rank 0 waits
  // from 130 for rank 1, which joins at 170: 40 ns; its own join does not count.
  result.times = {{0, 0, 100},     {10, 100, 105},  {20, 30, 60},
                  {105, 110, 120}, {150, 160, 170}, {130, 172, 173}};
  result.moved.resize(6);
  EXPECT_EQ(waits_of(plan, result), (std::vector<Wait>{{0, 1, 60}, {1, 0, 40}}));
  result.moved[0] = {.phase = phase, .src = 0, .dst = 1, .messages = 1, .bytes = 8};
  const std::vector<Span> spans = spans_of(plan, result);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0],
            (Span{.rank = 0, .phase = phase, .begin_ns = 0, .end_ns = 173, .messages = 1, .bytes = 8}));
  EXPECT_EQ(spans[1].begin_ns, 30);
  EXPECT_EQ(spans[1].end_ns, 170);
}

/// Rank 1 is late by 3 ms in a compute op that all others wait for.
TEST(Interpreter, WaitsNameTheRankThatIsLate) {
  PLUMB_NEED_DEVICE();
  HostCase c = round_trip_case();
  Plan plan({.kind = ProgramKind::background}, {.ranks = 8, .scaleup = 8});
  const PhaseId work = plan.add_phase({.name = "work", .duration = {3e-3}});
  const PhaseId flags = plan.add_phase({.name = "flags", .row_bytes = 8});
  const PhaseId idle = plan.add_phase({.name = "idle"});
  const OpId late = plan.add({.kind = OpKind::compute, .phase = work, .src = 1, .dst = 1});
  std::vector<std::vector<Dep>> arrivals(8);
  for (Rank s = 0; s < 8; ++s)
    for (Rank d = 0; d < 8; ++d) {
      if (s == d) continue;
      const Op op{
          .link = Link::scale_up, .phase = flags, .src = s, .dst = d, .messages = 1, .rows = 1, .bytes = 8};
      const std::vector<Dep> on = s == 1 ? std::vector<Dep>{{late, On::arrived}} : std::vector<Dep>{};
      arrivals[static_cast<size_t>(d)].push_back({plan.add(op, on), On::arrived});
    }
  for (Rank r = 0; r < 8; ++r)
    plan.add({.kind = OpKind::wait, .phase = idle, .src = r, .dst = r}, arrivals[static_cast<size_t>(r)]);
  HostExecutor host = c.executor();
  HostMemory memory(plan, c.shape, {});
  const InterpreterResult result = interpret(plan, host.batch(), c.expert, {}, memory);
  Trace trace;
  trace.header.executor = "cuda";
  trace.waits = waits_of(plan, result);
  const auto findings = diagnose(*wait_matrix(std::span(&trace, 1), "cuda"));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].cause, WaitCause::slow_sender);
  EXPECT_EQ(findings[0].source, 1);
  EXPECT_GT(findings[0].wait.value, 2e-3);
  EXPECT_EQ(difference(plan, account(plan), Ledger(result.moved)), "");
}

/// Rank 0 puts 4096 rows of 16 KiB to rank 1, which hands them on to rank 2: 64 MiB by one block each.
Plan relay_plan(On on) {
  constexpr int32_t kRows = 4096, kRowBytes = 16384;
  Plan plan({.kind = ProgramKind::background}, {.ranks = 8, .scaleup = 8});
  for (const char* name : {"first", "second", "third"})
    plan.add_region(
        {.name = name, .row_bytes = kRowBytes, .layout = {}, .rows = std::vector<int64_t>(8, kRows)});
  OpId before = kNone;
  for (const RegionId from : {RegionId{0}, RegionId{1}}) {
    const PhaseId phase = plan.add_phase({.name = from == 0 ? "put" : "relay",
                                          .chunk_rows = 16,
                                          .row_bytes = kRowBytes,
                                          .from = from,
                                          .to = static_cast<RegionId>(from + 1)});
    Op op{.link = Link::scale_up,
          .phase = phase,
          .src = from,
          .dst = from + 1,
          .messages = kRows,
          .rows = kRows};
    op.bytes = int64_t{kRows} * kRowBytes;
    for (int32_t i = 0; i < kRows; ++i) {
      const int32_t item = plan.add_item({.src_slot = i, .dst_slot = i});
      if (i == 0) op.first_item = item;
    }
    before = before == kNone ? plan.add(op) : plan.add(op, {{before, on}});
  }
  return plan;
}

TEST(Interpreter, AStreamIsFollowedChunkByChunkAndAnArrivalIsNot) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  const auto run = [&](On on) {
    const Plan plan = relay_plan(on);
    HostExecutor host = c.executor();
    HostMemory memory(plan, c.shape, {});
    fill_initial(plan, host.batch(), c.expert, memory);
    const InterpreterResult result = interpret(plan, host.batch(), c.expert, {}, memory);
    for (int64_t slot = 0; slot < memory.rows(0, 0); ++slot) {
      const auto sent = memory.row(0, 0, slot);
      const auto came = memory.row(2, 2, slot);
      if (!std::equal(sent.begin(), sent.end(), came.begin(), came.end())) {
        ADD_FAILURE() << "row " << slot;
        break;
      }
    }
    EXPECT_EQ(difference(plan, account(plan), Ledger(result.moved)), "");
    return result;
  };
  const InterpreterResult streamed = run(On::stream);
  const InterpreterResult arrived = run(On::arrived);
  // One after the other, or side by side but for a chunk of 256.
  EXPECT_GE(arrived.times[1].begin_ns + 2000, arrived.times[0].end_ns);
  EXPECT_LT(streamed.times[1].begin_ns, streamed.times[0].end_ns / 2);
  EXPECT_GE(streamed.times[1].end_ns + 2000, streamed.times[0].end_ns);
}

/// The message of the error that a plan ends in.
std::string error_of(const HostCase& c, const Plan& plan, const InterpreterOptions& options = {}) {
  HostExecutor host = c.executor();
  HostMemory memory(plan, c.shape, {});
  try {
    interpret(plan, host.batch(), c.expert, options, memory);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(FieldCases, B44_AMemberThatNeverJoinsABarrierEndsInAnErrorThatNamesIt) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  Plan plan({.kind = ProgramKind::dispatch}, {.ranks = 8, .scaleup = 8});
  const PhaseId enter = plan.add_phase({.name = "enter"});
  const int32_t barrier = plan.add_barrier({.link = Link::scale_up, .members = 8});
  for (Rank r = 0; r < 8; ++r) {
    if (r == 5) continue;  // dead
    const OpId join =
        plan.add({.kind = OpKind::barrier, .phase = enter, .src = r, .dst = r, .rows = barrier});
    if (r == 3) plan.add({.kind = OpKind::wait, .phase = enter, .src = 3, .dst = 3}, {{join, On::arrived}});
  }
  EXPECT_EQ(error_of(c, plan, {.timeout_ns = 20'000'000}),
            "rank 3 gave up after 20 ms: op 4 (wait, phase 'enter', rank 3 -> 3) waits for barrier 0 by op 3 "
            "(barrier, phase 'enter', rank 3 -> 3): expected 8 members, seen 7");
  const Plan good = c.plan();
  expect_as_host(c, good);  // the process goes on
}

TEST(Interpreter, ALateOpEndsInAnErrorThatNamesIt) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  Plan plan({.kind = ProgramKind::dispatch}, {.ranks = 8, .scaleup = 8});
  const PhaseId work = plan.add_phase({.name = "work", .duration = {0.2}});
  const OpId late = plan.add({.kind = OpKind::compute, .phase = work, .src = 2, .dst = 2});
  plan.add({.kind = OpKind::wait, .phase = work, .src = 2, .dst = 2}, {{late, On::arrived}});
  EXPECT_EQ(
      error_of(c, plan, {.blocks = 2, .timeout_ns = 10'000'000}),
      "rank 2 gave up after 10 ms: op 1 (wait, phase 'work', rank 2 -> 2) waits for op 0 (compute, phase "
      "'work', rank 2 -> 2): expected flag 1, seen 0");
}

TEST(Interpreter, RefusesWhatItCannotRun) {
  PLUMB_NEED_DEVICE();
  const HostCase c = round_trip_case();
  const Routing routing = c.routing();
  const Plan without_rows =
      build_plan({.shape = c.shape, .routing = routing, .program = c.program, .grouping = {8, 4}});
  const Plan plan = c.plan();
  HostMemory memory(plan, c.shape, {});
  HostExecutor host = c.executor();
  EXPECT_THROW(interpret(plan, host.batch(), c.expert, {.blocks = 1'000}, memory), Error);
  EXPECT_THROW(interpret(plan, host.batch(), c.expert, {.memory_limit = 1000}, memory), Error);
  EXPECT_THROW(interpret(without_rows, host.batch(), c.expert, {}, memory), Error);

  Plan wild({.kind = ProgramKind::background}, {.ranks = 8, .scaleup = 8});
  const PhaseId phase = wild.add_phase({.name = "wild", .row_bytes = 64, .from = 0, .to = 1});
  Op op{.link = Link::scale_up, .phase = phase, .src = 0, .dst = 1, .messages = 1, .rows = 1, .bytes = 64};
  op.first_item = wild.add_item({.src_slot = 0, .dst_slot = 3});
  wild.add(op);
  for (const char* name : {"input", "received"})
    wild.add_region({.name = name, .row_bytes = 64, .layout = {}, .rows = std::vector<int64_t>(8, 2)});
  EXPECT_EQ(error_of(c, wild), "op 0 (phase 'wild', rank 0 -> 1) writes slot 3, of 0 .. 1");
}

}  // namespace
}  // namespace plumb::hw::test

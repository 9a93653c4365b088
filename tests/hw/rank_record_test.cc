// Records of ranks become one result: times, spans, ledger and waits. No GPU.
#include "hw/rank_record.h"

#include <gtest/gtest.h>

#include "hw/gpus.h"

namespace plumb::hw {
namespace {

using kernels::Step;

Plan two_rank_plan() {
  Plan plan({.kind = ProgramKind::round_trip}, {.ranks = 2, .scaleup = 2});
  for (const char* name : {"notify", "dispatch", "flush", "combine_up", "combine_reduce"})
    plan.add_phase({.name = name});
  return plan;
}

void stamp(kernels::Counters& counters, Step step, uint64_t begin_ns, uint64_t end_ns) {
  counters.begin_ns[static_cast<size_t>(step)] = begin_ns;
  counters.end_ns[static_cast<size_t>(step)] = end_ns;
}

/// Rank 1 runs the same steps, its clock ahead by `ahead_ns`, combine 5 ns longer.
std::vector<RankRecord> records(uint64_t ahead_ns) {
  std::vector<RankRecord> by_rank(2);
  for (size_t r = 0; r < 2; ++r) {
    RankRecord& record = by_rank[r];
    const uint64_t t = 1000 + r * ahead_ns;
    record.sms = 7;
    kernels::Counters& counters = record.counters[0];
    stamp(counters, Step::notify, t, t + 10);
    stamp(counters, Step::dispatch, t + 10, t + 30);
    stamp(counters, Step::flush, t + 40, t + 50);
    stamp(counters, Step::combine_reduce, t + 90, t + 100 + 5 * r);
    counters.messages[static_cast<size_t>(Step::dispatch)][1 - r] = 3;
    counters.bytes[static_cast<size_t>(Step::dispatch)][1 - r] = 300;
    counters.messages[static_cast<size_t>(Step::combine_up)][1 - r] = 2;
    counters.bytes[static_cast<size_t>(Step::combine_up)][1 - r] = 200 + r;
    counters.waited_ns[static_cast<size_t>(Step::flush)][1 - r] = 20 + r;
    record.counters.fill(counters);
  }
  by_rank[0].total_s = {5e-6, 4e-6};
  by_rank[1].total_s = {3e-6, 6e-6};
  by_rank[0].counted_s = {6e-6, 5e-6};
  by_rank[1].counted_s = {4e-6, 7e-6};
  return by_rank;
}

TEST(RankRecord, EachCallTakesAsLongAsItsSlowestRank) {
  const KernelRunResult result = join_records(two_rank_plan(), records(0), StampClock::per_rank);
  EXPECT_DOUBLE_EQ(result.total.value, 11e-6);    // 5 + 6
  EXPECT_DOUBLE_EQ(result.counted.value, 13e-6);  // 6 + 7
  EXPECT_EQ(result.sms, 7);
}

TEST(RankRecord, RanksWithClocksOfTheirOwnStartTogether) {
  const Plan plan = two_rank_plan();
  const KernelRunResult shared = join_records(plan, records(0), StampClock::shared);
  const KernelRunResult apart = join_records(plan, records(1'000'000), StampClock::per_rank);
  EXPECT_EQ(apart.spans, shared.spans);
  // Dispatch ends when flush begins, 40 after the first stamp; its call ends at 50, where combine begins.
  const auto find = [&](Rank rank, const char* phase) {
    for (const Span& span : apart.spans)
      if (span.rank == rank && span.phase == *plan.find_phase(phase)) return span;
    return Span{};
  };
  EXPECT_EQ(find(1, "notify").begin_ns, 0);
  EXPECT_EQ(find(1, "dispatch").end_ns, 40);
  EXPECT_EQ(find(0, "combine_reduce").begin_ns, 50);
  EXPECT_EQ(find(1, "combine_reduce").end_ns, 65);
  EXPECT_EQ(find(1, "combine_up").bytes, 201);
  // With one clock the ranks would seem to be 1 ms apart.
  EXPECT_NE(join_records(plan, records(1'000'000), StampClock::shared).spans, shared.spans);
}

TEST(RankRecord, TheCountedCallOfMedianLengthIsTold) {
  const Plan plan = two_rank_plan();
  const KernelRunResult usual = join_records(plan, records(0), StampClock::per_rank);
  std::vector<RankRecord> late = records(0);
  for (const size_t call : {0, 3}) {  // rank 0 waits 90 us for rank 1 in two of five
    stamp(late[0].counters[call], Step::flush, 1040, 91'000);
    late[0].counters[call].waited_ns[static_cast<size_t>(Step::flush)][1] = 90'000;
  }
  const KernelRunResult told = join_records(plan, late, StampClock::per_rank);
  EXPECT_EQ(told.spans, usual.spans);
  EXPECT_EQ(told.waits, usual.waits);
}

TEST(RankRecord, LedgerAndWaitsNameTheirRanks) {
  const Plan plan = two_rank_plan();
  const KernelRunResult result = join_records(plan, records(0), StampClock::per_rank);
  const PhaseId dispatch = *plan.find_phase("dispatch"), up = *plan.find_phase("combine_up");
  // Rank r puts to the other; in combine it reads: rows go from the other to r.
  const Ledger expected(
      {{dispatch, 0, 1, 3, 300}, {dispatch, 1, 0, 3, 300}, {up, 1, 0, 2, 200}, {up, 0, 1, 2, 201}});
  EXPECT_EQ(result.ledger, expected);
  EXPECT_EQ(result.waits, (std::vector<Wait>{{0, 1, 21}, {1, 0, 20}}));
}

TEST(VisibleGpus, AreCountedInAProcessOfTheirOwnOrTheReasonIsGiven) {
  const VisibleGpus gpus = visible_gpus();
  EXPECT_LE(gpus.peers.together(), gpus.count);
  EXPECT_EQ(gpus.peers.together() > 0, gpus.count > 0);
  EXPECT_TRUE(gpus.count > 0 || !gpus.reason.empty());
}

}  // namespace
}  // namespace plumb::hw

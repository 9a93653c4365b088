// Ledgers: merging, accounting of a plan, and the text of a difference.
#include "model/ledger.h"

#include <gtest/gtest.h>

#include "model/error.h"

namespace plumb {
namespace {

Plan two_phase_plan() {
  Plan plan(Program{}, Grouping{.ranks = 4, .scaleup = 2});
  plan.add_phase({.name = "notify"});
  plan.add_phase({.name = "send"});
  return plan;
}

Op op_of(OpKind kind, PhaseId phase, Rank src, Rank dst, int32_t messages, int64_t bytes) {
  Op op;
  op.kind = kind;
  op.link = src == dst ? Link::local : Link::scale_up;
  op.phase = phase;
  op.src = src;
  op.dst = dst;
  op.messages = messages;
  op.bytes = bytes;
  return op;
}

TEST(Ledger, SortsMergesAndDropsEmptyEntries) {
  const Ledger ledger(
      {{1, 0, 1, 1, 10}, {0, 3, 0, 2, 5}, {1, 0, 1, 2, 20}, {0, 1, 0, 0, 0}, {0, 0, 3, 1, 0}});
  const std::vector<LedgerEntry> expected = {{0, 0, 3, 1, 0}, {0, 3, 0, 2, 5}, {1, 0, 1, 3, 30}};
  EXPECT_EQ(ledger.entries(), expected);
  EXPECT_EQ(ledger, Ledger(expected));
}

TEST(Ledger, TotalsAreSumsOverAllPairs) {
  const Ledger ledger({{0, 0, 1, 1, 8}, {2, 0, 1, 3, 30}, {2, 1, 0, 4, 40}});
  EXPECT_EQ(ledger.total(), (LedgerEntry{0, 0, 0, 8, 78}));
  EXPECT_EQ(ledger.total(PhaseId{2}), (LedgerEntry{2, 0, 0, 7, 70}));
  EXPECT_EQ(ledger.total(PhaseId{1}), (LedgerEntry{1, 0, 0, 0, 0}));
  EXPECT_EQ(Ledger().total(), LedgerEntry{});
}

TEST(Ledger, HoldsSumsAbove32BitsAndRefusesThoseAbove63) {
  const int64_t big = int64_t{1} << 62;
  EXPECT_EQ(Ledger({{0, 0, 1, 1, big}, {0, 0, 1, 1, big - 1}}).total().bytes, 9223372036854775807);
  EXPECT_THROW(Ledger({{0, 0, 1, 1, big}, {0, 0, 1, 1, big}}), LogicError);
  EXPECT_THROW(Ledger({{0, 0, 1, -1, 0}}), LogicError);
}

TEST(Ledger, PhaseTotalsAreThoseOfTheLedger) {
  Plan plan = two_phase_plan();
  plan.add(op_of(OpKind::put, 0, 0, 1, 2, 16));
  plan.add(op_of(OpKind::put, 1, 0, 1, 1, 100));
  plan.add(op_of(OpKind::get, 1, 1, 0, 3, 50));
  plan.add(op_of(OpKind::wait, 1, 1, 1, 9, 9));  // moves nothing
  const auto totals = account_phases(plan);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0], (LedgerEntry{0, 0, 0, 2, 16}));
  EXPECT_EQ(totals[1], (LedgerEntry{1, 0, 0, 4, 150}));
  EXPECT_EQ(totals[1].bytes, account(plan).total(PhaseId{1}).bytes);
}

TEST(Ledger, PhaseTotalsBeyond63BitsAreAnError) {
  Plan plan = two_phase_plan();
  plan.add(op_of(OpKind::put, 0, 0, 1, 1, int64_t{1} << 62));
  plan.add(op_of(OpKind::put, 0, 0, 2, 1, int64_t{1} << 62));
  EXPECT_THROW(account_phases(plan), Error);
}

TEST(Ledger, AccountsOpsThatMoveBytesFromSourceToDestination) {
  Plan plan = two_phase_plan();
  plan.add(op_of(OpKind::put, 0, 0, 1, 2, 100));
  plan.add(op_of(OpKind::get, 0, 1, 0, 1, 7));  // issued by 0, moves 1 -> 0
  plan.add(op_of(OpKind::copy, 1, 2, 2, 3, 300));
  plan.add(op_of(OpKind::reduce, 1, 2, 2, 4, 44));  // same phase and pair as the copy
  plan.add(op_of(OpKind::put, 0, 0, 1, 5, 1000));
  plan.add(op_of(OpKind::wait, 1, 3, 3, 1, 0));
  plan.add(op_of(OpKind::compute, 1, 3, 3, 1, 99));
  plan.add_barrier({.link = Link::scale_up, .members = 1});
  plan.add(op_of(OpKind::barrier, 1, 3, 3, 1, 0));
  EXPECT_EQ(account(plan), Ledger({{0, 0, 1, 7, 1100}, {0, 1, 0, 1, 7}, {1, 2, 2, 7, 344}}));
}

TEST(Ledger, OfAnEmptyPlanIsEmpty) { EXPECT_EQ(account(two_phase_plan()), Ledger()); }

TEST(Ledger, DifferenceNamesPhasePairExpectedAndMeasured) {
  const Plan plan = two_phase_plan();
  const Ledger expected({{0, 0, 1, 1, 8}, {1, 0, 1, 2, 20}, {1, 2, 3, 2, 20}});
  const Ledger measured({{0, 0, 1, 1, 8}, {1, 0, 1, 2, 10}, {1, 3, 2, 1, 5}});
  EXPECT_EQ(difference(plan, expected, expected), "");
  EXPECT_EQ(difference(plan, expected, measured),
            "phase 1 'send' 0 -> 1: expected 2 messages, 20 bytes; measured 2 messages, 10 bytes\n"
            "phase 1 'send' 2 -> 3: expected 2 messages, 20 bytes; measured nothing\n"
            "phase 1 'send' 3 -> 2: expected nothing; measured 1 messages, 5 bytes\n");
}

TEST(Ledger, DifferenceCountsWhatExceedsTheLimit) {
  const Plan plan = two_phase_plan();
  const Ledger expected({{0, 0, 1, 1, 8}, {0, 0, 2, 1, 8}, {0, 0, 3, 1, 8}});
  EXPECT_EQ(difference(plan, expected, Ledger(), 1),
            "phase 0 'notify' 0 -> 1: expected 1 messages, 8 bytes; measured nothing\nand 2 more\n");
}

TEST(Ledger, DifferenceShowsAPhaseThatThePlanDoesNotHave) {
  EXPECT_EQ(difference(two_phase_plan(), Ledger(), Ledger({{9, 0, 1, 1, 8}})),
            "phase 9 '?' 0 -> 1: expected nothing; measured 1 messages, 8 bytes\n");
}

}  // namespace
}  // namespace plumb

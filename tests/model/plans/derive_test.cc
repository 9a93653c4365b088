// What derived plans conserve.
#include "model/plans/derive.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "model/error.h"
#include "model/ledger.h"
#include "model/plans/builders.h"

namespace plumb {
namespace {

constexpr Grouping kTwoNodes{.ranks = 8, .scaleup = 4};

Shape small_shape() {
  Shape shape = uniform_shape(8, 32, 4, 10, 256);
  shape.tokens = {10, 0, 7, 10, 3, 10, 1, 10};
  return shape;
}

Plan plan_of(const Program& program, bool items = false) {
  const Shape shape = small_shape();
  const Routing routing = Routing::generate(shape, {.seed = 5, .masked_ratio = 0.1});
  return build_plan({shape, routing, program, kTwoNodes, items});
}

using Key = std::tuple<Link, Rank, Rank>;

/// Rows of network ops by (link, from, to); of phases whose name begins with `prefix`.
std::map<Key, int64_t> network_rows(const Plan& plan, bool turned, const std::vector<std::string>& phases) {
  std::map<Key, int64_t> rows;
  for (const Op& op : plan.ops()) {
    const std::string& name = plan.phases()[op.phase].name;
    if (op.kind != OpKind::put || std::find(phases.begin(), phases.end(), name) == phases.end()) continue;
    rows[turned ? Key{op.link, op.dst, op.src} : Key{op.link, op.src, op.dst}] += op.rows;
  }
  return rows;
}

TEST(Reverse, ReturnsAsManyRowsOnEveryPath) {
  for (const Mode mode : {Mode::direct, Mode::hybrid})
    for (const bool items : {false, true}) {
      const Plan dispatch = plan_of({.mode = mode}, items);
      const Plan combine = plan_of({.kind = ProgramKind::combine, .mode = mode}, items);
      const auto there = network_rows(dispatch, false, {"dispatch", "remote", "rail", "forward"});
      const auto back = network_rows(combine, true, {"combine_up", "combine_remote", "combine_rail"});
      EXPECT_FALSE(there.empty());
      EXPECT_EQ(there, back);
    }
}

TEST(Reverse, IsTheSamePlanWithAndWithoutRows) {
  for (const Mode mode : {Mode::direct, Mode::hybrid})
    for (const bool expand : {false, true})
      for (const RowPlacement placement : {RowPlacement::staged, RowPlacement::direct}) {
        const Program program{
            .kind = ProgramKind::combine, .mode = mode, .placement = placement, .expand = expand};
        EXPECT_EQ(plan_of(program, true).digest(), plan_of(program, false).digest()) << to_string(program);
      }
}

TEST(Reverse, SingleReductionSendsEveryCopyHome) {
  // Hybrid with single reduction: each (token, rank) copy crosses the rail, as many as in direct mode.
  const Plan single =
      plan_of({.kind = ProgramKind::combine, .mode = Mode::hybrid, .multiple_reduction = false}, true);
  const Plan direct = plan_of({.kind = ProgramKind::combine, .mode = Mode::direct}, true);
  int64_t over_rail = 0;
  int64_t over_network = 0;
  for (const auto& [key, rows] : network_rows(single, false, {"combine_rail"})) over_rail += rows;
  for (const auto& [key, rows] : network_rows(direct, false, {"combine_remote"})) over_network += rows;
  EXPECT_GT(over_rail, 0);
  EXPECT_EQ(over_rail, over_network);
  EXPECT_THROW(plan_of({.kind = ProgramKind::combine, .mode = Mode::hybrid, .multiple_reduction = false}),
               Error);
}

TEST(Without, LeavesAllOtherOpsAndJoinsTheirEdges) {
  const Plan plan = plan_of({.mode = Mode::direct});
  const Plan less = without(plan, "notify");
  const auto phase = *plan.find_phase("notify");
  size_t kept = 0;
  for (const Op& op : plan.ops()) kept += op.phase != phase;
  EXPECT_EQ(less.ops().size(), kept);
  EXPECT_EQ(account(less).total().bytes, account(plan).total().bytes - account(plan).total(phase).bytes);
  EXPECT_THROW(without(plan, "nothing"), Error);
}

TEST(Without, KeepsAChainThroughARemovedStep) {
  // a -> b -> c on one rank; without b, c waits for a.
  Plan plan(Program{}, {.ranks = 1, .scaleup = 1});
  for (const char* name : {"a", "b", "c"}) plan.add_phase({.name = name});
  const auto wait = [](PhaseId phase) { return Op{.kind = OpKind::wait, .phase = phase}; };
  plan.add(wait(0));
  plan.add(wait(1), {{0, On::arrived}});
  plan.add(wait(2), {{1, On::arrived}});
  const Plan less = without(plan, "b");
  ASSERT_EQ(less.ops().size(), 2u);
  ASSERT_EQ(less.deps(1).size(), 1u);
  EXPECT_EQ(less.deps(1)[0], (Dep{0, On::arrived}));
}

TEST(Append, ConservesBothPlansAndOrdersThem) {
  const Plan round_trip = plan_of({.kind = ProgramKind::round_trip, .mode = Mode::hybrid}, true);
  const Plan dispatch = plan_of({.mode = Mode::hybrid}, true);
  const Plan combine = plan_of({.kind = ProgramKind::combine, .mode = Mode::hybrid}, true);
  EXPECT_EQ(account(round_trip).total().bytes,
            account(dispatch).total().bytes + account(combine).total().bytes);
  EXPECT_EQ(round_trip.ops().size(),
            dispatch.ops().size() + combine.ops().size() + 8);  // one compute op a rank
  // Every op of combine waits for something: nothing starts before the experts.
  const auto experts = *round_trip.find_phase("experts");
  for (OpId id = 0; id < static_cast<OpId>(round_trip.ops().size()); ++id)
    if (round_trip.ops()[static_cast<size_t>(id)].phase >= experts) {
      EXPECT_FALSE(round_trip.deps(id).empty()) << id;
    }
}

TEST(Overlay, ConservesBothPlansAndAddsNoEdge) {
  const Plan plan = plan_of({});
  const Plan noise = plan_of({.kind = ProgramKind::background, .traffic_class = 2, .message = Bytes{1000}});
  const Plan both = overlay(plan, noise, "noise.");
  EXPECT_EQ(account(both).total().bytes, account(plan).total().bytes + 8 * 7 * 1000);
  EXPECT_TRUE(both.find_phase("noise.background").has_value());
  for (size_t id = plan.ops().size(); id < both.ops().size(); ++id)
    EXPECT_TRUE(both.deps(static_cast<OpId>(id)).empty());
}

TEST(Coarsen, ConservesBytesBetweenGroupsOnEveryLink) {
  for (const Mode mode : {Mode::direct, Mode::hybrid}) {
    const Plan plan = plan_of({.mode = mode});
    const Plan coarse = coarsen(plan, 4);
    std::map<std::tuple<PhaseId, Link, Rank, Rank>, std::tuple<int64_t, int64_t, int64_t>> fine_sum,
        coarse_sum;
    for (const Op& op : plan.ops()) {
      if (op.kind == OpKind::barrier) continue;
      auto& [bytes, rows, messages] = fine_sum[{op.phase, op.link, op.src / 4, op.dst / 4}];
      bytes += op.bytes, rows += op.rows, messages += op.messages;
    }
    for (const Op& op : coarse.ops()) {
      if (op.kind == OpKind::barrier) continue;
      auto& [bytes, rows, messages] = coarse_sum[{op.phase, op.link, op.src / 4, op.dst / 4}];
      bytes += op.bytes, rows += op.rows, messages += op.messages;
      EXPECT_EQ(op.src % 4, 0);
    }
    EXPECT_EQ(fine_sum, coarse_sum);
    EXPECT_LT(coarse.ops().size(), plan.ops().size());
    EXPECT_EQ(coarse.ranks_per_op(), 4);
  }
  EXPECT_THROW(coarsen(plan_of({}), 3), Error);
}

TEST(Coarsen, KeepsARoundTripInOrder) {
  EXPECT_NO_THROW(coarsen(plan_of({.kind = ProgramKind::round_trip, .mode = Mode::hybrid}), 4));
}

}  // namespace
}  // namespace plumb

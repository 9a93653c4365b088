#include "model/plan.h"

#include <gtest/gtest.h>

#include "model/error.h"

namespace plumb {
namespace {

Plan two_ranks() {
  Plan plan(Program{}, {.ranks = 2, .scaleup = 2});
  plan.add_phase({.name = "send", .engine = Engine::sm, .row_bytes = 100});
  return plan;
}

Op put(Rank src, Rank dst) {
  return {.kind = OpKind::put,
          .link = Link::scale_up,
          .src = src,
          .dst = dst,
          .messages = 1,
          .rows = 1,
          .bytes = 100};
}

Op local(OpKind kind, Rank r) { return {.kind = kind, .src = r, .dst = r}; }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

TEST(Plan, AcceptsArrivedAtTheDestinationAndSentAtTheSource) {
  Plan plan = two_ranks();
  const OpId sent = plan.add(put(0, 1));
  plan.add(local(OpKind::wait, 1), {{sent, On::arrived}});
  plan.add(local(OpKind::wait, 0), {{sent, On::sent}});
  plan.add(put(1, 0), {{sent, On::stream}});
  EXPECT_EQ(plan.ops().size(), 4u);
  EXPECT_EQ(plan.deps(3).size(), 1u);
}

TEST(Plan, RejectsEdgeOnRemoteEvent) {
  Plan plan = two_ranks();
  const OpId sent = plan.add(put(0, 1));
  const std::string text = message_of([&] { plan.add(local(OpKind::wait, 0), {{sent, On::arrived}}); });
  EXPECT_NE(text.find("op 1 (wait 0 -> 0) cannot see 'arrived' of op 0 (put 0 -> 1)"), std::string::npos)
      << text;
  EXPECT_THROW(plan.add(local(OpKind::wait, 1), {{sent, On::sent}}), LogicError);
}

TEST(Plan, RejectsSentOfAGet) {
  // A get is issued by its destination, which sees only the arrival.
  Plan plan = two_ranks();
  Op get = put(0, 1);
  get.kind = OpKind::get;
  const OpId id = plan.add(get);
  EXPECT_THROW(plan.add(local(OpKind::wait, 1), {{id, On::sent}}), LogicError);
  EXPECT_NO_THROW(plan.add(local(OpKind::wait, 1), {{id, On::arrived}}));
}

TEST(Plan, RejectsEdgeOnLaterOp) {
  Plan plan = two_ranks();
  EXPECT_THROW(plan.add(put(0, 1), {{0, On::sent}}), LogicError);
}

TEST(Plan, RejectsRanksPhasesAndSizesOutOfRange) {
  Plan plan = two_ranks();
  EXPECT_THROW(plan.add(put(0, 2)), LogicError);
  EXPECT_THROW(plan.add(put(0, 0)), LogicError);
  Op negative = put(0, 1);
  negative.bytes = -1;
  EXPECT_THROW(plan.add(negative), LogicError);
  Op phase = put(0, 1);
  phase.phase = 1;
  EXPECT_THROW(plan.add(phase), LogicError);
  EXPECT_THROW(plan.add(local(OpKind::barrier, 0)), LogicError);  // no barrier was declared
}

TEST(Plan, TextFormShowsEveryField) {
  Plan plan = two_ranks();
  const OpId sent = plan.add(put(0, 1));
  Op wait = local(OpKind::wait, 1);
  plan.add(wait, {{sent, On::arrived}});
  EXPECT_EQ(to_text(plan),
            "plumb.plan/1\n"
            "program kind=dispatch mode=direct\n"
            "grouping ranks 2 scaleup 2\n"
            "phase 0 send engine sm sms 0 qps 0 chunk_rows 0 row_bytes 100\n"
            "op 0 put scale_up class 0 phase send 0 -> 1 messages 1 rows 1 bytes 100\n"
            "op 1 wait local class 0 phase send 1 -> 1 messages 0 rows 0 bytes 0 on 0:arrived\n");
}

TEST(Plan, DigestChangesWithEveryPart) {
  const Plan empty = two_ranks();
  Plan one = two_ranks();
  one.add(put(0, 1));
  Plan other_bytes = two_ranks();
  Op op = put(0, 1);
  op.bytes = int64_t{1} << 40;  // beyond 32 bits
  other_bytes.add(op);
  Plan high_bytes = two_ranks();
  op.bytes = (int64_t{1} << 40) + (int64_t{1} << 41);
  high_bytes.add(op);
  Plan edge = two_ranks();
  edge.add(put(0, 1));
  edge.add(put(1, 0));
  Plan with_edge = two_ranks();
  with_edge.add(put(0, 1));
  with_edge.add(put(1, 0), {{0, On::arrived}});
  Plan other_program(Program{.expand = true}, {.ranks = 2, .scaleup = 2});
  other_program.add_phase({.name = "send", .engine = Engine::sm, .row_bytes = 100});

  const std::vector<Digest> digests = {empty.digest(),        one.digest(),  other_bytes.digest(),
                                       high_bytes.digest(),   edge.digest(), with_edge.digest(),
                                       other_program.digest()};
  for (size_t i = 0; i < digests.size(); ++i)
    for (size_t j = i + 1; j < digests.size(); ++j) EXPECT_NE(digests[i], digests[j]) << i << " and " << j;
  EXPECT_EQ(one.digest(), [] {
    Plan again = two_ranks();
    again.add(put(0, 1));
    return again.digest();
  }());
}

TEST(Plan, DrawingNamesOpsAndEdgesAndRefusesLargePlans) {
  Plan plan = two_ranks();
  plan.add(put(0, 1));
  plan.add(put(1, 0), {{0, On::stream}});
  EXPECT_NE(to_dot(plan).find("o0 -> o1 [label=\"stream\"]"), std::string::npos);
  for (int i = 0; i < 2000; ++i) plan.add(put(0, 1));
  EXPECT_THROW(to_dot(plan), Error);
}

TEST(Program, RefusesContradictionsWithFoundAndAllowed) {
  const std::string text = message_of([] { validate(Program{.zero_padding = true, .num_biases = 3}); });
  EXPECT_EQ(text,
            "program: zero_padding needs expand: only that layout has gaps; num_biases is 3, allowed 0 .. 2");
  EXPECT_THROW(validate(Program{.kind = ProgramKind::send_recv}), Error);
  EXPECT_THROW(validate(Program{.kind = ProgramKind::engram, .fetches = 1}), Error);
  EXPECT_THROW(validate(Program{.traffic_class = 16}), Error);
  EXPECT_THROW(validate(Program{.cached = true, .host_sync = true}), Error);
  EXPECT_THROW(validate(Program{.rdma_only = true}), Error);
  EXPECT_THROW(validate(Program{.kind = ProgramKind::low_latency_dispatch, .cached = true}), Error);
  EXPECT_THROW(validate(Program{.kind = ProgramKind::all_to_all, .cached = true}), Error);
  EXPECT_NO_THROW(validate(Program{}));
}

TEST(Program, TextNamesOnlyWhatDiffers) {
  EXPECT_EQ(to_string(Program{}), "kind=dispatch mode=direct");
  EXPECT_EQ(
      to_string(Program{.kind = ProgramKind::combine, .mode = Mode::hybrid, .expand = true, .num_sms = 12}),
      "kind=combine mode=hybrid expand=true num_sms=12");
}

}  // namespace
}  // namespace plumb

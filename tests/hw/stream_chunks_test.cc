// Chunks of followers ask for the rows that they read, and for no more. No GPU.
#include "hw/stream_chunks.h"

#include <gtest/gtest.h>

#include "tests/model/host_case.h"

namespace plumb::hw {
namespace {

using Needs = std::vector<int32_t>;

/// Ops on ranks 0 -> 1 -> 2 through the regions 0, 1, 2, chunks of `chunk_rows`.
class Relay {
 public:
  explicit Relay(int32_t chunk_rows) : plan_({.kind = ProgramKind::background}, {.ranks = 3, .scaleup = 3}) {
    for (const char* name : {"first", "second", "third", "fourth"})
      plan_.add_region({.name = name, .row_bytes = 64, .layout = {}, .rows = std::vector<int64_t>(3, 16)});
    for (RegionId from = 0; from < 3; ++from)
      plan_.add_phase({.name = "hop" + std::to_string(from),
                       .chunk_rows = chunk_rows,
                       .row_bytes = 64,
                       .from = from,
                       .to = static_cast<RegionId>(from + 1)});
    plan_.add_phase({.name = "back", .chunk_rows = chunk_rows, .row_bytes = 64, .from = 1, .to = 0});
  }
  /// A put of `rows` rows by hop `hop`, 0 -> 1 or 1 -> 2 and so on.
  OpId put(PhaseId hop, int32_t rows, std::initializer_list<Dep> deps = {}) {
    return plan_.add({.link = Link::scale_up,
                      .phase = hop,
                      .src = hop % 3,
                      .dst = (hop + 1) % 3,
                      .messages = 1,
                      .rows = rows,
                      .bytes = int64_t{rows} * 64},
                     deps);
  }
  /// From rank 1, where hop 0 ends, to its source.
  OpId put_back(int32_t rows, std::initializer_list<Dep> deps) {
    return plan_.add({.link = Link::scale_up,
                      .phase = 3,
                      .src = 1,
                      .dst = 0,
                      .messages = 1,
                      .rows = rows,
                      .bytes = int64_t{rows} * 64},
                     deps);
  }
  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
};

/// Piece i reads slot reads[i] of `region` and writes slot i.
OpPieces pieces(RegionId region, const std::vector<int32_t>& reads, int32_t first_write = 0) {
  OpPieces out;
  for (size_t i = 0; i < reads.size(); ++i) {
    out.reads.push_back({region, reads[i]});
    out.add(first_write + static_cast<int32_t>(i));
  }
  return out;
}

TEST(StreamChunks, AChunkNeedsTheRowsThatItReadsAndThoseBeforeThem) {
  Relay relay(2);
  const OpId first = relay.put(0, 7);
  relay.put(1, 6, {{first, On::stream}});
  StreamChunks streams(relay.plan());
  const OpChunks producer = streams.add(pieces(0, {0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(producer.pieces, 2);
  EXPECT_EQ(producer.chunks, 4);  // 2 + 2 + 2 + 1
  EXPECT_TRUE(producer.needs.empty());
  // Chunks read the slots {0, 2}, {1, 3}, {4, 5}: pieces 3, then 4, and the last one waits for the whole op.
  const OpChunks follower = streams.add(pieces(1, {0, 2, 1, 3, 4, 5}));
  EXPECT_EQ(follower.streams, (std::vector<OpId>{first}));
  EXPECT_EQ(follower.chunks, 3);
  EXPECT_EQ(follower.needs, (Needs{3, 4, kWholeOp}));
}

TEST(StreamChunks, TheLastChunkOfTheEarlierOpIsKnownByItsEnd) {
  Relay relay(2);
  const OpId first = relay.put(0, 3);
  relay.put(1, 4, {{first, On::stream}});
  StreamChunks streams(relay.plan());
  streams.add(pieces(0, {0, 1, 2}));  // 2 + 1: only the first two are published
  EXPECT_EQ(streams.add(pieces(1, {0, 2, 0, 1})).needs, (Needs{kWholeOp, kWholeOp}));
}

TEST(StreamChunks, TwoStreamsAreAskedForTheirOwnRows) {
  Relay relay(1);
  const OpId a = relay.put(0, 3);
  const OpId b = relay.put(0, 3);
  relay.put(1, 3, {{a, On::stream}, {b, On::stream}});
  StreamChunks streams(relay.plan());
  streams.add(pieces(0, {0, 1, 2}));
  streams.add(pieces(0, {3, 4, 5}, 8));
  // Slots 0 and 1 are a's pieces 0 and 1, slot 8 is b's piece 0.
  EXPECT_EQ(streams.add(pieces(1, {0, 8, 1})).needs, (Needs{1, 0, 1, 1, kWholeOp, kWholeOp}));
}

TEST(StreamChunks, ARowOfAnEarlierOpThatNoEdgeCoversNeedsAllStreamsWhole) {
  Relay relay(1);
  const OpId hidden = relay.put(0, 1);
  const OpId first = relay.put(0, 3, {{hidden, On::sent}});
  relay.put(1, 3, {{first, On::stream}});
  StreamChunks streams(relay.plan());
  streams.add(pieces(0, {9}, 9));
  streams.add(pieces(0, {0, 1, 2}));
  // The second chunk reads slot 9 of the hidden op, which is done when `first` is.
  EXPECT_EQ(streams.add(pieces(1, {0, 9, 1})).needs, (Needs{1, kWholeOp, kWholeOp}));
}

TEST(StreamChunks, ARowThatAnEarlierOpReadIsNotOverwrittenBeforeThatIsDone) {
  Relay relay(1);
  const OpId first = relay.put(0, 3);
  for (int i = 0; i < 2; ++i) relay.put_back(3, {{first, On::stream}});
  StreamChunks streams(relay.plan());
  streams.add(pieces(0, {0, 1, 2}));
  // To other slots of the source than `first` reads, then to the same ones.
  EXPECT_EQ(streams.add(pieces(1, {0, 1, 2}, 8)).needs, (Needs{1, 2, kWholeOp}));
  EXPECT_EQ(streams.add(pieces(1, {0, 1, 2}, 2)).needs, (Needs{kWholeOp, kWholeOp, kWholeOp}));
}

TEST(StreamChunks, AnEdgeAlongWhichNoRowIsReadIsAnArrival) {
  Relay relay(1);
  const OpId first = relay.put(0, 3);
  relay.put(1, 2, {{first, On::stream}});
  StreamChunks streams(relay.plan());
  streams.add(pieces(0, {0, 1, 2}));
  EXPECT_EQ(streams.add(pieces(1, {10, 11})).needs, (Needs{kWholeOp, kWholeOp}));
}

/// Two nodes of four ranks, 200 tokens each: what a forwarder hands on, it need not have whole.
TEST(StreamChunks, HybridDispatchForwardsFromTheFirstChunkOn) {
  plumb::test::HostCase c;
  c.shape = uniform_shape(8, 32, 4, 200, 512);
  plumb::test::Dice dice(5);
  c.table = plumb::test::random_table(c.shape, 10, dice);
  c.scaleup = 4;
  c.program.mode = Mode::hybrid;
  const Plan plan = c.plan();
  StreamChunks streams(plan);
  int32_t followers = 0;
  for (const Op& op : plan.ops()) {
    const Phase& phase = plan.phases()[op.phase];
    OpPieces rows;
    if (phase.to != kNoRegion && (op.kind == OpKind::put || op.kind == OpKind::copy))
      for (const Item& item : plan.items(op)) {
        if (item.src_slot != kNone) rows.reads.push_back({phase.from, item.src_slot});
        rows.add(item.dst_slot);
      }
    const OpChunks chunks = streams.add(rows);
    if (chunks.streams.empty()) continue;
    ++followers;
    EXPECT_GT(chunks.chunks, 1) << phase.name;
    for (size_t s = 0; s < chunks.streams.size(); ++s) EXPECT_NE(chunks.needs[s], kWholeOp) << phase.name;
  }
  // A rank sends over its rail and forwards to its four ranks.
  EXPECT_EQ(followers, 8 + 8 * 4);
}

TEST(StreamChunks, OpsWithoutStreamsOrWithoutChunkRowsAreOneChunk) {
  Relay whole(0);
  const OpId first = whole.put(0, 5);
  whole.put(1, 5, {{first, On::stream}});
  StreamChunks streams(whole.plan());
  EXPECT_EQ(streams.add(pieces(0, {0, 1, 2, 3, 4})).chunks, 1);
  const OpChunks follower = streams.add(pieces(1, {0, 1, 2, 3, 4}));
  EXPECT_EQ(follower.chunks, 1);
  EXPECT_EQ(follower.needs, (Needs{kWholeOp}));

  Relay plain(2);
  plain.put(0, 5);
  StreamChunks none(plain.plan());
  EXPECT_EQ(none.add(pieces(0, {0, 1, 2, 3, 4})).chunks, 1);
  Relay empty(2);
  empty.put(1, 0, {{empty.put(0, 0), On::stream}});
  StreamChunks nothing(empty.plan());
  EXPECT_EQ(nothing.add({}).chunks, 1);
  EXPECT_EQ(nothing.add({}).needs, (Needs{kWholeOp}));
}

}  // namespace
}  // namespace plumb::hw

// Plans that move no tokens: ring, all-gather, reduce-scatter, table fetches, background traffic.
#include <cstring>

#include <gtest/gtest.h>

#include "model/random.h"
#include "tests/model/host_case.h"

namespace plumb::test {
namespace {

HostCase message_case(ProgramKind kind, int32_t ranks, int64_t bytes) {
  HostCase c;
  c.shape = uniform_shape(ranks, ranks, 1, 0, 16);
  c.shape.max_tokens = 1;
  c.scaleup = ranks;
  c.program.kind = kind;
  c.program.message = Bytes{bytes};
  return c;
}

std::vector<std::byte> bytes_of(const HostResult& result, const char* region, Rank rank, int64_t slot) {
  const auto row = result.row(region, rank, slot);
  return {row.begin(), row.end()};
}

TEST(OtherPlans, SendRecvPassesEachTensorToTheNextRank) {
  const HostCase c = message_case(ProgramKind::send_recv, 5, 1000);
  HostExecutor host = c.executor();
  const Trace trace = host.run(c.plan());
  for (Rank r = 0; r < 5; ++r)
    EXPECT_EQ(bytes_of(host.result(), "received", (r + 1) % 5, 0), bytes_of(host.result(), "input", r, 0));
  EXPECT_NE(bytes_of(host.result(), "input", 0, 0), bytes_of(host.result(), "input", 1, 0));
  EXPECT_EQ(trace.ledger.total().bytes, 5 * 1000);
}

TEST(OtherPlans, AllGatherGivesEveryRankAllShards) {
  const HostCase c = message_case(ProgramKind::all_gather, 4, 999);
  HostExecutor host = c.executor();
  host.run(c.plan());
  for (Rank r = 0; r < 4; ++r)
    for (Rank s = 0; s < 4; ++s)
      EXPECT_EQ(bytes_of(host.result(), "received", r, s), bytes_of(host.result(), "input", s, 0));
}

TEST(OtherPlans, ReduceScatterSumsInRankOrderAndRoundsOnce) {
  const HostCase c = message_case(ProgramKind::reduce_scatter, 5, 64);
  HostExecutor host = c.executor();
  host.run(c.plan());
  const auto load = [&](const char* region, Rank rank, int64_t slot, size_t i) {
    uint16_t code = 0;
    std::memcpy(&code, host.result().row(region, rank, slot).data() + 2 * i, 2);
    return std::bit_cast<float>(uint32_t{code} << 16);
  };
  for (Rank r = 0; r < 5; ++r)
    for (size_t i = 0; i < 32; ++i) {
      float sum = 0;
      for (Rank s = 0; s < 5; ++s) {
        ASSERT_LE(std::abs(load("input", s, r, i)), 1.0f);
        sum += load("input", s, r, i);
      }
      EXPECT_EQ(load("combined", r, 0, i), brute::round_to_bf16(sum));
    }
}

TEST(OtherPlans, EngramFetchesTheRowsOfItsIds) {
  HostCase c;
  c.shape = uniform_shape(3, 3, 1, 4, 16);
  c.shape.tokens = {4, 0, 2};
  c.scaleup = 3;
  c.table.assign(6, 0);
  c.program.kind = ProgramKind::engram;
  c.program.fetches = 5;
  c.program.table_rows = 20;  // ceil(20 / 3) = 7 rows a rank
  HostExecutor host = c.executor();
  host.run(c.plan());
  for (Rank r = 0; r < 3; ++r) {
    Random random(c.program.seed, RandomStream::workload, static_cast<uint64_t>(r));
    for (int64_t i = 0; i < int64_t{c.shape.tokens[static_cast<size_t>(r)]} * 5; ++i) {
      const auto id = static_cast<int64_t>(random.below(20));
      EXPECT_EQ(bytes_of(host.result(), "received", r, i),
                bytes_of(host.result(), "table", static_cast<Rank>(id / 7), id % 7));
    }
  }
}

TEST(OtherPlans, BackgroundPatternsReachTheirTargets) {
  HostCase c = message_case(ProgramKind::background, 4, 128);
  const auto senders = [&](Pattern pattern, Rank r) {
    c.program.pattern = pattern;
    HostExecutor host = c.executor();
    host.run(c.plan());
    std::vector<Rank> out;
    for (Rank s = 0; s < 4; ++s)
      if (host.result().is_written("received", r, s)) {
        out.push_back(s);
        EXPECT_EQ(bytes_of(host.result(), "received", r, s), bytes_of(host.result(), "input", s, 0));
      }
    return out;
  };
  EXPECT_EQ(senders(Pattern::incast, 0), (std::vector<Rank>{1, 2, 3}));
  EXPECT_EQ(senders(Pattern::incast, 1), (std::vector<Rank>{}));
  EXPECT_EQ(senders(Pattern::all_to_all, 2), (std::vector<Rank>{0, 1, 3}));
  std::set<Rank> all;
  for (Rank r = 0; r < 4; ++r) {
    const auto from = senders(Pattern::permutation, r);
    ASSERT_EQ(from.size(), 1u);
    EXPECT_NE(from[0], r);
    all.insert(from[0]);
  }
  EXPECT_EQ(all.size(), 4u);
}

}  // namespace
}  // namespace plumb::test

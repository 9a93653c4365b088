// Work ownership: nothing is lost, nothing is done twice, and DeepEP's choices come out.
#include "model/schedule.h"

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/layout.h"
#include "model/token_pools.h"
#include "tests/model/golden.h"

namespace plumb {
namespace {

static_assert(RowSplit{10, 4}.begin(2) == 6);
static_assert(barrier_turn(2, 8).target == 0);

TEST(Schedule, SharesCoverAllRowsOnce) {
  for (int64_t rows = 0; rows <= 40; ++rows) {
    for (int64_t workers = 1; workers <= 12; ++workers) {
      const RowSplit split{rows, workers};
      EXPECT_EQ(split.begin(0), 0);
      EXPECT_EQ(split.end(workers - 1), rows);
      for (int64_t w = 0; w < workers; ++w) {
        const int64_t share = split.end(w) - split.begin(w);
        EXPECT_GE(share, rows / workers);
        EXPECT_LE(share, ceil_div(rows, workers));
        for (int64_t row = split.begin(w); row < split.end(w); ++row) EXPECT_EQ(split.worker_of(row), w);
      }
    }
  }
}

TEST(Schedule, LongSplitsStayExact) {
  // 2^40 + 8 = 7 * 157 073 089 683 + 3: the first three workers have one row more.
  const RowSplit split{(int64_t{1} << 40) + 8, 7};
  EXPECT_EQ(split.end(6), split.rows);
  EXPECT_EQ(split.end(2) - split.begin(2), 157073089684);
  EXPECT_EQ(split.end(3) - split.begin(3), 157073089683);
  EXPECT_EQ(split.worker_of(split.begin(6)), 6);
  EXPECT_EQ(split.worker_of(split.begin(6) - 1), 5);
}

TEST(Schedule, FewRowsSpreadOverAllSms) {
  // 5 rows on 4 SMs of 3 warps: one on each SM before SM 0 gets a second one.
  std::vector<int> rows_of_sm(4, 0);
  std::set<std::pair<int32_t, int32_t>> warps;
  for (int64_t row = 0; row < 5; ++row) {
    const WarpPlace place = warp_of_row(row, 5, 4, 3);
    ++rows_of_sm[static_cast<size_t>(place.sm)];
    warps.insert({place.sm, place.warp});
  }
  EXPECT_EQ(rows_of_sm, (std::vector<int>{2, 1, 1, 1}));
  EXPECT_EQ(warps.size(), 5U);
  for (int64_t worker = 0; worker < 12; ++worker)
    EXPECT_EQ(worker_of_warp(warp_of_worker(worker, 4), 4), worker);
}

TEST(Schedule, DivisorsDivide) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t value :
       {1, 2, 3, 5, 7, 8, 9, 12, 31, 32, 33, 48, 641, 65535, 65536, 65537, kMost - 1, kMost}) {
    const Divisor divisor = value;
    const auto check = [&](int64_t n) {
      if (n < 0 || n > kMost) return;
      const auto number = static_cast<int32_t>(n);
      ASSERT_EQ(number / divisor, number / value) << n;
      ASSERT_EQ(number % divisor, number % value) << n;
    };
    for (int64_t n = 0; n < 5000; ++n) check(n);
    for (int64_t times = 1; times <= kMost / value; times += 1 + times / 50)
      for (const int64_t near : {-1, 0, 1}) check(times * value + near);
    for (const int64_t near : {0, 1, 2}) check(kMost - near);
  }
}

TEST(Schedule, RanksServeDifferentPeersAtEachStep) {
  for (const int32_t ranks : {1, 3, 8}) {
    for (int32_t step = 0; step < ranks; ++step) {
      std::set<Rank> peers;
      for (Rank r = 0; r < ranks; ++r) peers.insert(peer_at_step(r, step, ranks));
      EXPECT_EQ(peers.size(), static_cast<size_t>(ranks));
    }
  }
  EXPECT_EQ(peer_at_step(5, 0, 8), 5);
  EXPECT_EQ(peer_at_step(5, 8, 8), 5);
}

/// Every token comes once with its own rows and once with those to others: dealt to a block or from a pool.
void expect_each_once(const TokenPools& pools) {
  const int32_t tokens = pools.split.rows;
  std::vector<int32_t> found[2] = {std::vector<int32_t>(static_cast<size_t>(tokens)),
                                   std::vector<int32_t>(static_cast<size_t>(tokens))};
  for (int32_t block = 0; block < pools.split.workers; ++block)
    for (int32_t i = 0; i < pools.dealt; ++i)
      ++found[block < pools.own_blocks][static_cast<size_t>(pools.split.begin(block) + i)];
  for (const bool own : {false, true})
    for (int32_t i = 0; i < pools.size(own); ++i) ++found[own][static_cast<size_t>(pools.token(own, i))];
  EXPECT_EQ(found[0], std::vector<int32_t>(static_cast<size_t>(tokens), 1));
  EXPECT_EQ(found[1], std::vector<int32_t>(static_cast<size_t>(tokens), pools.own_blocks > 0 ? 1 : 0));
}

TEST(Schedule, BlocksThatShareTokensMoveEachOnce) {
  for (const int32_t tokens : {64, 1000, 1003, 4096})
    for (const int32_t blocks : {1, 7, 16, 24, 64})
      for (const int32_t own_blocks : {0, 1, blocks / 2, blocks - 1})
        for (const int32_t eighths : {0, 4, 6, 8})
          if (own_blocks >= 0 && own_blocks < blocks)
            expect_each_once({{tokens, blocks}, tokens / blocks * eighths / 8, own_blocks});
  // 10 tokens, 3 blocks: parts 0..3, 4..6, 7..9; two of each are dealt, the rest comes in turn, block 0's
  // longer part last.
  const TokenPools pools{{10, 3}, 2, 1};
  EXPECT_EQ(pools.size(true), 4 + 4);
  EXPECT_EQ(pools.size(false), 4 + 2);
  EXPECT_EQ(pools.token(true, 0), 2);
  EXPECT_EQ(pools.token(true, 1), 6);
  EXPECT_EQ(pools.token(true, 3), 3);
  EXPECT_EQ(pools.token(true, 4), 4);   // dealt to block 1 with its rows to others
  EXPECT_EQ(pools.token(false, 4), 0);  // dealt to block 0 with its own rows
}

TEST(Schedule, AQuarterOfTheBlocksMovesOwnRows) {
  for (const auto& [blocks, own] :
       {std::pair{4, 0}, {19, 0}, {20, 8}, {24, 8}, {40, 10}, {48, 12}, {132, 12}})
    EXPECT_EQ(own_blocks_of(blocks), own) << blocks;
}

TEST(Schedule, SevenEighthsOfManyRowsArePushedHomeByManyBlocks) {
  EXPECT_EQ(most_pushed_rows(0), 0);
  EXPECT_EQ(most_pushed_rows(15), 14);
  EXPECT_EQ(pushed_rows(8192, 64), 7168);
  EXPECT_EQ(pushed_rows(8192, 47), 0);
  EXPECT_EQ(pushed_rows(32 * 48, 48), 28 * 48);
  EXPECT_EQ(pushed_rows(32 * 48 - 1, 48), 0);
}

TEST(Schedule, ChannelsEqualDeepep) {
  for (const auto& c : golden("channel_partition").at("cases")) {
    const ChannelSplit split{c.at("tokens"), c.at("channels")};
    EXPECT_EQ(split.max_count(), c.at("tokens_per_channel_max").get<int32_t>());
    EXPECT_EQ(split.count(0), c.at("channel_0").get<int32_t>());
    EXPECT_EQ(split.count(split.channels - 1), c.at("channel_last").get<int32_t>());
    EXPECT_EQ(tail_updates(split.count(0), kDeepepTailRows), c.at("tail_updates_channel_0").get<int32_t>());
  }
}

TEST(Schedule, ChannelsOwnEachTokenOnce) {
  for (const int32_t tokens : {0, 1, 7, 96, 97, 1000}) {
    for (const int32_t channels : {1, 2, 7, 96}) {
      const ChannelSplit split{tokens, channels};
      std::vector<int> owners(static_cast<size_t>(tokens), 0);
      for (int32_t channel = 0; channel < channels; ++channel) {
        EXPECT_LE(split.count(channel), split.max_count());
        for (int32_t i = 0; i < split.count(channel); ++i) {
          const int32_t token = split.token(channel, i);
          ASSERT_LT(token, tokens);
          ++owners[static_cast<size_t>(token)];
          EXPECT_EQ(split.channel_of(token), channel);
          EXPECT_EQ(split.index_in_channel(token), i);
        }
      }
      EXPECT_EQ(owners, std::vector<int>(static_cast<size_t>(tokens), 1));
    }
  }
}

TEST(Schedule, LastTailIsPublishedEvenWhenNothingIsLeft) {
  EXPECT_EQ(tail_updates(0, 6), 1);  // the finished flag alone
  EXPECT_EQ(tail_updates(5, 6), 1);
  EXPECT_EQ(tail_updates(12, 6), 3);  // after 6, after 12, finished
}

TEST(Schedule, QueuePairsEqualDeepep) {
  for (const auto& c : golden("qp_mapping").at("cases")) {
    SCOPED_TRACE(c.dump());
    const QpChoice choice = queue_pair({.num_sms = c.at("num_sms"),
                                        .num_qps = c.at("num_qps"),
                                        .channels_per_sm = c.at("channels_per_sm"),
                                        .sm = c.at("sm"),
                                        .channel = c.at("channel_in_sm"),
                                        .kernel_has_notify = c.at("kernel_has_notify_warps"),
                                        .is_notify = c.at("is_notify")});
    EXPECT_EQ(choice.qp, c.at("qp").get<int32_t>());
    EXPECT_EQ(choice.sharing == QpSharing::gpu ? "gpu" : "cta", c.at("sharing").get<std::string>());
  }
}

TEST(Schedule, SmsShareNoQueuePairWhileEachHasOne) {
  for (const int32_t sms : {1, 3, 12}) {
    for (int32_t qps = sms + 1; qps < 40; ++qps) {
      std::vector<int32_t> owner(static_cast<size_t>(qps), kNone);
      for (int32_t sm = 0; sm < sms; ++sm) {
        for (int32_t channel = 0; channel < 8; ++channel) {
          const QpChoice choice = queue_pair({.num_sms = sms,
                                              .num_qps = qps,
                                              .channels_per_sm = 8,
                                              .sm = sm,
                                              .channel = channel,
                                              .kernel_has_notify = true});
          ASSERT_GE(choice.qp, 1);  // 0 belongs to the notify warps
          ASSERT_LT(choice.qp, qps);
          int32_t& first = owner[static_cast<size_t>(choice.qp)];
          EXPECT_TRUE(first == kNone || first == sm);
          first = sm;
          EXPECT_EQ(choice.sharing, QpSharing::block);
        }
      }
    }
  }
}

TEST(Schedule, WarpsAndChannelsEqualDeepep) {
  for (const auto& c : golden("warps_and_channels").at("cases")) {
    SCOPED_TRACE(c.at("id"));
    const int64_t hidden = c.at("H").get<int64_t>();
    const int32_t topk = c.at("K");
    const SharedMemory memory{
        .block_bytes = c.at("smem"),
        .notify_bytes = notify_shared_bytes(c.at("ranks"), c.at("E")),
        .dispatch_bytes = token_layout({.hidden_bytes = hidden * c.at("elem_bytes").get<int64_t>(),
                                        .scale_packs = c.at("sf_packs"),
                                        .topk = topk})
                              .shared_bytes,
        .combine_bytes =
            token_layout({.hidden_bytes = hidden * 2, .topk = topk, .is_dispatch = false}).shared_bytes};
    EXPECT_EQ(memory.notify_bytes, c.at("notify_smem").get<int64_t>());
    EXPECT_EQ(direct_dispatch_warps(memory), c.at("direct_dispatch_warps").get<int32_t>());
    EXPECT_EQ(dispatch_epilogue_warps(memory), c.at("dispatch_epilogue_warps").get<int32_t>());
    EXPECT_EQ(direct_combine_warps(memory), c.at("direct_combine_warps").get<int32_t>());
    EXPECT_EQ(hybrid_channels_per_sm(memory, c.at("prefer_overlap")),
              c.at("hybrid_channels_per_sm").get<int32_t>());
  }
}

TEST(Schedule, RecordLargerThanSharedMemoryGetsNoWarp) {
  const SharedMemory memory{
      .block_bytes = 1000, .notify_bytes = 1536, .dispatch_bytes = 2000, .combine_bytes = 2000};
  EXPECT_EQ(direct_dispatch_warps(memory), 0);
  EXPECT_EQ(hybrid_channels_per_sm(memory, true), 0);
}

TEST(Schedule, CopiesFollowTheirRowsFrom48SmsOn) {
  EXPECT_FALSE(copies_follow(2, 47));
  EXPECT_TRUE(copies_follow(2, 48));
  EXPECT_FALSE(copies_follow(1, 132));  // nobody to follow
}

TEST(Schedule, BarrierTurnsEqualDeepep) {
  for (const auto& c : golden("nvlink_barrier").at("cases")) {
    const BarrierTurn turn = barrier_turn(c.at("barrier_number"), 8);
    EXPECT_EQ(turn.word, c.at("phase").get<int32_t>());
    EXPECT_EQ(turn.sign, c.at("sign").get<int32_t>());
    EXPECT_EQ(turn.target, c.at("target_for_8_ranks").get<int32_t>());
  }
}

TEST(Schedule, BarrierWordsReachTheirTargetsWithoutReset) {
  int32_t words[2] = {0, 0};
  for (uint64_t barrier = 0; barrier < 12; ++barrier) {
    const BarrierTurn turn = barrier_turn(barrier, 5);
    EXPECT_NE(words[turn.word], turn.target);  // nobody may pass before the first arrival
    for (int rank = 0; rank < 5; ++rank) words[turn.word] += turn.sign;
    EXPECT_EQ(words[turn.word], turn.target);
  }
}

}  // namespace
}  // namespace plumb

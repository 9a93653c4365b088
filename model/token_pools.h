// Tokens of a rank that its blocks share, each taking more the faster it gets on, and rows that go home by
// stores. Device-safe.
#pragma once

#include <cstdint>

#include "model/schedule.h"

namespace plumb {

/// How the blocks of a rank share its tokens. A block is dealt the first `dealt` tokens of its part of the
/// split; the rest are drawn from a pool, so that blocks which get on faster take more. When own_blocks > 0,
/// a token's row to its own rank and its rows to others are moved apart: the first own_blocks blocks are
/// dealt own rows, the other blocks rows to others, and what is left of each kind has a pool. With own_blocks
/// 0 all rows of a token go together and count as rows to others. Requires 0 <= dealt <= rows / workers of
/// the split, 0 <= own_blocks < workers.
struct TokenPools {
  TokenSplit split;
  int32_t dealt = 0;
  int32_t own_blocks = 0;

  /// Tokens in the pool of own rows or of rows to others.
  PLUMB_HD constexpr int32_t size(bool own) const {
    if (own && own_blocks == 0) return 0;
    return split.rows - split.workers * dealt + dealt * blocks_dealt(!own);
  }
  /// Token number i of a pool: first what no block was dealt, from all blocks in turn, then what those of the
  /// other kind were. 0 <= i < size(own).
  PLUMB_HD constexpr int32_t token(bool own, int32_t i) const {
    const int32_t each = split.rows / split.workers - dealt;
    if (i < each * split.workers) return split.begin(i % split.workers) + dealt + i / split.workers;
    i -= each * split.workers;
    const int32_t longer = split.rows % split.workers;
    if (i < longer) return split.end(i) - 1;
    i -= longer;
    const int32_t blocks = blocks_dealt(!own);
    return split.begin((own ? own_blocks : 0) + i % blocks) + i / blocks;
  }

 private:
  /// Blocks that are dealt rows of this kind only.
  PLUMB_HD constexpr int32_t blocks_dealt(bool own) const {
    return own ? own_blocks : own_blocks == 0 ? 0 : split.workers - own_blocks;
  }
};

/// Blocks that are dealt own rows when two ranks on GPUs of their own share tokens (TokenPools): a quarter, 8
/// to 12, which write at home what the others send in the same time; below 20 blocks, which are the limit
/// themselves, none. Source: measured on two H200 at 12 to 64 SMs, docs/hw.md.
PLUMB_HD constexpr int32_t own_blocks_of(int32_t blocks) {
  constexpr int32_t kFewest = 20, kFewestOwn = 8, kMostOwn = 12;
  if (blocks < kFewest) return 0;
  const int32_t quarter = blocks / 4;
  return quarter < kFewestOwn ? kFewestOwn : quarter < kMostOwn ? quarter : kMostOwn;
}

/// Two ranks on GPUs of their own, for which sharing and pushing were measured to pay.
PLUMB_HD constexpr bool are_two_apart(int32_t ranks, bool has_far_peers) {
  return has_far_peers && ranks == 2;
}

/// Whether a rank holds one row for each token of a peer in a combine, not one for each selection. Only such
/// rows are pushed.
PLUMB_HD constexpr bool returns_one_row(bool expand, bool multiple_reduction) {
  return !expand || multiple_reduction;
}

/// Of `rows` rows that a rank holds for its peer on another GPU, the first ones that a combine pushes home at
/// most; the peer reads the others, while the last of these land.
PLUMB_HD constexpr int32_t most_pushed_rows(int32_t rows) { return rows - rows / 8; }

/// Those that `blocks` blocks push, alike on both ranks: none where reads alone are as fast. Source: measured
/// on two H200 at 24 to 64 SMs, docs/hw.md.
PLUMB_HD constexpr int32_t pushed_rows(int32_t rows, int32_t blocks) {
  constexpr int32_t kFewestBlocks = 48, kFewestOfBlock = 32;
  return blocks < kFewestBlocks || rows / blocks < kFewestOfBlock ? 0 : most_pushed_rows(rows);
}

}  // namespace plumb

// Limits of a buffer and the map of its window.
#include "hw/limits.h"

#include <algorithm>
#include <string>

#include "model/error.h"
#include "model/layout.h"
#include "model/token_pools.h"

namespace plumb::hw {
namespace {

constexpr int64_t kAreaAlignment = 256;
constexpr int64_t kMaxRows = INT32_MAX;

struct Problems {
  std::string text;

  void require(bool holds, std::string_view field, int64_t found, std::string_view allowed) {
    if (!holds) text += fmt::format("\n  {} is {}; allowed: {}", field, found, allowed);
  }
};

}  // namespace

void validate(const BufferLimits& l) {
  Problems p;
  p.require(l.ranks >= 1 && l.ranks <= kernels::kMaxRanks, "ranks", l.ranks,
            fmt::format("1..{}", kernels::kMaxRanks));
  p.require(l.experts >= 1 && l.ranks >= 1 && l.experts % std::max(l.ranks, 1) == 0, "experts", l.experts,
            fmt::format("a multiple of ranks ({})", l.ranks));
  p.require(l.topk >= 1 && l.topk <= kernels::kMaxTopk, "topk", l.topk,
            fmt::format("1..{}", kernels::kMaxTopk));
  p.require(l.topk <= l.experts, "topk", l.topk, fmt::format("at most experts ({})", l.experts));
  p.require(l.max_tokens >= 1, "max_tokens", l.max_tokens, ">= 1");
  p.require(l.hidden >= 8 && l.hidden % 8 == 0, "hidden", l.hidden,
            "row bytes must be a multiple of 16: hidden % 8 == 0");
  p.require(l.scale_packs >= 0, "scale_packs", l.scale_packs, ">= 0");
  p.require(l.alignment >= 1, "alignment", l.alignment, ">= 1");
  p.require(l.max_copies >= 0, "max_copies", l.max_copies, ">= 0");
  p.require(l.max_rows >= 0, "max_rows", l.max_rows, ">= 0");
  p.require(l.num_handles >= 1, "num_handles", l.num_handles, ">= 1");
  p.require(l.timeout_ns > 0, "timeout_ns", l.timeout_ns, "> 0");
  if (p.text.empty()) {
    p.require(copies_capacity(l) <= kMaxRows, "received copies", copies_capacity(l),
              "below 2^31; set max_copies");
    p.require(rows_capacity(l) <= kMaxRows, "received rows", rows_capacity(l), "below 2^31; set max_rows");
  }
  if (!p.text.empty()) fail_usage("limits of a buffer:{}", p.text);
}

void check_agreement(std::span<const BufferLimits> by_rank) {
  const BufferLimits& first = by_rank.front();
  for (size_t r = 1; r < by_rank.size(); ++r) {
    const BufferLimits& other = by_rank[r];
    const auto same = [&](std::string_view field, int64_t expected, int64_t found) {
      if (expected != found)
        fail_usage("limits of rank {} differ from rank 0: {} is {}; allowed: {}", r, field, found, expected);
    };
    same("ranks", first.ranks, other.ranks);
    same("experts", first.experts, other.experts);
    same("topk", first.topk, other.topk);
    same("max_tokens", first.max_tokens, other.max_tokens);
    same("hidden", first.hidden, other.hidden);
    same("scale_packs", first.scale_packs, other.scale_packs);
    same("alignment", first.alignment, other.alignment);
    same("expand", first.expand, other.expand);
    same("max_copies", first.max_copies, other.max_copies);
    same("max_rows", first.max_rows, other.max_rows);
  }
}

int64_t copies_capacity(const BufferLimits& l) {
  return l.max_copies > 0 ? l.max_copies : worst_case_rows(l.ranks, l.max_tokens);
}

int64_t rows_capacity(const BufferLimits& l) {
  if (l.max_rows > 0) return l.max_rows;
  if (!l.expand) return copies_capacity(l);
  const ExpandCase expand{l.ranks, l.max_tokens, l.topk, l.experts / l.ranks, l.alignment};
  return std::max(copies_capacity(l), worst_case_expanded_rows(expand));
}

int64_t scale_column_packs(const BufferLimits& l) { return round_up(rows_capacity(l), 4); }

kernels::WindowMap window_map(const BufferLimits& l, bool has_far_peers) {
  kernels::WindowMap map;
  int64_t next = 0;
  const auto area = [&](int64_t bytes) {
    const int64_t begin = next;
    next = round_up(begin + bytes, kAreaAlignment);
    return begin;
  };
  const int64_t ranks = l.ranks;
  const int64_t copies = copies_capacity(l);
  const int64_t rows = rows_capacity(l);
  const int64_t bf16_row = 2 * int64_t{l.hidden};
  map.counts = area(2 * ranks * ranks * notify_bytes(l.experts / l.ranks));
  map.block_counts = area(2 * kernels::kDirectWords * 8);
  map.entered = area(ranks * kSignalBytes);
  map.arrived = area(ranks * kernels::kMaxBlocks * kSignalBytes);
  map.combine_ready = area(ranks * kSignalBytes);
  map.combine_done = area(ranks * kernels::kMaxBlocks * kSignalBytes);
  map.barrier = area(ranks * kSignalBytes);
  map.dispatch_calls = area(2 * ranks * kSignalBytes);
  map.combine_calls = area(2 * ranks * kSignalBytes);
  map.landed = area(l.expand ? copies * kSignalBytes : 0);
  const int64_t returned = are_two_apart(l.ranks, has_far_peers) ? most_pushed_rows(l.max_tokens) : 0;
  map.home = area(returned * kSignalBytes);
  map.x = area(rows * bf16_row);
  map.scales = area(scale_column_packs(l) * l.scale_packs * 4);
  map.ids = area(copies * l.topk * 4);
  map.weights = area(std::max(copies * l.topk, rows) * 4);
  map.source = area(copies * 4);
  map.links = area(l.expand ? copies * l.topk * 4 : 0);
  map.expert_out = area(rows * bf16_row);
  map.expert_weights = area(std::max(copies * l.topk, rows) * 4);
  map.partial = area(l.expand ? copies * bf16_row : 0);
  map.returned = area(returned * bf16_row);
  map.bytes = next;
  return map;
}

int64_t sync_bytes(const kernels::WindowMap& map) { return map.x; }

}  // namespace plumb::hw

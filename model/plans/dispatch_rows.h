// What a dispatch moves, row by row: copies of tokens (one per token and destination rank) and where they
// land in the canonical order. Shared by the dispatch builders; internal to model/plans.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/plans/builders.h"

namespace plumb {

/// One (token, destination rank) pair after de-duplication. `lane` is the highest top-k position that leads
/// there.
struct Copy {
  int32_t token = 0;
  Rank dst = 0;
  int8_t lane = 0;
};

/// Appends the copies of all tokens of one rank to `out` (cleared first), by token, then destination,
/// ascending. `table`: [tokens][topk], as Routing::rows() fills it.
void list_copies(const Shape& shape, std::span<const int32_t> table, std::vector<Copy>& out);

/// A row of a final tensor and the top-k position behind it.
struct FinalRow {
  int32_t row = 0;
  int8_t lane = 0;
};

/// Gives each copy its row in the final tensor of its destination. Copies must be offered by ascending source
/// rank, then token: the canonical order. Plain layout: one row a copy. Expand layout: one row per local
/// expert chosen, grouped by expert, each group starting at a multiple of shape.alignment.
class FinalRows {
 public:
  /// The layout that input.program asks for. Without input.items only counts are kept: next() returns no rows
  /// in the expand layout.
  explicit FinalRows(const BuildInput& input)
      : FinalRows(input, input.program.expand, input.shape.alignment) {}
  FinalRows(const BuildInput& input, bool expand, int32_t alignment);

  /// Rows of the next copy for `dst`; `choices`: its top-k row. Plain layout: one FinalRow with the copy's
  /// lane.
  std::span<const FinalRow> next(const Copy& copy, std::span<const int32_t> choices);

  int32_t received(Rank r) const { return received_[r]; }      // copies so far
  int32_t selections(Rank r) const { return selections_[r]; }  // (copy, local expert) pairs so far
  int64_t tensor_rows(Rank r) const;                           // rows of the final tensor, gaps included
  std::vector<int32_t> gap_rows(Rank r) const;                 // alignment gaps, ascending

 private:
  const Shape& shape_;
  bool expand_;
  int32_t alignment_;
  std::vector<int32_t> received_;      // [ranks]
  std::vector<int32_t> selections_;    // [ranks]
  std::vector<int32_t> expert_count_;  // [experts], so far
  std::vector<int32_t> expert_begin_;  // [experts], first row of its group; empty when rows are not needed
  FinalRow plain_;
  std::vector<FinalRow> scratch_;
};

using LanedItem = std::pair<Item, int8_t>;

/// An op of `rows` rows of the phase's size: a put on the link class between both ranks, or a local copy when
/// they are one. Messages: one per row, none for a copy.
Op row_op(const Plan& plan, PhaseId phase, Rank src, Rank dst, int32_t rows);

/// Adds the phases of the last local step: "copy" (when rows are not in place yet) and "pad" (zero padding).
void add_copy_phases(Plan& plan, const BuildInput& input, const Phase& copy);

/// Adds rank r's op of phase "copy": `rows` rows, `items` when they are materialised. No op for no rows.
void add_copy_op(Plan& plan, Rank r, int32_t rows, std::span<const LanedItem> items,
                 std::span<const Dep> deps);
/// Adds rank r's op of phase "pad": zeros into the gaps. No op without the phase or gaps.
void add_pad_op(Plan& plan, Rank r, const FinalRows& rows, bool items, std::span<const Dep> deps);

/// Adds the last local step of rank r: out of the receive area, into expert groups; zeros into the gaps.
/// `items`: its rows, empty when rows are not materialised. No op when there is nothing to move.
void add_copy_ops(Plan& plan, Rank r, const FinalRows& rows, const BuildInput& input,
                  std::span<const LanedItem> items, std::span<const Dep> deps);

/// How a library's dispatch synchronises; the builders differ in nothing else.
struct Protocol {
  bool enter_barrier = true;          // wait until every receive area is free
  bool rows_wait_for_counts = false;  // V1: rows leave only after the count exchange
  bool copy_streams = false;          // V1: receivers copy out while rows arrive, with the same SMs
  bool flush_barrier = true;          // all members' rows are settled before anybody copies out
};

Plan build_direct(const BuildInput& input, const Protocol& protocol);
Plan build_hybrid(const BuildInput& input, const Protocol& protocol);

/// Appends the edges of rank r's op to `deps`, which comes empty.
using EdgesOf = std::function<void(Rank r, std::vector<Dep>& deps)>;

/// Adds one barrier op per rank to `phase`: one team of all ranks, or one per node. Returns the op of each
/// rank.
std::vector<OpId> add_barrier_ops(Plan& plan, PhaseId phase, bool per_node, const EdgesOf& edges);
/// Low latency: after its rows (ops of phase `data`) every rank sends every rank `flags` signals. Returns
/// what each rank waits for: [ranks].
std::vector<std::vector<Dep>> add_signals(Plan& plan, PhaseId phase, PhaseId data, int32_t flags);

/// Adds one wait op per rank.
std::vector<OpId> add_wait_ops(Plan& plan, PhaseId phase, const EdgesOf& edges);

}  // namespace plumb

// Copies of tokens and their rows in the final tensors.
#include "model/plans/dispatch_rows.h"

#include <algorithm>
#include <array>

#include "model/error.h"

namespace plumb {

void list_copies(const Shape& shape, std::span<const int32_t> table, std::vector<Copy>& out) {
  out.clear();
  const auto topk = static_cast<size_t>(shape.topk);
  const int32_t local_experts = shape.local_experts();
  std::array<Copy, 32> row;
  for (size_t t = 0; t * topk < table.size(); ++t) {
    size_t count = 0;
    for (size_t k = 0; k < topk; ++k) {
      const int32_t expert = table[t * topk + k];
      if (expert < 0) continue;
      const Rank dst = expert / local_experts;
      // Insertion by destination; a rank met again keeps its place and takes the higher lane.
      size_t at = count;
      while (at > 0 && row[at - 1].dst > dst) --at;
      if (at > 0 && row[at - 1].dst == dst) {
        row[at - 1].lane = static_cast<int8_t>(k);
        continue;
      }
      std::copy_backward(row.begin() + static_cast<ptrdiff_t>(at),
                         row.begin() + static_cast<ptrdiff_t>(count),
                         row.begin() + static_cast<ptrdiff_t>(count) + 1);
      row[at] = {.token = static_cast<int32_t>(t), .dst = dst, .lane = static_cast<int8_t>(k)};
      ++count;
    }
    out.insert(out.end(), row.begin(), row.begin() + static_cast<ptrdiff_t>(count));
  }
}

FinalRows::FinalRows(const BuildInput& input, bool expand, int32_t alignment)
    : shape_(input.shape),
      expand_(expand),
      alignment_(alignment),
      received_(static_cast<size_t>(input.shape.ranks)),
      selections_(static_cast<size_t>(input.shape.ranks)),
      expert_count_(static_cast<size_t>(input.shape.experts)) {
  if (!input.items || !expand_) return;
  std::vector<int32_t> counts(expert_count_.size());
  std::vector<int32_t> table;
  for (Rank s = 0; s < shape_.ranks; ++s) {
    input.routing.rows(s, table);
    for (const int32_t expert : table)
      if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  }
  expert_begin_.resize(counts.size());
  const int32_t local_experts = shape_.local_experts();
  int64_t next_row = 0;
  for (ExpertId e = 0; e < shape_.experts; ++e) {
    if (e % local_experts == 0) next_row = 0;
    expert_begin_[static_cast<size_t>(e)] = static_cast<int32_t>(next_row);
    next_row += round_up(counts[static_cast<size_t>(e)], alignment_);
    PLUMB_CHECK(next_row <= INT32_MAX, "rank {} would receive {} rows", e / local_experts, next_row);
  }
}

std::span<const FinalRow> FinalRows::next(const Copy& copy, std::span<const int32_t> choices) {
  const int32_t row = received_[static_cast<size_t>(copy.dst)]++;
  if (!expand_) {
    plain_ = {.row = row, .lane = copy.lane};
    return {&plain_, 1};
  }
  scratch_.clear();
  const ExpertId first = copy.dst * shape_.local_experts();
  for (size_t k = 0; k < choices.size(); ++k) {
    const ExpertId e = choices[k];
    if (e < first || e >= first + shape_.local_experts()) continue;
    ++selections_[static_cast<size_t>(copy.dst)];
    const int32_t position = expert_count_[static_cast<size_t>(e)]++;
    if (!expert_begin_.empty())
      scratch_.push_back(
          {.row = expert_begin_[static_cast<size_t>(e)] + position, .lane = static_cast<int8_t>(k)});
  }
  return scratch_;
}

int64_t FinalRows::tensor_rows(Rank r) const {
  if (!expand_) return received_[static_cast<size_t>(r)];
  int64_t rows = 0;
  for (int32_t e = 0; e < shape_.local_experts(); ++e)
    rows += round_up(expert_count_[static_cast<size_t>(r * shape_.local_experts() + e)], alignment_);
  return rows;
}

std::vector<int32_t> FinalRows::gap_rows(Rank r) const {
  std::vector<int32_t> gaps;
  if (!expand_) return gaps;
  int64_t begin = 0;
  for (int32_t e = 0; e < shape_.local_experts(); ++e) {
    const int32_t count = expert_count_[static_cast<size_t>(r * shape_.local_experts() + e)];
    const int64_t end = begin + round_up(count, alignment_);
    for (int64_t row = begin + count; row < end; ++row) gaps.push_back(static_cast<int32_t>(row));
    begin = end;
  }
  return gaps;
}

Op row_op(const Plan& plan, PhaseId phase, Rank src, Rank dst, int32_t rows) {
  const bool is_self = src == dst;
  const Link link = is_self                              ? Link::local
                    : plan.grouping().is_local(src, dst) ? Link::scale_up
                                                         : Link::scale_out;
  return {.kind = is_self ? OpKind::copy : OpKind::put,
          .link = link,
          .phase = phase,
          .traffic_class = is_self ? uint8_t{0} : plan.program().traffic_class,
          .src = src,
          .dst = dst,
          .messages = is_self ? 0 : rows,
          .rows = rows,
          .bytes = rows * plan.phases()[phase].row_bytes};
}

void add_copy_phases(Plan& plan, const BuildInput& input, const Phase& copy) {
  if (input.program.placement == RowPlacement::staged || input.program.expand) plan.add_phase(copy);
  if (!input.program.zero_padding) return;
  Phase pad = copy;
  pad.name = "pad";
  pad.from = kNoRegion;
  plan.add_phase(pad);
}

void add_copy_op(Plan& plan, Rank r, int32_t rows, std::span<const LanedItem> items,
                 std::span<const Dep> deps) {
  const auto phase = plan.find_phase("copy");
  if (!phase || rows == 0) return;
  Op op = row_op(plan, *phase, r, r, rows);
  for (const auto& [item, lane] : items) {
    const int32_t index = plan.add_item(item, lane);
    if (op.first_item == kNone) op.first_item = index;
  }
  plan.add(op, deps);
}

void add_pad_op(Plan& plan, Rank r, const FinalRows& rows, bool items, std::span<const Dep> deps) {
  const auto phase = plan.find_phase("pad");
  if (!phase) return;
  const auto gaps = static_cast<int32_t>(rows.tensor_rows(r) - rows.selections(r));
  Op op = row_op(plan, *phase, r, r, gaps);
  if (items)
    for (const int32_t row : rows.gap_rows(r)) {
      const int32_t index = plan.add_item({.src_slot = kNone, .dst_slot = row});
      if (op.first_item == kNone) op.first_item = index;
    }
  if (gaps > 0) plan.add(op, deps);
}

void add_copy_ops(Plan& plan, Rank r, const FinalRows& rows, const BuildInput& input,
                  std::span<const LanedItem> items, std::span<const Dep> deps) {
  const bool is_placed = input.program.placement == RowPlacement::direct;  // first rows are in place already
  const int32_t moved =
      input.program.expand ? rows.selections(r) - (is_placed ? rows.received(r) : 0) : rows.received(r);
  add_copy_op(plan, r, moved, items, deps);
  add_pad_op(plan, r, rows, input.items, deps);
}

std::vector<OpId> add_barrier_ops(Plan& plan, PhaseId phase, bool per_node, const EdgesOf& edges) {
  const Grouping& grouping = plan.grouping();
  const int32_t team = per_node ? grouping.scaleup : grouping.ranks;
  const Link link = grouping.nodes() > 1 && !per_node ? Link::scale_out : Link::scale_up;
  std::vector<OpId> ops;
  std::vector<Dep> deps;
  int32_t barrier = kNone;
  for (Rank r = 0; r < grouping.ranks; ++r) {
    if (r % team == 0) barrier = plan.add_barrier({.link = link, .members = team});
    deps.clear();
    edges(r, deps);
    ops.push_back(
        plan.add({.kind = OpKind::barrier, .phase = phase, .src = r, .dst = r, .rows = barrier}, deps));
  }
  return ops;
}

std::vector<std::vector<Dep>> add_signals(Plan& plan, PhaseId phase, PhaseId data, int32_t flags) {
  const auto ranks = static_cast<size_t>(plan.grouping().ranks);
  std::vector<OpId> data_op(ranks * ranks, kNone);
  for (size_t id = 0; id < plan.ops().size(); ++id) {
    const Op& op = plan.ops()[id];
    if (op.phase == data)
      data_op[static_cast<size_t>(op.src) * ranks + static_cast<size_t>(op.dst)] = static_cast<OpId>(id);
  }
  std::vector<std::vector<Dep>> arrivals(ranks);
  for (size_t pair = 0; pair < data_op.size(); ++pair) {
    const auto src = static_cast<Rank>(pair / ranks);
    const auto dst = static_cast<Rank>(pair % ranks);
    Op op = row_op(plan, phase, src, dst, flags);
    if (plan.program().rdma_only && src != dst) op.link = Link::scale_out;
    std::vector<Dep> deps;
    if (data_op[pair] != kNone) deps.push_back({data_op[pair], On::sent});
    arrivals[static_cast<size_t>(dst)].push_back({plan.add(op, deps), On::arrived});
  }
  return arrivals;
}

std::vector<OpId> add_wait_ops(Plan& plan, PhaseId phase, const EdgesOf& edges) {
  std::vector<OpId> ops;
  std::vector<Dep> deps;
  for (Rank r = 0; r < plan.grouping().ranks; ++r) {
    deps.clear();
    edges(r, deps);
    ops.push_back(plan.add({.kind = OpKind::wait, .phase = phase, .src = r, .dst = r}, deps));
  }
  return ops;
}

}  // namespace plumb

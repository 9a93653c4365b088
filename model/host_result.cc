// Decoding of received and combined rows, and the proof that they are the right ones.
#include "model/host_result.h"

#include <algorithm>
#include <cstring>

#include "model/error.h"
#include "model/host_counts.h"

namespace plumb {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

[[noreturn]] void fail(std::string_view region, Rank rank, int64_t slot, const std::string& what) {
  throw Error(ErrorKind::mismatch, fmt::format("row {} of '{}' on rank {} {}", slot, region, rank, what));
}

/// Everything that follows from sources and choices of the copies of one rank.
void count_copies(const Plan& plan, const HostBatch& batch, Rank rank, Received& out) {
  const Shape& shape = batch.shape();
  const Grouping& grouping = plan.grouping();
  const bool is_hybrid = plan.find_phase("forward").has_value();
  out.count_per_source_rank.assign(at(shape.ranks), 0);
  out.psum_per_scaleup_rank.assign(at(is_hybrid ? grouping.scaleup : shape.ranks), 0);
  out.unaligned_per_expert.assign(at(shape.local_experts()), 0);
  for (const int32_t id : out.copy_source) {
    const Rank source = id / shape.max_tokens;
    ++out.count_per_source_rank[at(source)];
    ++out.psum_per_scaleup_rank[at(is_hybrid ? grouping.local(source) : source)];
    const auto choices = batch.choices(source, id % shape.max_tokens);
    int32_t lane = kNone;
    for (int32_t k = 0; k < shape.topk; ++k) {
      const ExpertId e = choices[at(k)];
      if (e < 0 || shape.rank_of(e) != rank) continue;
      lane = k;
      ++out.unaligned_per_expert[at(e % shape.local_experts())];
    }
    out.master_lane.push_back(lane);
  }
  for (size_t i = 1; i < out.psum_per_scaleup_rank.size(); ++i)
    out.psum_per_scaleup_rank[i] += out.psum_per_scaleup_rank[i - 1];
}

void count_experts(bool expand, int32_t alignment, Received& out) {
  int32_t before = 0;
  for (const int32_t count : out.unaligned_per_expert) {
    const auto aligned = static_cast<int32_t>(round_up(count, alignment));
    out.aligned_per_expert.push_back(aligned);
    out.psum_per_expert.push_back(before + (expand ? count : aligned));
    before += aligned;
  }
}

}  // namespace

HostResult::HostResult(const Plan& plan, const HostBatch& batch, HostMemory memory)
    : plan_(plan),
      batch_(&batch),
      memory_(std::move(memory)),
      arrivals_(canonical_arrivals(batch, received_layout(plan, batch.shape()))) {}

RegionId HostResult::find(std::string_view region) const {
  if (const auto id = plan_.find_region(region)) return *id;
  std::string names;
  for (const Region& known : plan_.regions()) names += (names.empty() ? "" : ", ") + known.name;
  fail_usage("the plan has no region '{}'; it has: {}", region, names);
}

RegionId HostResult::find(std::string_view region, Rank rank, int64_t slot) const {
  const RegionId id = find(region);
  if (rank < 0 || rank >= plan_.grouping().ranks)
    fail_usage("rank {} of region '{}' does not exist; allowed: 0 .. {}", rank, region,
               plan_.grouping().ranks - 1);
  if (slot < 0 || slot >= memory_.rows(id, rank))
    fail_usage("slot {} of region '{}' on rank {} does not exist; it has {} slots", slot, region, rank,
               memory_.rows(id, rank));
  return id;
}

std::span<const std::byte> HostResult::row(std::string_view region, Rank rank, int64_t slot) const {
  return memory_.row(find(region, rank, slot), rank, slot);
}

bool HostResult::is_written(std::string_view region, Rank rank, int64_t slot) const {
  return memory_.writer(find(region, rank, slot), rank, slot) != HostMemory::kNever;
}

int64_t HostResult::rows(std::string_view region, Rank rank) const {
  const RegionId id = find(region);
  if (rank < 0 || rank >= plan_.grouping().ranks)
    fail_usage("rank {} does not exist; allowed: 0 .. {}", rank, plan_.grouping().ranks - 1);
  return memory_.rows(id, rank);
}

const RowFormat& HostResult::format(std::string_view region) const { return memory_.format(find(region)); }

bool HostResult::has_records(std::string_view region) const {
  const auto id = plan_.find_region(region);
  return id && memory_.format(*id).is_record();
}

Received HostResult::received(Rank rank) const {
  const RegionId region = find("received");
  const RowFormat& format = memory_.format(region);
  if (!format.is_record()) fail_usage("region 'received' of this plan holds no tokens");
  const Shape& shape = batch_->shape();
  const ReceivedLayout layout = received_layout(plan_, shape);
  const auto& rows = arrivals_[at(rank)];
  Received out;
  out.rows = static_cast<int32_t>(rows.size());
  for (int64_t slot = 0; slot < out.rows; ++slot) {
    const auto [source, position] = rows[at(slot)];
    const auto row = memory_.row(region, rank, slot);
    out.source.push_back(source);
    out.x.insert(out.x.end(), row.begin() + format.hidden, row.begin() + format.hidden + format.hidden_bytes);
    if (format.scales != kAbsent)
      out.scales.insert(out.scales.end(), row.begin() + format.scales,
                        row.begin() + format.scales + format.scales_bytes);
    if (source == kNone) out.padding_rows.push_back(static_cast<int32_t>(slot));
    if (!format.has_metadata()) continue;
    if (layout.expand) {
      out.weights.push_back(source == kNone ? 0.0f : load_weight(format, row, position));
      continue;
    }
    for (int32_t k = 0; k < shape.topk; ++k) {
      const ExpertId e = load_id(format, row, k);
      const bool is_local = e >= 0 && shape.rank_of(e) == rank;
      out.topk_idx.push_back(is_local ? e % shape.local_experts() : kNone);
      out.weights.push_back(load_weight(format, row, k));
    }
  }
  out.copy_source = out.source;
  std::erase(out.copy_source, kNone);
  std::sort(out.copy_source.begin(), out.copy_source.end());
  out.copy_source.erase(std::unique(out.copy_source.begin(), out.copy_source.end()), out.copy_source.end());
  if (layout.expand) {
    out.expanded_rows.assign(out.copy_source.size() * at(shape.topk), kNone);
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      if (rows[slot].source == kNone) continue;
      const auto copy = std::lower_bound(out.copy_source.begin(), out.copy_source.end(), rows[slot].source) -
                        out.copy_source.begin();
      out.expanded_rows[at(copy * shape.topk + rows[slot].position)] = static_cast<int32_t>(slot);
    }
  }
  count_copies(plan_, *batch_, rank, out);
  count_experts(layout.expand, layout.alignment, out);
  return out;
}

Combined HostResult::combined(Rank rank) const {
  const RegionId region = find("combined");
  const RowFormat& format = memory_.format(region);
  if (!format.is_record()) fail_usage("region 'combined' of this plan holds no tokens");
  Combined out;
  for (int64_t slot = 0; slot < memory_.rows(region, rank); ++slot) {
    const auto row = memory_.row(region, rank, slot);
    const size_t begin = out.x.size();
    out.x.resize(begin + at(format.elements()));
    std::memcpy(out.x.data() + begin, row.data() + format.hidden, at(format.hidden_bytes));
    for (int32_t k = 0; format.has_metadata() && k < batch_->shape().topk; ++k)
      out.weights.push_back(load_weight(format, row, k));
  }
  return out;
}

void HostResult::check_delivery() const {
  check_counts("counts_in");
  check_counts("offsets_in");
  if (has_received()) check_received(find("received"));
  if (has_combined()) check_combined(find("combined"));
}

void HostResult::check_counts(std::string_view name) const {
  const auto region = plan_.find_region(name);
  const auto is_target = [&](const Phase& phase) { return phase.to == region; };
  if (!region || std::none_of(plan_.phases().begin(), plan_.phases().end(), is_target)) return;
  const bool are_offsets = name == "offsets_in";
  const HostCounts counts(*batch_);
  for (Rank r = 0; r < batch_->shape().ranks; ++r)
    for (int64_t slot = 0; slot < memory_.rows(*region, r); ++slot) {
      if (memory_.writer(*region, r, slot) == HostMemory::kNever) fail(name, r, slot, "was never written");
      const auto [source, destination] = counts_slot(plan_, are_offsets, r, slot, memory_.rows(*region, r));
      const auto counted = counts.row(source, destination);
      const std::vector<int64_t> want = are_offsets
                                            ? counts.offsets(source, destination, plan_.program().expand)
                                            : std::vector<int64_t>(counted.begin(), counted.end());
      if (std::memcmp(memory_.row(*region, r, slot).data(), want.data(), want.size() * 8) != 0)
        fail(name, r, slot,
             fmt::format("does not hold what the routing counts for rank {} -> {}", source, destination));
    }
}

void HostResult::check_received(RegionId region) const {
  const RegionId input = find("input");
  const int32_t max_tokens = batch_->shape().max_tokens;
  for (Rank r = 0; r < batch_->shape().ranks; ++r) {
    const auto& rows = arrivals_[at(r)];
    if (memory_.rows(region, r) != static_cast<int64_t>(rows.size()))
      fail("received", r, memory_.rows(region, r),
           fmt::format("is where the tensor ends; the routing asks for {} rows", rows.size()));
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      const auto index = static_cast<int64_t>(slot);
      const int32_t source = rows[slot].source;
      const bool is_written = memory_.writer(region, r, index) != HostMemory::kNever;
      if (!is_written && (source != kNone || plan_.program().zero_padding))
        fail("received", r, index, "was never written");
      if (!is_written) continue;
      const auto row = memory_.row(region, r, index);
      if (source == kNone) {
        if (std::any_of(row.begin(), row.end(), [](std::byte b) { return b != std::byte{0}; }))
          fail("received", r, index, "is padding but not zero");
        continue;
      }
      const auto sent = memory_.row(input, source / max_tokens, source % max_tokens);
      if (std::equal(row.begin(), row.end(), sent.begin(), sent.end())) continue;
      const int32_t found = load_source(memory_.format(region), row);
      fail("received", r, index,
           found == source ? fmt::format("differs from what rank {} sent for token {}", source / max_tokens,
                                         source % max_tokens)
                           : fmt::format("holds the token of source id {}, the canonical order asks for {}",
                                         found, source));
    }
  }
}

void HostResult::check_combined(RegionId region) const {
  const RowFormat& format = memory_.format(region);
  for (Rank r = 0; r < batch_->shape().ranks; ++r)
    for (int64_t slot = 0; slot < memory_.rows(region, r); ++slot) {
      if (memory_.writer(region, r, slot) == HostMemory::kNever)
        fail("combined", r, slot, "was never written");
      if (!format.has_metadata()) continue;
      const auto row = memory_.row(region, r, slot);
      const auto token = static_cast<int32_t>(slot);
      const auto choices = batch_->choices(r, token);
      for (int32_t k = 0; k < batch_->shape().topk; ++k) {
        const int32_t expected = std::max(choices[at(k)], kNone);
        const float weight = expected < 0 ? 0.0f : batch_->weight(r, token, k);
        const float found = load_weight(format, row, k);
        if (load_id(format, row, k) != expected)
          fail("combined", r, slot,
               fmt::format("has expert {} at top-k position {}, expected {}", load_id(format, row, k), k,
                           expected));
        if (std::memcmp(&found, &weight, sizeof weight) != 0)
          fail("combined", r, slot,
               fmt::format("brought home weight {} at top-k position {}, sent was {}", found, k, weight));
      }
    }
}

}  // namespace plumb

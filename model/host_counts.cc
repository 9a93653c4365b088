// Counts and offsets of a batch.
#include "model/host_counts.h"

#include <algorithm>

namespace plumb {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

bool is_hybrid(const Plan& plan) { return plan.find_phase("forward").has_value(); }

/// Inverse of by_forwarder().
Rank source_of(const Plan& plan, int64_t position) {
  const Grouping& g = plan.grouping();
  if (!is_hybrid(plan)) return static_cast<Rank>(position);
  return g.rank(static_cast<int32_t>(position % g.nodes()), static_cast<int32_t>(position / g.nodes()));
}

}  // namespace

HostCounts::HostCounts(const HostBatch& batch)
    : shape_(batch.shape()),
      width_(at(1 + int64_t{shape_.local_experts()})),
      words_(at(shape_.ranks) * at(shape_.ranks) * width_) {
  std::vector<Rank> reached;
  for (Rank s = 0; s < shape_.ranks; ++s)
    for (int32_t t = 0; t < shape_.tokens[at(s)]; ++t) {
      reached.clear();
      for (const ExpertId e : batch.choices(s, t)) {
        if (e < 0) continue;
        const Rank d = shape_.rank_of(e);
        ++words_[index(s, d) + 1 + at(e % shape_.local_experts())];
        if (std::find(reached.begin(), reached.end(), d) != reached.end()) continue;
        reached.push_back(d);
        ++words_[index(s, d)];
      }
    }
}

size_t HostCounts::index(Rank source, Rank destination) const {
  return (at(source) * at(shape_.ranks) + at(destination)) * width_;
}

std::span<const int64_t> HostCounts::row(Rank source, Rank destination) const {
  return std::span(words_).subspan(index(source, destination), width_);
}

std::vector<int64_t> HostCounts::offsets(Rank source, Rank destination, bool expand) const {
  std::vector<int64_t> result(width_);
  std::vector<int64_t> totals(width_);
  for (Rank s = 0; s < shape_.ranks; ++s)
    for (size_t i = 0; i < width_; ++i) {
      if (s < source) result[i] += row(s, destination)[i];
      totals[i] += row(s, destination)[i];
    }
  int64_t begin = 0;
  for (size_t i = 1; expand && i < width_; ++i) {
    result[i] += begin;
    begin += round_up(totals[i], shape_.alignment);
  }
  return result;
}

int64_t by_forwarder(const Plan& plan, Rank source) {
  const Grouping& g = plan.grouping();
  return is_hybrid(plan) ? int64_t{g.local(source)} * g.nodes() + g.node(source) : source;
}

CountsSlot counts_slot(const Plan& plan, bool offsets, Rank rank, int64_t slot, int64_t rows) {
  const Grouping& g = plan.grouping();
  const int64_t ranks = g.ranks;
  if (offsets && is_hybrid(plan)) {  // of each GPU of the node, one row per source that `rank` forwards
    const auto destination = g.rank(g.node(rank), static_cast<int32_t>(slot / g.nodes()));
    return {g.rank(static_cast<int32_t>(slot % g.nodes()), g.local(rank)), destination};
  }
  if (offsets) return {rank, static_cast<Rank>(slot)};
  if (rows == ranks * ranks && ranks > 1)  // everybody's counts for everybody
    return {static_cast<Rank>(slot / ranks), static_cast<Rank>(slot % ranks)};
  return {source_of(plan, slot), rank};
}

}  // namespace plumb

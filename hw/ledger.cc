// Steps of the kernels are phases of the plan by name.
#include "hw/ledger.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/error.h"

namespace plumb::hw {

namespace {

/// What one rank counted, of `ranks`.
struct Counted {
  Rank rank;
  int32_t ranks;
  const kernels::Counters& counters;
};

void add_entries(const Plan& plan, const Counted& own, std::vector<LedgerEntry>& entries) {
  for (int32_t i = 0; i < kernels::kSteps; ++i)
    for (Rank peer = 0; peer < own.ranks; ++peer) {
      const auto step = static_cast<size_t>(i);
      const auto messages = static_cast<int64_t>(own.counters.messages[step][peer]);
      const auto bytes = static_cast<int64_t>(own.counters.bytes[step][peer]);
      if (messages == 0 && bytes == 0) continue;
      const auto phase = plan.find_phase(kernels::kStepNames[i]);
      if (!phase)
        throw Error(ErrorKind::mismatch,
                    fmt::format("rank {} moved {} bytes in step '{}', which is no phase of the plan",
                                own.rank, bytes, kernels::kStepNames[i]));
      // Combine reads: its rows go from the peer to the rank that counts them.
      const bool is_read = static_cast<kernels::Step>(i) == kernels::Step::combine_up;
      entries.push_back({.phase = *phase,
                         .src = is_read ? peer : own.rank,
                         .dst = is_read ? own.rank : peer,
                         .messages = messages,
                         .bytes = bytes});
    }
}

void add_waits(const Counted& own, std::vector<Wait>& waits) {
  for (Rank peer = 0; peer < own.ranks; ++peer) {
    int64_t ns = 0;
    for (const auto& step : own.counters.waited_ns) ns += static_cast<int64_t>(step[peer]);
    if (peer != own.rank) waits.push_back({peer, own.rank, ns});
  }
}

std::vector<Wait> sorted(std::vector<Wait> waits) {
  std::ranges::sort(waits, {}, [](const Wait& wait) { return std::pair(wait.source, wait.destination); });
  return waits;
}

}  // namespace

Ledger measured_ledger(const Plan& plan, std::span<const Buffer> buffers) {
  std::vector<LedgerEntry> entries;
  for (const Buffer& buffer : buffers)
    add_entries(plan, {buffer.rank(), buffer.limits().ranks, buffer.counters()}, entries);
  return Ledger(std::move(entries));
}

Ledger measured_ledger(const Plan& plan, std::span<const kernels::Counters> by_rank) {
  std::vector<LedgerEntry> entries;
  const auto ranks = static_cast<int32_t>(by_rank.size());
  for (Rank r = 0; r < ranks; ++r) add_entries(plan, {r, ranks, by_rank[static_cast<size_t>(r)]}, entries);
  return Ledger(std::move(entries));
}

std::vector<Wait> measured_waits(std::span<const Buffer> buffers) {
  std::vector<Wait> waits;
  for (const Buffer& buffer : buffers)
    add_waits({buffer.rank(), buffer.limits().ranks, buffer.counters()}, waits);
  return sorted(std::move(waits));
}

std::vector<Wait> measured_waits(std::span<const kernels::Counters> by_rank) {
  std::vector<Wait> waits;
  const auto ranks = static_cast<int32_t>(by_rank.size());
  for (Rank r = 0; r < ranks; ++r) add_waits({r, ranks, by_rank[static_cast<size_t>(r)]}, waits);
  return sorted(std::move(waits));
}

}  // namespace plumb::hw

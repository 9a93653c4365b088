// Steps of the kernels are phases of the plan by name.
#include "hw/ledger.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/error.h"

namespace plumb::hw {

Ledger measured_ledger(const Plan& plan, std::span<const Buffer> buffers) {
  std::vector<LedgerEntry> entries;
  for (const Buffer& buffer : buffers) {
    const kernels::Counters counters = buffer.counters();
    for (int32_t i = 0; i < kernels::kSteps; ++i)
      for (Rank peer = 0; peer < buffer.limits().ranks; ++peer) {
        const auto step = static_cast<size_t>(i);
        const auto messages = static_cast<int64_t>(counters.messages[step][peer]);
        const auto bytes = static_cast<int64_t>(counters.bytes[step][peer]);
        if (messages == 0 && bytes == 0) continue;
        const auto phase = plan.find_phase(kernels::kStepNames[i]);
        if (!phase)
          throw Error(ErrorKind::mismatch,
                      fmt::format("rank {} moved {} bytes in step '{}', which is no phase of the plan",
                                  buffer.rank(), bytes, kernels::kStepNames[i]));
        // Combine reads: its rows go from the peer to the rank that counts them.
        const bool is_read = static_cast<kernels::Step>(i) == kernels::Step::combine_up;
        entries.push_back({.phase = *phase,
                           .src = is_read ? peer : buffer.rank(),
                           .dst = is_read ? buffer.rank() : peer,
                           .messages = messages,
                           .bytes = bytes});
      }
  }
  return Ledger(std::move(entries));
}

std::vector<Wait> measured_waits(std::span<const Buffer> buffers) {
  std::vector<Wait> waits;
  for (const Buffer& buffer : buffers) {
    const std::vector<int64_t> by_peer = buffer.waits();
    for (size_t peer = 0; peer < by_peer.size(); ++peer)
      if (static_cast<Rank>(peer) != buffer.rank())
        waits.push_back({static_cast<Rank>(peer), buffer.rank(), by_peer[peer]});
  }
  std::ranges::sort(waits, {}, [](const Wait& wait) { return std::pair(wait.source, wait.destination); });
  return waits;
}

}  // namespace plumb::hw

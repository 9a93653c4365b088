// What one rank measured when the kernels ran a plan, as bytes that processes can hand to each other, and the
// result of all ranks made of it. Internal to the CUDA executor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params.h"
#include "model/plan.h"
#include "model/trace.h"

namespace plumb::hw {

/// Index of a call in the arrays of a record.
enum Call : size_t { kDispatchCall, kCombineCall, kCalls };

/// Further counted calls of which the one of median length is told: in any of them a rank may be late.
inline constexpr size_t kCountedCalls = 5;

struct RankRecord {
  std::array<double, kCalls> total_s{};    // median event time of each call; 0 = not made
  std::array<double, kCalls> counted_s{};  // the same of counted calls
  int32_t sms = 0;
  int32_t has_fewer_sms = 0;                                // than the program asks for
  std::array<kernels::Counters, kCountedCalls> counters{};  // of these, all calls of a round trip in one
};

struct KernelRunResult {
  Seconds total{};             // of the slowest rank; of a round trip the sum of both calls
  Seconds counted{};           // the same of counted calls: what ledger, stamps and waits cost
  std::vector<Span> spans;     // of the counted call of median length, t = 0 at the first stamp
  Ledger ledger;               // of that call
  std::vector<Wait> waits;     // likewise
  int32_t sms = 0;             // of each rank
  bool has_fewer_sms = false;  // than the program asks for
};

/// Whose stamps may be compared: all ranks share a GPU's timer, or each has its own.
enum class StampClock : uint8_t { shared, per_rank };

/// Joins the records of all ranks, by rank. Shared clock: t = 0 is the first stamp of any rank. Clocks of
/// their own: the first stamp of each, as all ranks were released by a barrier just before. Combine's spans
/// begin where dispatch's last one ends. Throws Error(mismatch) when a kernel counted in a step that is no
/// phase of the plan.
KernelRunResult join_records(const Plan& plan, std::span<const RankRecord> by_rank, StampClock clock);

}  // namespace plumb::hw

// The rules of VL arbitration.
#include "sim/arbitration.h"

#include <algorithm>
#include <limits>

#include "model/error.h"

namespace plumb::sim {

namespace {

constexpr int32_t kEqualWeight = 64;  // of lanes without tables: one 4 KiB packet

}  // namespace

Arbitration::Table Arbitration::table_of(const std::vector<LaneWeight>& entries) {
  Table table;
  for (const LaneWeight& entry : entries) {
    if (entry.lane < 0 || entry.lane >= static_cast<int32_t>(kMaxVirtualLanes))
      fail_usage("arbitration table: lane {} is outside 0 .. {}", entry.lane, kMaxVirtualLanes - 1);
    if (entry.weight <= 0) continue;
    table.entries.push_back(entry);
    table.lanes |= 1u << entry.lane;
  }
  return table;
}

Arbitration::Arbitration(const Lanes& lanes)
    : high_(table_of(lanes.high)), low_(table_of(lanes.low)), high_limit_(lanes.high_limit) {
  if (!lanes.high.empty() || !lanes.low.empty()) return;
  std::vector<LaneWeight> all;
  for (int32_t lane = 0; lane < lanes.count; ++lane) all.push_back({.lane = lane, .weight = kEqualWeight});
  low_ = table_of(all);
}

ArbitrationState Arbitration::initial() const {
  ArbitrationState state;
  if (!high_.entries.empty()) state.high_left = high_.entries[0].weight;
  if (!low_.entries.empty()) state.low_left = low_.entries[0].weight;
  state.high_quota = std::max(high_limit_ * kHighLimitUnit, 1);
  return state;
}

int32_t Arbitration::pick(ArbitrationState& state, std::span<LaneDebt> debts, uint32_t ready) const {
  const uint32_t high = ready & high_.lanes, low = ready & low_.lanes;
  const bool limit_used = high_limit_ != kNoHighLimit && state.high_quota <= 0;
  if (high != 0 && (!limit_used || low == 0)) {
    if (limit_used) state.high_quota = std::max(high_limit_ * kHighLimitUnit, 1);  // low had its chance
    state.last_was_high = true;
    return serve(high_, {state.high_entry, state.high_left, &LaneDebt::high}, debts, high);
  }
  if (low == 0) return -1;
  if (limit_used)  // what the high table sent beyond its limit counts for its next turn; limit 0 is one
                   // packet
    state.high_quota = high_limit_ == 0 ? 1 : state.high_quota + high_limit_ * kHighLimitUnit;
  state.last_was_high = false;
  return serve(low_, {state.low_entry, state.low_left, &LaneDebt::low}, debts, low);
}

void Arbitration::charge(ArbitrationState& state, int32_t bytes) const {
  const int32_t units = (bytes + kWeightUnit - 1) / kWeightUnit;
  if (state.last_was_high) {
    state.high_left -= units;
    if (high_limit_ != kNoHighLimit) state.high_quota -= bytes;
  } else {
    state.low_left -= units;
  }
}

int32_t Arbitration::serve(const Table& table, Cursor cursor, std::span<LaneDebt> debts, uint32_t ready) {
  const size_t count = table.entries.size();
  for (;;) {
    for (size_t step = 0; step <= count; ++step) {
      const int32_t lane = table.entries[cursor.entry].lane;
      if (cursor.left > 0 && (ready >> lane & 1) != 0) return lane;
      debts[lane].*cursor.debt +=
          std::min(cursor.left, 0);  // what is left of a weight is lost, what is owed is not
      cursor.entry = static_cast<uint8_t>(cursor.entry + 1u == count ? 0 : cursor.entry + 1);
      const LaneWeight& next = table.entries[cursor.entry];
      cursor.left = next.weight + debts[next.lane].*cursor.debt;
      debts[next.lane].*cursor.debt = 0;
    }
    pay_rounds(table, cursor, debts, ready);
  }
}

/// Skips the rounds in which no ready lane gets out of debt: packets may be a thousand times a weight.
void Arbitration::pay_rounds(const Table& table, Cursor cursor, std::span<LaneDebt> debts, uint32_t ready) {
  int32_t rounds = std::numeric_limits<int32_t>::max();
  for (const LaneWeight& entry : table.entries)
    if ((ready >> entry.lane & 1) != 0)
      rounds = std::min(rounds, -(debts[entry.lane].*cursor.debt) / entry.weight - 1);
  const LaneWeight& current = table.entries[cursor.entry];
  if ((ready >> current.lane & 1) != 0) rounds = std::min(rounds, -cursor.left / current.weight - 1);
  if (rounds <= 0) return;
  for (const LaneWeight& entry : table.entries) {
    int32_t& debt = debts[entry.lane].*cursor.debt;
    debt = static_cast<int32_t>(std::min<int64_t>(0, debt + int64_t{rounds} * entry.weight));
  }
  if (cursor.left < 0)
    cursor.left = static_cast<int32_t>(std::min<int64_t>(0, cursor.left + int64_t{rounds} * current.weight));
}

}  // namespace plumb::sim

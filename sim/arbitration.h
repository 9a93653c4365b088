// InfiniBand VL arbitration: which lane of a port sends next. Two tables of (lane, weight); weights in units
// of 64 B; the high table goes first until its limit is used up, then the low one gets a turn.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/lanes.h"

namespace plumb::sim {

inline constexpr int32_t kWeightUnit = 64;       // bytes; InfiniBand specification, VL arbitration
inline constexpr int32_t kHighLimitUnit = 4096;  // bytes
inline constexpr int32_t kNoHighLimit = 255;
inline constexpr uint32_t kMaxVirtualLanes = 16;

/// Where a port stands in its tables. The debt of a lane is what its packets took beyond the weight of its
/// last turns; it is paid from the next ones, so that shares are exact whatever the packet size (a packet is
/// never cut).
struct ArbitrationState {
  uint8_t high_entry = 0;
  uint8_t low_entry = 0;
  bool last_was_high = false;
  int32_t high_left = 0;  // units of the current entry
  int32_t low_left = 0;
  int32_t high_quota = 0;  // bytes of high priority until the low table gets a turn
};

/// Units owed by a lane of a port, per table.
struct LaneDebt {
  int32_t high = 0;
  int32_t low = 0;
};

/// The tables of all ports. Lanes that stand in no table never send; empty tables give all lanes equal
/// weight.
class Arbitration {
 public:
  explicit Arbitration(const Lanes& lanes);

  ArbitrationState initial() const;

  /// Chooses among the lanes of `ready` (bit v = lane v has a packet and credits for it); -1 when none of
  /// them stands in a table. debts: [lanes].
  int32_t pick(ArbitrationState& state, std::span<LaneDebt> debts, uint32_t ready) const;

  /// Charges the lane that pick() returned with the packet it sends.
  void charge(ArbitrationState& state, int32_t bytes) const;

 private:
  struct Table {
    std::vector<LaneWeight> entries;  // of positive weight
    uint32_t lanes = 0;               // bit mask
  };
  static Table table_of(const std::vector<LaneWeight>& entries);
  /// The table's next lane among `ready`, of which at least one must stand in it.
  struct Cursor {
    uint8_t& entry;
    int32_t& left;
    int32_t LaneDebt::*debt;
  };
  static int32_t serve(const Table& table, Cursor cursor, std::span<LaneDebt> debts, uint32_t ready);
  static void pay_rounds(const Table& table, Cursor cursor, std::span<LaneDebt> debts, uint32_t ready);

  Table high_;
  Table low_;
  int32_t high_limit_ = kNoHighLimit;
};

}  // namespace plumb::sim

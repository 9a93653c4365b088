// One execution of a plan on the CPU, op by op. Internal to the host executor.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/host_memory.h"
#include "model/host_order.h"
#include "model/host_payload.h"
#include "model/ledger.h"
#include "model/plan.h"

namespace plumb {

/// Executes ops in order of ids in `memory`, whose initial rows are filled. All errors: Error(mismatch), see
/// HostExecutor::run().
class HostRun {
 public:
  HostRun(const Plan& plan, const HostBatch& batch, ExpertFunction function, int32_t threads,
          HostMemory& memory);

  /// Runs all ops and returns what was moved, one entry per op.
  std::vector<LedgerEntry> execute();

 private:
  /// A row that an item reads. region kNoRegion: zeros.
  struct Place {
    RegionId region = kNoRegion;
    int64_t slot = 0;
  };

  const Op& op() const { return plan_.ops()[static_cast<size_t>(id_)]; }
  const Phase& phase() const { return plan_.phases()[op().phase]; }
  std::string describe() const;
  /// Throws Error(mismatch) for the current op.
  [[noreturn]] void fail(const std::string& what) const;

  LedgerEntry execute_op();
  Place place_of(int32_t src_slot) const;
  std::span<const std::byte> bytes_of(Place place) const;
  void check_read(Place place) const;
  void take_row(Rank rank, int64_t slot);
  void move_rows(std::span<const Item> items);
  void reduce_rows(std::span<const Item> items);
  void check_formats() const;
  void check_biases(std::span<const Item> items) const;
  void merge_metadata(std::span<const Item> group);
  void sum_hidden(std::span<const Item> group, std::span<const int8_t> lanes);
  void zero_rows_without_items();
  void run_experts();
  /// Calls `body(i)` for 0 <= i < count, by several threads when `bytes` are worth it. `body` may not throw.
  void for_each(size_t count, int64_t bytes, const std::function<void(size_t)>& body) const;

  const Plan& plan_;
  const HostBatch& batch_;
  const ExpertFunction function_;
  const int32_t threads_;
  HostMemory& memory_;
  OpOrder order_;
  OpId id_ = 0;
  int64_t rows_written_ = 0;  // by the current op
};

}  // namespace plumb

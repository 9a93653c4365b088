// The host executor: moves real bytes between the ranks' memories on the CPU and checks each step. It is the
// oracle of the other executors: what they time or run is shown here to deliver the right rows. docs/host.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "model/executor.h"
#include "model/host_memory.h"
#include "model/host_payload.h"
#include "model/host_result.h"

namespace plumb {

/// A batch and how to run it.
struct HostInput {
  const Shape& shape;      // that the plan was built from
  const Routing& routing;  // likewise
  uint64_t seed = 1;       // of payload, weights and biases
  ExpertFunction expert = ExpertFunction::identity;
  HostValues values;  // own payload instead of the random one
  HostOptions options;
};

/// Runs plans on the CPU. An op is executed when its turn in the list comes; its rows move item by item.
class HostExecutor : public Executor {
 public:
  /// Copies shape and routing. Throws Error(usage) for options out of range.
  explicit HostExecutor(const HostInput& input);
  ~HostExecutor() override;

  std::string_view name() const override { return "host"; }

  /// Moves all rows, then proves delivery. The trace has one span per (rank, phase) with messages and bytes,
  /// clock "none", and no times. Throws
  ///   Error(usage) when the plan has no items, does not fit the shape, or its regions exceed the memory
  ///   limit;
  ///   Error(mismatch), naming op, phase, ranks, region and slot, when an op reads a row that nothing has
  ///   written or that its edges do not wait for, leaves a region, writes a row twice in one phase, sums
  ///   two rows for one top-k position or in another order than that of positions, or adds a bias to another
  ///   token; when a barrier lacks members; when the measured ledger is not the
  ///   plan's; when a delivered row is missing, out of the canonical order or altered.
  Trace run(const Plan& plan) override;

  const HostBatch& batch() const;
  /// Of the last run(). Throws LogicError before the first. Valid until the next run.
  const HostResult& result() const;

 private:
  std::unique_ptr<HostBatch> batch_;
  uint64_t seed_;
  ExpertFunction expert_;
  HostOptions options_;
  std::optional<HostResult> result_;
};

}  // namespace plumb

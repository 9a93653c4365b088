// The counts and row offsets that ranks exchange before a dispatch, straight from the routing. Internal to
// the host executor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/host_payload.h"
#include "model/plan.h"

namespace plumb {

/// int64 [ranks][ranks][1 + local experts]: rows that a source sends a destination, in all and by expert.
/// Refers to the batch.
class HostCounts {
 public:
  explicit HostCounts(const HostBatch& batch);

  std::span<const int64_t> row(Rank source, Rank destination) const;
  /// Where the rows of `source` begin at `destination`: in the plain tensor, then for each local expert:
  /// after the rows of lower sources; in the expanded layout counted from the begin of the tensor.
  std::vector<int64_t> offsets(Rank source, Rank destination, bool expand) const;

 private:
  size_t index(Rank source, Rank destination) const;

  const Shape& shape_;
  size_t width_;
  std::vector<int64_t> words_;
};

/// Position of a source among the rows of counts of a destination: grouped by forwarder in hybrid plans, by
/// rank otherwise.
int64_t by_forwarder(const Plan& plan, Rank source);

/// The row of `source` to `destination` that a delivered slot of "counts_in" or "offsets_in" on `rank` must
/// hold.
struct CountsSlot {
  Rank source = 0;
  Rank destination = 0;
};
CountsSlot counts_slot(const Plan& plan, bool offsets, Rank rank, int64_t slot, int64_t rows);

}  // namespace plumb

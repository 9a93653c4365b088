// DeepEP V1's normal kernels: rows leave once the counts are known, receivers copy them out while they
// arrive, with the same SMs; no barrier at the end. Inside one node one hop, between nodes rail and forward.
#include "model/error.h"
#include "model/plans/dispatch_rows.h"

namespace plumb {

Plan build_v1_dispatch(const BuildInput& input) {
  if (input.program.placement != RowPlacement::staged || input.program.expand)
    fail_usage("v1_dispatch knows staged placement and the plain layout only");
  const Protocol protocol{
      .enter_barrier = true, .rows_wait_for_counts = true, .copy_streams = true, .flush_barrier = false};
  return input.grouping.nodes() > 1 ? build_hybrid(input, protocol) : build_direct(input, protocol);
}

}  // namespace plumb

// Derived plans: functions from plan to plan, each with a conservation test.
#pragma once

#include <string_view>

#include "model/plan.h"
#include "model/shape.h"

namespace plumb {

/// The combine of a dispatch plan: every row goes back the way it came, and is summed where branches met
/// (multiple reduction) or only at its source (single reduction), as `program` says. Items follow when the
/// dispatch has them. Conserves: for every scale_up or scale_out op of the dispatch one of equal rows in the
/// other direction.
Plan reverse(const Plan& dispatch, const Shape& shape, const Program& program);

/// `plan` without a phase; edges through its ops are replaced by the edges that these had. Conserves all
/// other ops.
Plan without(const Plan& plan, std::string_view phase);

/// `first`, then on each rank a compute op of phase `between`, then `second`: the compute op waits for the
/// rank's last ops of `first`, and ops of `second` without edges wait for it. `between` writes to the region
/// "expert_out" when there is one. Conserves the ops of both.
Plan append(const Plan& first, const Plan& second, Phase between);

/// Both plans at once, with no edge between them; the phases and regions of `second` get `prefix` before
/// their names. Conserves the ops of both.
Plan overlay(const Plan& first, const Plan& second, std::string_view prefix);

/// Merges the traffic of groups of `ranks_per_group` adjacent ranks into one op per (phase, source group,
/// destination group), for huge simulations. Conserves bytes and messages per (phase, source group,
/// destination group, link).
Plan coarsen(const Plan& plan, int32_t ranks_per_group);

}  // namespace plumb

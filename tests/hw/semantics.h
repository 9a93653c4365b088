// One random case from dispatch to combine, in any world.
#pragma once

#include <memory>

#include "tests/hw/rig.h"

namespace plumb::hw::test {

/// Dispatch, combine and a cached dispatch of the case by the ranks of this process; all that they receive,
/// count and sum is compared with the reference. Returns the number of differences, of which the first are
/// reported. Collective.
int run_case(const Case& c, std::shared_ptr<World> world);

}  // namespace plumb::hw::test

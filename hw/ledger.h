// What the kernels counted, as a ledger of a plan, and how long ranks waited for each other.
#pragma once

#include <span>
#include <vector>

#include "hw/buffer.h"
#include "model/ledger.h"
#include "model/trace.h"

namespace plumb::hw {

/// Messages and bytes that counted calls of these buffers moved since their counters were cleared, by the
/// plan's phases. Synchronises the device. Throws Error(mismatch) when a kernel counted in a step that is no
/// phase of the plan.
Ledger measured_ledger(const Plan& plan, std::span<const Buffer> buffers);
/// The same of counters that were read before, those of all ranks.
Ledger measured_ledger(const Plan& plan, std::span<const kernels::Counters> by_rank);

/// Buffer::waits() of these buffers: destination = the rank that waited. In order of source, destination.
/// Synchronises the device.
std::vector<Wait> measured_waits(std::span<const Buffer> buffers);
std::vector<Wait> measured_waits(std::span<const kernels::Counters> by_rank);

}  // namespace plumb::hw

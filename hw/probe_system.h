// What the driver and nvidia-smi say about the GPUs of this machine.
#pragma once

#include "hw/probe.h"

namespace plumb::hw {

/// Fills all of `probe` but points and times. Throws Error(environment) without a GPU of compute
/// capability 9.0 or newer, and when the visible GPUs are not alike.
void describe_system(Probe& probe);

}  // namespace plumb::hw

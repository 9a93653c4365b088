// A machine file (docs/machine.md) from what a probe measured. Needs no GPU.
#pragma once

#include <string>
#include <string_view>

#include "hw/probe.h"
#include "model/machine.h"

namespace plumb::hw {

/// The text of a machine file called `name`: one node of all GPUs of the probe, each number with its source.
/// What cannot be measured (names, nominal rates of memory and links) is taken from `base` with its source;
/// without a base from what the driver reports, else it is marked as assumed. Throws LogicError when
/// read_machine() would refuse the result, Error(usage) when `base` has another number of SMs, and
/// Error(environment) when not all GPUs reach each other's memory: they are no scale-up domain.
std::string machine_file(const Probe& probe, std::string_view name, const Machine* base);

/// How the measured numbers are quoted: "measured NVIDIA H200, driver 580.159.04, CUDA 13.0, 2026-11-29".
std::string measured_on(const Probe& probe);

}  // namespace plumb::hw

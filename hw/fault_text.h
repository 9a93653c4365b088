// A kernel's fault record in words.
#pragma once

#include <optional>
#include <string>

#include "kernels/fault.h"

namespace plumb::hw {

/// The record once it is complete, read while kernels may run.
std::optional<kernels::Fault> read_fault(const kernels::Fault* pinned);

/// Whether a wait of the rank was given up; its buffer is then lost.
bool is_abandoned(const kernels::Fault* pinned);

/// One line: what happened, rank, peer, phase, expected and seen, and what to do.
std::string to_string(const kernels::Fault& fault);

}  // namespace plumb::hw

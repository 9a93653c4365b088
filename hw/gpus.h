// Which GPUs ranks could take, asked by a process of its own, so that this one stays free of CUDA and may
// fork the ranks.
#pragma once

#include <cstdint>
#include <string>

#include "hw/peer_access.h"

namespace plumb::hw {

struct VisibleGpus {
  int32_t count = 0;
  PeerAccess peers;    // of all of them, or of the first when nobody knows who reaches whom
  std::string reason;  // why count is 0, or why nobody knows
};

/// GPUs as a forked process sees them. Once this process has used CUDA, forked ones cannot: reason says so.
/// Throws Error(environment) when it cannot fork.
VisibleGpus visible_gpus();

}  // namespace plumb::hw

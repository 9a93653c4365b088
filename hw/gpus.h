// Which GPUs ranks could take, asked by a process of its own, so that this one stays free of CUDA and may
// fork the ranks.
#pragma once

#include <cstdint>
#include <string>

namespace plumb::hw {

struct VisibleGpus {
  int32_t count = 0;
  int32_t together = 0;  // GPUs 0 .. together - 1 all reach each other's memory
  std::string reason;    // why count is 0, or why nobody knows who reaches whom (together is 1 then)
};

/// GPUs as a forked process sees them. Once this process has used CUDA, forked ones cannot: reason says so.
/// Throws Error(environment) when it cannot fork.
VisibleGpus visible_gpus();

}  // namespace plumb::hw

// Where the ranks of a real run live. docs/experiment.md.
#pragma once

#include <cstdint>

namespace plumb {

enum class WorldChoice : uint8_t {
  automatic,  // nvlink where program and machine allow it, else local
  local,      // all ranks share one GPU
  nvlink,     // a process and a GPU for each rank, NVLink or other peer access between them
};

}  // namespace plumb

// The NVLink world: one rank per GPU, NCCL symmetric windows, loads and stores to peers. Compiled only with
// NCCL; no NIC and no GIN are needed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "hw/world.h"

namespace plumb::hw {

/// Bytes of the identifier that rank 0 hands to all ranks before they join.
inline constexpr int32_t kNvlinkIdBytes = 128;
using NvlinkId = std::array<char, kNvlinkIdBytes>;

/// A new identifier, on one rank. Throws Error(environment) when NCCL's library is not the version that was
/// compiled against.
NvlinkId make_nvlink_id();

/// The version of NCCL that is loaded, as NCCL codes it (22809 = 2.28.9).
int loaded_nccl_version();

/// Joins as `rank` of `ranks` with the current device. Collective; synchronises. Throws Error(environment)
/// when the ranks are not all in one load/store domain, naming its size, or when NCCL fails.
std::unique_ptr<World> make_nvlink_world(const NvlinkId& id, Rank rank, int32_t ranks);

}  // namespace plumb::hw

// Launcher of lsa_table.cu; compiled only with NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/params.h"

namespace plumb::kernels {

/// Fills `table` (device, [ranks]) with the addresses at which this GPU reaches the windows of the LSA team.
/// `window`: an ncclWindow_t.
cudaError_t launch_lsa_table(void* window, int32_t ranks, char** table, cudaStream_t stream);

}  // namespace plumb::kernels

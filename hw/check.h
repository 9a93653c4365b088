// Wraps every CUDA and NCCL call: a failure becomes an Error(environment) that says what was tried.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace plumb::hw {

/// Throws Error(environment) "<what>: <name of the error>: <text>" unless `result` is cudaSuccess.
void check(cudaError_t result, std::string_view what);

/// Number of usable GPUs; 0 without a driver or a device, never an error. `reason` says why it is 0.
int device_count(std::string_view* reason = nullptr);

}  // namespace plumb::hw

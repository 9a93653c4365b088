// CUDA errors as exceptions.
#include "hw/check.h"

#include "model/error.h"

namespace plumb::hw {

void check(cudaError_t result, std::string_view what) {
  if (result == cudaSuccess) return;
  throw Error(ErrorKind::environment,
              fmt::format("{}: {}: {}", what, cudaGetErrorName(result), cudaGetErrorString(result)));
}

int device_count(std::string_view* reason) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    if (reason != nullptr) *reason = cudaGetErrorString(result);
    cudaGetLastError();  // a machine without a GPU is no error of later calls
    return 0;
  }
  if (reason != nullptr) *reason = count == 0 ? "the driver reports no device" : "";
  return count;
}

}  // namespace plumb::hw

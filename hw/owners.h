// Owners of CUDA resources: free what they hold, move only, never copy.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hw/check.h"

namespace plumb::hw {

/// Owns one CUDA object of type T that `Traits::destroy` frees.
template <class T, class Traits>
class Owner {
 public:
  Owner() = default;
  explicit Owner(T value) : value_(value) {}
  Owner(Owner&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Owner() {
    if (value_ != T{}) Traits::destroy(value_);
  }
  T get() const { return value_; }

 private:
  T value_{};
};

struct StreamTraits {
  static void destroy(cudaStream_t s) { cudaStreamDestroy(s); }
};
struct EventTraits {
  static void destroy(cudaEvent_t e) { cudaEventDestroy(e); }
};
struct GraphTraits {
  static void destroy(cudaGraphExec_t g) { cudaGraphExecDestroy(g); }
};
struct DeviceTraits {
  static void destroy(void* p) { cudaFree(p); }
};
struct PinnedTraits {
  static void destroy(void* p) { cudaFreeHost(p); }
};

using Stream = Owner<cudaStream_t, StreamTraits>;
using Event = Owner<cudaEvent_t, EventTraits>;
using Graph = Owner<cudaGraphExec_t, GraphTraits>;
using DeviceMemory = Owner<void*, DeviceTraits>;
using PinnedMemory = Owner<void*, PinnedTraits>;

/// A stream that does not wait for the default stream.
Stream make_stream();
Event make_event();
/// Memory of the current device, at least one byte, not initialised.
DeviceMemory device_memory(int64_t bytes);
/// Host memory that kernels may write, zeroed.
PinnedMemory pinned_memory(int64_t bytes);

/// Captures what `enqueue` puts on the stream.
template <class F>
Graph capture(cudaStream_t stream, F enqueue) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(result, "instantiate graph");
  return Graph(executable);
}

}  // namespace plumb::hw

// Makers of owned CUDA resources.
#include "hw/owners.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace plumb::hw {

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "create event");
  return Event(event);
}

DeviceMemory device_memory(int64_t bytes) {
  void* memory = nullptr;
  const int64_t size = std::max<int64_t>(bytes, 1);
  check(cudaMalloc(&memory, static_cast<size_t>(size)),
        "allocate " + std::to_string(size) + " bytes on the device");
  return DeviceMemory(memory);
}

PinnedMemory pinned_memory(int64_t bytes) {
  void* memory = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  check(cudaHostAlloc(&memory, size, cudaHostAllocMapped | cudaHostAllocPortable), "allocate pinned memory");
  std::memset(memory, 0, size);
  return PinnedMemory(memory);
}

}  // namespace plumb::hw

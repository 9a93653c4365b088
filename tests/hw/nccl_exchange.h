// NCCL's all-to-all of equal pieces: the guard beside our kernels against a machine that changes between
// runs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "hw/nvlink_world.h"

namespace plumb::hw {

class NcclExchange {
 public:
  /// Joins as `rank` of `ranks` with the current device. Collective.
  NcclExchange(const NvlinkId& id, Rank rank, int32_t ranks);
  ~NcclExchange();
  /// Sends `bytes` bytes of `from` to each rank, the own one too; rank r's come to `to` + r * bytes. One
  /// group of sends and receives. Collective; enqueued on the stream.
  void enqueue(const void* from, void* to, int64_t bytes, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plumb::hw

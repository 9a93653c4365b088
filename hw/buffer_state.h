// Inside of a buffer: its memory and handles, and how a call becomes kernel parameters. Internal to hw.
#pragma once

#include <memory>
#include <vector>

#include "hw/buffer.h"
#include "hw/owners.h"

namespace plumb::hw {

struct HandleSlot {
  kernels::HandleMemory memory;
  uint64_t generation = 0;  // of its present or next use
  bool is_used = false;
  int32_t tokens = 0;
  bool expand = false;
  int32_t alignment = 1;
};

struct Buffer::State {
  State(const BufferLimits& limits, Rank rank, uint64_t group, int32_t own_ranks,
        std::shared_ptr<Windows> windows);

  /// Checks the call and fills the parameters of the kernel. Throws Error(usage).
  kernels::DispatchParams dispatch_params(const DispatchInput& in, const DispatchOptions& options,
                                          Received& out);
  kernels::CombineParams combine_params(const CombineInput& in, const CombineOptions& options);
  /// Copies rows and weights that the caller holds elsewhere into the window.
  void stage_combine(const CombineInput& in, int32_t sms, cudaStream_t stream);
  /// Waits for the counts of a host_sync call, exact sizes into `out`.
  void read_counts(Received& out);

  /// On other GPUs. For members that are initialised later, too: needs the limits and own_ranks only.
  bool has_far_peers() const { return own_ranks < limits.ranks; }
  HandleSlot& slot_of(Handle handle);
  Handle take_handle(const DispatchInput& in, const DispatchOptions& options);
  int32_t sms_of(int32_t asked, int32_t ranks_in_launch) const;
  void raise_fault();

  BufferLimits limits;
  Rank rank = 0;
  uint64_t group = 0;
  int32_t own_ranks = 1;
  int32_t device_sms = 1;
  int64_t shared_bytes = 0;  // a block may use
  bool is_lost = false;      // a wait timed out
  kernels::WindowMap map;
  std::shared_ptr<Windows> windows;
  DeviceMemory rank_state;
  DeviceMemory counters;
  DeviceMemory block_counts;
  DeviceMemory totals;
  DeviceMemory numbers;
  DeviceMemory handle_memory;
  PinnedMemory fault;
  PinnedMemory host_counts;
  std::vector<HandleSlot> handles;
  kernels::Context context;
};

/// Words of HandleMemory::counts.
int64_t count_words(const BufferLimits& limits);

}  // namespace plumb::hw

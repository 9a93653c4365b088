// Dispatch and combine on real memory: what a framework calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hw/world.h"
#include "kernels/params.h"
#include "model/shape.h"

namespace plumb::hw {

/// Names the placement of one dispatch, until it is released. A value; a stale or foreign one is refused.
struct Handle {
  uint64_t buffer = 0;  // which group of buffers
  uint64_t generation = 0;
  int32_t index = 0;
};

struct DispatchInput {
  const void* x = nullptr;           // [tokens] rows of hidden elements, contiguous
  const uint32_t* scales = nullptr;  // fp8: packs of 4 bytes, any strides
  int64_t scale_token_stride = 0;    // in packs; 0 = contiguous rows
  int64_t scale_pack_stride = 1;
  const void* topk_idx = nullptr;  // int32 or int64 [tokens][topk], negative = no choice; null when cached
  const float* topk_weights = nullptr;  // [tokens][topk], optional
  int32_t tokens = 0;
  Handle cached = {};  // generation != 0: rows go where they went in that dispatch
  int32_t* expert_totals =
      nullptr;  // device, [local experts]: counts of this call are added; not when cached
};

/// Options, equal on all ranks.
struct DispatchOptions {
  DType type = DType::bf16;
  int32_t scale_packs = 0;  // fp8: packs beside a row
  int32_t id_bytes = 4;     // 4 or 8
  bool expand = false;
  bool zero_padding = false;   // of alignment gaps; needs expand
  bool column_scales = false;  // received scales column-major
  int32_t alignment = 1;
  int32_t num_sms = 0;     // of each rank; 0 = the device's, shared by the own ranks
  bool host_sync = false;  // wait for the counts on the host and return them; cannot be captured
  bool counted = false;    // fill counters(): ledger, stamps, wait times
};

/// What a rank received. Pointers are into its window and stay valid until its next dispatch.
struct Received {
  char* x = nullptr;           // rows, contiguous
  uint32_t* scales = nullptr;  // pack i of row r: scales[r * row_stride + i * column_stride]
  int64_t scale_row_stride = 0;
  int64_t scale_column_stride = 1;
  int32_t* topk_idx = nullptr;      // plain: [copies][topk] local expert or -1
  float* weights = nullptr;         // plain: [copies][topk]; expand: [rows]
  int32_t* source = nullptr;        // [copies] source rank * max_tokens + token, ascending
  const int64_t* counts = nullptr;  // device, kernels::CountWords
  int64_t rows_capacity = 0;
  Handle handle;
  // With host_sync:
  int64_t copies = -1;
  int64_t rows = -1;                    // of the tensor, gaps included
  std::vector<int64_t> rank_prefix;     // [ranks] inclusive prefix of copies by source
  std::vector<int64_t> expert_rows;     // [local experts]
  std::vector<int64_t> expert_aligned;  // the same, rounded up to the alignment
  std::vector<int64_t> expert_prefix;   // see docs/hw.md
};

struct CombineInput {
  const void* x = nullptr;                   // bf16 rows as received; null: they are in expert_out() already
  const float* weights = nullptr;            // as received; null: in expert_weights(), or not carried
  const void* bias[2] = {nullptr, nullptr};  // bf16 [tokens][hidden], optional
  void* out = nullptr;                       // bf16 [tokens][hidden]
  float* out_weights = nullptr;              // [tokens][topk], optional
  Handle handle;
};

struct CombineOptions {
  bool multiple_reduction = true;
  int32_t num_sms = 0;
  bool counted = false;
};

/// One rank's communication buffer. Every call is collective over ranks and enqueues on the stream; nothing
/// is allocated, and the host waits only with host_sync. Misuse throws Error(usage) before anything is
/// enqueued; a fault that a kernel reported throws Error(environment) at the next call or raise_fault().
class Buffer {
 public:
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  Received dispatch(const DispatchInput& input, const DispatchOptions& options, cudaStream_t stream);
  void combine(const CombineInput& input, const CombineOptions& options, cudaStream_t stream);
  void barrier(cudaStream_t stream);
  /// Ends the handle; its memory serves the next dispatch.
  void release(Handle handle);
  /// Frees the rank's memory. A second call, or any other call after it, is an error. Not collective here.
  void destroy();

  /// Where combine reads rows and weights of this rank, for experts that write there themselves.
  void* expert_out() const;
  float* expert_weights() const;
  Rank rank() const;
  const BufferLimits& limits() const;

  /// Throws Error(environment) with rank, peer, phase, expected and seen when a kernel reported a fault. A
  /// time-out ends the buffer's use; after other faults it may be used on.
  void raise_fault();
  /// Ledger, stamps and wait times since the last clear; synchronises the device.
  kernels::Counters counters() const;
  /// [ranks]: nanoseconds that this rank waited for signals and counts of each peer, in all counted calls
  /// since the last clear. Waits for several peers run side by side. Synchronises the device.
  std::vector<int64_t> waits() const;
  void clear_counters();

 private:
  struct State;
  friend std::vector<Buffer> make_buffers(World& world, std::span<const BufferLimits> own);
  friend std::vector<Received> dispatch_together(std::span<Buffer> buffers,
                                                 std::span<const DispatchInput> inputs,
                                                 const DispatchOptions& options, cudaStream_t stream);
  friend void combine_together(std::span<Buffer> buffers, std::span<const CombineInput> inputs,
                               const CombineOptions& options, cudaStream_t stream);
  friend void barrier_together(std::span<Buffer> buffers, cudaStream_t stream);
  explicit Buffer(std::unique_ptr<State> state);
  State& live() const;
  std::unique_ptr<State> state_;
};

/// Buffers of the own ranks, in order of rank; `own`: their limits. Collective. Throws Error(usage) when
/// limits are out of range or differ between ranks.
std::vector<Buffer> make_buffers(World& world, std::span<const BufferLimits> own);

/// The same calls for all ranks of this device in one launch, so that they run together: at most 16 ranks.
std::vector<Received> dispatch_together(std::span<Buffer> buffers, std::span<const DispatchInput> inputs,
                                        const DispatchOptions& options, cudaStream_t stream);
void combine_together(std::span<Buffer> buffers, std::span<const CombineInput> inputs,
                      const CombineOptions& options, cudaStream_t stream);
void barrier_together(std::span<Buffer> buffers, cudaStream_t stream);

}  // namespace plumb::hw

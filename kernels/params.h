// What the host hands to the kernels: places in the window, places in private memory, sizes. PODs,
// device-safe.
#pragma once

#include <cstdint>

#include "kernels/fault.h"
#include "kernels/shared_map.h"
#include "model/layout.h"

namespace plumb::kernels {

inline constexpr int32_t kMaxRanks = 128;      // of one scale-up domain
inline constexpr int32_t kMaxBlocks = 256;     // of a rank in one launch
inline constexpr int32_t kMaxTopk = 32;        // one lane each
inline constexpr int32_t kDirectWords = 4096;  // counts of blocks, [ranks][blocks][ranks], told directly
inline constexpr int32_t kMaxBatch = 16;       // virtual ranks that one launch runs

/// Byte offsets in the window, the same on every rank. Rows stand at prefix-sum places in canonical order.
struct WindowMap {
  int64_t counts = 0;          // u64 [2 parities][src][dst][1 + local experts]: Call::word()
  int64_t block_counts = 0;    // u64 [2 parities][kDirectWords]: [src][block][dst] Call::word()
  int64_t entered = 0;         // u64 [src]: as combine_ready, of the dispatch the source is in (cached calls)
  int64_t arrived = 0;         // u64 [src][kMaxBlocks]: Call::signature(); the block's rows are here
  int64_t combine_ready = 0;   // u64 [src]: Call::word() of the dispatch number of the handle
  int64_t combine_done = 0;    // u64 [src][kMaxBlocks]: Call::signature(); the block has read its rows
  int64_t barrier = 0;         // u64 [src]
  int64_t dispatch_calls = 0;  // u64 [2 parities][src]: Call::signature() of the call that the source is in
  int64_t combine_calls = 0;   // the same of combine
  int64_t landed = 0;          // expand: u64 [copies]: dispatch; the copy is in the tensor
  int64_t home = 0;            // u64 [rows of `returned`]: Call::signature(); the row is there
  int64_t x = 0;               // received rows, row_bytes apart
  int64_t scales = 0;          // u32 packs, row or column major
  int64_t ids = 0;             // plain: int32 [copies][topk], local expert or -1
  int64_t weights = 0;         // plain: float [copies][topk]; expand: float [rows]
  int64_t source = 0;          // int32 [copies]: source rank * T_max + token
  int64_t links = 0;           // expand: int32 [copies][topk], row of the selection or -1
  int64_t expert_out = 0;      // bf16 rows that combine sends home
  int64_t expert_weights = 0;  // as `weights`, for the way home
  int64_t partial = 0;         // bf16 rows: sums of a rank's rows of one token
  int64_t returned = 0;        // bf16 rows that the peer pushes home; two ranks on GPUs of their own
  int64_t bytes = 0;
};

/// Counters of the device ledger and time stamps; filled when the policy asks.
struct Counters {
  uint64_t messages[kSteps][kMaxRanks];  // to (or from) each peer
  uint64_t bytes[kSteps][kMaxRanks];
  uint64_t waited_ns[kSteps][kMaxRanks];  // for the signal of each peer
  uint64_t begin_ns[kSteps];              // global timer, block 0
  uint64_t end_ns[kSteps];
};

/// State of a rank that survives between launches; private memory, zeroed at creation.
struct RankState {
  uint64_t dispatches = 0;  // calls completed
  uint64_t combines = 0;
  uint64_t barriers = 0;
  uint64_t settled = 0;       // warps whose slots the handle has, of a running dispatch that shares tokens
  uint32_t drawn[2] = {};     // tokens taken from its pools: of rows to others, of own rows
  uint32_t locals_done = 0;   // blocks done with combine_local
  uint32_t pushes_drawn = 0;  // rows taken of those that a running combine pushes
  uint32_t sums_drawn = 0;    // parts of tokens taken by a combine whose warps draw them
  int32_t has_fault = 0;      // the fault record is taken
  int32_t aborted = 0;        // a wait ran out: all waits end at once
};

/// Who we are and how peers are reached.
struct Context {
  int32_t rank = 0;
  Divisor ranks = 1;
  int32_t experts = 1;
  Divisor local_experts = 1;
  Divisor topk = 1;
  int32_t max_tokens = 0;
  char* const* peers = nullptr;  // [ranks] bases of the peers' windows, in device memory
  WindowMap map;
  int64_t copies_capacity = 0;  // rows of the per-copy areas
  int64_t rows_capacity = 0;    // rows of x and expert_out
  RankState* state = nullptr;
  uint64_t* block_counts = nullptr;  // [blocks][ranks + experts] of the running dispatch: Call::word()
  int32_t* numbers =
      nullptr;  // [T_max][topk] slots as a warp of the running dispatch numbered them; many tokens
  uint32_t* totals = nullptr;  // [ranks + experts] sums of the blocks, then how many are in; zero before
  Fault* fault = nullptr;      // pinned
  Counters* counters = nullptr;
  int64_t timeout_ns = 0;
};

/// Memory of a handle: how the rows of one dispatch were placed. Private memory.
struct HandleMemory {
  int32_t* ids = nullptr;         // [T_max][topk] global expert id or -1
  int32_t* slots = nullptr;       // [T_max][topk] place among the rows to that expert's rank
  int32_t* rows = nullptr;        // expand: [T_max][topk] place among the rows to that expert
  int32_t* slot_begin = nullptr;  // [ranks] first slot of this source at each rank
  int32_t* sent = nullptr;        // [ranks] copies of this source at each rank
  int32_t* row_begin = nullptr;   // expand: [experts] first row of this source in each group
  int32_t* links = nullptr;       // expand: [copies][topk] of the received copies
  int64_t* counts = nullptr;      // see CountWords; [kFirstCount + ranks + 3 * local experts]
};

/// Words of HandleMemory::counts.
enum CountWords : int32_t {
  kDispatchNumber = 0,
  kNumCopies,
  kNumRows,     // of the final tensor, gaps included
  kFirstCount,  // then [ranks] inclusive prefix of copies by source, [L] rows, [L] aligned rows, [L] prefix
};

struct DispatchParams {
  Context context;
  uint32_t options = 0;  // CallOptions::word() of one SM
  HandleMemory handle;
  const void* x = nullptr;           // [tokens] rows, row_bytes apart
  const uint32_t* scales = nullptr;  // packs, any strides
  int64_t scale_token_stride = 0;    // in packs
  int64_t scale_pack_stride = 1;
  const void* ids = nullptr;  // [tokens][topk]
  const float* weights = nullptr;
  int32_t id_bytes = 4;
  int32_t tokens = 0;
  int32_t row_bytes = 0;  // a multiple of 16
  int32_t scale_packs = 0;
  int32_t alignment = 1;
  int32_t stages = 1;      // rows in flight per block
  int32_t plan_warps = 1;  // warps that number slots
  DispatchMap shared;
  int64_t record_bytes = 0;      // of the ledger
  int64_t scale_row_stride = 0;  // of the received scales, in packs
  int64_t scale_column_stride = 1;
  bool expand = false;
  bool zero_padding = false;
  bool cached = false;
  bool has_far_peers = false;        // on other GPUs
  int32_t* expert_totals = nullptr;  // [L], optional: real counts are added
  int64_t* host_counts = nullptr;    // pinned, optional: copy of handle.counts, number written last
};

struct CombineParams {
  Context context;
  uint32_t options = 0;  // CallOptions::word() of one SM
  HandleMemory handle;
  const void* bias[2] = {nullptr, nullptr};  // bf16 [tokens][hidden]
  void* out = nullptr;                       // bf16 [tokens][hidden]
  float* out_weights = nullptr;              // [tokens][topk], optional
  int32_t tokens = 0;
  int32_t row_bytes = 0;
  Divisor parts = 1;         // pieces of a row that different warps sum; tokens x parts is below 2^31
  int64_t record_bytes = 0;  // of the ledger
  bool expand = false;
  bool multiple_reduction = true;
  bool has_far_peers = false;  // on other GPUs
};

struct BarrierParams {
  Context context;
};

/// The ranks that one launch runs: blockIdx.y picks one.
template <class Params, int32_t kCapacity = kMaxBatch>
struct Batch {
  Params ranks[kCapacity];
};

}  // namespace plumb::kernels

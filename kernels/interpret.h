// What the plan interpreter's kernel reads: a plan flattened to tables, and what it writes back. PODs,
// device-safe. Made by hw/interpreter.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "model/ids.h"
#include "model/layout.h"

namespace plumb::kernels {

/// What executing an op means.
enum class Work : uint8_t {
  none,     // a wait: its edges are all there is
  barrier,  // joins a team
  flags,    // counts as sent, no rows of a region
  move,     // put, get, copy: rows from region to region
  reduce,   // groups of rows to one row each
  experts,  // rows of a compute op
};

struct InterpretOp {
  Work work = Work::none;
  uint8_t phase = 0;
  int32_t src = 0;
  int32_t dst = 0;
  int32_t messages = 0;  // wire messages that carry its rows; flags: all
  int32_t barrier = kNone;
  int32_t first_dep = 0;  // its edges: num_deps that it waits for before it begins, then
  int32_t num_deps = 0;
  int32_t num_streams = 0;  // those that it follows chunk by chunk
  int32_t chunk = 1;        // pieces (items, groups, expert rows) of a chunk
  int32_t chunks = 1;
  int64_t first_need = 0;  // [chunks][num_streams] of the needs
  int64_t first = 0;       // of its items (move), groups (reduce) or expert rows (experts)
  int64_t count = 0;       // of them; flags: rows
};

/// A need that the op's flag answers, not its count of pieces.
inline constexpr int32_t kWholeInterpretOp = 0x7fffffff;

struct InterpretItem {
  int32_t src_slot = 0;  // kNone = zeros
  int32_t dst_slot = 0;
};

/// One row that a reduce writes. count 0: the sum of nothing.
struct InterpretGroup {
  int64_t first = 0;  // item
  int32_t count = 0;
  int32_t slot = 0;
};

struct InterpretExpertRow {
  int32_t slot = 0;
  int32_t position = kNone;  // top-k position behind an expanded row, kNone: all of the rank
};

inline constexpr uint8_t kNoInterpretRegion = 255;

struct InterpretPhase {
  uint8_t from = kNoInterpretRegion;
  uint8_t also_from = kNoInterpretRegion;
  uint8_t to = kNoInterpretRegion;
  int64_t row_bytes = 0;    // of flags
  int64_t duration_ns = 0;  // of a compute op, at least
};

/// Offsets in a stored row, kAbsent = no such part; as RowFormat of model/host_memory.h.
struct InterpretFormat {
  int64_t plan_bytes = 0;  // of a row on the wire
  int64_t row_bytes = 0;   // of a row as stored
  int64_t hidden = kAbsent;
  int64_t hidden_bytes = 0;
  int64_t scales = kAbsent;
  int64_t ids = kAbsent;
  int64_t weights = kAbsent;
  int64_t source = kAbsent;
  int32_t scale_block = 0;
  bool is_fp8 = false;
  bool has_ue8m0_scales = false;
};

/// Rows of one region on one rank.
struct InterpretArena {
  char* rows = nullptr;  // aligned to 256 bytes
  int64_t count = 0;
};

enum class InterpretExpert : uint8_t { identity, scaled, weighted };  // ExpertFunction

/// What an op did, by the global timer and by count of the warps that did it.
struct InterpretRecord {
  uint64_t taken_ns = 0;  // a block begins to wait for the op's edges
  uint64_t begin_ns = 0;  // the last edge was seen; of streams: what the first chunk needs
  uint64_t end_ns = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
};

/// The first wait that ran out; `state` is written last. In pinned memory.
struct InterpretFault {
  uint64_t state = 0;    // 1: complete
  int32_t op = kNone;    // that waits
  int32_t dep = kNone;   // op that it waits for
  int64_t expected = 0;  // 1 of a flag, members of a barrier, pieces of a stream
  int64_t seen = 0;
  int32_t is_stream = 0;
};

struct InterpretParams {
  const InterpretOp* ops = nullptr;
  const int32_t* deps = nullptr;
  const int32_t* needs = nullptr;
  const InterpretItem* items = nullptr;
  const int8_t* lanes = nullptr;  // of items; read by weighted sums
  const InterpretGroup* groups = nullptr;
  const InterpretExpertRow* expert_rows = nullptr;
  const InterpretPhase* phases = nullptr;
  const InterpretFormat* formats = nullptr;  // [regions]
  const InterpretArena* arenas = nullptr;    // [regions][ranks]
  const int32_t* queue_ops = nullptr;        // ops of all queues, each queue in ascending order
  const int32_t* queue_begin = nullptr;      // [queues + 1]
  uint32_t* queue_next = nullptr;            // [queues]: next to be taken, from 0
  uint32_t* done = nullptr;                  // [ops]: 1 = its data is settled and its source may be reused
  uint32_t* landed = nullptr;                // [ops]: pieces that are settled, those before the last chunk
  uint32_t* joined = nullptr;                // [barriers]: members that came
  const int32_t* members = nullptr;          // [barriers]
  InterpretRecord* records = nullptr;        // [ops]
  const int32_t* choices = nullptr;          // [ranks][max_tokens][topk]: of rows that name no experts
  const float* weights = nullptr;            // likewise
  int32_t queues = 1;
  int32_t ranks = 1;
  int32_t topk = 1;  // at most 32
  int32_t max_tokens = 1;
  int32_t local_experts = 1;
  InterpretExpert expert = InterpretExpert::identity;
  bool has_weighted_sums = false;  // a low-latency combine: each term times the weight of its lane
  int64_t timeout_ns = 0;
  uint32_t* aborted = nullptr;
  InterpretFault* fault = nullptr;
};

/// Blocks of the interpreter that run at once on the current device.
cudaError_t interpreter_blocks(int32_t& blocks);

/// Runs all ops with `blocks` blocks, block b on queue b % queues. All of them must be resident: the launch
/// is cooperative and fails otherwise.
cudaError_t launch_interpreter(const InterpretParams& params, int32_t blocks, cudaStream_t stream);

}  // namespace plumb::kernels

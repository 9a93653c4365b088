// Plan interpreter: any plan with rows, on one device, rows in the ranks' arenas. For correctness and
// calibration ladders, not for speed.
//
// A block belongs to a queue. It takes the queue's next op, waits for the op's edges, moves or sums its rows,
// and sets the op's flag. All its threads work on one op; a warp takes pieces of rows (move), a row of the
// output (reduce) or a token (experts) at a time.
//   edges     `sent` and `arrived` are one flag: stores are settled before the flag is released. A `stream`
//             edge counts pieces: the earlier op releases its count after each chunk, and the follower does a
//             chunk when the pieces that it needs (hw/stream_chunks.h) have landed, the last when the op is
//             done. A barrier op joins its team's counter and ends; who depends on it waits until all members
//             have joined.
//   memory    release of a flag or count by the block that does the op, acquire by a thread of the block that
//   waits, a
//             block barrier on both sides.
// No deadlock: every op, also in the middle of its chunks, waits for ops of smaller ids only (Plan::add; a
// barrier's members stand before who waits for it, or the wait times out), a queue hands out its ops by
// ascending id, and all blocks are resident. So the smallest op that is not done either is held by a running
// block, all of whose waits are over, or is next in a queue whose blocks hold no smaller op, and one of them
// takes it. Host counterparts: HostRun (model/host_run.cc), run_expert (model/host_payload.cc); bytes must be
// equal.
#include <cuda_runtime.h>

#include "kernels/interpret.h"
#include "kernels/numbers.cuh"
#include "kernels/transport.cuh"

namespace plumb::kernels {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / 32;
constexpr int64_t kPieceBytes = 8192;  // of a row that a warp moves at a time

// --- flags ---

__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_gpu(uint32_t* word, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/// What an op waits for: a word that reaches a value.
struct Awaited {
  int32_t dep = kNone;
  const uint32_t* word = nullptr;
  uint32_t expected = 1;
  bool is_stream = false;
};

__device__ __noinline__ void report(const InterpretParams& p, int32_t op, const Awaited& awaited,
                                    int64_t seen) {
  if (atomicCAS(p.aborted, 0u, 1u) != 0) return;
  p.fault->op = op;
  p.fault->dep = awaited.dep;
  p.fault->expected = awaited.expected;
  p.fault->seen = seen;
  p.fault->is_stream = awaited.is_stream ? 1 : 0;
  ptx::store_release_sys(&p.fault->state, 1);  // matching side: the host, after the kernel
}

/// False when given up. Matching side: finish_op(), publish_chunk().
__device__ bool wait_word(const InterpretParams& p, int32_t op, const Awaited& awaited) {
  const uint64_t begin_ns = ptx::global_timer();
  uint32_t seen = load_acquire_gpu(awaited.word);
  for (uint32_t polls = 1; seen < awaited.expected; ++polls) {
    if (polls % kPollsPerClock == 0) {
      if (*static_cast<volatile uint32_t*>(p.aborted) != 0) return false;
      if (static_cast<int64_t>(ptx::global_timer() - begin_ns) >= p.timeout_ns) {
        report(p, op, awaited, seen);
        return false;
      }
    }
    seen = load_acquire_gpu(awaited.word);
  }
  return true;
}

/// Waits until the event of op `dep` is there; false when given up.
__device__ bool wait_op(const InterpretParams& p, int32_t op, int32_t dep) {
  const int32_t barrier = p.ops[dep].barrier;
  if (barrier == kNone) return wait_word(p, op, {dep, &p.done[dep]});
  return wait_word(p, op, {dep, &p.joined[barrier], static_cast<uint32_t>(p.members[barrier])});
}

/// All edges but streams.
__device__ bool wait_edges(const InterpretParams& p, int32_t id, const InterpretOp& op) {
  bool has_come = true;
  for (int32_t d = static_cast<int32_t>(threadIdx.x); d < op.num_deps && has_come; d += kThreads)
    has_come = wait_op(p, id, p.deps[op.first_dep + d]);
  return has_come;
}
__device__ bool wait_chunk(const InterpretParams& p, int32_t id, const InterpretOp& op, int32_t chunk) {
  bool has_come = true;
  for (int32_t s = static_cast<int32_t>(threadIdx.x); s < op.num_streams && has_come; s += kThreads) {
    const int32_t dep = p.deps[op.first_dep + op.num_deps + s];
    const int32_t need = p.needs[op.first_need + int64_t{chunk} * op.num_streams + s];
    has_come = need == kWholeInterpretOp
                   ? wait_op(p, id, dep)
                   : wait_word(p, id, {dep, &p.landed[dep], static_cast<uint32_t>(need), true});
  }
  return has_come;
}

// --- rows ---

struct Place {
  const char* row = nullptr;  // null: zeros
  const InterpretFormat* format = nullptr;
};

__device__ __forceinline__ const InterpretArena& arena(const InterpretParams& p, uint8_t region,
                                                       int32_t rank) {
  return p.arenas[int64_t{region} * p.ranks + rank];
}

/// Slots beyond those of `from` are those of `also_from`.
__device__ __forceinline__ Place place_of(const InterpretParams& p, const InterpretPhase& phase, int32_t rank,
                                          int32_t slot) {
  if (slot == kNone) return {};
  const InterpretArena& from = arena(p, phase.from, rank);
  if (slot < from.count || phase.also_from == kNoInterpretRegion) {
    const InterpretFormat& format = p.formats[phase.from];
    return {from.rows + int64_t{slot} * format.row_bytes, &format};
  }
  const InterpretFormat& format = p.formats[phase.also_from];
  return {arena(p, phase.also_from, rank).rows + (slot - from.count) * format.row_bytes, &format};
}

__device__ __forceinline__ char* row_at(const InterpretParams& p, uint8_t region, int32_t rank,
                                        int64_t slot) {
  return arena(p, region, rank).rows + slot * p.formats[region].row_bytes;
}

/// One warp; `from` null: zeros. Unit: what a lane moves at once.
template <class Unit>
__device__ __forceinline__ void copy_units(char* to, const char* from, int64_t bytes) {
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
#pragma unroll 4
  for (int64_t i = lane_index(); i < units; i += 32)
    reinterpret_cast<Unit*>(to)[i] =
        from == nullptr ? Unit{} : __ldcg(reinterpret_cast<const Unit*>(from) + i);
}

__device__ void copy_bytes(char* to, const char* from, int64_t bytes, int64_t row_bytes) {
  if (row_bytes % 16 == 0)
    copy_units<uint4>(to, from, bytes);
  else if (row_bytes % 4 == 0)
    copy_units<uint32_t>(to, from, bytes);
  else
    copy_units<unsigned char>(to, from, bytes);
}

__device__ int64_t move_rows(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase) {
  const int64_t row_bytes = p.formats[phase.to].row_bytes;
  const int64_t pieces = ceil_div(row_bytes > 0 ? row_bytes : 1, kPieceBytes);
  int64_t moved = 0;
  for (int64_t unit = warp_index(); unit < op.count * pieces; unit += kWarps) {
    const InterpretItem item = p.items[op.first + unit / pieces];
    const int64_t begin = unit % pieces * kPieceBytes;
    const int64_t bytes = row_bytes - begin < kPieceBytes ? row_bytes - begin : kPieceBytes;
    const char* from = place_of(p, phase, op.src, item.src_slot).row;
    copy_bytes(row_at(p, phase.to, op.dst, item.dst_slot) + begin, from == nullptr ? nullptr : from + begin,
               bytes, row_bytes);
    if (begin == 0) ++moved;
  }
  return moved;
}

template <class T>
__device__ __forceinline__ T load(const char* row, int64_t offset) {
  return __ldcg(reinterpret_cast<const T*>(row + offset));
}
template <class T>
__device__ __forceinline__ void store(char* row, int64_t offset, T value) {
  *reinterpret_cast<T*>(row + offset) = value;
}

// --- sums ---

/// Ids and weights of a sum: those of all its rows, a lane per top-k position.
__device__ void merge_metadata(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase,
                               const InterpretGroup& group, char* out) {
  const InterpretFormat& format = p.formats[phase.to];
  const int32_t k = lane_index();
  if (format.ids == kAbsent || k >= p.topk) return;
  int32_t id = kNone;
  float weight = 0.0f;
  for (int32_t i = 0; i < group.count; ++i) {
    const Place place = place_of(p, phase, op.src, p.items[group.first + i].src_slot);
    if (place.row == nullptr) continue;
    const int32_t found = load<int32_t>(place.row, format.ids + 4 * k);
    if (found < 0) continue;
    id = found;
    weight = load<float>(place.row, format.weights + 4 * k);
  }
  store(out, format.ids + 4 * k, id);
  store(out, format.weights + 4 * k, weight);
}

/// bf16 elements of a row: the hidden part of a record, or all of a row that is none.
__device__ __forceinline__ int64_t elements_at(const InterpretFormat& format) {
  return format.hidden == kAbsent ? 0 : format.hidden;
}

/// kWidth elements a lane: 8 (16 bytes) or 1. Products and sums are rounded one by one, never fused.
template <int32_t kWidth>
__device__ void sum_elements(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase,
                             const InterpretGroup& group, char* out, int64_t elements) {
  for (int64_t e = int64_t{lane_index()} * kWidth; e < elements; e += 32 * kWidth) {
    float sum[kWidth] = {};
    bool is_first = true;
    for (int32_t i = 0; i < group.count; ++i) {
      const Place place = place_of(p, phase, op.src, p.items[group.first + i].src_slot);
      if (place.row == nullptr) continue;
      uint16_t codes[kWidth];
      const char* from = place.row + elements_at(*place.format) + 2 * e;
      if constexpr (kWidth == 8)
        *reinterpret_cast<uint4*>(codes) = ptx::load_once(from);
      else
        codes[0] = load<uint16_t>(from, 0);
      const int8_t lane = p.has_weighted_sums ? p.lanes[group.first + i] : int8_t{kNone};
      const float weight =
          lane < 0 ? 1.0f : p.weights[(int64_t{op.dst} * p.max_tokens + group.slot) * p.topk + lane];
#pragma unroll
      for (int32_t j = 0; j < kWidth; ++j) {
        const float term = lane < 0 ? bf16_value(codes[j]) : __fmul_rn(bf16_value(codes[j]), weight);
        sum[j] = is_first ? term : __fadd_rn(sum[j], term);
      }
      is_first = false;
    }
    alignas(16) uint16_t codes[kWidth];
#pragma unroll
    for (int32_t j = 0; j < kWidth; ++j) codes[j] = bf16_code(sum[j]);
    char* to = out + elements_at(p.formats[phase.to]) + 2 * e;
    if constexpr (kWidth == 8)
      ptx::store_once(to, *reinterpret_cast<uint4*>(codes));
    else
      store(to, 0, codes[0]);
  }
}

__device__ int64_t reduce_rows(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase) {
  const InterpretFormat& format = p.formats[phase.to];
  const int64_t bytes = format.hidden == kAbsent ? format.row_bytes : format.hidden_bytes;
  const bool is_wide = (format.row_bytes | elements_at(format) | bytes) % 16 == 0;
  int64_t written = 0;
  for (int64_t g = warp_index(); g < op.count; g += kWarps, ++written) {
    const InterpretGroup group = p.groups[op.first + g];
    char* out = row_at(p, phase.to, op.dst, group.slot);
    if (group.count == 0) {
      copy_bytes(out, nullptr, format.row_bytes, format.row_bytes);
      __syncwarp();
    }
    merge_metadata(p, op, phase, group, out);
    if (group.count == 0) continue;
    if (is_wide)
      sum_elements<8>(p, op, phase, group, out, bytes / 2);
    else
      sum_elements<1>(p, op, phase, group, out, bytes / 2);
  }
  return written;
}

// --- experts ---

__device__ __forceinline__ float decoded(const InterpretFormat& format, const char* row, int64_t element) {
  if (!format.is_fp8) return bf16_value(load<uint16_t>(row, format.hidden + 2 * element));
  const float code = e4m3_value(load<unsigned char>(row, format.hidden + element));
  const int64_t block = element / format.scale_block;
  const float scale = format.has_ue8m0_scales ? ue8m0_value(load<unsigned char>(row, format.scales + block))
                                              : load<float>(row, format.scales + 4 * block);
  return __fmul_rn(code, scale);
}

/// One warp, one row; lane k knows choice k.
__device__ void run_expert(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase,
                           InterpretExpertRow call) {
  const InterpretFormat& in = p.formats[phase.from];
  const InterpretFormat& out = p.formats[phase.to];
  const char* row = row_at(p, phase.from, op.src, call.slot);
  char* out_row = row_at(p, phase.to, op.dst, call.slot);
  const int32_t k = lane_index();
  int32_t id = kNone;
  float weight = 0.0f;
  if (k < p.topk) {
    const int64_t choice = int64_t{load<int32_t>(row, in.source)} * p.topk + k;
    const bool in_row = in.ids != kAbsent;
    id = in_row ? load<int32_t>(row, in.ids + 4 * k) : p.choices[choice];
    const bool is_local =
        id >= 0 && id / p.local_experts == op.dst && (call.position == kNone || call.position == k);
    if (!is_local) id = kNone;
    if (is_local) weight = in_row ? load<float>(row, in.weights + 4 * k) : p.weights[choice];
    if (out.ids != kAbsent) {
      store(out_row, out.ids + 4 * k, id);
      store(out_row, out.weights + 4 * k, weight);
    }
  }
  const float factor = p.expert == InterpretExpert::scaled ? static_cast<float>(id + 1) : weight;
  const uint32_t local = __ballot_sync(kAllLanes, id >= 0);
  const int64_t in_elements = in.is_fp8 ? in.hidden_bytes : in.hidden_bytes / 2;
  const int64_t elements = out.hidden_bytes / 2;
  for (int64_t first = 0; first < elements; first += 32) {
    const int64_t e = first + lane_index();
    const float x = e < elements && e < in_elements ? decoded(in, row, e) : 0.0f;
    float y = p.expert == InterpretExpert::identity ? x : 0.0f;
    for (uint32_t rest = p.expert == InterpretExpert::identity ? 0u : local; rest != 0; rest &= rest - 1) {
      const float one = __shfl_sync(kAllLanes, factor, __ffs(static_cast<int32_t>(rest)) - 1);
      y = __fadd_rn(y, __fmul_rn(one, x));
    }
    if (e < elements) store(out_row, out.hidden + 2 * e, bf16_code(y));
  }
}

__device__ void run_experts(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase) {
  for (int64_t i = warp_index(); i < op.count; i += kWarps)
    run_expert(p, op, phase, p.expert_rows[op.first + i]);
}

/// A compute op lasts its time.
__device__ void stay(const InterpretPhase& phase, uint64_t begin_ns) {
  while (static_cast<int64_t>(ptx::global_timer() - begin_ns) < phase.duration_ns) {
  }
}

// --- ops ---

/// Does rows of the op; returns rows moved (move), written (reduce) by this warp.
__device__ int64_t do_work(const InterpretParams& p, const InterpretOp& op, const InterpretPhase& phase) {
  switch (op.work) {
    case Work::move:
      return move_rows(p, op, phase);
    case Work::reduce:
      return reduce_rows(p, op, phase);
    case Work::experts:
      run_experts(p, op, phase);
      return 0;
    case Work::flags:
    case Work::barrier:
    case Work::none:
      break;
  }
  return 0;
}

/// The pieces of one chunk as an op.
__device__ InterpretOp chunk_of(const InterpretOp& op, int32_t chunk) {
  InterpretOp part = op;
  const int64_t begin = int64_t{chunk} * op.chunk;
  const int64_t left = op.count - begin;
  part.first += begin;
  if (op.chunks > 1) part.count = left < op.chunk ? left : op.chunk;
  return part;
}

/// Thread 0, after all threads did the chunk: who follows may go on.
__device__ void publish_chunk(const InterpretParams& p, int32_t id, int64_t pieces) {
  __threadfence();
  store_release_gpu(&p.landed[id], static_cast<uint32_t>(pieces));
}

/// Items of a group are counted where the sum read them: all rows of a reduce, also those of zeros.
__device__ int64_t rows_read(const InterpretParams& p, const InterpretOp& op) {
  int64_t rows = 0;
  for (int64_t g = threadIdx.x; g < op.count; g += kThreads) rows += p.groups[op.first + g].count;
  return rows;
}

/// Thread 0, after all threads did their part: counts, stamps, and tells who waits.
__device__ void finish_op(const InterpretParams& p, int32_t id, const InterpretOp& op,
                          const InterpretPhase& phase, int64_t rows, int64_t items) {
  InterpretRecord& record = p.records[id];
  if (op.work == Work::flags) {
    record.messages = op.messages < op.count ? op.messages : op.count;
    record.bytes = op.count * phase.row_bytes;
  } else if (op.work == Work::move) {
    record.messages = op.messages < rows ? op.messages : rows;
    record.bytes = rows * p.formats[phase.to].plan_bytes;
  } else if (op.work == Work::reduce) {
    record.messages = rows;
    record.bytes = items * p.formats[phase.to].plan_bytes;
  }
  record.end_ns = ptx::global_timer();
  __threadfence();
  if (op.work == Work::barrier)
    ptx::add_acq_rel_gpu(&p.joined[op.barrier], 1);
  else
    store_release_gpu(&p.done[id], 1);
}

__global__ void __launch_bounds__(kThreads, 1) interpret(const __grid_constant__ InterpretParams p) {
  __shared__ int32_t next;
  __shared__ unsigned long long moved;
  __shared__ unsigned long long read;
  __shared__ uint64_t begin_ns;
  const int32_t queue = static_cast<int32_t>(blockIdx.x) % p.queues;
  const int32_t* ops = p.queue_ops + p.queue_begin[queue];
  const int32_t length = p.queue_begin[queue + 1] - p.queue_begin[queue];
  for (;;) {
    if (threadIdx.x == 0) {
      const uint32_t ticket = atomicAdd(&p.queue_next[queue], 1u);
      next = ticket < static_cast<uint32_t>(length) ? ops[ticket] : kNone;
      moved = 0;
      read = 0;
      if (next != kNone) p.records[next].taken_ns = ptx::global_timer();
    }
    __syncthreads();
    const int32_t id = next;
    if (id == kNone) return;
    const InterpretOp op = p.ops[id];
    const InterpretPhase phase = p.phases[op.phase];
    const bool has_come = wait_edges(p, id, op) && wait_chunk(p, id, op, 0);
    if (__syncthreads_or(has_come ? 0 : 1)) return;
    if (threadIdx.x == 0) {
      begin_ns = ptx::global_timer();
      p.records[id].begin_ns = begin_ns;
    }
    int64_t rows = do_work(p, chunk_of(op, 0), phase);
    for (int32_t chunk = 1; chunk < op.chunks; ++chunk) {
      __syncthreads();
      if (threadIdx.x == 0) publish_chunk(p, id, int64_t{chunk} * op.chunk);
      if (op.num_streams > 0 && __syncthreads_or(wait_chunk(p, id, op, chunk) ? 0 : 1)) return;
      rows += do_work(p, chunk_of(op, chunk), phase);
    }
    if (op.work == Work::experts) {
      __syncthreads();  // begin_ns is there
      stay(phase, begin_ns);
    }
    if (op.work == Work::move || op.work == Work::reduce) {
      if (lane_index() == 0 && rows > 0) atomicAdd(&moved, static_cast<unsigned long long>(rows));
      if (op.work == Work::reduce) atomicAdd(&read, static_cast<unsigned long long>(rows_read(p, op)));
    }
    __syncthreads();
    if (threadIdx.x == 0)
      finish_op(p, id, op, phase, static_cast<int64_t>(moved), static_cast<int64_t>(read));
    // `next` and the sums are thread 0's until the barrier of the next round.
  }
}

}  // namespace

cudaError_t interpreter_blocks(int32_t& blocks) {
  int device = 0;
  int sms = 0;
  int per_sm = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, interpret, kThreads, 0);
  blocks = sms * per_sm;
  return error;
}

cudaError_t launch_interpreter(const InterpretParams& params, int32_t blocks, cudaStream_t stream) {
  void* arguments[] = {const_cast<InterpretParams*>(&params)};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(interpret),
                                     dim3(static_cast<uint32_t>(blocks)), dim3(kThreads), arguments, 0,
                                     stream);
}

}  // namespace plumb::kernels

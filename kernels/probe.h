// Launchers of the kernels that measure a machine: movers of bytes at a given number of SMs, flags between
// GPUs, dependent loads. All enqueue on the stream and return; a CUDA error is the return value.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace plumb::kernels {

/// How bytes move. load and store use 16-byte accesses of all threads; bulk ones bulk copies (TMA) between
/// global and shared memory, one row per warp at a time.
enum class Mover : int32_t { load, store, copy, bulk_load, bulk_store, bulk_copy };
inline constexpr int32_t kMovers = 6;
inline constexpr std::array<const char*, kMovers> kMoverNames = {"load",      "store",      "copy",
                                                                 "bulk_load", "bulk_store", "bulk_copy"};
constexpr bool reads(Mover m) { return m != Mover::store && m != Mover::bulk_store; }
constexpr bool writes(Mover m) { return m != Mover::load && m != Mover::bulk_load; }
constexpr bool is_bulk(Mover m) { return m >= Mover::bulk_load; }

/// What word `i` of a region holds that fill_words() or a store mover with this seed wrote.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr uint32_t
    probe_word(uint64_t i, uint32_t seed) {
  return static_cast<uint32_t>(i) * 2654435761u ^ seed;  // 2^32 / golden ratio: neighbours differ
}

struct MoveParams {
  const void* from = nullptr;  // 16-byte aligned; not read by stores
  void* to = nullptr;          // 16-byte aligned; not written by loads
  int64_t bytes = 0;           // a multiple of move_grain()
  int32_t row_bytes = 0;       // of bulk movers, a multiple of 16, at most 48 KiB
  uint32_t seed = 0;           // of stores
  uint32_t* sink = nullptr;    // device word that keeps loads from being left out
};

/// What MoveParams::bytes must be a multiple of.
int64_t move_grain(Mover mover, int32_t row_bytes);

/// Lets the movers use the shared memory that makes them one block per SM; once for each device.
cudaError_t prepare_probe();

/// Moves the bytes by `sms` SMs, one block each.
cudaError_t launch_move(Mover mover, const MoveParams& params, int32_t sms, cudaStream_t stream);

/// Holds the stream until the host writes 1 to `go` (pinned memory), at most `timeout_ns`: what follows on
/// the streams of several GPUs then starts at once, with no launch in between.
cudaError_t launch_gate(const uint64_t* go, int64_t timeout_ns, cudaStream_t stream);

/// Fills words with probe_word(), counts those that differ from it.
cudaError_t launch_fill(uint32_t* words, int64_t count, uint32_t seed, cudaStream_t stream);
cudaError_t launch_count_wrong(const uint32_t* words, int64_t count, uint32_t seed, uint64_t* wrong,
                               cudaStream_t stream);

/// `hops` loads of 4 bytes by one thread, each address from the load before: word i holds the index of the
/// next.
cudaError_t launch_chase(const uint32_t* words, int32_t hops, uint32_t* sink, cudaStream_t stream);

inline constexpr int32_t kMaxProbeGpus = 16;

/// Flags of one GPU in a ping-pong of two or a barrier of several.
struct FlagParams {
  uint64_t* flags[kMaxProbeGpus] = {};  // by GPU: its [kMaxProbeGpus] words, zero before the first launch
  int32_t gpus = 0;
  int32_t gpu = 0;  // this one
  int32_t rounds = 0;
  uint64_t done = 0;           // rounds of earlier launches
  int64_t timeout_ns = 0;      // of one wait
  uint64_t* failed = nullptr;  // own word; 1 + the GPU that did not come in time
};
/// One thread of GPU 0 and of GPU 1 answer each other `rounds` times.
cudaError_t launch_ping_pong(const FlagParams& params, cudaStream_t stream);
/// One block: a flag to all other GPUs, then a wait for theirs, `rounds` times.
cudaError_t launch_flag_barrier(const FlagParams& params, cudaStream_t stream);

cudaError_t launch_empty(cudaStream_t stream);

}  // namespace plumb::kernels

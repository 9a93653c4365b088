// What the cases of the probe run on: memory, streams and events of each GPU, gates that let several GPUs
// start together.
#pragma once

#include <functional>
#include <vector>

#include "hw/owners.h"
#include "kernels/probe.h"

namespace plumb::hw {

inline constexpr int64_t kProbeBuffer = int64_t{512}
                                        << 20;  // bytes that movers read, and as many that they write

/// 1, 2, 4, 8, 12 ... below `sms`, and `sms`.
std::vector<int32_t> sm_counts(int32_t sms);

class ProbeRig {
 public:
  /// One GPU's things; freed on that GPU's context by the rig.
  class Gpu {
   public:
    char* source() const { return static_cast<char*>(source_.get()); }
    char* target() const { return static_cast<char*>(target_.get()); }
    uint32_t* sink() const { return static_cast<uint32_t*>(words_.get()); }
    uint64_t* wrong() const { return static_cast<uint64_t*>(words_.get()) + 8; }
    uint64_t* flags() const { return static_cast<uint64_t*>(words_.get()) + 64; }
    const uint32_t* chase() const { return static_cast<const uint32_t*>(chase_.get()); }
    cudaStream_t stream() const { return stream_.get(); }

   private:
    friend class ProbeRig;
    DeviceMemory source_, target_, words_, chase_;
    Stream stream_;
    Event begin_, end_;
  };

  /// Opens the ways between all GPUs when `has_peers`. Sources are filled with words of seed + GPU.
  ProbeRig(int32_t gpus, bool has_peers, uint32_t seed);

  const Gpu& gpu(int32_t i) const { return gpus_[static_cast<size_t>(i)]; }
  void select(int32_t gpu) const;
  void finish(int32_t gpu) const;

  /// Enqueues on each of these GPUs (selected) behind its gate, opens the gates and waits: microseconds of
  /// the slowest.
  double timed(const std::vector<int32_t>& who, const std::function<void(int32_t gpu)>& enqueue);

  /// Microseconds of a round of flags between the first `gpus` GPUs. Throws Error(environment) naming the GPU
  /// that did not come in time.
  double time_flags(cudaError_t (*launch)(const kernels::FlagParams&, cudaStream_t), int32_t gpus,
                    int32_t rounds);

  /// Gives GPU 0 and 1 a chain of indices through `bytes` of memory, `stride` words apart, in random order.
  void fill_chase(int64_t bytes, int32_t stride);

  uint64_t count_wrong(int32_t gpu, int64_t words, uint32_t seed) const;

 private:
  std::vector<Gpu> gpus_;
  PinnedMemory host_;  // the gate's word, then one word for the failure of each GPU
  uint64_t flag_rounds_ = 0;
};

}  // namespace plumb::hw

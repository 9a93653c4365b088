// Measures the GPUs that this process sees: how fast SMs, bulk copies and copy engines move bytes inside a
// GPU and to a peer, what flags, barriers and launches cost. docs/hw.md, section Probe, says how. No CUDA
// type here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hw/peer_access.h"

namespace plumb::hw {

struct ProbeOptions {
  double seconds = 20;  // for all repetitions together; set-up, checks and the least repetitions come on top
  int32_t min_repeats = 5;
  int32_t max_repeats = 25;
};

/// Median and 10 and 90 % of repetitions, microseconds.
struct Spread {
  double median_us = 0;
  double low_us = 0;
  double high_us = 0;
  int32_t repeats = 0;
  /// (high - low) / median.
  double relative() const { return median_us > 0 ? (high_us - low_us) / median_us : 0; }
};
Spread spread_of(std::vector<double> us);

/// Payload moved in one direction by one GPU, each byte counted once.
struct ProbePoint {
  std::string how;   // a mover of kernels/probe.h, or "copy_engine"
  std::string path;  // "local", "0->1", "1->0", "both" (both GPUs drive; the slower one counts)
  std::string way;   // "push": to the peer, "pull": from the peer, "": inside a GPU
  int32_t sms = 0;   // 0: no SMs
  int64_t bytes = 0;
  bool is_cold = true;  // each repetition moves another part of memory than the one before
  Spread time;
  double gbs() const { return time.median_us > 0 ? static_cast<double>(bytes) / time.median_us * 1e-3 : 0; }
};

struct ProbeTime {
  std::string name;  // as in docs/hw.md
  std::string what;  // one line
  Spread time;
};

struct Probe {
  std::string gpu;                            // its name
  std::string driver;                         // "580.159.04", "" when the system does not tell
  int32_t cuda_driver = 0, cuda_runtime = 0;  // as CUDA codes them, 13000 = 13.0
  std::string date;                           // of the measurement, YYYY-MM-DD
  int32_t gpus = 1;
  PeerAccess peers{};  // of `gpus` GPUs
  int32_t sms = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  double memory_gbs = 0;  // nominal: memory clock x 2 x bus width, as the driver reports them
  int32_t links = 0;      // NVLinks of a GPU, 0 = nvidia-smi does not tell
  double link_gbs = 0;    // of one, as nvidia-smi prints it: signalling
  std::vector<ProbePoint> points{};
  std::vector<ProbeTime> times{};
  double seconds = 0;  // that the probe took

  /// Whether there are several GPUs, and all reach each other's memory.
  bool has_peers() const { return gpus > 1 && peers.together() == gpus; }
  /// The point of that name with the most bytes; null when it was not measured.
  const ProbePoint* find(std::string_view how, std::string_view path, std::string_view way,
                         int32_t sms) const;
  const ProbeTime* find_time(std::string_view name) const;
};

/// Measures. Peers: between GPU 0 and GPU 1; flags: all GPUs. Checks that every copying mover leaves the
/// right bytes. Throws Error(environment) without a GPU of compute capability 9.0 or newer and when a wait of
/// a GPU runs out, Error(mismatch) for wrong bytes.
Probe run_probe(const ProbeOptions& options);

/// "18 x 26.562": number and rate of the links in what `nvidia-smi nvlink --status -i 0` prints; zeros for
/// other text.
struct Links {
  int32_t count = 0;
  double gbs = 0;
};
Links links_of(std::string_view nvidia_smi);

}  // namespace plumb::hw

// Which GPUs of a host reach each other's memory, and what that allows. Access of a pair counts when it goes
// both ways. Over PCIe, or with several NVLink islands in a host, some pairs have none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace plumb::hw {

/// A value that may lie in memory shared by processes.
class PeerAccess {
 public:
  static constexpr int32_t kMaxGpus = 64;

  PeerAccess() = default;
  /// No GPU reaches another. Requires 0 <= gpus <= kMaxGpus.
  explicit PeerAccess(int32_t gpus);

  /// GPUs a and b reach each other.
  void join(int32_t a, int32_t b);
  bool joins(int32_t a, int32_t b) const;
  int32_t gpus() const { return gpus_; }

  /// The largest n of which GPUs 0 .. n - 1 all reach each other.
  int32_t together() const;
  /// Groups of GPUs that all reach each other, ascending; a GPU is in the first group that takes it.
  std::vector<std::vector<int32_t>> islands() const;
  /// Pairs without access: "0-3, 1-3". At most 8 are listed, the others counted.
  std::string missing_pairs() const;
  /// "GPUs 4, 5, 6, 7 do; CUDA_VISIBLE_DEVICES chooses": of the largest island, the first of equal ones.
  std::string advice() const;

 private:
  int32_t gpus_ = 0;
  std::array<uint64_t, kMaxGpus> reached_{};  // bit b of word a
};

/// Asks the driver about the first `gpus` GPUs; throws Error(environment) when it does not answer.
PeerAccess ask_peer_access(int32_t gpus);

/// Why `ranks` ranks cannot have GPUs of their own that all reach each other: GPUs 0 .. ranks - 1. Empty when
/// they can.
std::string why_not_together(const PeerAccess& peers, int32_t ranks);

}  // namespace plumb::hw

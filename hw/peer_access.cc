#include "hw/peer_access.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hw/check.h"
#include "model/error.h"

namespace plumb::hw {

PeerAccess::PeerAccess(int32_t gpus) : gpus_(gpus) {
  PLUMB_CHECK(gpus >= 0 && gpus <= kMaxGpus, "{} GPUs", gpus);
  for (int32_t i = 0; i < gpus; ++i) join(i, i);
}

void PeerAccess::join(int32_t a, int32_t b) {
  PLUMB_CHECK(a >= 0 && a < gpus_ && b >= 0 && b < gpus_, "GPUs {} and {} of {}", a, b, gpus_);
  reached_[static_cast<size_t>(a)] |= uint64_t{1} << b;
  reached_[static_cast<size_t>(b)] |= uint64_t{1} << a;
}

bool PeerAccess::joins(int32_t a, int32_t b) const {
  PLUMB_CHECK(a >= 0 && a < gpus_ && b >= 0 && b < gpus_, "GPUs {} and {} of {}", a, b, gpus_);
  return (reached_[static_cast<size_t>(a)] >> b & 1) != 0;
}

int32_t PeerAccess::together() const {
  for (int32_t b = 0; b < gpus_; ++b)
    for (int32_t a = 0; a < b; ++a)
      if (!joins(a, b)) return b;
  return gpus_;
}

std::vector<std::vector<int32_t>> PeerAccess::islands() const {
  std::vector<std::vector<int32_t>> islands;
  for (int32_t gpu = 0; gpu < gpus_; ++gpu) {
    const auto takes = [&](const std::vector<int32_t>& island) {
      return std::ranges::all_of(island, [&](int32_t other) { return joins(gpu, other); });
    };
    const auto found = std::ranges::find_if(islands, takes);
    if (found != islands.end())
      found->push_back(gpu);
    else
      islands.push_back({gpu});
  }
  return islands;
}

std::string PeerAccess::missing_pairs() const {
  constexpr int32_t kMostListed = 8;
  std::string text;
  int32_t missing = 0;
  for (int32_t a = 0; a < gpus_; ++a)
    for (int32_t b = a + 1; b < gpus_; ++b) {
      if (joins(a, b) || ++missing > kMostListed) continue;
      text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", a, b);
    }
  if (missing > kMostListed) text += fmt::format(" and {} more", missing - kMostListed);
  return text;
}

std::string PeerAccess::advice() const {
  const auto all = islands();
  const auto largest = std::ranges::max_element(all, {}, &std::vector<int32_t>::size);
  if (largest == all.end() || largest->size() < 2) return "no two GPUs do";
  return fmt::format("GPUs {} do; CUDA_VISIBLE_DEVICES chooses", fmt::join(*largest, ", "));
}

PeerAccess ask_peer_access(int32_t gpus) {
  PeerAccess peers(std::min(gpus, PeerAccess::kMaxGpus));
  for (int32_t a = 0; a < peers.gpus(); ++a)
    for (int32_t b = a + 1; b < peers.gpus(); ++b) {
      int there = 0;
      int back = 0;
      check(cudaDeviceCanAccessPeer(&there, a, b), "peer access");
      check(cudaDeviceCanAccessPeer(&back, b, a), "peer access");
      if (there != 0 && back != 0) peers.join(a, b);
    }
  return peers;
}

std::string why_not_together(const PeerAccess& peers, int32_t ranks) {
  const int32_t together = peers.together();
  if (together >= ranks) return "";
  std::string why = fmt::format("{} ranks, {} GPU{} each other's memory", ranks, together,
                                together == 1 ? " that reaches" : "s that reach");
  if (peers.gpus() >= ranks)
    why += fmt::format(", of {}: not {}; {}", peers.gpus(), peers.missing_pairs(), peers.advice());
  return why;
}

}  // namespace plumb::hw

// One process per rank, forked by a parent that touches no CUDA: how they meet, and how their end is seen.
// Nothing here waits without a limit.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "hw/nvlink_world.h"

namespace plumb::hw {

/// Memory that the processes share.
struct Meeting {
  std::atomic<int> has_id{0};
  std::atomic<int> failed{0};  // 1 + the first rank that failed, 0 = none
  NvlinkId id{};
};

inline constexpr std::chrono::seconds kMeetingLimit{30};

/// The identifier that rank 0 makes with `make` and all others wait for. Throws Error(environment) naming the
/// rank that failed meanwhile, or when no identifier comes within `limit`.
NvlinkId meet(Meeting& meeting, Rank rank, const std::function<NvlinkId()>& make,
              std::chrono::milliseconds limit = kMeetingLimit);

/// Memory of `bytes` zero bytes that forked processes share, freed with the object.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();
  void* get() const { return memory_; }

 private:
  void* memory_;
  size_t bytes_;
};

/// How a rank's process ended.
struct Outcome {
  int code = -1;         // exit code; -1: a signal ended it
  bool is_late = false;  // killed by the parent
};

/// Runs `body` in a process per rank and waits for all; kills those that are left after `limit`, or
/// 10 s after a rank failed. An exception
/// of `body` is printed with the rank, recorded in Meeting::failed, and makes exit code 1.
std::vector<Outcome> run_ranks(int32_t ranks, std::chrono::milliseconds limit,
                               const std::function<int(Rank, Meeting&)>& body);

/// "rank 1 was killed: it did not end in time" for every rank that did not end with 0 or `allowed`; empty:
/// none.
std::string failures(const std::vector<Outcome>& outcomes, int allowed = 0);

}  // namespace plumb::hw

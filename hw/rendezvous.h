// How ranks in processes of their own meet: rank 0 hands a few bytes to all, over TCP or by a file, and over
// TCP each learns when another one dies. Needs no GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/ids.h"

namespace plumb::hw {

inline constexpr const char* kTorchrun = "torchrun";

/// The place of a process among all.
struct Seat {
  Rank rank = 0;
  int32_t ranks = 1;
  int32_t local_rank = 0;  // among those of its host: which GPU to take
  std::string launcher{};  // who said so
};

/// A path that all ranks see and that is new for each job; else host and port of rank 0.
struct MeetingPlace {
  std::string file{};
  std::string host{};
  uint16_t port = 0;
};

inline constexpr std::chrono::seconds kLostPeer{11};  // after which a host that is gone counts as dead

class Rendezvous {
 public:
  /// Collective. Rank 0 makes the message when all others have come (by a file: at once) and gives it to
  /// them. Throws Error(environment) naming the ranks that did not come or the place where rank 0 was not
  /// found within `limit`, and for two processes that claim one rank or differ in their number of ranks.
  Rendezvous(const Seat& seat, const MeetingPlace& place, const std::function<std::vector<char>()>& make,
             std::chrono::milliseconds limit);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  /// Leaves in order: the others go on. Destroyed by an exception it does not: to the others this rank died.
  ~Rendezvous();

  const std::vector<char>& message() const { return message_; }

  /// From now on calls `on_death` once, from a thread, with the rank that ended without leaving, and that
  /// this rank is `seat.rank`. Does nothing after a meeting by a file.
  void watch(const std::function<void(const Seat& seat, Rank dead)>& on_death);

 private:
  class Connections;
  Seat seat_;
  std::vector<char> message_;
  std::unique_ptr<Connections> connections_;  // null after a meeting by a file
};

/// For watch(): says on stderr which rank died, and ends this process with the exit code of an environment
/// error.
[[noreturn]] void end_process(const Seat& seat, Rank dead);

}  // namespace plumb::hw

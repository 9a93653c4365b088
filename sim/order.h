// Keeps signals from overtaking their data unseen: which data messages of a flow are still under way.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/traffic.h"

namespace plumb::sim {

/// Holds a record per flow that has tracked messages under way, and none for the others.
class OrderTracker {
 public:
  struct Place {
    uint32_t stream = 0;
    int64_t position = 0;  // of a data message; of a signal: data messages before it
  };

  /// A tracked message starts at its source. `message` is the engine's index of it.
  Place start(const Message& message);
  /// True when all data before the place has landed.
  bool is_covered(Place signal) const;
  /// Makes `message`, a signal, wait for the data before it.
  void wait(Place signal, uint32_t message);
  /// A tracked message is done; appends to `released` the signals whose data has now landed.
  void finish(Place place, Order order, std::vector<uint32_t>& released);

 private:
  struct Waiting {
    int64_t position;
    uint32_t message;
  };
  struct Stream {
    uint64_t key = 0;
    int64_t next_position = 0;
    int64_t users = 0;               // tracked messages under way
    std::vector<int64_t> under_way;  // positions of data, ascending
    std::vector<Waiting> waiting;    // in order of position
  };

  std::unordered_map<uint64_t, uint32_t> index_;  // never iterated
  std::vector<Stream> streams_;
  std::vector<uint32_t> free_;
};

/// Ranks, network and class in one number.
uint64_t flow_key(const Message& message);

}  // namespace plumb::sim

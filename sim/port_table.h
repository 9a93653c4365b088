// The ports and lanes of all channels, each port beside its lanes: most accesses to one are followed by one
// to the other.
#pragma once

#include "sim/large_vector.h"
#include "sim/packet_records.h"

namespace plumb::sim {

class PortTable {
 public:
  void resize(uint32_t channels, uint32_t lanes_per_port) {
    lanes_per_port_ = lanes_per_port;
    records_.assign(size_t{channels} * (lanes_per_port + 1), Record());
    for (Channel c = 0; c < channels; ++c)
      for (uint32_t l = 0; l < lanes_per_port; ++l) records_[position(c) + 1 + l].lane = Lane();
  }

  Port& port(Channel channel) { return records_[position(channel)].port; }
  const Port& port(Channel channel) const { return records_[position(channel)].port; }
  Lane& lane(Channel channel, uint32_t index) { return records_[position(channel) + 1 + index].lane; }
  const Lane& lane(Channel channel, uint32_t index) const {
    return records_[position(channel) + 1 + index].lane;
  }
  Lane& lane(LaneId id) {
    return lanes_per_port_ == 1 ? lane(id, 0) : lane(id / lanes_per_port_, id % lanes_per_port_);
  }
  const Lane& lane(LaneId id) const {
    return lanes_per_port_ == 1 ? lane(id, 0) : lane(id / lanes_per_port_, id % lanes_per_port_);
  }

  int64_t memory_bytes() const { return static_cast<int64_t>(records_.capacity() * sizeof(Record)); }

 private:
  /// The first of a channel is its port, the others are lanes.
  union Record {
    Port port;
    Lane lane;
    Record() : port() {}
  };

  size_t position(Channel channel) const { return size_t{channel} * (lanes_per_port_ + 1); }

  LargeVector<Record> records_;  // [channels][1 + lanes]
  uint32_t lanes_per_port_ = 1;
};

}  // namespace plumb::sim

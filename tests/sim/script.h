// Traffic for tests: messages in a list, or made by a function; remembers what arrived and when.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "sim/packet_network.h"

namespace plumb::sim {

class Script : public Traffic {
 public:
  struct Arrival {
    Message message;
    Ps at = 0;
  };

  void add(const Message& message) {
    waiting_[key(message.src, message.network, message.traffic_class)].push_back(message);
  }

  bool next(Rank src, Link network, uint8_t traffic_class, Message& message) override {
    auto& queue = waiting_[key(src, network, traffic_class)];
    if (queue.empty()) return false;
    message = queue.front();
    queue.pop_front();
    return true;
  }
  void on_sent(const Message& message, Ps at) override { sent.push_back({message, at}); }
  void on_chunk(const Message&, int64_t bytes, Ps at) override { chunks.push_back({bytes, at}); }
  void on_arrived(const Message& message, Ps at) override {
    arrivals.push_back({message, at});
    bytes_from[message.src] += message.bytes;
  }

  /// Date of arrival of the message with that cookie; -1 when it has not.
  Ps arrival(uint64_t cookie) const {
    for (const Arrival& a : arrivals)
      if (a.message.cookie == cookie) return a.at;
    return -1;
  }

  std::vector<Arrival> arrivals, sent;
  std::vector<std::pair<int64_t, Ps>> chunks;
  std::map<Rank, int64_t> bytes_from;

 private:
  static std::array<int32_t, 3> key(Rank src, Link network, uint8_t level) {
    return {src, static_cast<int32_t>(network), level};
  }
  std::map<std::array<int32_t, 3>, std::deque<Message>> waiting_;
};

/// Flows without end: each sends messages of one size, a multiple of its packets, to one destination, again
/// and again.
class Endless : public Traffic {
 public:
  struct Flow {
    Rank src = 0, dst = 0;
    uint8_t traffic_class = 0;
    int64_t bytes = 65536;
    int32_t packet_bytes = 0;
  };
  std::vector<Flow> flows;
  std::map<Rank, int64_t> bytes_from;  // landed, packet by packet

  bool next(Rank src, Link network, uint8_t traffic_class, Message& message) override {
    if (network != Link::scale_out) return false;
    for (const Flow& flow : flows) {
      if (flow.src != src || flow.traffic_class != traffic_class) continue;
      message = {.src = src,
                 .dst = flow.dst,
                 .network = network,
                 .traffic_class = traffic_class,
                 .bytes = flow.bytes,
                 .packet_bytes = flow.packet_bytes,
                 .chunk_packets = 1};
      return true;
    }
    return false;
  }
  void on_chunk(const Message& message, int64_t, Ps) override {
    bytes_from[message.src] += message.packet_bytes;
  }
};

inline PacketSettings packet_settings() {
  PacketSettings s;
  s.lanes.adaptive.fill(true);
  return s;
}

}  // namespace plumb::sim

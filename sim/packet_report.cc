// What the engine saw, and why it does not move.
#include <algorithm>
#include <map>

#include "model/error.h"
#include "sim/packet_engine.h"

namespace plumb::sim {

std::vector<LaneUse> PacketEngine::lane_use() const {
  std::vector<LaneUse> result;
  for (LaneId id = 0; id < num_lanes(); ++id) {
    const Lane& lane = this->lane(id);
    if (lane.bytes == 0 && lane.peak_waiting == 0) continue;
    const uint32_t index = id % lanes_per_port_;
    const Stall& stall = stalls_[id];
    const std::array<LinkId, 2>& links = graph_[lane.channel].links;
    result.push_back({.channel = lane.channel,
                      .link = links[0],
                      .last_link = links[1] == kNone ? links[0] : links[1],
                      .virtual_lane = static_cast<int32_t>(index / classes_),
                      .hop_class = static_cast<int32_t>(index % classes_),
                      .packet_bytes = lane.bytes,
                      .peak_waiting = lane.peak_waiting * credit_unit_,
                      .peak_buffer = int64_t{capacities_[lane.channel] - lane.least_credits} * credit_unit_,
                      .stalled = stall.total + (lane.is_stalled ? now_ - stall.since : 0),
                      .starved = stall.count});
  }
  return result;
}

std::vector<LinkUse> PacketEngine::link_use() const {
  std::vector<LinkUse> result(fabric_.links().size());
  const double seconds = std::max(to_seconds(now_).value, 1e-12);
  for (size_t l = 0; l < result.size(); ++l) {
    const Channel channel = graph_.of(static_cast<LinkId>(l));
    LinkUse& use = result[l];
    use.link = static_cast<LinkId>(l);
    for (uint32_t i = 0; i < lanes_per_port_; ++i)
      use.packet_bytes += lane(channel * lanes_per_port_ + i).bytes;
    use.utilisation = static_cast<double>(use.packet_bytes) / (fabric_.links()[l].rate.value * seconds);
  }
  return result;
}

int64_t PacketEngine::memory_bytes() const {
  auto bytes = [](const auto& v) { return static_cast<int64_t>(v.capacity() * sizeof(v[0])); };
  int64_t total = queue_.memory_bytes() + packets_.memory_bytes() + messages_.memory_bytes() +
                  bytes(extras_) + bytes(contents_) + credits_.memory_bytes() + echoes_.memory_bytes() +
                  flows_.memory_bytes();
  return total + ports_.memory_bytes() + router_.memory_bytes() + waiting_.memory_bytes() + bytes(fifos_) +
         bytes(fifo_next_) + bytes(debts_) + bytes(stalls_) + bytes(sources_);
}

/// A lane is deadlocked when it has a packet and no credits, none come back, and all that fills its far
/// buffer waits for deadlocked lanes. Start with all starving lanes and take out those that something can
/// still leave.
std::vector<uint8_t> PacketEngine::find_deadlocked_lanes() const {
  std::vector<uint8_t> stuck(num_lanes(), 0);
  for (LaneId id = 0; id < num_lanes(); ++id) {
    const Lane& lane = this->lane(id);
    if (waiting_.is_empty(lane) || !credits_.is_empty(lane)) continue;
    stuck[id] = lane.credits < static_cast<int32_t>(packets_[waiting_.first(lane)].units);
  }
  std::vector<int64_t> held(num_lanes());
  for (bool changed = true; changed;) {
    changed = false;
    std::fill(held.begin(), held.end(), 0);  // units of each buffer whose way out is stuck
    for (LaneId id = 0; id < num_lanes(); ++id)
      if (stuck[id])
        waiting_.visit(lane(id), [&](const Packet& p) {
          if (p.in == kNil) return;
          held[p.in] += fifos_.empty() ? p.units : capacities_[lane(p.in).channel] - lane(p.in).credits;
        });
    for (LaneId id = 0; id < num_lanes(); ++id) {
      if (!stuck[id] || held[id] >= capacities_[lane(id).channel] - lane(id).credits) continue;
      stuck[id] = 0;
      changed = true;
    }
  }
  return stuck;
}

std::string PacketEngine::name_lane(LaneId id) const {
  const uint32_t index = id % lanes_per_port_;
  std::string result = graph_.name_of_channel(lane(id).channel) + fmt::format(" lane {}", index / classes_);
  if (classes_ > 1) result += fmt::format(" class {}", index % classes_);
  return result;
}

std::string PacketEngine::name_cycle(const std::vector<uint8_t>& stuck) const {
  // What a stuck lane's buffer waits for: any one of the lanes that its packets ask for.
  std::vector<LaneId> waits_for(num_lanes(), kNil);
  for (LaneId id = 0; id < num_lanes(); ++id)
    if (stuck[id])
      waiting_.visit(lane(id), [&](const Packet& p) {
        if (p.in != kNil && stuck[p.in]) waits_for[p.in] = id;
      });
  LaneId start = static_cast<LaneId>(std::find(stuck.begin(), stuck.end(), uint8_t{1}) - stuck.begin());
  for (size_t i = 0; i < num_lanes() && waits_for[start] != kNil; ++i)
    start = waits_for[start];  // into the cycle
  std::string result = "deadlock: these lanes wait for each other in a circle\n";
  LaneId id = start;
  do {
    result += fmt::format("  {}\n", name_lane(id));
    id = waits_for[id];
  } while (id != start && id != kNil);
  return result;
}

/// The nodes that a channel joins, with the NIC that it passes.
std::string PacketEngine::path_of(Channel channel) const {
  std::string path = graph_.name(graph_[channel].from);
  for (const LinkId link : graph_[channel].links)
    if (link != kNone)
      path +=
          " -> " + fabric_.nodes()[static_cast<size_t>(fabric_.links()[static_cast<size_t>(link)].to)].name;
  return path;
}

std::string PacketEngine::stuck_report() const {
  if (messages_.in_use() == 0) return "";
  const std::vector<uint8_t> stuck = find_deadlocked_lanes();
  if (std::find(stuck.begin(), stuck.end(), uint8_t{1}) != stuck.end()) return name_cycle(stuck);
  if (!queue_.empty()) return "";
  std::string result;
  for (Channel c = 0; c < num_channels(); ++c)
    if (router_.is_down(c)) result += fmt::format("  {} is down\n", path_of(c));
  std::map<std::pair<Vertex, Rank>, int32_t> lost;
  for (const Parked& parked : parked_) ++lost[{parked.at, packets_[parked.packet].target}];
  for (const auto& [where, count] : lost)
    result += fmt::format("  no way from {} to rank {}: {} packets\n", graph_.name(where.first), where.second,
                          count);
  for (Channel c = 0; c < num_channels(); ++c)
    for (uint32_t i = 0; i < lanes_per_port_; ++i) {
      const LaneId id = c * lanes_per_port_ + i;
      const bool has_credits =
          !waiting_.is_empty(lane(id)) && !router_.is_down(c) &&
          lane(id).credits >= static_cast<int32_t>(packets_[waiting_.first(lane(id))].units);
      if (has_credits) result += fmt::format("  {} stands in no arbitration table\n", name_lane(id));
    }
  return result.empty() ? "  a source waits for an acknowledgement that does not come\n" : result;
}

}  // namespace plumb::sim

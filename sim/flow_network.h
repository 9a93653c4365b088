// The flow fidelity: messages as fluid flows with max-min fair rates over a Fabric. No packets, buffers,
// lanes or congestion. docs/simulator.md says how far it can be trusted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/fabric.h"
#include "sim/flow_routes.h"
#include "sim/network.h"
#include "sim/packet_settings.h"

namespace plumb::sim {

/// One of the two networks.
struct FlowNetworkSettings {
  int32_t mtu_bytes = 4096;  // packets exist only to count header bytes and chunks; as in NetworkSettings
  int32_t first_header_bytes = 42;
  int32_t next_header_bytes = 26;
  FlowPolicy policy = FlowPolicy::split;
  Injection injection;  // all but outstanding_bytes, which flows do not know
};

struct FlowSettings {
  std::array<FlowNetworkSettings, 2> networks;  // scale_up, scale_out
  int32_t num_classes = 1;                      // traffic classes in use, 1..16
  /// Of the flows of a class: at a full link a flow gets weight / sum of the weights of the flows that the
  /// link holds back. Lanes share by lane, however many messages each has: that is the packets' job.
  std::array<double, kServiceLevels> class_weights;
  /// Rates are computed anew when this part of the live flows has ended (or come), or after this part of the
  /// mean time that they still need. 0: at every end and start, exact, some ms each with 10^4 live flows.
  double relative_batch = 0.05;
  Seconds reroute_delay = microseconds(10);  // hash: from a failure to new paths; split moves at once
  LocalCopy local;                           // messages from a rank to itself
  uint64_t seed = 1;                         // of hashes

  FlowSettings() { class_weights.fill(1); }
  const FlowNetworkSettings& network(Link link) const { return networks[link == Link::scale_out ? 1 : 0]; }
};

/// Policies that keep a flow on one path become hash, the others split.
FlowPolicy flow_policy(RoutePolicy policy);
/// The same network as flows.
FlowSettings flow_settings(const PacketSettings& settings);

struct FlowCounts {
  int64_t messages = 0;        // landed, local ones not among them
  int64_t payload_bytes = 0;   // landed
  int64_t local_messages = 0;  // from a rank to itself
  int64_t held_signals = 0;    // racing and counted signals that waited for their data at the destination
  int64_t solutions = 0;       // times that all rates were computed
  int64_t events = 0;
};

class FlowEngine;

/// Messages are pulled from a Traffic as PacketNetwork does. Each is a flow over its route: its last byte
/// leaves at the date when rates have moved all its bytes, headers included, and lands one path latency
/// later. Memory grows with live messages and links, and with pairs of switches that ranks hang on.
class FlowNetwork final : public Network {
 public:
  /// `fabric` and `traffic` must outlive the network. Throws Error(usage) for settings out of range.
  FlowNetwork(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic);
  ~FlowNetwork() override;

  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at = 0) override;
  /// The same for all ranks, networks and classes.
  void wake_all(Ps at = 0);
  void call_at(Ps at, uint32_t id) override;
  void add_fault(const Fault& fault) override;
  Ps now() const override;
  Ps next_event() const override;
  bool advance(Ps until) override;
  void stop() override;
  int64_t messages_under_way() const override;
  /// Flows that stand still: their pairs, and the links that are down.
  std::string stuck_report() const override;
  std::vector<LinkUse> link_use() const override;
  int64_t memory_bytes() const override;

  const FlowCounts& counts() const;

 private:
  std::unique_ptr<FlowEngine> engine_;
};

}  // namespace plumb::sim

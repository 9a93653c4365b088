// Everything that a packet network can be set to beside its fabric.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/congestion_settings.h"
#include "model/fabric.h"
#include "model/lanes.h"
#include "model/sim_options.h"
#include "model/units.h"

namespace plumb::sim {

/// What lies between a rank and the first link.
struct Injection {
  int32_t queue_pairs = 32;  // messages a rank works on at once, per network and class, round robin by packet
  PerSecond message_rate{};  // of a rank, per network and class; 0 = not limited
  double queue_pair_share = 1;    // of the link that one message alone can fill (0.67..0.70 on ConnectX-7)
  int64_t outstanding_bytes = 0;  // sent and not yet acknowledged, per network and class; 0 = not limited
};

/// One of the two networks.
struct NetworkSettings {
  int32_t mtu_bytes = 4096;         // payload of a packet where the message does not say
  int32_t first_header_bytes = 42;  // of a first or only packet (InfiniBand: LRH, BTH, RETH, ICRC, VCRC)
  int32_t next_header_bytes = 26;   // of the others
  double round_trips = 1;           // of credits that a lane's buffer holds at least, with fit_buffers
  RoutePolicy policy =
      RoutePolicy::adaptive;  // a class that may not adapt (Lanes::adaptive) goes by_flow instead
  int32_t sample = 0;         // candidates that an adaptive choice looks at, 0 = all
  Injection injection;
};

/// Lanes are multiplied by hop classes where routes would otherwise depend on each other in a circle: a
/// packet's class is the number of class-raising links it has passed, at most count - 1.
struct HopClasses {
  int32_t count = 0;              // 0 = the fewest that are free of cycles
  std::vector<LinkId> datelines;  // the links that raise it; empty = all from switch to switch or GPU to GPU
};

struct LocalCopy {
  BytesPerSecond rate = gigabytes_per_second(1000);
  Seconds latency{};
};

struct PacketSettings {
  std::array<NetworkSettings, 2> networks;  // scale_up, scale_out
  int32_t num_classes = 1;                  // traffic classes in use, 1..16
  Lanes lanes;
  HopClasses hop_classes;
  InputQueues input_queues = InputQueues::per_output;
  /// Buffers of links that are too long for Lanes::buffer grow to their network's credit round trips plus two
  /// packets; false: all are as given, and long links starve.
  bool fit_buffers = true;
  Seconds reroute_delay = microseconds(10);  // from a failure to new tables
  LocalCopy local;                           // messages from a rank to itself
  CongestionSettings congestion;
  bool check_deadlock = true;  // refuse routes that can deadlock
  uint64_t seed = 1;           // of random routes and marks

  const NetworkSettings& network(Link link) const { return networks[link == Link::scale_out ? 1 : 0]; }
};

}  // namespace plumb::sim

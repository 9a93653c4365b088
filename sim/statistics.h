// What a packet network saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/channels.h"
#include "sim/time.h"

namespace plumb::sim {

struct PacketCounts {
  int64_t events = 0;
  int64_t messages = 0;          // landed
  int64_t packets = 0;           // landed
  int64_t packet_hops = 0;       // transmissions
  int64_t payload_bytes = 0;     // landed
  int64_t local_messages = 0;    // from a rank to itself
  int64_t out_of_order = 0;      // packets that landed after a later one of their message
  int64_t order_violations = 0;  // racing signals that acted before their data
  int64_t held_signals = 0;      // counted signals that came before their data and waited for it
  int64_t starved = 0;           // times a port could not send for want of credits
  int64_t marks = 0;             // congestion marks set
  int64_t echoes = 0;            // congestion notifications that reached a source
  int64_t detours = 0;           // packets sent over a Valiant vertex
};

/// One lane (virtual lane and hop class) of one channel since the start.
struct LaneUse {
  Channel channel = 0;
  LinkId link = 0;       // the channel's first, where its packets wait
  LinkId last_link = 0;  // the one that leads to its receiving buffer
  int32_t virtual_lane = 0;
  int32_t hop_class = 0;
  int64_t packet_bytes = 0;  // sent, headers included
  int64_t peak_waiting = 0;  // bytes queued for this output lane, in credit units
  int64_t peak_buffer = 0;   // bytes of the receiving buffer taken or under way, in credit units
  Ps stalled = 0;            // a packet waited here with the lane out of credits
  int64_t starved = 0;       // times that this began
};

/// Use of a fabric link, all lanes together.
struct LinkUse {
  LinkId link = 0;
  int64_t packet_bytes = 0;
  double utilisation = 0;  // of the time until now
};

}  // namespace plumb::sim

// What the simulator is told beside plan, machine and costs: fidelity, routing, lanes, congestion control,
// faults. The `sim` section of an experiment, docs/experiment.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/congestion_settings.h"
#include "model/ids.h"
#include "model/lanes.h"
#include "model/units.h"

namespace plumb {

enum class Fidelity : uint8_t {
  packet,  // every packet, with credits, lanes and queues
  flow,    // messages as max-min fair flows
};

/// How a packet gets one of several next hops.
enum class RoutePolicy : uint8_t {
  by_destination,  // fixed by the destination, as linear forwarding tables do
  by_flow,         // hash of source, destination and class: ECMP, UB "per flow"
  spread,          // at random for every packet: UB "per packet"
  adaptive,        // the least loaded lane for every packet
  even,            // a rank's bytes to each other rank equally over its NVLink switches; elsewhere adaptive
  valiant,         // over a random vertex that endpoints hang on, adaptive on the way
  ugal,            // minimal or Valiant, whichever promises less queue times hops at the first switch
};

/// Where arrived packets wait in a switch.
enum class InputQueues : uint8_t {
  per_output,  // virtual output queues: served round robin by input, no blocking inside the switch
  fifo,        // one queue per input and lane: its first packet blocks the others
};

/// Who steps the network on; no date depends on it.
enum class SimClock : uint8_t { own, simgrid };

/// When a signal acts that follows its data over a network that may reorder.
enum class SignalOrder : uint8_t {
  racing,   // when it arrives; before its data it is counted as a violation
  counted,  // once the data has landed: the receiver counts
  fenced,   // it leaves once the data is acknowledged: one round trip more
};

/// What happens to a link, a node or a rank at a date.
struct SimEvent {
  enum class Kind : uint8_t { link_down, link_up, link_rate, node_down, node_up, rank_speed, rank_dead };
  Kind kind = Kind::link_down;
  Seconds at{};
  std::string target;  // "leaf 0.1 -> spine 0.2" or the name of a node
  Rank rank = kNone;
  double factor = 1;  // of the link's rate or the rank's speed, from then on
};

struct SimOptions {
  Fidelity fidelity = Fidelity::packet;
  SimClock clock = SimClock::own;
  Bytes packet{};               // payload of a packet; 0 = the MTU of the machine
  bool packet_per_row = false;  // one packet per row instead
  int32_t queue_pairs = 32;     // messages a rank works on at once, per network and class
  std::array<RoutePolicy, 2> routing = {RoutePolicy::even, RoutePolicy::adaptive};  // scale_up, scale_out
  InputQueues input_queues = InputQueues::per_output;
  SignalOrder signals = SignalOrder::counted;
  CongestionSettings congestion;
  std::optional<Lanes> lanes;  // instead of the machine's
  std::vector<SimEvent> events;
  Seconds time_limit{};  // of simulated time; 0 = none. A run that passes it ends as incomplete.
  uint64_t seed = 1;     // of random routes and marks
  /// A run as packets that is expected to take more is refused: an hour or so.
  int64_t max_events = 20'000'000'000;
};

std::string_view to_string(Fidelity fidelity);
std::string_view to_string(RoutePolicy policy);

/// Reads a `sim` mapping. Problems: as of read_lanes(), an event that names no link, node or rank, or one
/// thing too many, a factor outside its range.
SimOptions read_sim_options(ConfigMap map);

}  // namespace plumb

// What the network is asked to carry: messages, pulled one by one from whoever makes them.
#pragma once

#include <cstdint>

#include "model/ids.h"
#include "model/plan.h"
#include "sim/time.h"

namespace plumb::sim {

/// How a message stands to the others of its flow, i.e. of equal source, destination, network and traffic
/// class.
enum class Order : uint8_t {
  unrelated,  // no signal depends on it
  data,       // a later signal of the flow covers it
  racing,     // a signal that acts when it arrives, even before the data it covers: counted as a violation
  counted,    // a signal that acts once all earlier data of the flow has landed: the receiver counts
  fenced,     // a signal that leaves once all earlier data of the flow is acknowledged: one more round trip
};

struct Message {
  Rank src = 0;
  Rank dst = 0;
  Link network = Link::scale_out;  // local: src == dst
  uint8_t traffic_class = 0;       // service level
  Order order = Order::unrelated;
  bool report_sent = false;   // wants on_sent()
  int64_t bytes = 0;          // payload; 0 = a header alone
  int32_t packet_bytes = 0;   // payload of its packets, e.g. one token row; 0 = the network's MTU
  int32_t chunk_packets = 0;  // wants on_chunk() each time that many packets have landed; 0 = no
  uint64_t cookie = 0;        // the sender's own
};

/// Makes the messages and hears of them. Callbacks may call PacketNetwork::wake(), call_at() and stop(),
/// nothing else.
class Traffic {
 public:
  virtual ~Traffic() = default;

  /// Fills in the next message that the rank sends on a network and class, or returns false when there is
  /// none for now; then wake() makes the network ask again. Called when the NIC can start one more, not
  /// earlier.
  virtual bool next(Rank src, Link network, uint8_t traffic_class, Message& message) = 0;

  /// The last byte has left the source, whose memory may be reused.
  virtual void on_sent(const Message&, Ps) {}
  /// `bytes` of payload have landed so far, in chunks in any order.
  virtual void on_chunk(const Message&, int64_t /*bytes*/, Ps) {}
  /// All of it has landed; a counted signal: and all that it covers.
  virtual void on_arrived(const Message&, Ps) {}
  /// The date given to call_at().
  virtual void on_timer(uint32_t /*id*/, Ps) {}
};

}  // namespace plumb::sim

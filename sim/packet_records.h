// The records that the packet engine works on, sized for caches: a packet is half a line, a port and a lane
// one each.
#pragma once

#include <cstdint>

#include "sim/arbitration.h"
#include "sim/channels.h"
#include "sim/traffic.h"

namespace plumb::sim {

using LaneId = uint32_t;  // channel x lanes + lane; lane = virtual lane x hop classes + hop class

struct Packet {
  uint32_t next = kNil;  // in the queue it waits in
  uint32_t message = kNil;
  Rank target = 0;          // where it heads: its destination, or a rank beside its Valiant vertex
  uint32_t bytes = 0;       // with headers
  uint32_t units = 0;       // credits it takes
  LaneId in = kNil;         // whose buffer it is in or under way to; kNil at the source
  uint16_t sequence = 0;    // in its message, modulo 2^16
  uint16_t congestion = 0;  // the field that switches write and destinations return
  uint8_t virtual_lane = 0;
  uint8_t hop_class = 0;
  uint8_t flags = 0;
  uint8_t traffic_class = 0;
};
static_assert(sizeof(Packet) == 32);

inline constexpr uint8_t kScaleOut = 1;  // packet flags
inline constexpr uint8_t kFresh = 2;     // has not met a switch yet
inline constexpr uint8_t kDetour = 4;    // on its way to a Valiant vertex
inline constexpr uint8_t kFirstPacket = 8;
inline constexpr uint8_t kLastPacket = 16;

/// The sending end of a channel.
struct alignas(64) Port {
  Ps busy_until = 0;
  uint64_t ps_per_byte = 0;    // times 2^32
  uint64_t waiting_lanes = 0;  // bit per lane with queued packets
  uint32_t fraction = 0;       // of the last transmission's end, in ps / 2^32
  uint32_t feeder = kNil;      // source or input queue that wants to go on when the transmission ends
  uint32_t latency = 0;        // ps
  uint32_t head_delay =
      0;  // ps per byte, times 2^16: what a head waits so that a faster next link never starves
  Vertex to = 0;
  ArbitrationState arbitration;
  uint8_t next_class = 0;  // hop classes of a virtual lane take turns
  bool has_done_event = false;
  bool is_down = false;
};
static_assert(sizeof(Port) == 64);

/// One lane of a channel: credits and queue at its sending end, and where it leads.
struct alignas(64) Lane {
  int32_t credits = 0;          // free units of the far buffer, as known here
  int32_t waiting = 0;          // units queued for this output
  uint32_t turn = kNil;         // of the inputs with packets, a ring: whose turn it is
  uint32_t last = kNil;         // and who came before
  uint32_t credit_head = kNil;  // credits on their way back, by date: CreditLists
  uint32_t credit_tail = kNil;
  Channel channel = 0;
  Vertex to = 0;
  uint32_t wire_latency = 0;  // ps
  int32_t peak_waiting = 0;
  int32_t least_credits = 0;
  uint16_t in_slot = 0;  // of the channel among those that enter `to`
  bool has_credit_event : 1 = false;
  bool is_stalled : 1 = false;
  bool raises_class : 1 = false;  // packets that passed it are one hop class higher afterwards
  uint64_t inputs = 0;            // bit slot % 64: that input may stand in the ring
  int64_t bytes = 0;              // sent
};
static_assert(sizeof(Lane) == 64);

/// Times when a lane had a packet and no credits for it.
struct Stall {
  Ps since = 0;  // of the current one
  Ps total = 0;  // of those before
  int64_t count = 0;
};

/// Strict first-in-first-out input of one lane (InputQueues::fifo).
struct InputFifo {
  uint32_t head = kNil;
  uint32_t tail = kNil;
  Channel output = kNil;  // where its head asks or is being sent
  enum class State : uint8_t { idle, asking, sending } state = State::idle;
};

/// What the engine touches of a message at each packet, from the moment a queue pair takes it until it has
/// landed. The Message itself, and a MessageExtra if it has one, stand in arrays of the same index.
struct MessageState {
  Rank src = 0;
  Rank dst = 0;
  uint32_t next = kNil;  // in the ring of its source
  uint32_t packets_unmade = 0;
  uint32_t packets_left = 0;  // not yet landed
  uint32_t packet_bytes = 0;  // payload
  uint32_t last_bytes = 0;    // payload of the last packet
  uint16_t expected = 0;      // sequence number after the latest landed
  uint8_t traffic_class = 0;
  bool is_scale_out : 1 = false;
  bool has_extra : 1 = false;
  bool has_started : 1 = false;
  bool reports_sent : 1 = false;

  int32_t next_bytes() const { return static_cast<int32_t>(packets_unmade == 1 ? last_bytes : packet_bytes); }
  /// Of the next packet; counts up to 0 of the last, modulo 2^16.
  uint16_t next_sequence() const { return static_cast<uint16_t>(1 - packets_unmade); }
};
static_assert(sizeof(MessageState) == 32);

/// What only messages with an order, chunks, paced queue pairs or congestion control have.
struct MessageExtra {
  Ps ready = 0;  // its queue pair may send again; kNever: when its fence opens
  int64_t bytes_landed = 0;
  int64_t stream_position = 0;
  uint32_t stream = kNil;  // of the order tracker
  uint32_t flow = kNil;    // of congestion control
  int32_t chunk_left = 0;  // packets until the next on_chunk()
};

/// What a rank sends on one network and class.
struct alignas(64) Source {
  uint32_t ring = kNil;       // last served of the circle of messages in work
  uint32_t following = kNil;  // the one after it
  int32_t active = 0;
  int32_t queue_pairs = 0;
  uint64_t gates =
      ~uint64_t{1};   // bit per local channel: a packet of it waits there, or it is not of its network
  Ps wake = kNever;   // pending wake-up
  Ps next_start = 0;  // message rate
  int64_t outstanding = 0;
  Rank rank = 0;
  uint32_t slot = 0;  // as an input of the rank's channels
  Link network = Link::scale_up;
  uint8_t traffic_class = 0;
  bool may_have_more = false;
  bool has_one_channel = true;
  bool is_plain = true;  // no limit but the queue pairs
};
static_assert(sizeof(Source) == 64);

/// Something that goes back to a source, out of band: its bytes are not simulated.
struct Echo {
  uint32_t source = kNil;
  int64_t acknowledged = 0;  // payload bytes
  uint32_t flow = kNil;      // its field is returned, kNil = not
  int32_t bytes = 0;
  uint16_t field = 0;
  uint32_t next = kNil;
};
struct Flow {
  uint64_t key = 0;
  int32_t users = 0;  // messages under way
  Ps timer = kNever;
  uint32_t source = kNil;
  uint32_t next = kNil;
};
/// A packet that has nowhere to go until the tables change.
struct Parked {
  uint32_t packet;
  Vertex at;
  uint32_t slot;
};

}  // namespace plumb::sim

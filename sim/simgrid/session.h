// Messages for s4u actors: an actor of a rank sends, and waits for what was sent or has arrived. Includes
// nothing of SimGrid; the functions that wait are called by actors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/simgrid/fabric_model.h"

namespace plumb::sim {

class Simulation;

struct Send {
  Rank dst = 0;
  Link network = Link::scale_out;  // of a message to the own rank any
  uint8_t traffic_class = 0;
  uint32_t tag = 0;  // under which the receiver counts it, e.g. a phase
  int64_t bytes = 0;
  Order order = Order::unrelated;
  int32_t packet_bytes = 0;  // as in Message
};

/// Many messages of one network and class, made one by one when the NIC can start one more: nothing is stored
/// per message. `next` fills in a Send (its network and class are those given here) or returns false, after
/// which it is not asked again. It runs inside the network: it may not send or wait.
struct SendList {
  Link network = Link::scale_out;
  uint8_t traffic_class = 0;
  bool report_sent = false;  // wait_sent() wanted; costs the network an event per message
  std::function<bool(Send&)> next;
};

/// What a rank waits for: at least so many messages and bytes with a tag, counted from the start or the last
/// forget(). `what` is said when it never comes, e.g. "dispatch of layer 3 from rank 7".
struct Expect {
  uint32_t tag = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
  std::string_view what = {};
};

/// Names what one call sent. Valid for ever: what is complete stays complete.
struct Transfer {
  uint32_t index = kNil;
  uint32_t generation = 0;
};

struct Arrived {
  int64_t messages = 0;
  int64_t bytes = 0;
};

/// The traffic of all ranks' actors on one network. Make it, then the network with it, then couple():
///
///   Simulation simulation(ranks, gpu);
///   Session session(ranks);
///   PacketNetwork network(fabric, settings, session);
///   session.couple(network, simulation);
///   simulation.add_actor(0, "sender", [&] { session.wait(session.send(0, {.dst = 1, .bytes = 4096})); });
///   simulation.run();
///
/// A wait costs one wake of its actor when all of it has come, never one per message. Memory grows with sends
/// not yet started, transfers under way and (rank, tag) pairs in use. Actors must run one at a time
/// (SimGrid's default, contexts/nthreads:1).
class Session final : public Traffic {
 public:
  explicit Session(Rank ranks, int32_t num_classes = 1);
  ~Session() override;

  /// `network` must have been made with this session and exist as long as SimGrid runs.
  void couple(Network& network, Simulation& simulation, FabricModelSettings settings = {});

  /// Sends one message at the engine's date; does not wait. `report_sent`: wait_sent() will be called.
  Transfer send(Rank src, const Send& what, bool report_sent = false);
  Transfer send(Rank src, SendList list);

  /// Blocks the calling actor until all of it has landed at its destinations.
  void wait(Transfer transfer);
  /// Until all of it has left its source. Throws Error(usage) when it was sent without report_sent.
  void wait_sent(Transfer transfer);
  /// Until that much has landed at a rank.
  void wait_arrived(Rank at, const Expect& expect);

  Arrived arrived(Rank at, uint32_t tag) const;
  /// Counts from 0 again. Throws Error(usage) while somebody waits for the tag.
  void forget(Rank at, uint32_t tag);
  /// Called inside the network for each message that lands; may not send or wait.
  void set_listener(std::function<void(const Message&, uint32_t tag, Ps at)> listener);

  const FabricModel& model() const { return *model_; }
  /// One line per waiting actor, and why the network does not move.
  std::string describe_waits() const;

  bool next(Rank src, Link network, uint8_t traffic_class, Message& message) override;
  void on_sent(const Message& message, Ps at) override;
  void on_arrived(const Message& message, Ps at) override;

 private:
  struct Waiter;
  struct Queue;
  struct Counter;
  struct State;

  Queue& queue(Rank src, Link network, uint8_t traffic_class);
  uint32_t open(Rank src, bool report_sent);
  Transfer announce(uint32_t index, Link network, uint8_t traffic_class);
  State* find(Transfer transfer);
  void settle(uint32_t index);
  Counter& counter(Rank at, uint32_t tag);
  Waiter*& list_of(const Waiter& waiter);
  template <class Claim>
  void wake(Waiter*& list, const Claim& is_met);
  void block(Waiter& waiter);
  void resume_ready();

  Rank ranks_;
  int32_t num_classes_;
  Network* network_ = nullptr;
  std::unique_ptr<FabricModel> model_;
  std::vector<Queue> queues_;                   // [ranks][scale_up, scale_out][classes]
  std::vector<std::vector<Counter>> counters_;  // [ranks], by tag
  std::vector<State> transfers_;
  std::vector<uint32_t> free_transfers_;
  std::vector<Waiter*> waiting_;  // one per blocked actor
  std::vector<Waiter*> ready_;    // of these, whose wait is over at the model's stop
  std::function<void(const Message&, uint32_t, Ps)> listener_;
};

}  // namespace plumb::sim

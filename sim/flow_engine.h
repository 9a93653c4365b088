// The inside of FlowNetwork. flow_engine.cc: set-up, event loop, sources and destinations; flow_progress.cc:
// rates, dates, faults, reports.
#pragma once

#include <string>
#include <vector>

#include "sim/event_queue.h"
#include "sim/flow_network.h"
#include "sim/flow_routes.h"
#include "sim/max_min.h"
#include "sim/order.h"
#include "sim/pool.h"

namespace plumb::sim {

/// A message from its start to its landing.
struct FlowState {
  Message message;
  uint32_t next = kNil;      // of Pool
  uint32_t position = kNil;  // in moving_; kNil before it starts and after its last byte has left
  int64_t total = 0;         // bytes on the wire
  double accounted = 0;      // of them, on links
  int64_t chunks_sent = 0, chunks_landed = 0;
  FlowRoutes::Way way;
  OrderTracker::Place place;
};

/// A flow whose bytes move, in a dense list of its own: all of them are looked at often.
struct MovingFlow {
  double left = 0;      // bytes on the wire not yet sent, at `since`
  double rate = 0;      // bytes per ps
  double due_left = 0;  // `left` at `due`
  Ps since = 0;
  Ps due = kNever;     // of its end, or of its next chunk
  Ps pushed = kNever;  // its latest date in the queue
  uint32_t flow = 0;
};

/// What a rank sends on a network and class.
struct FlowSource {
  Rank rank = 0;
  Link network = Link::scale_up;
  uint8_t traffic_class = 0;
  bool may_have_more = false;
  int32_t active = 0;  // queue pairs in use
  Ps next_start = 0;   // message rate
  Ps wake = kNever;
};

/// Dates of flows stand in the queue for the coming window only; rates are computed when all of a date has
/// happened.
class FlowEngine {
 public:
  FlowEngine(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic);

  void wake(Rank rank, Link network, uint8_t traffic_class, Ps at);
  void call_at(Ps at, uint32_t id);
  void add_fault(const Fault& fault);
  Ps now() const { return now_; }
  Ps next_event();
  bool advance(Ps until);
  void stop() { stop_ = true; }
  int64_t under_way() const { return flows_.in_use(); }
  std::string stuck_report();
  std::vector<LinkUse> link_use();
  int64_t memory_bytes() const;
  const FlowCounts& counts() const { return counts_; }
  const FlowSettings& settings() const { return settings_; }
  Rank ranks() const { return graph_.ranks(); }

 private:
  enum class EventKind : uint32_t {
    flow,         // its end, or that of a chunk, leaves the source
    window,       // the dates that are known end here
    chunk,        // of a flow has landed
    arrive,       // flow: its last byte has landed
    release,      // fenced signal: its data is acknowledged
    source_wake,  // source
    local,        // message from a rank to itself has landed
    fault,
    reroute,
    timer,  // of Traffic
  };
  static constexpr uint32_t kIndexBits = 28, kIndexMask = (1u << kIndexBits) - 1;

  void push(Ps at, EventKind kind, uint32_t index) {
    queue_.push(at, static_cast<uint32_t>(kind) << kIndexBits | index);
  }
  void check_settings() const;
  void drop_stale_events();
  bool is_stale(const EventQueue::Event& event) const;
  void handle(EventKind kind, uint32_t index);
  uint32_t source_of(const Message& message) const;

  // Sources.
  void inject(uint32_t source);
  void wake_source(uint32_t source, Ps at);
  void start(uint32_t source, const Message& message);
  void start_local(const Message& message);
  void begin(uint32_t flow);
  void join(uint32_t flow);

  // Progress.
  int64_t wire_bytes(const Message& message, int64_t packets) const;
  void progress(MovingFlow& m);
  void find_due(MovingFlow& m);
  void schedule(MovingFlow& m);
  void on_due(uint32_t flow);
  void find_date(MovingFlow& m);
  void account(const MovingFlow& m);
  bool wants_settling() const { return solve_now_ || window_reached_; }
  void settle();
  void solve();
  void open_window(bool was_early);

  // Destinations.
  void land_chunk(uint32_t flow);
  void land(uint32_t flow);
  void finish(uint32_t flow);

  // Faults.
  void apply_fault(const Fault& fault);
  void refresh(FlowPolicy policy);
  void account_all();

  const Fabric& fabric_;
  FlowSettings settings_;
  Traffic& traffic_;
  ChannelGraph graph_;
  FlowRoutes routes_;
  MaxMin rates_;
  OrderTracker order_;
  EventQueue queue_;
  Pool<FlowState> flows_;
  std::vector<MovingFlow> moving_;  // in the order of rates_
  std::vector<FlowSource> sources_;
  std::vector<Ps> local_busy_;  // [ranks]
  std::vector<Fault> faults_;
  std::vector<ResourceUse> uses_;
  std::vector<uint32_t> released_;
  FlowCounts counts_;
  Ps now_ = 0;
  bool stop_ = false;
  // The batch: ends and starts since the last solution, how many may pass, and the window for which dates of
  // flows are in the queue.
  int64_t ended_ = 0, started_ = 0, allowed_ = 0;
  bool solve_now_ = false, window_reached_ = false;
  Ps window_begin_ = 0, horizon_ = kNever;
  double width_ = 0;
};

}  // namespace plumb::sim

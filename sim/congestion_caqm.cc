// UnifiedBus C-AQM ("confined active queue management"). Every packet asks for a growth of its flow's window
// (I, hint). An output hands out what it can take in a period: lambda x (rate x period - sent + target queue
// - queue - handed out). It grants the growth, refuses it (I = 0), or marks congestion (C = 1, the window
// shrinks by beta MTU). The destination returns C, I and hint; the source adds the granted hints. Facts of
// the rules: ns-3-UB's implementation of the UB Base Specification 2.0; this one keeps hints in bytes / 32
// and acknowledges every packet.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/error.h"
#include "model/random.h"
#include "sim/congestion.h"

namespace plumb::sim {

namespace {

constexpr uint16_t kCongested = 0x8000;  // C
constexpr uint16_t kIncrease = 0x4000;   // I
constexpr uint16_t kHintMask = 0x3fff;
constexpr int32_t kHintUnit = 32;  // bytes

class CaqmControl final : public CongestionControl {
 public:
  CaqmControl(const Caqm& settings, const ChannelGraph& graph, uint64_t seed)
      : settings_(settings), period_(to_ps(settings.update_period)), random_(seed, RandomStream::network, 2) {
    if (period_ <= 0) fail_usage("caqm: an update period of 0 s");
    outputs_.resize(graph.channels().size());
    for (Channel c = 0; c < outputs_.size(); ++c)
      outputs_[c].per_period = graph[c].rate.value * settings.update_period.value;
  }

  bool at_queue(const QueueSight& queue, uint16_t& field) override {
    Output& output = outputs_[queue.channel];
    update(output, queue);
    output.sent += queue.packet_bytes;
    const double wanted = (field & kIncrease) != 0 ? (field & kHintMask) * kHintUnit : 0;
    const double cut = settings_.beta * mtu_;
    if ((field & kCongested) !=
        0) {  // marked further up: its window will shrink, which frees capacity here too
      output.capacity += cut;
      output.granted -= cut;
      return false;
    }
    if (output.capacity >= wanted) {
      output.capacity -= wanted;
      output.granted += wanted;
      return false;
    }
    if (output.capacity >= 0) {
      if (random_.uniform() < settings_.mark_probability) {
        output.recovered += cut;
        field = kCongested;
        return true;
      }
      if (output.recovered >= wanted) {
        output.recovered -= wanted;
      } else {
        field &= static_cast<uint16_t>(~kIncrease);
      }
      return false;
    }
    field = kCongested;
    output.capacity += cut;
    return true;
  }
  bool is_echoed(uint16_t) const override { return true; }

  void open(FlowId flow, const FlowSight& sight) override {
    if (flows_.size() <= flow) flows_.resize(flow + 1);
    mtu_ = sight.mtu_bytes;
    flows_[flow] = {};
    flows_[flow].window = initial_window();
    flows_[flow].round_trip = sight.round_trip;
  }
  bool is_neutral(FlowId flow) const override {
    return flows_[flow].in_flight == 0 && flows_[flow].window >= initial_window();
  }
  Ps may_send(FlowId flow, int32_t bytes) const override {
    const Flow& f = flows_[flow];
    return f.in_flight == 0 || static_cast<double>(f.in_flight + bytes) <= f.window ? 0 : kNever;
  }

  uint16_t send(FlowId flow, int32_t bytes, Ps) override {
    Flow& f = flows_[flow];
    f.in_flight += bytes;
    if (f.slow_start)
      return static_cast<uint16_t>(kIncrease | std::min(mtu_ / kHintUnit, int32_t{kHintMask}));
    f.owed += settings_.alpha * mtu_ / f.window * bytes;  // alpha MTU per window of bytes
    const int32_t hint = std::min(static_cast<int32_t>(f.owed) / kHintUnit, int32_t{kHintMask});
    f.owed -= hint * kHintUnit;
    return static_cast<uint16_t>(kIncrease | hint);
  }

  Ps on_echo(FlowId flow, uint16_t field, int32_t bytes, Ps now) override {
    Flow& f = flows_[flow];
    f.in_flight -= bytes;
    if ((field & kIncrease) != 0) f.window += (field & kHintMask) * kHintUnit;
    if ((field & kCongested) != 0) f.window -= settings_.beta * mtu_;
    f.window = std::max(f.window, static_cast<double>(mtu_));
    if ((field & kIncrease) != 0) return kNever;
    f.slow_start = false;
    f.calm_at = now + settings_.theta * f.round_trip;
    return f.calm_at;
  }

  Ps on_timer(FlowId flow, Ps now) override {
    Flow& f = flows_[flow];
    if (now < f.calm_at) return f.calm_at;
    f.slow_start = true;
    return kNever;
  }

 private:
  struct Output {
    double per_period = 0;  // bytes
    double capacity = 0;    // that may still be handed out
    double sent = 0;        // since the last update
    double granted = 0;
    double recovered = 0;  // decreases asked for in this period, which others may use
    Ps updated = -1;
  };
  struct Flow {
    double window = 0;  // bytes
    double owed = 0;    // growth to ask for
    int64_t in_flight = 0;
    Ps round_trip = 0;
    Ps calm_at = 0;
    bool slow_start = true;
  };

  double initial_window() const { return static_cast<double>(settings_.initial_window_mtu) * mtu_; }

  /// The periodic update of a switch, done when the next packet comes: whole periods without one only reset
  /// it.
  void update(Output& output, const QueueSight& queue) const {
    const Ps period = queue.now / period_;
    if (period == output.updated) return;
    if (period > output.updated + 1) output.sent = output.granted = 0;
    output.updated = period;
    const double queue_bytes = static_cast<double>(queue.waiting_bytes - queue.packet_bytes);
    output.capacity = settings_.lambda *
                      (output.per_period - output.sent +
                       static_cast<double>(settings_.target_queue_mtu) * mtu_ - queue_bytes - output.granted);
    output.sent = output.granted = output.recovered = 0;
  }

  Caqm settings_;
  Ps period_;
  Random random_;
  int32_t mtu_ = 4096;
  std::vector<Output> outputs_;
  std::vector<Flow> flows_;
};

}  // namespace

std::unique_ptr<CongestionControl> make_caqm(const Caqm& settings, const ChannelGraph& graph, uint64_t seed) {
  return std::make_unique<CaqmControl>(settings, graph, seed);
}

std::unique_ptr<CongestionControl> make_congestion_control(const CongestionSettings& settings,
                                                           const ChannelGraph& graph, uint64_t seed) {
  switch (settings.kind) {
    case CongestionKind::none:
      break;
    case CongestionKind::infiniband:
      return make_infiniband_congestion(settings.infiniband, graph);
    case CongestionKind::dcqcn:
      return make_dcqcn(settings.dcqcn, seed);
    case CongestionKind::caqm:
      return make_caqm(settings.caqm, graph, seed);
  }
  return nullptr;
}

}  // namespace plumb::sim

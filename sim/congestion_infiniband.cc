// InfiniBand congestion control: switches mark the roots of congestion (FECN), destinations return that
// (BECN), sources look up the gap between packets in a table whose index rises with each BECN and falls with
// a timer.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/error.h"
#include "sim/congestion.h"

namespace plumb::sim {

namespace {

constexpr uint16_t kForwardMark = 1;  // FECN

class Infiniband final : public CongestionControl {
 public:
  Infiniband(const InfinibandCongestion& settings, const ChannelGraph& graph)
      : settings_(settings), timer_(to_ps(settings.ccti_timer)), unmarked_(graph.channels().size(), 0) {
    if (settings.ccti_min < 0 || settings.ccti_limit < settings.ccti_min)
      fail_usage("infiniband congestion control: table indices {} .. {}", settings.ccti_min,
                 settings.ccti_limit);
  }

  /// A lane without credits is a victim: its congestion has its root further down.
  bool at_queue(const QueueSight& queue, uint16_t& field) override {
    if (queue.waiting_bytes <= settings_.threshold_bytes || (field & kForwardMark) != 0) return false;
    if (!queue.has_credits && !settings_.mark_victims) return false;
    if (queue.packet_bytes < settings_.min_packet_bytes) return false;
    if (unmarked_[queue.channel] < settings_.marking_rate) {
      ++unmarked_[queue.channel];
      return false;
    }
    unmarked_[queue.channel] = 0;
    field |= kForwardMark;
    return true;
  }
  bool is_echoed(uint16_t field) const override { return (field & kForwardMark) != 0; }

  void open(FlowId flow, const FlowSight& sight) override {
    if (flows_.size() <= flow) flows_.resize(flow + 1);
    flows_[flow] = {
        .index = settings_.ccti_min, .next = 0, .ps_per_byte = sight.ps_per_byte, .has_timer = false};
  }
  bool is_neutral(FlowId flow) const override { return flows_[flow].index == settings_.ccti_min; }
  Ps may_send(FlowId flow, int32_t) const override { return flows_[flow].next; }

  uint16_t send(FlowId flow, int32_t bytes, Ps now) override {
    Flow& f = flows_[flow];
    const Ps packet =
        static_cast<Ps>((static_cast<unsigned __int128>(f.ps_per_byte) * static_cast<uint32_t>(bytes)) >> 32);
    const double gap = static_cast<double>(packet) * settings_.gap_per_step * f.index;
    f.next = f.index == 0 ? now : now + packet + std::llround(gap);
    return 0;
  }

  Ps on_echo(FlowId flow, uint16_t, int32_t, Ps now) override {
    Flow& f = flows_[flow];
    f.index = std::min(f.index + settings_.ccti_increase, settings_.ccti_limit);
    if (f.has_timer) return kNever;
    f.has_timer = true;
    return now + timer_;
  }

  Ps on_timer(FlowId flow, Ps now) override {
    Flow& f = flows_[flow];
    f.index = std::max(f.index - 1, settings_.ccti_min);
    f.has_timer = f.index > settings_.ccti_min;
    return f.has_timer ? now + timer_ : kNever;
  }

 private:
  struct Flow {
    int32_t index = 0;
    Ps next = 0;
    uint64_t ps_per_byte = 0;
    bool has_timer = false;
  };
  InfinibandCongestion settings_;
  Ps timer_;
  std::vector<int32_t> unmarked_;  // [channels] packets since the last mark
  std::vector<Flow> flows_;
};

}  // namespace

std::unique_ptr<CongestionControl> make_infiniband_congestion(const InfinibandCongestion& settings,
                                                              const ChannelGraph& graph) {
  return std::make_unique<Infiniband>(settings, graph);
}

}  // namespace plumb::sim

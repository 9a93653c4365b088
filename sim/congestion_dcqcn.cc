// DCQCN (Zhu et al., SIGCOMM 2015): switches mark at random by queue length (RED), the destination notifies
// at most once per interval and flow, the source cuts its rate by alpha / 2 and recovers in steps: half-way
// back to the rate before the cut, then that rate plus an additive increase. Fixed point arithmetic would be
// slower and no truer; the doubles here see only +, -, * and /, which IEEE 754 rounds the same everywhere.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/error.h"
#include "model/random.h"
#include "sim/congestion.h"

namespace plumb::sim {

namespace {

constexpr uint16_t kMarked = 1;

class DcqcnControl final : public CongestionControl {
 public:
  DcqcnControl(const Dcqcn& settings, uint64_t seed)
      : settings_(settings),
        interval_(to_ps(settings.notification_interval)),
        alpha_timer_(to_ps(settings.alpha_timer)),
        increase_timer_(to_ps(settings.increase_timer)),
        random_(seed, RandomStream::network, 1) {
    if (settings.min_bytes < 0 || settings.max_bytes <= settings.min_bytes)
      fail_usage("dcqcn: marks between {} and {} bytes", settings.min_bytes, settings.max_bytes);
    if (alpha_timer_ <= 0 || increase_timer_ <= 0) fail_usage("dcqcn: a timer of 0 s");
  }

  bool at_queue(const QueueSight& queue, uint16_t& field) override {
    if (queue.waiting_bytes <= settings_.min_bytes || (field & kMarked) != 0) return false;
    const double over = static_cast<double>(queue.waiting_bytes - settings_.min_bytes) /
                        static_cast<double>(settings_.max_bytes - settings_.min_bytes);
    if (over < 1 && random_.uniform() >= settings_.max_probability * over) return false;
    field |= kMarked;
    return true;
  }
  bool is_echoed(uint16_t field) const override { return (field & kMarked) != 0; }

  void open(FlowId flow, const FlowSight& sight) override {
    if (flows_.size() <= flow) flows_.resize(flow + 1);
    flows_[flow] = {};
    flows_[flow].ps_per_byte = static_cast<double>(sight.ps_per_byte) * 0x1p-32;
  }
  bool is_neutral(FlowId flow) const override { return flows_[flow].share >= 1; }
  Ps may_send(FlowId flow, int32_t) const override { return flows_[flow].next; }

  uint16_t send(FlowId flow, int32_t bytes, Ps now) override {
    Flow& f = flows_[flow];
    f.next = f.share >= 1 ? now : now + std::llround(bytes * f.ps_per_byte / f.share);
    return 0;
  }

  Ps on_echo(FlowId flow, uint16_t, int32_t, Ps now) override {
    Flow& f = flows_[flow];
    if (now < f.next_notification) return kNever;
    f.next_notification = now + interval_;
    f.target = f.share;
    f.share = std::max(f.share * (1 - f.alpha / 2), settings_.min_rate.value * f.ps_per_byte * 1e-12);
    f.alpha = (1 - settings_.gain) * f.alpha + settings_.gain;
    f.steps = 0;
    f.next_alpha = now + alpha_timer_;
    f.next_increase = now + increase_timer_;
    return next_timer(f);
  }

  Ps on_timer(FlowId flow, Ps now) override {
    Flow& f = flows_[flow];
    if (now >= f.next_alpha) {
      f.alpha *= 1 - settings_.gain;
      f.next_alpha = now + alpha_timer_;
    }
    if (now >= f.next_increase) {
      f.next_increase = now + increase_timer_;
      if (++f.steps > settings_.fast_recovery_steps)
        f.target = std::min(1.0, f.target + settings_.additive_increase.value * f.ps_per_byte * 1e-12);
      f.share = (f.share + f.target) / 2;
      if (f.share > kFull) f.share = 1;
    }
    return f.share >= 1 ? kNever : next_timer(f);
  }

 private:
  static constexpr double kFull = 0.999;  // of the link: as good as unlimited

  struct Flow {
    double share = 1;  // of the first link
    double target = 1;
    double alpha = 1;
    double ps_per_byte = 0;
    int32_t steps = 0;
    Ps next = 0;
    Ps next_notification = 0;
    Ps next_alpha = kNever;
    Ps next_increase = kNever;
  };
  static Ps next_timer(const Flow& f) { return std::min(f.next_alpha, f.next_increase); }

  Dcqcn settings_;
  Ps interval_, alpha_timer_, increase_timer_;
  Random random_;
  std::vector<Flow> flows_;
};

}  // namespace

std::unique_ptr<CongestionControl> make_dcqcn(const Dcqcn& settings, uint64_t seed) {
  return std::make_unique<DcqcnControl>(settings, seed);
}

}  // namespace plumb::sim

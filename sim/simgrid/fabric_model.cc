// Each turn SimGrid asks how far it may go. Its answer to "at most d" is d, or less when an actor must be
// woken; d < 0 means that nobody else has a date.
#include "sim/simgrid/fabric_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "model/error.h"
#include "sim/simgrid/compat.h"

namespace plumb::sim {

namespace s4u = simgrid::s4u;

Ps saturating_ps(double seconds) {
  if (!(seconds > 0)) return 0;
  return seconds < 9.2e6 ? static_cast<Ps>(std::llround(seconds * 1e12)) : kNever;
}

class FabricModel::Hook final : public simgrid::kernel::resource::Model {
 public:
  Hook(const std::string& name, Network& network, FabricModelSettings settings, std::function<void()> on_stop)
      : Model(name), network_(&network), settings_(settings), on_stop_(std::move(on_stop)) {}

  bool next_occurring_event_is_idempotent() override { return network_ == nullptr; }
  double next_occurring_event(double limit) override;
  void update_actions_state(double now, double delta) override;

  void request_stop();
  void detach();

  int64_t turns = 0;
  int64_t stops = 0;

 private:
  double open_step();
  void run_to(Ps until);
  void set_tick(Ps at);
  void remove_tick();
  bool is_tick_useless() const {
    return tick_ != nullptr && !stop_requested_ && network_->next_event() == kNever &&
           (!tick_keeps_alive_ || network_->messages_under_way() == 0);
  }
  static double seconds_until(Ps at) {
    return std::max(0.0, static_cast<double>(at) * 1e-12 - s4u::Engine::get_clock());
  }

  Network* network_;  // null once detached: the engine keeps its models
  FabricModelSettings settings_;
  std::function<void()> on_stop_;
  bool stop_requested_ = false;
  Ps stop_at_ = 0;
  simgrid::kernel::timer::Timer* tick_ = nullptr;
  bool tick_keeps_alive_ = false;
};

double FabricModel::Hook::next_occurring_event(double limit) {
  if (network_ == nullptr) return -1;
  ++turns;
  if (limit < 0 && !stop_requested_) return open_step();
  if (is_tick_useless()) {
    remove_tick();
    return 0;  // ask again without it: the clock must not wait for it
  }
  // Asked again within a turn (a profile event was due), nothing may move past the stop.
  if (!stop_requested_) {
    run_to(saturating_ps(s4u::Engine::get_clock() + limit));
    if (stop_requested_) ++stops;
  }
  if (!stop_requested_) return limit;
  const double stop = seconds_until(stop_at_);
  return limit < 0 ? stop : std::min(limit, stop);
}

/// SimGrid does not say when its next profile event is as long as no other date bounds the turn, and would
/// end the run though the network goes on. A timer is such a date: set it and ask for a turn of no length.
double FabricModel::Hook::open_step() {
  if (settings_.ends_with_actors && s4u::Engine::get_instance()->get_actor_count() == 0) return -1;
  const Ps now = saturating_ps(s4u::Engine::get_clock());
  const Ps next = network_->next_event();
  if (next != kNever) {
    set_tick(std::max(next, now + settings_.quantum));
    return 0;
  }
  if (network_->messages_under_way() == 0 || now >= settings_.keep_alive) return -1;
  set_tick(settings_.keep_alive);
  tick_keeps_alive_ = true;
  return 0;
}

void FabricModel::Hook::run_to(Ps until) {
  // advance() also returns when a callback of the traffic called stop() for its own ends.
  while (!stop_requested_ && network_->next_event() <= until && network_->next_event() != kNever)
    network_->advance(until);
  if (!stop_requested_) {
    if (until != kNever) network_->advance(until);  // the clock alone
    return;
  }
  while (network_->next_event() <= stop_at_) network_->advance(stop_at_);
}

void FabricModel::Hook::update_actions_state(double now, double) {
  if (network_ == nullptr) return;
  const Ps clock = saturating_ps(now);
  PLUMB_CHECK(network_->now() <= clock, "the network is at {} ps, SimGrid at {} ps", network_->now(), clock);
  if (!stop_requested_ || stop_at_ > clock) return;
  stop_requested_ = false;
  if (on_stop_) on_stop_();
}

void FabricModel::Hook::request_stop() {
  if (!stop_requested_) stop_at_ = network_->now();
  stop_requested_ = true;
  network_->stop();
}

void FabricModel::Hook::set_tick(Ps at) {
  remove_tick();
  tick_ = simgrid::kernel::timer::Timer::set(static_cast<double>(at) * 1e-12, [this] {
    tick_ = nullptr;
    tick_keeps_alive_ = false;
  });
}

void FabricModel::Hook::remove_tick() {
  if (tick_ != nullptr) tick_->remove();
  tick_ = nullptr;
  tick_keeps_alive_ = false;
}

void FabricModel::Hook::detach() {
  remove_tick();
  network_ = nullptr;
}

FabricModel::FabricModel(Network& network, FabricModelSettings settings, std::function<void()> on_stop) {
  if (!s4u::Engine::has_instance()) fail_usage("a network needs SimGrid's engine first");
  if (settings.quantum < 1) fail_usage("a quantum of {} ps, allowed is 1 or more", settings.quantum);
  int32_t earlier = 0;
  for (auto* model : s4u::Engine::get_instance()->get_all_models()) {
    if (!model->next_occurring_event_is_idempotent())
      fail_usage("the engine already has the model '{}', which moves on its own; only one such is possible",
                 model->get_name());
    if (dynamic_cast<Hook*>(model) != nullptr) ++earlier;  // detached ones; names must differ
  }
  hook_ =
      std::make_shared<Hook>(fmt::format("plumb network {}", earlier), network, settings, std::move(on_stop));
  s4u::Engine::get_instance()->add_model(hook_);
}

FabricModel::~FabricModel() { hook_->detach(); }

void FabricModel::request_stop() { hook_->request_stop(); }

Ps FabricModel::clock() const {
  const Ps now = saturating_ps(s4u::Engine::get_clock());
  if (now == kNever) fail_usage("simulated time {} s is beyond 9.2e6 s", s4u::Engine::get_clock());
  return now;
}

int64_t FabricModel::turns() const { return hook_->turns; }
int64_t FabricModel::stops() const { return hook_->stops; }

}  // namespace plumb::sim

// The flow engine behind its interface.
#include "sim/flow_network.h"

#include "sim/flow_engine.h"

namespace plumb::sim {

FlowPolicy flow_policy(RoutePolicy policy) {
  const bool is_fixed = policy == RoutePolicy::by_destination || policy == RoutePolicy::by_flow;
  return is_fixed ? FlowPolicy::hash : FlowPolicy::split;
}

FlowSettings flow_settings(const PacketSettings& settings) {
  FlowSettings result;
  for (size_t n = 0; n < 2; ++n) {
    const NetworkSettings& from = settings.networks[n];
    result.networks[n] = {.mtu_bytes = from.mtu_bytes,
                          .first_header_bytes = from.first_header_bytes,
                          .next_header_bytes = from.next_header_bytes,
                          .policy = flow_policy(from.policy),
                          .injection = from.injection};
  }
  result.num_classes = settings.num_classes;
  result.reroute_delay = settings.reroute_delay;
  result.local = settings.local;
  result.seed = settings.seed;
  return result;
}

FlowNetwork::FlowNetwork(const Fabric& fabric, const FlowSettings& settings, Traffic& traffic)
    : engine_(std::make_unique<FlowEngine>(fabric, settings, traffic)) {}
FlowNetwork::~FlowNetwork() = default;

void FlowNetwork::wake(Rank rank, Link network, uint8_t traffic_class, Ps at) {
  engine_->wake(rank, network, traffic_class, at);
}
void FlowNetwork::wake_all(Ps at) {
  for (Rank r = 0; r < engine_->ranks(); ++r)
    for (Link network : {Link::scale_up, Link::scale_out})
      for (int32_t c = 0; c < engine_->settings().num_classes; ++c)
        wake(r, network, static_cast<uint8_t>(c), at);
}
void FlowNetwork::call_at(Ps at, uint32_t id) { engine_->call_at(at, id); }
void FlowNetwork::add_fault(const Fault& fault) { engine_->add_fault(fault); }
Ps FlowNetwork::now() const { return engine_->now(); }
Ps FlowNetwork::next_event() const { return engine_->next_event(); }
bool FlowNetwork::advance(Ps until) { return engine_->advance(until); }
void FlowNetwork::stop() { engine_->stop(); }
int64_t FlowNetwork::messages_under_way() const { return engine_->under_way(); }
std::string FlowNetwork::stuck_report() const { return engine_->stuck_report(); }
std::vector<LinkUse> FlowNetwork::link_use() const { return engine_->link_use(); }
int64_t FlowNetwork::memory_bytes() const { return engine_->memory_bytes(); }
const FlowCounts& FlowNetwork::counts() const { return engine_->counts(); }

}  // namespace plumb::sim

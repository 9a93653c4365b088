// PacketNetwork hands everything to its engine.
#include "sim/packet_network.h"

#include "sim/packet_engine.h"

namespace plumb::sim {

PacketNetwork::PacketNetwork(const Fabric& fabric, const PacketSettings& settings, Traffic& traffic)
    : engine_(std::make_unique<PacketEngine>(fabric, settings, traffic)) {}
PacketNetwork::~PacketNetwork() = default;

void PacketNetwork::wake(Rank rank, Link network, uint8_t traffic_class, Ps at) {
  engine_->wake(rank, network, traffic_class, at);
}

void PacketNetwork::wake_all(Ps at) {
  for (Rank rank = 0; rank < graph().ranks(); ++rank)
    for (Link network : {Link::scale_up, Link::scale_out})
      for (int32_t level = 0; level < engine_->settings().num_classes; ++level)
        wake(rank, network, static_cast<uint8_t>(level), at);
}

void PacketNetwork::call_at(Ps at, uint32_t id) { engine_->call_at(at, id); }
void PacketNetwork::add_fault(const Fault& fault) { engine_->add_fault(fault); }
Ps PacketNetwork::now() const { return engine_->now(); }
Ps PacketNetwork::next_event() const { return engine_->next_event(); }
bool PacketNetwork::advance(Ps until) { return engine_->advance(until); }
void PacketNetwork::stop() { engine_->stop(); }

int64_t PacketNetwork::messages_under_way() const { return engine_->under_way(); }
std::string PacketNetwork::stuck_report() const { return engine_->stuck_report(); }
const PacketCounts& PacketNetwork::counts() const { return engine_->counts(); }
std::vector<LaneUse> PacketNetwork::lane_use() const { return engine_->lane_use(); }
std::vector<LinkUse> PacketNetwork::link_use() const { return engine_->link_use(); }

int64_t PacketNetwork::memory_bytes() const { return engine_->memory_bytes(); }
int32_t PacketNetwork::hop_classes() const { return engine_->hop_classes(); }
const ChannelGraph& PacketNetwork::graph() const { return engine_->graph(); }

}  // namespace plumb::sim

// Sends one message through a packet network of the installed package and checks its date.
#include "sim/packet_network.h"

namespace {

class OneMessage : public plumb::sim::Traffic {
 public:
  bool next(plumb::Rank src, plumb::Link network, uint8_t, plumb::sim::Message& message) override {
    if (src != 0 || network != plumb::Link::scale_out || is_sent_) return false;
    is_sent_ = true;
    message = {.src = 0, .dst = 1, .bytes = 4096};
    return true;
  }
  void on_arrived(const plumb::sim::Message&, plumb::sim::Ps at) override { arrived = at; }

  plumb::sim::Ps arrived = -1;

 private:
  bool is_sent_ = false;
};

}  // namespace

int main() {
  plumb::FabricBuilder builder;
  for (plumb::Rank r = 0; r < 2; ++r)
    builder.add_node({.kind = plumb::NodeKind::gpu, .rank = r, .name = r == 0 ? "gpu 0" : "gpu 1"});
  builder.add_cable(0, 1,
                    {.network = plumb::Link::scale_out,
                     .rate = plumb::gigabytes_per_second(50),
                     .latency = plumb::nanoseconds(300)});
  const plumb::Fabric fabric = std::move(builder).finish();
  OneMessage traffic;
  plumb::sim::PacketNetwork network(fabric, {}, traffic);
  network.wake_all();
  network.run();
  // One packet with 42 header bytes at 20 ps per byte, and one latency.
  return traffic.arrived == (4096 + 42) * 20 + 300'000 ? 0 : 1;
}

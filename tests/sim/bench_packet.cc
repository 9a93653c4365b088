// Speed of the packet network: an expert-parallel dispatch of 128 tokens per rank, top-8 distinct ranks,
// 7408-byte rows, 4 KiB packets, 50 GB/s links, 300 ns a hop, leaf-spine of full bisection, adaptive. Prints
// CPU seconds, events per second and per packet-hop, memory, and simulated over ideal time. Exit code 1 when
// a target is missed. Usage: bench_packet [--tokens N] [--row] [ranks ...]; --row: one packet per row, 128
// KiB buffers
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "model/random.h"
#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr int32_t kTopk = 8, kRow = 7408;

struct Load {
  int32_t tokens = 128;
  bool packet_per_row = false;
};

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

double resident_megabytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) / 1024;
}

/// Draws each token's ranks when its first copy is asked for: nothing is stored per pair.
class Dispatch : public Traffic {
 public:
  Dispatch(Rank ranks, const Load& load) : ranks_(ranks), load_(load) {
    for (Rank r = 0; r < ranks; ++r)
      sources_.push_back({Random(1, RandomStream::test, static_cast<uint64_t>(r)), {}, 0, 0});
  }
  bool next(Rank src, Link network, uint8_t, Message& message) override {
    if (network != Link::scale_out) return false;
    State& s = sources_[src];
    if (s.left == 0) {
      if (s.token == load_.tokens) return false;
      ++s.token;
      for (; s.left < kTopk;) {
        const Rank rank = static_cast<Rank>(s.random.below(static_cast<uint64_t>(ranks_)));
        bool is_new = true;
        for (int32_t i = 0; i < s.left; ++i) is_new &= s.picks[i] != rank;
        if (is_new) s.picks[s.left++] = rank;
      }
    }
    message = {.src = src, .dst = s.picks[--s.left], .network = Link::scale_out, .bytes = kRow};
    if (load_.packet_per_row) message.packet_bytes = kRow;
    return true;
  }
  void on_arrived(const Message&, Ps at) override {
    ++arrived;
    last = at;
  }
  int64_t arrived = 0;
  Ps last = 0;

 private:
  struct State {
    Random random;
    Rank picks[kTopk];
    int32_t left, token;
  };
  Rank ranks_;
  const Load load_;
  std::vector<State> sources_;
};

struct Target {
  double events_per_second;
  double cpu;
};

/// Of one core of a server of 2023; small runs are over too soon to be timed.
Target target(Rank ranks, const Load& load) {
  if (load.tokens == 4096 && ranks == 2048) return {0, load.packet_per_row ? 80.0 : 200.0};
  if (load.tokens != 128 || load.packet_per_row) return {0, 1e9};
  if (ranks <= 512) return {10e6, 1e9};
  return ranks <= 1024 ? Target{5e6, 1e9} : Target{5e6, 6};
}

bool run(Rank ranks, const Load& load) {
  const int32_t down = ranks >= 1024 ? 32 : ranks >= 256 ? 16 : 8;
  const Fabric fabric = leaf_spine({.ranks = ranks, .down = down, .spines = down});
  const double rss_before = resident_megabytes();
  const double start = cpu_seconds();
  Dispatch traffic(ranks, load);
  PacketSettings settings = packet_settings();
  if (load.packet_per_row) settings.lanes.buffer.value = Bytes{131072};
  PacketNetwork network(fabric, settings, traffic);
  const double built = cpu_seconds();
  network.wake_all();
  network.run();
  const double cpu = cpu_seconds() - built;
  const PacketCounts& counts = network.counts();
  const double rate = static_cast<double>(counts.events) / cpu;
  const double per_hop = static_cast<double>(counts.events) / static_cast<double>(counts.packet_hops);
  const double headers = load.packet_per_row ? 42 : 42 + 26;
  const double ideal = (kRow + headers) * load.tokens * kTopk / 50e9;
  const double added = resident_megabytes() - rss_before;
  const Target t = target(ranks, load);
  const bool ok = traffic.arrived == int64_t{ranks} * load.tokens * kTopk && rate >= t.events_per_second &&
                  per_hop <= 2.2 && cpu <= t.cpu && added <= 40;
  fmt::print(
      "ranks {:5}  build {:.2f} s  run {:.2f} s  {:6.2f} M events  {:5.2f} M/s  {:.2f} M packet-hops  "
      "{:.3f} events/hop  +{:.0f} MB (network {:.1f})  {:.1f} us, ideal {:.1f} ({:.3f})  {}\n",
      ranks, built - start, cpu, static_cast<double>(counts.events) * 1e-6, rate * 1e-6,
      static_cast<double>(counts.packet_hops) * 1e-6, per_hop, added,
      static_cast<double>(network.memory_bytes()) / 1048576, static_cast<double>(traffic.last) * 1e-6,
      ideal * 1e6, static_cast<double>(traffic.last) * 1e-12 / ideal, ok ? "ok" : "TARGET MISSED");
  std::fflush(stdout);
  return ok;
}

}  // namespace
}  // namespace plumb::sim

int main(int argc, char** argv) {
  std::vector<plumb::Rank> sizes;
  plumb::sim::Load load;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (text == "--row")
      load.packet_per_row = true;
    else if (text == "--tokens" && i + 1 < argc)
      load.tokens = std::atoi(argv[++i]);
    else
      sizes.push_back(std::atoi(argv[i]));
  }
  if (sizes.empty()) sizes = {64, 128, 256, 512, 1024, 2048};
  bool ok = true;
  for (plumb::Rank ranks : sizes) ok &= plumb::sim::run(ranks, load);
  return ok ? 0 : 1;
}

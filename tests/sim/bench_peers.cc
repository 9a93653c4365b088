// The packet network on the traffics that other packet simulators were timed with, on the same tiers, link
// rates, MTU and bytes, with two virtual lanes and credits: the peers' runs are in docs/simulator.md,
// "Speed". Prints CPU seconds, the process's peak memory, events, events per packet-hop, simulated time and
// its bound by line rate. Exit code 1 when something did not land, or for case names it does not know. Usage:
// bench_peers [case ...]; memory is of one case only when it is the only one.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/random.h"
#include "sim/packet_network.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr int32_t kHeader = 64;  // bytes: what csg-htsim adds to each packet
constexpr int32_t kMtu = 4096;

struct Case {
  std::string_view name;
  Fabric (*fabric)();
  Rank ranks;
  int64_t bytes;  // of each pair
  bool is_permutation;
};

constexpr Case kCases[] = {
    {"a2a128", [] { return fat_tree(8, {.latency = microseconds(1)}); }, 128, 57344, false},
    {"perm1024", [] { return fat_tree(16, {.latency = microseconds(1)}); }, 1024, 2097152, true},
    {"a2a432", [] { return fat_tree(12, {.latency = microseconds(1)}); }, 432, 16991, false},
    {"ub128",
     [] {
       return leaf_spine({128, 16, 16, {.latency = nanoseconds(500)}});
     },
     128, 57344, false},
};

/// Rank r sends to r + 1, r + 2, ..., or all of its bytes to one rank. The lanes share the messages: those to
/// ranks of even distance take the first, or, in the permutation, those of even ranks.
class PeerTraffic : public Traffic {
 public:
  explicit PeerTraffic(const Case& c) : case_(c), next_(2 * static_cast<size_t>(c.ranks)) {
    for (size_t i = 0; i < next_.size(); ++i) next_[i] = i % 2 == 0 ? 2 : 1;
    if (c.is_permutation) draw_cycle();
  }
  bool next(Rank src, Link network, uint8_t level, Message& message) override {
    if (network != Link::scale_out) return false;
    int32_t& next = next_[2 * static_cast<size_t>(src) + level];
    if (case_.is_permutation ? next > 2 || src % 2 != level : next >= case_.ranks) return false;
    const Rank dst = case_.is_permutation ? target_[src] : (src + next) % case_.ranks;
    message = {.src = src, .dst = dst, .traffic_class = level, .bytes = case_.bytes};
    next += 2;
    return true;
  }
  void on_arrived(const Message&, Ps at) override {
    ++arrived;
    last = at;
  }
  int64_t messages() const {
    return case_.is_permutation ? case_.ranks : int64_t{case_.ranks} * (case_.ranks - 1);
  }

  int64_t arrived = 0;
  Ps last = 0;

 private:
  /// One circle through all ranks in random order: nobody sends to itself.
  void draw_cycle() {
    Random random(1, RandomStream::test);
    std::vector<Rank> order;
    for (Rank r = 0; r < case_.ranks; ++r) order.push_back(r);
    for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
    target_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) target_[order[i]] = order[(i + 1) % order.size()];
  }

  const Case& case_;
  std::vector<int32_t> next_;  // [ranks][lanes] distance of the next message
  std::vector<Rank> target_;   // [ranks] of the permutation
};

struct Usage {
  double cpu;        // seconds, user and system
  double megabytes;  // peak
};

Usage usage() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return {static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
              1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec),
          static_cast<double>(u.ru_maxrss) / 1024};
}

bool run(const Case& c) {
  const double start = usage().cpu;
  const Fabric fabric = c.fabric();
  PacketSettings settings = packet_settings();
  settings.num_classes = settings.lanes.count = 2;
  settings.lanes.sl_to_vl[1] = 1;
  for (NetworkSettings& network : settings.networks) {
    network.mtu_bytes = kMtu;
    network.first_header_bytes = network.next_header_bytes = kHeader;
  }
  PeerTraffic traffic(c);
  PacketNetwork network(fabric, settings, traffic);
  network.wake_all();
  network.run();
  const Usage used = usage();
  const PacketCounts& counts = network.counts();
  const double cpu = used.cpu - start;
  const int64_t packets = (c.bytes + kMtu - 1) / kMtu;
  const double bound = 1e6 * static_cast<double>((c.bytes + packets * kHeader) * traffic.messages()) /
                       static_cast<double>(c.ranks) / 50e9;
  const bool ok = traffic.arrived == traffic.messages() && counts.packets == packets * traffic.messages();
  fmt::print(
      "{:8}  {:.3f} CPU s  {:.1f} MB  {} packets  {:.2f} M events ({:.2f} M/s)  {:.3f} events/hop  {:.1f} "
      "us, "
      "line rate {:.1f}  {}\n",
      c.name, cpu, used.megabytes, counts.packets, static_cast<double>(counts.events) * 1e-6,
      static_cast<double>(counts.events) * 1e-6 / cpu,
      static_cast<double>(counts.events) / static_cast<double>(counts.packet_hops),
      static_cast<double>(traffic.last) * 1e-6, bound, ok ? "ok" : "NOT ALL LANDED");
  std::fflush(stdout);
  return ok;
}

bool run(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kCases), std::end(kCases), [name](const Case& c) { return c.name == name; });
  if (found != std::end(kCases)) return run(*found);
  fmt::print(stderr, "bench_peers: no case {}; there are a2a128, perm1024, a2a432 and ub128\n", name);
  return false;
}

}  // namespace
}  // namespace plumb::sim

int main(int argc, char** argv) {
  bool ok = true;
  for (int i = 1; i < argc; ++i) ok &= plumb::sim::run(std::string_view(argv[i]));
  if (argc == 1)
    for (const auto& c : plumb::sim::kCases) ok &= plumb::sim::run(c);
  return ok ? 0 : 1;
}

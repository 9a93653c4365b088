// Cost of SimGrid around the packet network: a decode layer with one actor per rank. Gate (kernel), dispatch
// of 128 tokens to 8 distinct ranks each (fp8 rows of 7408 B), expert GEMM (kernel, by received rows),
// combine (bf16 rows of 14352 B). 4 KiB packets, 50 GB/s, 300 ns a hop, leaf-spine of full bisection,
// adaptive. Each size is a process of its own. Prints CPU seconds with set-up, resident memory, events, turns
// and stops; exit code 1 when a target is missed. Usage: bench_simgrid [ranks ...]
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/random.h"
#include "sim/packet_network.h"
#include "sim/simgrid/child.h"
#include "sim/simgrid/session.h"
#include "sim/simgrid/simulation.h"
#include "tests/sim/fabrics.h"
#include "tests/sim/script.h"

namespace plumb::sim {
namespace {

constexpr int32_t kTokens = 128, kTopk = 8;
constexpr int64_t kDispatchRow = 7168 + 240, kCombineRow = 2 * 7168 + 16;
constexpr uint32_t kDispatch = 1, kCombine = 2;
constexpr int32_t kSms = 132;
constexpr double kGate = 5e-6, kGemmPerRow = 20e-9;

/// No two ranks start at one date: SimGrid would wake their actors in an order of its own.
double gate(Rank rank) { return kGate * (1 + 0.02 * (rank % 7)) + 10e-12 * rank; }

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

/// The ranks of one source's tokens, drawn again in the same order whenever asked from the start.
class Choices {
 public:
  Choices(Rank source, Rank ranks)
      : random_(1, RandomStream::test, static_cast<uint64_t>(source)), ranks_(ranks) {}
  bool next(Rank& dst) {
    if (left_ == 0) {
      if (token_++ == kTokens) return false;
      while (left_ < kTopk) {
        const Rank rank = static_cast<Rank>(random_.below(static_cast<uint64_t>(ranks_)));
        if (std::find(picks_, picks_ + left_, rank) == picks_ + left_) picks_[left_++] = rank;
      }
    }
    dst = picks_[--left_];
    return true;
  }

 private:
  Random random_;
  Rank ranks_;
  Rank picks_[kTopk]{};
  int32_t left_ = 0, token_ = 0;
};

struct Layer {
  std::vector<int64_t> expected;          // [ranks] rows to come in dispatch
  std::vector<std::vector<Rank>> origin;  // [ranks] of the rows that came, for combine
  double dispatched = 0, combined = 0;    // last ends, s
};

void be_rank(Rank rank, Rank ranks, Simulation& simulation, Session& session, Layer& layer) {
  const auto r = static_cast<size_t>(rank);
  simulation.execute(rank, {.sms = kSms, .time = {gate(rank)}});
  session.send(rank, SendList{.next = [choices = Choices(rank, ranks)](Send& send) mutable {
                 send = {.tag = kDispatch, .bytes = kDispatchRow};
                 return choices.next(send.dst);
               }});
  session.wait_arrived(rank, {.tag = kDispatch, .messages = layer.expected[r], .what = "dispatch"});
  layer.dispatched = std::max(layer.dispatched, Simulation::now().value);
  simulation.execute(rank, {.sms = kSms, .time = {kGemmPerRow * static_cast<double>(layer.expected[r])}});
  session.send(rank, SendList{.next = [&rows = layer.origin[r], i = size_t{0}](Send& send) mutable {
                 if (i == rows.size()) return false;
                 send = {.dst = rows[i++], .tag = kCombine, .bytes = kCombineRow};
                 return true;
               }});
  session.wait_arrived(rank, {.tag = kCombine, .messages = kTokens * kTopk, .what = "combine"});
  layer.combined = std::max(layer.combined, Simulation::now().value);
}

struct Target {
  double cpu;
  double megabytes;
};

/// Of one core of a server of 2023 with nothing beside it. Small runs are over too soon to be timed.
constexpr Target target(Rank ranks) { return ranks <= 1024 ? Target{1e9, 60} : Target{20, 100}; }

Fabric make_fabric(Rank ranks) {
  const int32_t down = ranks >= 1024 ? 32 : ranks >= 256 ? 16 : 8;
  return leaf_spine({.ranks = ranks, .down = down, .spines = down});
}

Layer make_layer(Rank ranks) {
  Layer layer{.expected = std::vector<int64_t>(static_cast<size_t>(ranks)),
              .origin = std::vector<std::vector<Rank>>(static_cast<size_t>(ranks))};
  for (Rank r = 0; r < ranks; ++r) {
    Choices choices(r, ranks);
    for (Rank dst; choices.next(dst);) ++layer.expected[static_cast<size_t>(dst)];
  }
  return layer;
}

struct Result {
  double setup, cpu, megabytes, events, turns, stops, dispatched, combined;
};

Result run_coupled(Rank ranks) {
  const double start = cpu_seconds();
  const Fabric fabric = make_fabric(ranks);
  Simulation simulation(ranks, {.sms = kSms});
  Session session(ranks);
  PacketNetwork network(fabric, packet_settings(), session);
  session.couple(network, simulation);
  Layer layer = make_layer(ranks);
  session.set_listener([&](const Message& message, uint32_t tag, Ps) {
    if (tag == kDispatch) layer.origin[static_cast<size_t>(message.dst)].push_back(message.src);
  });
  for (Rank r = 0; r < ranks; ++r)
    simulation.add_actor(r, fmt::format("gpu {}", r),
                         [&, r] { be_rank(r, ranks, simulation, session, layer); });
  const double built = cpu_seconds();
  simulation.run();
  return {built - start,
          cpu_seconds() - start,
          resident_megabytes(),
          static_cast<double>(network.counts().events),
          static_cast<double>(session.model().turns()),
          static_cast<double>(session.model().stops()),
          layer.dispatched,
          layer.combined};
}

/// The layer as callbacks of the network: timer r ends the gate of rank r, timer ranks + r its GEMM.
class Alone : public Traffic {
 public:
  explicit Alone(Rank ranks) : ranks_(ranks), layer_(make_layer(ranks)), arrived_(layer_.expected.size()) {
    for (Rank r = 0; r < ranks; ++r) choices_.emplace_back(r, ranks);
    sent_.resize(choices_.size());
    in_combine_.resize(choices_.size());
  }
  void start(Network& network) {
    network_ = &network;
    for (Rank r = 0; r < ranks_; ++r) network.call_at(to_ps({gate(r)}), static_cast<uint32_t>(r));
  }
  bool next(Rank src, Link network, uint8_t, Message& m) override {
    const auto r = static_cast<size_t>(src);
    m = {.src = src, .network = network};
    if (in_combine_[r] == 0) {
      m.bytes = kDispatchRow;
      m.cookie = kDispatch;
      return choices_[r].next(m.dst);
    }
    if (sent_[r] == layer_.origin[r].size()) return false;
    m.dst = layer_.origin[r][sent_[r]++];
    m.bytes = kCombineRow;
    m.cookie = kCombine;
    return true;
  }
  void on_timer(uint32_t id, Ps at) override {
    const Rank rank = static_cast<Rank>(id) % ranks_;
    in_combine_[static_cast<size_t>(rank)] = static_cast<Rank>(id) >= ranks_;
    network_->wake(rank, Link::scale_out, 0, at);
  }
  void on_arrived(const Message& m, Ps at) override {
    const auto r = static_cast<size_t>(m.dst);
    if (m.cookie == kCombine) {
      layer_.combined = to_seconds(at).value;
      return;
    }
    layer_.origin[r].push_back(m.src);
    if (++arrived_[r] < layer_.expected[r]) return;
    layer_.dispatched = to_seconds(at).value;
    network_->call_at(at + to_ps({kGemmPerRow * static_cast<double>(layer_.expected[r])}),
                      static_cast<uint32_t>(ranks_ + m.dst));
  }
  const Layer& layer() const { return layer_; }

 private:
  Rank ranks_;
  Layer layer_;
  Network* network_ = nullptr;
  std::vector<Choices> choices_;
  std::vector<int64_t> arrived_;
  std::vector<size_t> sent_;
  std::vector<uint8_t> in_combine_;
};

Result run_alone(Rank ranks) {
  const double start = cpu_seconds();
  const Fabric fabric = make_fabric(ranks);
  Alone traffic(ranks);
  PacketNetwork network(fabric, packet_settings(), traffic);
  traffic.start(network);
  const double built = cpu_seconds();
  network.run();
  const double events = static_cast<double>(network.counts().events);
  return {built - start,
          cpu_seconds() - start,
          resident_megabytes(),
          events,
          0,
          0,
          traffic.layer().dispatched,
          traffic.layer().combined};
}

Result in_child(Result (*run)(Rank), Rank ranks) {
  const std::string bytes = run_in_child([&] {
    const Result result = run(ranks);
    return std::string(reinterpret_cast<const char*>(&result), sizeof result);
  });
  Result result;
  std::memcpy(&result, bytes.data(), sizeof result);
  return result;
}

bool measure(Rank ranks) {
  const Result alone = in_child(run_alone, ranks), coupled = in_child(run_coupled, ranks);
  const Target t = target(ranks);
  const bool ok = coupled.cpu <= t.cpu && coupled.megabytes <= t.megabytes;
  fmt::print(
      "ranks {:5}  {:.2f} CPU s (set-up {:.2f}, network alone {:.2f})  {:.0f} MB (alone {:.0f})  {:.2f} M "
      "events  "
      "{:.2f} M/s  {} turns  {} stops  dispatched {:.2f} us (alone {:.2f})  combined {:.2f} us (alone "
      "{:.2f})  {}\n",
      ranks, coupled.cpu, coupled.setup, alone.cpu, coupled.megabytes, alone.megabytes, coupled.events * 1e-6,
      coupled.events * 1e-6 / coupled.cpu, coupled.turns, coupled.stops, coupled.dispatched * 1e6,
      alone.dispatched * 1e6, coupled.combined * 1e6, alone.combined * 1e6, ok ? "ok" : "TARGET MISSED");
  std::fflush(stdout);
  return ok;
}

}  // namespace
}  // namespace plumb::sim

int main(int argc, char** argv) {
  std::vector<plumb::Rank> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {64, 128, 256, 512, 1024, 2048};
  bool ok = true;
  for (plumb::Rank ranks : sizes) ok &= plumb::sim::measure(ranks);
  return ok ? 0 : 1;
}

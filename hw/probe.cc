// Cases of the probe: what is launched, on which GPUs, and how it is timed.
//
// A repetition: every GPU that takes part gets a gate, an event, the work, an event on its stream; then the
// host opens the gates. So the work of several GPUs starts together and no launch is timed.
#include "hw/probe.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <numeric>

#include "hw/owners.h"
#include "hw/probe_rig.h"
#include "hw/probe_system.h"
#include "kernels/probe.h"
#include "model/error.h"
#include "model/random.h"

namespace plumb::hw {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Mover;

constexpr int32_t kRowBytes[] = {7168, 14336};  // fp8 and bf16 rows of hidden 7168
constexpr int32_t kChaseStride = 64;            // words: another 256 B each hop
constexpr int64_t kChaseBytes = 256 << 20;
constexpr int32_t kHops = 4000, kFlagRounds = 1000, kLaunches = 100;
constexpr uint32_t kSeed = 1000;

struct Route {
  const char* path;
  std::vector<int32_t> drivers;  // GPUs that do the work
  const char* way;               // "", "push", "pull"
  bool is_pull() const { return std::string_view(way) == "pull"; }
  bool is_local() const { return way[0] == '\0'; }
};

std::vector<Route> routes_of(bool has_peers) {
  std::vector<Route> routes = {{"local", {0}, ""}};
  if (has_peers)
    for (const char* way : {"push", "pull"}) {
      const bool is_pull = std::string_view(way) == "pull";
      routes.push_back({"0->1", {is_pull ? 1 : 0}, way});
      routes.push_back({"1->0", {is_pull ? 0 : 1}, way});
      routes.push_back({"both", {0, 1}, way});
    }
  return routes;
}

/// Local: all movers. To a peer, stores push and loads pull; copies do either.
bool suits(const Route& route, Mover mover) {
  if (route.is_local() || (kernels::reads(mover) && kernels::writes(mover))) return true;
  return kernels::reads(mover) == route.is_pull();
}

/// One number to measure; `run` makes one repetition and returns its microseconds.
struct Case {
  std::function<double(int32_t repeat)> run;
  Spread* result;
};

class Cases {
 public:
  Cases(ProbeRig& rig, Probe& probe) : rig_(rig), probe_(probe) {}

  std::vector<Case> all() {
    add_movers();
    add_copy_engine();
    add_launches();
    add_chases();
    if (probe_.has_peers()) add_flags();
    std::vector<Case> cases;
    for (size_t i = 0; i < points_.size(); ++i) cases.push_back({points_[i], &probe_.points[i].time});
    for (size_t i = 0; i < times_.size(); ++i) cases.push_back({times_[i], &probe_.times[i].time});
    return cases;
  }

  void verify_movers() {
    for (const Route& route : routes_of(probe_.has_peers()))
      for (const Mover mover : {Mover::copy, Mover::bulk_copy})
        if (route.drivers.size() == 1) verify(route, mover);
  }

 private:
  using Run = std::function<double(int32_t)>;

  /// Memory that GPU `driver` reads and writes on this route.
  static std::pair<int32_t, int32_t> ends(const Route& route, int32_t driver) {
    const int32_t other = route.is_local() ? driver : 1 - driver;
    return route.is_pull() ? std::pair{other, driver} : std::pair{driver, other};
  }
  void add_point(ProbePoint point, Run run) {
    probe_.points.push_back(std::move(point));
    points_.push_back(std::move(run));
  }
  void add_time(const char* name, const char* what, Run run) {
    probe_.times.push_back({name, what, {}});
    times_.push_back(std::move(run));
  }

  void launch(const Route& route, Mover mover, int32_t driver, int32_t sms, int64_t bytes, int64_t offset,
              int32_t row_bytes) {
    const auto [from, to] = ends(route, driver);
    check(kernels::launch_move(mover,
                               {.from = rig_.gpu(from).source() + offset,
                                .to = rig_.gpu(to).target() + offset,
                                .bytes = bytes,
                                .row_bytes = row_bytes,
                                .seed = kSeed,
                                .sink = rig_.gpu(driver).sink()},
                               sms, rig_.gpu(driver).stream()),
          "launch a mover");
  }

  void verify(const Route& route, Mover mover) {
    const int32_t driver = route.drivers.front();
    const auto [from, to] = ends(route, driver);
    const int64_t grain = kernels::move_grain(mover, kRowBytes[0]);
    const int64_t bytes = (int64_t{64} << 20) / grain * grain;
    rig_.select(to);
    check(cudaMemset(rig_.gpu(to).target(), 0xa5, static_cast<size_t>(bytes)), "clear");
    rig_.finish(to);
    rig_.select(driver);
    launch(route, mover, driver, 16, bytes, 0, kRowBytes[0]);
    rig_.finish(driver);
    const uint64_t wrong = rig_.count_wrong(to, bytes / 4, kSeed + static_cast<uint32_t>(from));
    if (wrong != 0)
      throw Error(ErrorKind::mismatch, fmt::format("{} on {} {}: {} of {} words are wrong",
                                                   kernels::kMoverNames[static_cast<size_t>(mover)],
                                                   route.path, route.way, wrong, bytes / 4));
  }

  void add_movers() {
    for (const Route& route : routes_of(probe_.has_peers()))
      for (int32_t m = 0; m < kernels::kMovers; ++m) {
        const auto mover = static_cast<Mover>(m);
        if (!suits(route, mover)) continue;
        for (const int32_t row_bytes : kRowBytes) {
          if (row_bytes != kRowBytes[0] && mover != Mover::bulk_copy) continue;
          for (const int32_t sms : sm_counts(probe_.sms)) add_mover(route, mover, row_bytes, sms);
        }
      }
  }
  void add_mover(const Route& route, Mover mover, int32_t row_bytes, int32_t sms) {
    const int64_t grain = kernels::move_grain(mover, row_bytes);
    const int64_t bytes = std::min(kProbeBuffer, int64_t{sms} << 24) / grain * grain;
    std::string how = kernels::kMoverNames[static_cast<size_t>(mover)];
    if (row_bytes != kRowBytes[0]) how += fmt::format("_{}", row_bytes);
    add_point({how, route.path, route.way, sms, bytes, true, {}}, [=, this](int32_t repeat) {
      // Another part of memory each time, so that caches hold none of it.
      const int64_t parts = kProbeBuffer / bytes;
      const int64_t offset = repeat % parts * bytes;
      return rig_.timed(route.drivers,
                        [&](int32_t driver) { launch(route, mover, driver, sms, bytes, offset, row_bytes); });
    });
  }

  void add_copy_engine() {
    for (const Route& route : routes_of(probe_.has_peers())) {
      if (route.is_pull()) continue;
      for (const int64_t kib : {64, 1024, 16 << 10, 512 << 10}) {
        const int64_t bytes = kib << 10;
        const int32_t copies = kib >= 512 << 10 ? 2 : 16;
        add_point({"copy_engine", route.path, route.way, 0, bytes, kib >= 512 << 10, {}},
                  [=, this](int32_t) { return time_copies(route, bytes, copies); });
      }
    }
  }
  double time_copies(const Route& route, int64_t bytes, int32_t copies) {
    return rig_.timed(route.drivers, [&](int32_t driver) {
      const auto [from, to] = ends(route, driver);
      for (int32_t i = 0; i < copies; ++i)
        check(cudaMemcpyPeerAsync(rig_.gpu(to).target(), to, rig_.gpu(from).source(), from,
                                  static_cast<size_t>(bytes), rig_.gpu(driver).stream()),
              "copy engine");
    }) / copies;
  }

  void add_launches() {
    const auto empty = [this](int32_t count) {
      for (int32_t i = 0; i < count; ++i)
        check(kernels::launch_empty(rig_.gpu(0).stream()), "launch an empty kernel");
    };
    const auto graph = [this, empty](int32_t count) {
      rig_.select(0);
      return std::make_shared<Graph>(capture(rig_.gpu(0).stream(), [&] { empty(count); }));
    };
    const auto replay = [this](const std::shared_ptr<Graph>& g) {
      return rig_.timed({0},
                        [&](int32_t) { check(cudaGraphLaunch(g->get(), rig_.gpu(0).stream()), "replay"); });
    };
    add_time("empty_kernel", "an empty kernel between two events",
             [=, this](int32_t) { return rig_.timed({0}, [&](int32_t) { empty(1); }); });
    add_time("next_kernel", "each of 100 empty kernels on one stream",
             [=, this](int32_t) { return rig_.timed({0}, [&](int32_t) { empty(kLaunches); }) / kLaunches; });
    add_time("graph_of_one", "a graph of one empty kernel between two events",
             [replay, g = graph(1)](int32_t) { return replay(g); });
    add_time("graph_kernel", "each of 100 empty kernels of one graph",
             [replay, g = graph(kLaunches)](int32_t) { return replay(g) / kLaunches; });
  }

  void add_chases() {
    rig_.fill_chase(kChaseBytes, kChaseStride);
    const auto chase = [this](int32_t driver, int32_t memory) {
      return rig_.timed({driver}, [&](int32_t) {
        check(kernels::launch_chase(rig_.gpu(memory).chase(), kHops, rig_.gpu(driver).sink(),
                                    rig_.gpu(driver).stream()),
              "launch dependent loads");
      }) / kHops;
    };
    add_time("load_local", "a dependent load of 4 bytes from 256 MiB of the own memory",
             [chase](int32_t) { return chase(0, 0); });
    if (probe_.has_peers())
      add_time("load_peer", "a dependent load of 4 bytes from 256 MiB of the peer's memory",
               [chase](int32_t) { return chase(0, 1); });
  }

  void add_flags() {
    add_time("flag_round_trip", "GPU 0 sets a flag of GPU 1, which answers",
             [this](int32_t) { return rig_.time_flags(kernels::launch_ping_pong, 2, kFlagRounds); });
    add_time(
        "barrier", "each GPU sets a flag of all others and waits for theirs, by one block",
        [this](int32_t) { return rig_.time_flags(kernels::launch_flag_barrier, probe_.gpus, kFlagRounds); });
  }

  ProbeRig& rig_;
  Probe& probe_;
  std::vector<Run> points_, times_;
};

/// A warm-up, then repetitions until the share of the time is over.
void measure(const Case& c, double seconds, const ProbeOptions& options) {
  c.run(0);
  std::vector<double> us;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (int32_t i = 1; i <= options.max_repeats; ++i) {
    if (i > options.min_repeats && Clock::now() > end) break;
    us.push_back(c.run(i));
  }
  *c.result = spread_of(std::move(us));
}

}  // namespace

Spread spread_of(std::vector<double> us) {
  if (us.empty()) return {};
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) {
    return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1) + 0.5)];
  };
  return {.median_us = at(0.5),
          .low_us = at(0.1),
          .high_us = at(0.9),
          .repeats = static_cast<int32_t>(us.size())};
}

const ProbePoint* Probe::find(std::string_view how, std::string_view path, std::string_view way,
                              int32_t at_sms) const {
  const ProbePoint* best = nullptr;
  for (const ProbePoint& p : points)
    if (p.how == how && p.path == path && p.way == way && p.sms == at_sms &&
        (best == nullptr || p.bytes > best->bytes))
      best = &p;
  return best;
}
const ProbeTime* Probe::find_time(std::string_view name) const {
  for (const ProbeTime& t : times)
    if (t.name == name) return &t;
  return nullptr;
}

Probe run_probe(const ProbeOptions& options) {
  if (options.seconds <= 0 || options.min_repeats < 1 || options.max_repeats < options.min_repeats)
    fail_usage("probe: {} s, {} to {} repetitions; allowed: more than 0 s, 1 or more repetitions",
               options.seconds, options.min_repeats, options.max_repeats);
  const auto begin = Clock::now();
  Probe probe;
  describe_system(probe);
  ProbeRig rig(probe.gpus, probe.has_peers(), kSeed);
  Cases cases(rig, probe);
  cases.verify_movers();
  const std::vector<Case> all = cases.all();
  for (const Case& c : all) measure(c, options.seconds / static_cast<double>(all.size()), options);
  probe.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return probe;
}

}  // namespace plumb::hw

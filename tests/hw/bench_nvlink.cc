// The NVLink benchmark: EP2, hidden 7168, top-8 of 256, uniform routing; each point is checked, then timed.
//
// A repetition: 512 MiB written (cold caches, and time for the host to enqueue the rest), our barrier kernel,
// then events around the call. graph: 50 calls in one graph after the same start, time / 50, caches warm.
// Time of a point: the larger of the ranks' medians. Wire bytes: rows that cross the link in one direction,
// with scales, of the rank that has more of them; floor: these at the rate of the link.
#include "tests/hw/bench_nvlink.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "hw/buffer.h"
#include "hw/owners.h"
#include "model/error.h"
#include "model/random.h"
#include "tests/hw/processes.h"

namespace plumb::hw {
namespace {

using Json = nlohmann::ordered_json;
using test::Meeting;

constexpr int32_t kRanks = 2, kHidden = 7168, kExperts = 256, kTopk = 8, kMaxTokens = 8192;
constexpr int32_t kLocal = kExperts / kRanks, kPacks = kHidden / 128, kAlignment = 128;
constexpr int32_t kMaxPoints = 256, kReplays = 50, kWarmUps = 3;
constexpr int64_t kFlushBytes = 512 << 20;

struct Point {
  int32_t tokens = 0, sms = 0;
  bool is_combine = false, fp8 = false, expand = false, cached = false, graph = false;

  int64_t row_bytes() const { return int64_t{kHidden} * (fp8 ? 1 : 2); }
  int64_t wire_row_bytes() const { return row_bytes() + (fp8 ? kPacks * 4 : 0); }
};

std::vector<Point> all_points() {
  std::vector<Point> points;
  for (const int32_t tokens : {128, 4096, 8192})
    for (const bool expand : {false, true})
      for (const int32_t sms : {8, 12, 16, 24, 64}) {
        if (expand && sms != 16 && sms != 64) continue;
        for (const bool graph : {true, false}) {
          if (graph && tokens != 128) continue;
          const Point p{.tokens = tokens, .sms = sms, .expand = expand, .graph = graph};
          const auto add = [&](bool is_combine, bool fp8, bool cached) {
            points.push_back(p);
            points.back().is_combine = is_combine, points.back().fp8 = fp8, points.back().cached = cached;
          };
          add(false, true, false);
          if (expand) continue;
          add(false, false, false);
          add(true, false, false);
          if (sms == 16 || sms == 64) add(false, true, true);
        }
      }
  return points;
}

/// What the project asked of two H200, in us.
std::optional<double> target_us(const Point& p) {
  if (p.expand || p.cached || (p.is_combine ? p.fp8 : !p.fp8)) return {};
  if (p.tokens == 128 && p.graph) return p.is_combine ? 17 : 14;
  if (p.tokens == 4096 && p.sms == 24) return p.is_combine ? 180 : 100;
  if (p.tokens == 8192 && p.sms == 64) return p.is_combine ? 350 : 185;
  if (p.tokens == 8192 && p.sms == 16) return p.is_combine ? 400 : 200;
  return {};
}

struct Sample {
  double median_us = 0, low_us = 0, high_us = 0;  // 10 % and 90 % of the repetitions
  int64_t wire_rows = 0;                          // that cross the link towards this rank
};

/// What the ranks tell the parent; zero bytes are a valid start.
struct Board {
  std::atomic<int32_t> done[kRanks];  // points with a sample
  Sample samples[kRanks][kMaxPoints];
  int32_t driver, runtime, nccl, sms;
  char device[256];
};

/// Inputs of both ranks, so that each can check what came from the other. Smaller calls use a prefix.
struct Inputs {
  std::vector<int32_t> ids[kRanks];     // [tokens][topk]
  std::vector<uint32_t> words[kRanks];  // finite bf16; rows of fp8 are the first half of these bytes
  std::vector<uint32_t> packs;          // [tokens][packs], equal on both

  Inputs() {
    Random random(1, RandomStream::payload);
    packs.resize(size_t{kMaxTokens} * kPacks);
    for (auto& pack : packs) pack = static_cast<uint32_t>(random.next());
    for (Rank r = 0; r < kRanks; ++r) {
      Random routing(1, RandomStream::routing, static_cast<uint64_t>(r));
      for (int32_t t = 0; t < kMaxTokens; ++t)
        for (auto first = ids[r].size(); ids[r].size() < first + kTopk;) {
          const auto e = static_cast<int32_t>(routing.below(kExperts));
          if (std::find(ids[r].begin() + static_cast<std::ptrdiff_t>(first), ids[r].end(), e) == ids[r].end())
            ids[r].push_back(e);
        }
      words[r].resize(size_t{kMaxTokens} * kHidden / 2);
      for (auto& word : words[r]) word = (static_cast<uint32_t>(random.next()) & 0x83ff83ffu) | 0x3c003c00u;
    }
  }
  bool hits(Rank source, int32_t token, Rank dst) const {
    const int32_t* row = &ids[source][static_cast<size_t>(token) * kTopk];
    return std::any_of(row, row + kTopk, [&](int32_t e) { return e / kLocal == dst; });
  }
  const char* row(Rank source, int32_t token, int64_t row_bytes) const {
    return reinterpret_cast<const char*>(words[source].data()) + token * row_bytes;
  }
};

struct Place {
  Rank source = -1;  // -1: a gap
  int32_t token = 0;
};

/// Rows of a rank's tensor in canonical order, straight from the routing.
std::vector<Place> places_of(const Inputs& inputs, const Point& p, Rank dst) {
  std::vector<Place> places;
  for (int32_t e = dst * kLocal; e < (p.expand ? (dst + 1) * kLocal : dst * kLocal + 1); ++e) {
    for (Rank s = 0; s < kRanks; ++s)
      for (int32_t t = 0; t < p.tokens; ++t) {
        const int32_t* row = &inputs.ids[s][static_cast<size_t>(t) * kTopk];
        if (p.expand ? std::find(row, row + kTopk, e) != row + kTopk : inputs.hits(s, t, dst))
          places.push_back({s, t});
      }
    while (p.expand && places.size() % kAlignment != 0) places.emplace_back();
  }
  return places;
}

void require(bool holds, const Point& p, std::string_view what, int64_t at) {
  if (!holds)
    throw Error(ErrorKind::mismatch,
                fmt::format("{} tokens, {} SMs: {} differs at row {}", p.tokens, p.sms, what, at));
}

template <class T>
std::vector<T> download(const void* from, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  check(cudaMemcpy(host.data(), from, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return host;
}

/// One rank: inputs once, a buffer for each number of tokens and layout.
class Bench {
 public:
  Bench(World& world, Rank rank, int repeats)
      : world_(world), rank_(rank), repeats_(repeats), stream_(make_stream()) {
    x_ = upload(inputs_.words[rank].data(), inputs_.words[rank].size());
    ids_ = upload(inputs_.ids[rank].data(), inputs_.ids[rank].size());
    scales_ = upload(inputs_.packs.data(), inputs_.packs.size());
    out_ = device_memory(int64_t{kMaxTokens} * kHidden * 2);
    flush_ = device_memory(kFlushBytes);
  }

  Sample measure(const Point& p) {
    if (buffers_.empty() || p.tokens != p_.tokens || p.expand != p_.expand) make_buffer(p);
    p_ = p;
    places_ = places_of(inputs_, p, rank_);
    p.is_combine ? checked_combine() : checked_dispatch();
    Sample sample = time([this] { p_.is_combine ? combine() : dispatch(false); });
    for (int32_t t = 0; t < p.tokens; ++t) sample.wire_rows += inputs_.hits(1 - rank_, t, rank_) ? 1 : 0;
    return sample;
  }
  void close() {
    barrier();
    buffers_.clear();
  }

 private:
  DeviceMemory upload(const void* from, size_t words) {
    DeviceMemory memory = device_memory(static_cast<int64_t>(words * 4));
    check(cudaMemcpy(memory.get(), from, words * 4, cudaMemcpyHostToDevice), "upload");
    return memory;
  }
  void make_buffer(const Point& p) {
    if (!buffers_.empty()) close();
    received_ = {};
    BufferLimits limits{.ranks = kRanks,
                        .experts = kExperts,
                        .topk = kTopk,
                        .max_tokens = p.tokens,
                        .hidden = kHidden,
                        .scale_packs = kPacks,
                        .alignment = kAlignment,
                        .expand = p.expand,
                        .timeout_ns = 20'000'000'000};
    // Uniform routing stays far below the worst case; a quarter more than the mean of selections will do.
    if (p.expand) limits.max_rows = int64_t{p.tokens} * kTopk * 5 / 4 + int64_t{kLocal} * kAlignment + 1024;
    buffers_ = make_buffers(world_, std::span(&limits, 1));
  }
  void finish(std::string_view what) {
    check(cudaStreamSynchronize(stream_.get()), what);
    buffers_[0].raise_fault();
  }
  void barrier() {
    buffers_[0].barrier(stream_.get());
    finish("barrier");
  }

  void dispatch(bool host_sync) {
    DispatchInput in{.x = x_.get(), .tokens = p_.tokens};
    if (p_.fp8) in.scales = static_cast<const uint32_t*>(scales_.get());
    if (p_.cached && !host_sync) {
      in.cached = received_.handle;
    } else {
      in.topk_idx = ids_.get();
      if (received_.handle.generation != 0) buffers_[0].release(received_.handle);
    }
    received_ = buffers_[0].dispatch(in,
                                     {.type = p_.fp8 ? DType::fp8_e4m3 : DType::bf16,
                                      .scale_packs = p_.fp8 ? kPacks : 0,
                                      .expand = p_.expand,
                                      .alignment = p_.expand ? kAlignment : 1,
                                      .num_sms = p_.sms,
                                      .host_sync = host_sync},
                                     stream_.get());
  }
  void combine() {
    buffers_[0].combine({.out = out_.get(), .handle = received_.handle}, {.num_sms = p_.sms}, stream_.get());
  }

  /// A dispatch into cleared memory leaves exactly the rows of the routing.
  void checked_dispatch() {
    dispatch(true);
    const auto rows = static_cast<int64_t>(places_.size());
    require(received_.rows == rows, p_, "number of rows", received_.rows);
    check(cudaMemsetAsync(received_.x, 0, static_cast<size_t>(rows * p_.row_bytes()), stream_.get()),
          "clear");
    dispatch(false);
    finish("dispatch");
    const auto x = download<char>(received_.x, rows * p_.row_bytes());
    for (int64_t i = 0; i < rows; ++i)
      if (const Place at = places_[static_cast<size_t>(i)]; at.source >= 0)
        require(std::memcmp(&x[static_cast<size_t>(i * p_.row_bytes())],
                            inputs_.row(at.source, at.token, p_.row_bytes()),
                            static_cast<size_t>(p_.row_bytes())) == 0,
                p_, "a received row", i);
    if (p_.fp8) check_scales(rows);
    barrier();
  }
  void check_scales(int64_t rows) {
    const int64_t stride = received_.scale_row_stride;
    require(received_.scale_column_stride == 1 && stride >= kPacks, p_, "stride of scales", stride);
    const auto packs = download<uint32_t>(received_.scales, (rows - 1) * stride + kPacks);
    for (int64_t i = 0; i < rows; ++i)
      if (const Place at = places_[static_cast<size_t>(i)]; at.source >= 0)
        require(std::equal(&packs[static_cast<size_t>(i * stride)],
                           &packs[static_cast<size_t>(i * stride)] + kPacks,
                           &inputs_.packs[static_cast<size_t>(at.token) * kPacks]),
                p_, "a received scale", i);
  }

  /// Experts answer what they received, so a token comes home once for each rank that it went to: as it was,
  /// or doubled, which bf16 holds exactly.
  void checked_combine() {
    dispatch(true);
    check(cudaMemcpyAsync(buffers_[0].expert_out(), received_.x,
                          static_cast<size_t>(received_.rows * p_.row_bytes()), cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "answers");
    const int64_t size = p_.tokens * p_.row_bytes();
    check(cudaMemsetAsync(out_.get(), 0, static_cast<size_t>(size), stream_.get()), "clear");
    combine();
    finish("combine");
    const auto out = download<uint32_t>(out_.get(), size / 4);
    constexpr int64_t kWords = kHidden / 2;
    constexpr uint32_t kTwice = 0x00800080;  // one more in both exponents
    for (int64_t t = 0; t < p_.tokens; ++t) {
      const auto token = static_cast<int32_t>(t);
      const bool is_twice = inputs_.hits(rank_, token, 0) && inputs_.hits(rank_, token, 1);
      const uint32_t* sent = &inputs_.words[rank_][static_cast<size_t>(t * kWords)];
      const uint32_t* got = &out[static_cast<size_t>(t * kWords)];
      require(std::equal(sent, sent + kWords, got,
                         [&](uint32_t a, uint32_t b) { return b == a + (is_twice ? kTwice : 0); }),
              p_, "a combined row", t);
    }
    barrier();
  }

  template <class F>
  Sample time(F call) {
    const Event begin = make_event();
    const Event end = make_event();
    Graph graph;
    if (p_.graph)
      graph = capture(stream_.get(), [&] {
        for (int i = 0; i < kReplays; ++i) call();
      });
    std::vector<double> us;
    for (int i = 0; i < repeats_ + kWarmUps; ++i) {
      check(cudaMemsetAsync(flush_.get(), i, kFlushBytes, stream_.get()), "flush the cache");
      buffers_[0].barrier(stream_.get());
      check(cudaEventRecord(begin.get(), stream_.get()), "record");
      if (p_.graph)
        check(cudaGraphLaunch(graph.get(), stream_.get()), "replay");
      else
        call();
      check(cudaEventRecord(end.get(), stream_.get()), "record");
      finish("repetition");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "time");
      if (i >= kWarmUps) us.push_back(static_cast<double>(ms) * 1e3 / (p_.graph ? kReplays : 1));
    }
    std::sort(us.begin(), us.end());
    const auto at = [&](double q) {
      return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1) + 0.5)];
    };
    return {.median_us = at(0.5), .low_us = at(0.1), .high_us = at(0.9)};
  }

  World& world_;
  Rank rank_;
  int repeats_;
  Stream stream_;
  Inputs inputs_;
  DeviceMemory x_, ids_, scales_, out_, flush_;
  std::vector<Buffer> buffers_;
  Received received_;
  Point p_;
  std::vector<Place> places_;
};

int run_rank(Rank rank, Meeting& meeting, Board& board, int repeats) {
  if (const int count = device_count(); count < kRanks)
    throw Error(ErrorKind::environment, fmt::format("{} CUDA devices; allowed: {} or more", count, kRanks));
  check(cudaSetDevice(rank), "device of the rank");
  auto world = make_nvlink_world(test::meet(meeting, rank, make_nvlink_id), rank, kRanks);
  if (rank == 0) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, rank), "properties");
    static_assert(sizeof board.device == sizeof properties.name);
    std::memcpy(board.device, properties.name, sizeof board.device);
    board.sms = properties.multiProcessorCount;
    check(cudaDriverGetVersion(&board.driver), "driver");
    check(cudaRuntimeGetVersion(&board.runtime), "runtime");
    board.nccl = loaded_nccl_version();
  }
  auto bench = std::make_unique<Bench>(*world, rank, repeats);
  int32_t done = 0;
  try {
    for (const Point& p : all_points()) {
      board.samples[rank][done] = bench->measure(p);
      board.done[rank] = ++done;
    }
  } catch (...) {
    // Freeing windows is collective and would wait for a peer that is lost; the end of the process frees all.
    static_cast<void>(bench.release());
    static_cast<void>(world.release());
    throw;
  }
  bench->close();
  return 0;
}

double round2(double v) { return std::round(v * 100) / 100; }

Json result(const Point& p, const Sample& a, const Sample& b, double link) {
  const Sample& slow = a.median_us >= b.median_us ? a : b;
  const int64_t wire = std::max(a.wire_rows, b.wire_rows) * p.wire_row_bytes();
  const double floor = static_cast<double>(wire) / link * 1e-3;
  Json out{{"call", p.is_combine ? "combine" : "dispatch"},
           {"tokens", p.tokens},
           {"sms", p.sms},
           {"type", p.fp8 ? "fp8" : "bf16"},
           {"layout", p.expand ? "expand" : "plain"},
           {"cached", p.cached},
           {"timing", p.graph ? "graph" : "cold"},
           {"us", round2(slow.median_us)},
           {"p10_us", round2(slow.low_us)},
           {"p90_us", round2(slow.high_us)},
           {"rank_us", {round2(a.median_us), round2(b.median_us)}},
           {"wire_bytes", wire},
           {"floor_us", round2(floor)},
           {"wire_gbs", round2(static_cast<double>(wire) / slow.median_us * 1e-3)}};
  if (const auto target = target_us(p))
    out["target_us"] = *target, out["meets_target"] = slow.median_us <= *target;
  return out;
}

void print(const Json& r) {
  fmt::print(
      "T {:5} sms {:3} {:8} {:4} {:6}{:7} {:5} | {:8.2f} us ({:.2f} .. {:.2f}) floor {:7.2f} us, {:5.1f} "
      "GB/s",
      r["tokens"].get<int>(), r["sms"].get<int>(), r["call"].get<std::string>(), r["type"].get<std::string>(),
      r["layout"].get<std::string>(), r["cached"].get<bool>() ? " cached" : "",
      r["timing"].get<std::string>(), r["us"].get<double>(), r["p10_us"].get<double>(),
      r["p90_us"].get<double>(), r["floor_us"].get<double>(), r["wire_gbs"].get<double>());
  if (r.contains("target_us"))
    fmt::print(" | target {} us: {}", r["target_us"].get<double>(),
               r["meets_target"].get<bool>() ? "met" : "missed");
  fmt::print("\n");
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int run_nvlink_bench(std::map<std::string, std::string> arguments, int argc, char** argv) {
  const double link = arguments.count("--link") ? std::stod(arguments["--link"]) : 365;
  const int repeats = arguments.count("--repeats") ? std::stoi(arguments["--repeats"]) : 25;
  const std::chrono::seconds limit(arguments.count("--limit") ? std::stoi(arguments["--limit"]) : 240);
  if (!(link > 0) || repeats < 1 || limit.count() < 1)
    fail_usage("--link {}, --repeats {}, --limit {}; allowed: all above 0", link, repeats, limit.count());
  const test::SharedMemory memory(sizeof(Board));
  auto* board = new (memory.get()) Board;
  const auto outcomes = test::run_ranks(
      kRanks, limit, [&](Rank rank, Meeting& meeting) { return run_rank(rank, meeting, *board, repeats); });
  std::string command;
  for (int i = 0; i < argc; ++i) command += fmt::format("{}{}", i > 0 ? " " : "", argv[i]);
  Json out{{"schema", "plumb.hw_bench_nvlink/1"},
           {"command", command},
           {"environment",
            {{"device", board->device},
             {"sms", board->sms},
             {"cuda_driver", board->driver},
             {"cuda_runtime", board->runtime},
             {"nccl", board->nccl},
             {"driver", first_line("/proc/driver/nvidia/version")},
             {"machine", arguments["--machine"]}}},
           {"shape", {{"ranks", kRanks}, {"hidden", kHidden}, {"experts", kExperts}, {"topk", kTopk}}},
           {"link_gbs", link},
           {"repeats", repeats},
           {"points", Json::array()}};
  const std::vector<Point> points = all_points();
  const int32_t done = std::min(board->done[0].load(), board->done[1].load());
  for (int32_t i = 0; i < done; ++i) {
    const auto at = static_cast<size_t>(i);
    out["points"].push_back(result(points[at], board->samples[0][i], board->samples[1][i], link));
    print(out["points"].back());
  }
  std::fflush(stdout);
  const std::string failed = test::failures(outcomes);
  out["failures"] = failed;
  if (arguments.count("--out")) std::ofstream(arguments["--out"]) << out.dump(1) << "\n";
  if (!failed.empty())
    throw Error(ErrorKind::environment,
                fmt::format("{}; {} of {} points were measured", failed, done, points.size()));
  return 0;
}

}  // namespace plumb::hw

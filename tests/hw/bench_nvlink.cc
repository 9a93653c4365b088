// The NVLink benchmark: two ranks, a GPU each; each point is checked, then timed.
//
// A repetition: 512 MiB written (cold caches, and time for the host to enqueue the rest), our barrier kernel,
// then events around the call. graph: 50 calls in one graph after the same start, time / 50, caches warm.
// Time of a point: the larger of the ranks' medians. Wire bytes: rows that cross the link in one direction,
// with scales, of the rank that has more of them; floor: these at the rate of the link. NCCL's exchange sends
// as many bytes to the peer, and as many to itself.
#include "tests/hw/bench_nvlink.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "hw/buffer.h"
#include "hw/owners.h"
#include "hw/processes.h"
#include "model/error.h"
#include "model/experiment.h"
#include "model/random.h"
#include "tests/hw/bench_inputs.h"
#include "tests/hw/bench_points.h"
#include "tests/hw/nccl_exchange.h"

namespace plumb::hw {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kRanks = kBenchRanks;
constexpr int32_t kMaxPoints = 1024, kReplays = 50, kWarmUps = 3;
constexpr int64_t kFlushBytes = 512 << 20;

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
  NvlinkId exchange;  // of NCCL's exchange beside ours
};

void require(bool holds, const BenchPoint& p, std::string_view what, int64_t at) {
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
  Bench(World& world, NcclExchange& exchange, const std::vector<Experiment>& experiments, Rank rank,
        int repeats)
      : world_(world),
        exchange_(exchange),
        experiments_(experiments),
        rank_(rank),
        repeats_(repeats),
        stream_(make_stream()),
        inputs_(largest_shape(experiments)) {
    x_ = upload(inputs_.words[rank].data(), inputs_.words[rank].size());
    scales_ = upload(inputs_.packs.data(), inputs_.packs.size());
    out_ = device_memory(int64_t{inputs_.shape.max_tokens} * inputs_.shape.hidden * 2);
    flush_ = device_memory(kFlushBytes);
  }

  Sample measure(const BenchPoint& p) {
    if (buffers_.empty() || p.tokens != p_.tokens || p.expand != p_.expand) make_buffer(p);
    if (ids_.get() == nullptr || p.experiment != p_.experiment)
      route(experiments_[static_cast<size_t>(p.experiment)]);
    p_ = p;
    int64_t wire_rows[kRanks] = {};  // towards each rank
    for (Rank r = 0; r < kRanks; ++r)
      for (int32_t t = 0; t < p.tokens; ++t) wire_rows[r] += inputs_.hits(1 - r, t, r) ? 1 : 0;
    const int64_t exchanged = std::max(wire_rows[0], wire_rows[1]) * p.wire_row_bytes();
    if (p.call == BenchCall::nccl) {
      check_exchange(exchanged);
    } else {
      places_ = places_of(inputs_, p, rank_);
      p.is_combine() ? checked_combine() : checked_dispatch();
    }
    Sample sample = time([&] {
      if (p.call == BenchCall::nccl)
        return exchange_.enqueue(x_.get(), flush_.get(), exchanged, stream_.get());
      p.is_combine() ? combine() : dispatch(false);
    });
    sample.wire_rows = wire_rows[rank_];
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
  void route(const Experiment& e) {
    const Routing routing = make_routing(e);
    for (Rank r = 0; r < kRanks; ++r) inputs_.ids[r] = routing.rows(r);
    ids_ = upload(inputs_.ids[rank_].data(), inputs_.ids[rank_].size());
  }
  /// The own words come from the own rank, the peer's from the peer.
  void check_exchange(int64_t bytes) {
    check(cudaMemsetAsync(flush_.get(), 0, kFlushBytes, stream_.get()), "clear");
    exchange_.enqueue(x_.get(), flush_.get(), bytes, stream_.get());
    finish("exchange");
    for (Rank r = 0; r < kRanks; ++r)
      require(std::memcmp(download<char>(static_cast<char*>(flush_.get()) + r * bytes, bytes).data(),
                          inputs_.words[r].data(), static_cast<size_t>(bytes)) == 0,
              p_, "what NCCL exchanged", r);
    barrier();
  }
  void make_buffer(const BenchPoint& p) {
    if (!buffers_.empty()) close();
    received_ = {};
    BufferLimits limits{.ranks = kRanks,
                        .experts = inputs_.shape.experts,
                        .topk = inputs_.shape.topk,
                        .max_tokens = p.tokens,
                        .hidden = p.hidden,
                        .scale_packs = p.hidden / 128,
                        .alignment = inputs_.shape.alignment,
                        .expand = p.expand,
                        .timeout_ns = 20'000'000'000};
    // Uniform routing stays far below the worst case; a quarter more than the mean of selections will do.
    if (p.expand)
      limits.max_rows = int64_t{p.tokens} * limits.topk * 5 / 4 +
                        int64_t{inputs_.shape.local_experts()} * limits.alignment + 1024;
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
                                      .scale_packs = p_.scale_packs(),
                                      .expand = p_.expand,
                                      .alignment = p_.expand ? inputs_.shape.alignment : 1,
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
    const int64_t stride = received_.scale_row_stride, count = p_.scale_packs();
    require(received_.scale_column_stride == 1 && stride >= count, p_, "stride of scales", stride);
    const auto packs = download<uint32_t>(received_.scales, (rows - 1) * stride + count);
    for (int64_t i = 0; i < rows; ++i)
      if (const Place at = places_[static_cast<size_t>(i)]; at.source >= 0)
        require(std::equal(&packs[static_cast<size_t>(i * stride)],
                           &packs[static_cast<size_t>(i * stride)] + count,
                           &inputs_.packs[static_cast<size_t>(at.token * count)]),
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
    const int64_t row_words = p_.hidden / 2;
    constexpr uint32_t kTwice = 0x00800080;  // one more in both exponents
    for (int64_t t = 0; t < p_.tokens; ++t) {
      const auto token = static_cast<int32_t>(t);
      const bool is_twice = inputs_.hits(rank_, token, 0) && inputs_.hits(rank_, token, 1);
      const uint32_t* sent = &inputs_.words[rank_][static_cast<size_t>(t * row_words)];
      const uint32_t* got = &out[static_cast<size_t>(t * row_words)];
      require(std::equal(sent, sent + row_words, got,
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
  NcclExchange& exchange_;
  const std::vector<Experiment>& experiments_;
  Rank rank_;
  int repeats_;
  Stream stream_;
  Inputs inputs_;
  DeviceMemory x_, ids_, scales_, out_, flush_;
  std::vector<Buffer> buffers_;
  Received received_;
  BenchPoint p_;
  std::vector<Place> places_;
};

/// What all ranks of a run share.
struct Request {
  std::vector<Experiment> experiments;
  std::vector<BenchPoint> points;
  int repeats = 0;
};

void describe_rank(Board& board) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "properties");
  static_assert(sizeof board.device == sizeof properties.name);
  std::memcpy(board.device, properties.name, sizeof board.device);
  board.sms = properties.multiProcessorCount;
  check(cudaDriverGetVersion(&board.driver), "driver");
  check(cudaRuntimeGetVersion(&board.runtime), "runtime");
  board.nccl = loaded_nccl_version();
}

int run_rank(Rank rank, Meeting& meeting, Board& board, const Request& request) {
  if (const int count = device_count(); count < kRanks)
    throw Error(ErrorKind::environment, fmt::format("{} CUDA devices; allowed: {} or more", count, kRanks));
  check(cudaSetDevice(rank), "device of the rank");
  const auto make_both = [&] {
    board.exchange = make_nvlink_id();
    return make_nvlink_id();
  };
  auto world = make_nvlink_world(meet(meeting, rank, make_both), rank, kRanks);
  if (rank == 0) describe_rank(board);
  auto exchange = std::make_unique<NcclExchange>(board.exchange, rank, kRanks);
  auto bench = std::make_unique<Bench>(*world, *exchange, request.experiments, rank, request.repeats);
  int32_t done = 0;
  try {
    for (const BenchPoint& p : request.points) {
      board.samples[rank][done] = bench->measure(p);
      board.done[rank] = ++done;
    }
  } catch (...) {
    // Freeing windows is collective and would wait for a peer that is lost; the end of the process frees all.
    static_cast<void>(bench.release());
    static_cast<void>(exchange.release());
    static_cast<void>(world.release());
    throw;
  }
  bench->close();
  return 0;
}

double round2(double v) { return std::round(v * 100) / 100; }

constexpr const char* kCallNames[] = {"dispatch", "combine", "nccl"};

Json result(const BenchPoint& p, const Request& request, const Sample& a, const Sample& b, double link) {
  const Sample& slow = a.median_us >= b.median_us ? a : b;
  const int64_t wire = std::max(a.wire_rows, b.wire_rows) * p.wire_row_bytes();
  const double floor = static_cast<double>(wire) / link * 1e-3;
  Json out{{"call", kCallNames[static_cast<size_t>(p.call)]},
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
  if (p.call != BenchCall::nccl) out["point"] = request.experiments[static_cast<size_t>(p.experiment)].label;
  if (const auto target = target_us(p))
    out["target_us"] = *target, out["meets_target"] = slow.median_us <= *target;
  return out;
}

/// Beside each call, NCCL's exchange of the same bytes in this run.
void add_guard(Json& points) {
  for (Json& r : points)
    for (const Json& n : points)
      if (r["call"] != "nccl" && n["call"] == "nccl" && n["tokens"] == r["tokens"] &&
          n["type"] == r["type"] && n["timing"] == r["timing"])
        r["nccl_us"] = n["us"], r["of_nccl"] = round2(r["us"].get<double>() / n["us"].get<double>());
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
  if (r.contains("of_nccl")) fmt::print(" | {:.2f} of NCCL", r["of_nccl"].get<double>());
  fmt::print("\n");
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A trace for each cold point, as point<index>-cuda.csv.
void write_traces(const std::string& folder, const Request& request, const Json& points, const Board& board) {
  std::filesystem::create_directories(folder);
  for (size_t i = 0; i < points.size(); ++i) {
    const BenchPoint& p = request.points[i];
    if (p.call == BenchCall::nccl || p.graph) continue;
    const Json& r = points[i];
    const std::string note = fmt::format(
        "2 x {}, NCCL {}; NVLink world, kernels, {} SMs a rank; median of {} cold calls, {:.2f} .. {:.2f} us "
        "(10 .. 90 %), the slower rank; rows checked, messages and bytes are the plan's",
        board.device, board.nccl, p.sms, request.repeats, r["p10_us"].get<double>(),
        r["p90_us"].get<double>());
    std::ofstream out(fmt::format("{}/point{}-cuda.csv", folder, p.experiment));
    write_csv(out, bench_trace(request.experiments[static_cast<size_t>(p.experiment)], r["us"].get<double>(),
                               note));
  }
}

}  // namespace

int run_nvlink_bench(std::map<std::string, std::string> arguments, int argc, char** argv) {
  const double link = arguments.count("--link") ? std::stod(arguments["--link"]) : 365;
  const std::chrono::seconds limit(arguments.count("--limit") ? std::stoi(arguments["--limit"]) : 240);
  const std::string file =
      arguments.count("--experiment") ? arguments["--experiment"] : "experiments/two_gpus.yaml";
  Request request{.experiments = read_experiments(file), .points = {}};
  request.points = bench_points(request.experiments);
  request.repeats = arguments.count("--repeats") ? std::stoi(arguments["--repeats"]) : 25;
  if (!(link > 0) || request.repeats < 1 || limit.count() < 1)
    fail_usage("--link {}, --repeats {}, --limit {}; allowed: all above 0", link, request.repeats,
               limit.count());
  if (request.points.size() > size_t{kMaxPoints})
    fail_usage("'{}' makes {} points; allowed: {}", file, request.points.size(), kMaxPoints);
  setenv("NCCL_NVLS_ENABLE", "0", 1);  // no NVLink multicast, whatever the caller's environment says
  const SharedMemory memory(sizeof(Board));
  auto* board = new (memory.get()) Board;
  const auto outcomes = run_ranks(
      kRanks, limit, [&](Rank rank, Meeting& meeting) { return run_rank(rank, meeting, *board, request); });
  std::string command;
  for (int i = 0; i < argc; ++i) command += fmt::format("{}{}", i > 0 ? " " : "", argv[i]);
  const Shape& shape = request.experiments.front().shape;
  Json out{{"schema", "plumb.hw_bench_nvlink/2"},
           {"command", command},
           {"environment",
            {{"device", board->device},
             {"sms", board->sms},
             {"cuda_driver", board->driver},
             {"cuda_runtime", board->runtime},
             {"nccl", board->nccl},
             {"driver", first_line("/proc/driver/nvidia/version")},
             {"machine", arguments["--machine"]}}},
           {"experiment", request.experiments.front().name},
           {"shape",
            {{"ranks", kRanks}, {"hidden", shape.hidden}, {"experts", shape.experts}, {"topk", shape.topk}}},
           {"link_gbs", link},
           {"repeats", request.repeats},
           {"points", Json::array()}};
  const int32_t done = std::min(board->done[0].load(), board->done[1].load());
  for (int32_t i = 0; i < done; ++i)
    out["points"].push_back(result(request.points[static_cast<size_t>(i)], request, board->samples[0][i],
                                   board->samples[1][i], link));
  add_guard(out["points"]);
  for (const Json& point : out["points"]) print(point);
  std::fflush(stdout);
  const std::string failed = failures(outcomes);
  out["failures"] = failed;
  if (arguments.count("--out")) std::ofstream(arguments["--out"]) << out.dump(1) << "\n";
  if (arguments.count("--traces")) write_traces(arguments["--traces"], request, out["points"], *board);
  if (!failed.empty())
    throw Error(ErrorKind::environment,
                fmt::format("{}; {} of {} points were measured", failed, done, request.points.size()));
  return 0;
}

}  // namespace plumb::hw

// Times dispatch and combine of the local world: sweeps over tokens, SMs, types, layouts, ranks and skewed
// routings, with the floor that a copy line allows beside each figure. JSON into a file.
//
// hw_bench [--sets sms,pairs,cached,decode,layouts,tokens,ranks,skew] [--line GB/s per SM] [--total GB/s]
//          [--repeats N] [--out FILE]
// hw_bench --world nvlink ...: a GPU per rank, see bench_nvlink.h
// Times are CUDA events around the whole call, caches flushed before each (cold) or graph replays back to
// back (graph). Payload bytes: rows that arrive, hidden and scales only; logical = payload, since ranks share
// a GPU and nothing crosses a link; wire = rows that would cross one (source != destination).
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "hw/buffer.h"
#include "hw/owners.h"
#include "kernels/launch.h"
#include "model/error.h"
#include "model/random.h"
#include "model/routing.h"
#include "tests/hw/bench_nvlink.h"

namespace plumb::hw {
namespace {

using Json = nlohmann::ordered_json;

struct Point {
  int32_t ranks = 8, tokens = 4096, sms = 16, hidden = 7168, experts = 256, topk = 8;
  bool fp8 = false, expand = false, column_scales = false, graph = false, cached = false,
       multiple_reduction = true;
  RoutingSpec routing = {};
};

/// A routing in words.
std::string to_text(const RoutingSpec& r) {
  const std::string kind(to_string(r.kind));
  if (r.kind == RoutingKind::zipf) return fmt::format("{} {}", kind, r.exponent);
  if (r.kind == RoutingKind::hot_expert) return fmt::format("{} {}", kind, r.hot_fraction);
  if (r.kind == RoutingKind::hot_rank) return fmt::format("{} {}", kind, r.hot_ratio);
  return kind;
}

struct Line {
  double per_sm = 49.5;   // GB/s: a copy by one SM
  double total = 1950.0;  // GB/s: a copy by all
  int repeats = 15;
};

struct Timing {
  double median_us = 0, low_us = 0, high_us = 0;  // 10 % and 90 % of the repeats
};

Timing summary(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double q) {
    return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

/// The inputs of all ranks and the rows they lead to.
class Bench {
 public:
  explicit Bench(const Point& p) : p_(p), world_(make_local_world(p.ranks)), stream_(make_stream()) {
    BufferLimits limits{.ranks = p.ranks,
                        .experts = p.experts,
                        .topk = p.topk,
                        .max_tokens = p.tokens,
                        .hidden = p.hidden,
                        .scale_packs = p.hidden / 128,
                        .alignment = 128,
                        .expand = p.expand};
    // Uniform routing stays far below the worst case; a quarter more than the mean of selections will do.
    const int64_t mean = int64_t{p.tokens} * p.topk;
    if (p.expand) limits.max_rows = mean + mean / 4 + int64_t{p.experts / p.ranks} * 128 + 1024;
    buffers_ = make_buffers(*world_, std::vector(static_cast<size_t>(p.ranks), limits));
    shape_ = uniform_shape(p.ranks, p.experts, p.topk, p.tokens, p.hidden);
    arriving_.resize(static_cast<size_t>(p.ranks));
    const Routing routing = Routing::generate(shape_, p.routing);
    for (int32_t r = 0; r < p.ranks; ++r) add_inputs(r, routing.rows(r));
    flush_ = device_memory(kFlushBytes);
  }

  Json run(const Line& line) {
    receive();
    Json out = describe();
    out["dispatch"] = result(time([this] { dispatch(); }, line.repeats), row(), copies_, line);
    if (p_.expand) out["dispatch"]["expanded_rows"] = selections_;
    out["combine"] = result(time([this] { combine(); }, line.repeats), 2.0 * p_.hidden, combine_rows(), line);
    out["phases_us"] = phases();
    return out;
  }

 private:
  /// Phases of rank 0 in one counted round: begin and end, from the begin of the first.
  Json phases() {
    for (Buffer& buffer : buffers_) buffer.clear_counters();
    counted_ = true;
    dispatch();
    combine();
    counted_ = false;
    const kernels::Counters c = buffers_[0].counters();
    Json out;
    const auto add = [&](kernels::Step first, std::initializer_list<kernels::Step> steps) {
      const uint64_t start = c.begin_ns[static_cast<size_t>(first)];
      for (const kernels::Step step : steps) {
        const auto i = static_cast<size_t>(step);
        if (c.end_ns[i] == 0 || c.begin_ns[i] == 0) continue;
        const auto us = [&](uint64_t t) {
          return static_cast<double>(static_cast<int64_t>(t - start)) * 1e-3;
        };
        out[kernels::kStepNames[i]] = {us(c.begin_ns[i]), us(c.end_ns[i])};
      }
    };
    using kernels::Step;
    if (!p_.cached) add(Step::notify, {Step::notify, Step::counts, Step::dispatch, Step::flush, Step::copy});
    add(p_.expand && p_.multiple_reduction ? Step::combine_local : Step::combine_enter,
        {Step::combine_local, Step::combine_enter, Step::combine_reduce, Step::combine_flush});
    return out;
  }

  static constexpr int64_t kFlushBytes = 256 << 20;

  double row() const { return p_.fp8 ? p_.hidden + p_.hidden / 128 * 4.0 : 2.0 * p_.hidden; }
  static double round2(double v) { return std::round(v * 100) / 100; }
  /// Rows of the rank that receives most, over the mean.
  double hottest_rank() const {
    const int64_t most = *std::max_element(arriving_.begin(), arriving_.end());
    return static_cast<double>(most * p_.ranks) / static_cast<double>(copies_);
  }

  void add_inputs(Rank r, const std::vector<int32_t>& ids) {
    std::vector<Rank> ranks;
    for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(p_.topk)) {
      destinations(shape_, std::span(ids).subspan(at, static_cast<size_t>(p_.topk)), ranks);
      for (const Rank d : ranks) {
        ++copies_, wire_ += d != r ? 1 : 0;
        ++arriving_[static_cast<size_t>(d)];
      }
    }
    selections_ += static_cast<int64_t>(ids.size());
    Random random(1, RandomStream::payload, static_cast<uint64_t>(r));
    const int64_t bytes = int64_t{p_.tokens} * p_.hidden * 2;
    std::vector<uint32_t> payload(static_cast<size_t>(bytes / 4));
    for (auto& word : payload) word = static_cast<uint32_t>(random.next());
    const auto upload = [&](const void* from, int64_t size) {
      memory_.push_back(device_memory(size));
      check(cudaMemcpy(memory_.back().get(), from, static_cast<size_t>(size), cudaMemcpyHostToDevice),
            "upload");
      return memory_.back().get();
    };
    DispatchInput in{.x = upload(payload.data(), bytes), .tokens = p_.tokens};
    in.topk_idx = upload(ids.data(), static_cast<int64_t>(ids.size()) * 4);
    in.topk_weights = static_cast<const float*>(upload(payload.data(), static_cast<int64_t>(ids.size()) * 4));
    if (p_.fp8)
      in.scales =
          static_cast<const uint32_t*>(upload(payload.data(), int64_t{p_.tokens} * (p_.hidden / 128) * 4));
    inputs_.push_back(in);
    memory_.push_back(device_memory(bytes));
    out_.push_back(memory_.back().get());
  }

  DispatchOptions options() const {
    return {.type = p_.fp8 ? DType::fp8_e4m3 : DType::bf16,
            .scale_packs = p_.fp8 ? p_.hidden / 128 : 0,
            .expand = p_.expand,
            .column_scales = p_.column_scales,
            .alignment = p_.expand ? 128 : 1,
            .num_sms = p_.sms,
            .counted = counted_};
  }

  void release() {
    for (size_t r = 0; r < received_.size(); ++r) buffers_[r].release(received_[r].handle);
    received_.clear();
  }
  void receive() {
    DispatchOptions first = options();
    first.host_sync = true;
    received_ = dispatch_together(buffers_, inputs_, first, stream_.get());
    check(cudaDeviceSynchronize(), "first dispatch");
    // Finite numbers for combine: half of the exponent bits of random data are dropped by what it reads.
    for (Buffer& buffer : buffers_) {
      int64_t rows = 0;
      for (const Received& got : received_) rows = std::max(rows, got.rows);
      check(cudaMemset(buffer.expert_out(), 0x3c, static_cast<size_t>(rows * p_.hidden * 2)), "answers");
    }
    check(cudaDeviceSynchronize(), "answers");
  }
  void dispatch() {
    std::vector<DispatchInput> inputs = inputs_;
    if (p_.cached)
      for (size_t r = 0; r < inputs.size(); ++r)
        inputs[r].topk_idx = nullptr, inputs[r].cached = received_[r].handle;
    if (!p_.cached) release();
    received_ = dispatch_together(buffers_, inputs, options(), stream_.get());
  }
  void combine() {
    std::vector<CombineInput> inputs;
    for (size_t r = 0; r < received_.size(); ++r)
      inputs.push_back({.out = out_[r], .handle = received_[r].handle});
    combine_together(buffers_, inputs,
                     {.multiple_reduction = p_.multiple_reduction, .num_sms = p_.sms, .counted = counted_},
                     stream_.get());
  }
  int64_t combine_rows() const { return p_.expand && !p_.multiple_reduction ? selections_ : copies_; }

  template <class F>
  Timing time(F call, int repeats) {
    std::vector<double> us;
    const Event begin = make_event();
    const Event end = make_event();
    const auto elapsed = [&] {
      check(cudaEventSynchronize(end.get()), "wait");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "time");
      return static_cast<double>(ms) * 1e3;
    };
    constexpr int kReplays = 50;
    Graph graph;
    if (p_.graph)
      graph = capture(stream_.get(), [&] {
        for (int i = 0; i < kReplays; ++i) call();
      });
    for (int i = 0; i < repeats + 3; ++i) {
      if (p_.graph) {
        check(cudaEventRecord(begin.get(), stream_.get()), "record");
        check(cudaGraphLaunch(graph.get(), stream_.get()), "replay");
        check(cudaEventRecord(end.get(), stream_.get()), "record");
        us.push_back(elapsed() / kReplays);
        continue;
      }
      check(cudaMemsetAsync(flush_.get(), i, kFlushBytes, stream_.get()), "flush the cache");
      check(cudaEventRecord(begin.get(), stream_.get()), "record");
      call();
      check(cudaEventRecord(end.get(), stream_.get()), "record");
      us.push_back(elapsed());
    }
    us.erase(us.begin(), us.begin() + 3);
    for (Buffer& buffer : buffers_) buffer.raise_fault();
    return summary(us);
  }

  Json describe() const {
    return {{"ranks", p_.ranks},
            {"tokens", p_.tokens},
            {"sms_per_rank", p_.sms},
            {"hidden", p_.hidden},
            {"experts", p_.experts},
            {"topk", p_.topk},
            {"type", p_.fp8 ? "fp8" : "bf16"},
            {"layout", p_.expand ? "expand" : "plain"},
            {"column_scales", p_.column_scales},
            {"cached", p_.cached},
            {"routing", to_text(p_.routing)},
            {"hottest_rank", round2(hottest_rank())},
            {"multiple_reduction", p_.multiple_reduction},
            {"timing", p_.graph ? "graph" : "cold"}};
  }

  Json result(const Timing& t, double row_bytes, int64_t rows, const Line& line) const {
    const double payload = row_bytes * static_cast<double>(rows);
    const int32_t sms = p_.sms * p_.ranks;
    const double allowed = std::min(line.per_sm * sms, line.total);
    const double rate = payload / t.median_us * 1e-3;
    const double wire =
        row_bytes * static_cast<double>(wire_) * static_cast<double>(rows) / static_cast<double>(copies_);
    return {{"us", round2(t.median_us)},
            {"p10_us", round2(t.low_us)},
            {"p90_us", round2(t.high_us)},
            {"floor_us", round2(payload / allowed * 1e-3)},
            {"payload_bytes", static_cast<int64_t>(payload)},
            {"wire_bytes", static_cast<int64_t>(wire)},
            {"payload_gbs", round2(rate)},
            {"gbs_per_sm", round2(rate / sms)},
            {"of_copy_line", round2(rate / allowed)}};
  }

  Point p_;
  Shape shape_;
  std::vector<int64_t> arriving_;  // [ranks] rows
  std::unique_ptr<World> world_;
  std::vector<Buffer> buffers_;
  std::vector<DispatchInput> inputs_;
  std::vector<void*> out_;
  std::vector<DeviceMemory> memory_;
  std::vector<Received> received_;
  Stream stream_;
  DeviceMemory flush_;
  bool counted_ = false;
  int64_t copies_ = 0, wire_ = 0, selections_ = 0;
};

std::vector<Point> points_of(const std::string& set) {
  std::vector<Point> points;
  const auto both = [&](Point p) {
    p.fp8 = true;
    points.push_back(p);
    p.fp8 = false;
    points.push_back(p);
  };
  if (set == "sms")
    for (const int32_t sms : {1, 2, 3, 4, 6, 8, 12, 16}) both({.ranks = 8, .tokens = 4096, .sms = sms});
  if (set == "pairs")
    for (const int32_t sms : {4, 8, 12, 16, 24, 32, 64}) both({.ranks = 2, .tokens = 8192, .sms = sms});
  if (set == "cached")
    for (const int32_t sms : {4, 8, 16}) both({.ranks = 2, .tokens = 8192, .sms = sms, .cached = true});
  if (set == "tokens")
    for (const int32_t tokens : {1, 16, 64, 128, 256, 512, 1024, 2048, 8192})
      both({.ranks = 8, .tokens = tokens, .sms = 16});
  if (set == "decode")
    for (const int32_t sms : {4, 8, 12, 16}) both({.ranks = 8, .tokens = 128, .sms = sms, .graph = true});
  if (set == "ranks")
    for (const int32_t ranks : {1, 4, 16})
      both({.ranks = ranks, .tokens = 2048, .sms = 128 / ranks > 16 ? 16 : 128 / ranks});
  if (set == "skew")
    for (const RoutingSpec& routing : {RoutingSpec{}, RoutingSpec{.kind = RoutingKind::zipf, .exponent = 0.5},
                                       RoutingSpec{.kind = RoutingKind::zipf, .exponent = 1.0},
                                       RoutingSpec{.kind = RoutingKind::hot_expert, .hot_fraction = 0.5},
                                       RoutingSpec{.kind = RoutingKind::hot_rank, .hot_ratio = 2.0}})
      both({.ranks = 8, .tokens = 4096, .sms = 16, .routing = routing});
  if (set == "layouts") {
    both({.ranks = 8, .tokens = 4096, .sms = 16, .cached = true});
    both({.ranks = 8, .tokens = 4096, .sms = 16, .expand = true});
    both({.ranks = 8, .tokens = 4096, .sms = 16, .expand = true, .multiple_reduction = false});
    for (const bool expand : {false, true})
      points.push_back(
          {.ranks = 8, .tokens = 4096, .sms = 16, .fp8 = true, .expand = expand, .column_scales = true});
  }
  return points;
}

Json environment() {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "properties");
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "driver");
  check(cudaRuntimeGetVersion(&runtime), "runtime");
  Json kernels = Json::array();
  kernels::KernelReport reports[5];
  check(kernels::report_kernels(reports), "kernels");
  for (const auto& k : reports)
    kernels.push_back({{"name", k.name},
                       {"registers", k.registers},
                       {"local_bytes", k.local_bytes},
                       {"max_threads", k.threads}});
  return {{"device", properties.name},
          {"sms", properties.multiProcessorCount},
          {"cuda_driver", driver},
          {"cuda_runtime", runtime},
          {"kernels", kernels}};
}

void print(const Json& point) {
  const auto part = [&](const char* name) {
    const Json& r = point[name];
    return fmt::format("{:9.1f} us {:7.0f} GB/s {:5.1f}/SM {:4.2f}", r["us"].get<double>(),
                       r["payload_gbs"].get<double>(), r["gbs_per_sm"].get<double>(),
                       r["of_copy_line"].get<double>());
  };
  fmt::print("R {:2} T {:5} sms {:3} {:4} {:6}{} {} {:5} | dispatch {} | combine {}\n",
             point["ranks"].get<int>(), point["tokens"].get<int>(), point["sms_per_rank"].get<int>(),
             point["type"].get<std::string>(), point["layout"].get<std::string>(),
             point["cached"].get<bool>() ? " cached" : "", point["routing"].get<std::string>(),
             point["timing"].get<std::string>(), part("dispatch"), part("combine"));
  if (point["timing"] == "graph") fmt::print("    phases us {}\n", point["phases_us"].dump());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> arguments{{"--sets", "sms,pairs,decode,layouts,tokens,ranks,skew"}};
  for (int i = 1; i + 1 < argc; i += 2) arguments[argv[i]] = argv[i + 1];
  if (arguments.count("--world") && arguments["--world"] == "nvlink") {
#ifdef PLUMB_HAS_NVLINK
    return run_nvlink_bench(arguments, argc, argv);  // forks, so before any call of CUDA
#else
    throw Error(ErrorKind::environment, "--world nvlink: built without NCCL 2.28.7 or newer");
#endif
  }
  Line line;
  if (arguments.count("--line")) line.per_sm = std::stod(arguments["--line"]);
  if (arguments.count("--total")) line.total = std::stod(arguments["--total"]);
  if (arguments.count("--repeats")) line.repeats = std::stoi(arguments["--repeats"]);
  std::string_view reason;
  if (device_count(&reason) == 0) {
    fmt::print("skipped: no CUDA device: {}\n", reason);
    return 0;
  }
  Json out{{"schema", "plumb.hw_bench/1"},
           {"environment", environment()},
           {"copy_line", {{"gbs_per_sm", line.per_sm}, {"total_gbs", line.total}}},
           {"repeats", line.repeats},
           {"points", Json::array()}};
  std::string sets = arguments["--sets"] + ",";
  for (size_t at; (at = sets.find(',')) != std::string::npos; sets.erase(0, at + 1))
    for (const Point& point : points_of(sets.substr(0, at))) {
      out["points"].push_back(Bench(point).run(line));
      print(out["points"].back());
    }
  if (arguments.count("--out")) std::ofstream(arguments["--out"]) << out.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace plumb::hw

int main(int argc, char** argv) {
  try {
    return plumb::hw::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "hw_bench: " << error.what() << "\n";
    return 1;
  }
}

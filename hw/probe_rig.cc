// Set-up, gates and flags of the probe.
#include "hw/probe_rig.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "model/error.h"
#include "model/random.h"

namespace plumb::hw {
namespace {

constexpr int64_t kGateNs = 2'000'000'000, kFlagNs = 2'000'000'000;
constexpr int64_t kWordBytes = 4096;  // sink, count of wrong words and flags, on lines of their own

}  // namespace

std::vector<int32_t> sm_counts(int32_t sms) {
  std::vector<int32_t> counts;
  for (const int32_t count : {1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128})
    if (count < sms) counts.push_back(count);
  counts.push_back(sms);
  return counts;
}

ProbeRig::ProbeRig(int32_t gpus, bool has_peers, uint32_t seed)
    : gpus_(static_cast<size_t>(gpus)), host_(pinned_memory((1 + kernels::kMaxProbeGpus) * 8)) {
  for (int32_t i = 0; i < gpus; ++i) {
    select(i);
    for (int32_t peer = 0; has_peers && peer < gpus; ++peer)
      if (peer != i) check(cudaDeviceEnablePeerAccess(peer, 0), "open the way to a peer");
    check(kernels::prepare_probe(), "prepare kernels");
    Gpu& g = gpus_[static_cast<size_t>(i)];
    g.source_ = device_memory(kProbeBuffer);
    g.target_ = device_memory(kProbeBuffer);
    g.words_ = device_memory(kWordBytes);
    g.stream_ = make_stream();
    g.begin_ = make_event();
    g.end_ = make_event();
    check(cudaMemset(g.words_.get(), 0, kWordBytes), "clear words");
    check(cudaMemset(g.target_.get(), 0, static_cast<size_t>(kProbeBuffer)), "clear the target");
    check(cudaDeviceSynchronize(), "clear memory");
    check(kernels::launch_fill(reinterpret_cast<uint32_t*>(g.source()), kProbeBuffer / 4,
                               seed + static_cast<uint32_t>(i), g.stream()),
          "fill the source");
    finish(i);
  }
}

void ProbeRig::select(int32_t gpu) const { check(cudaSetDevice(gpu), "select a GPU"); }

void ProbeRig::finish(int32_t gpu) const {
  select(gpu);
  check(cudaDeviceSynchronize(), fmt::format("work of GPU {}", gpu));
}

double ProbeRig::timed(const std::vector<int32_t>& who, const std::function<void(int32_t)>& enqueue) {
  auto* go = static_cast<uint64_t*>(host_.get());
  std::atomic_ref<uint64_t>(*go).store(0);
  for (const int32_t i : who) {
    select(i);
    const Gpu& g = gpu(i);
    check(kernels::launch_gate(go, kGateNs, g.stream()), "launch a gate");
    check(cudaEventRecord(g.begin_.get(), g.stream()), "record");
    enqueue(i);
    check(cudaEventRecord(g.end_.get(), g.stream()), "record");
  }
  std::atomic_ref<uint64_t>(*go).store(1, std::memory_order_release);
  double slowest = 0;
  for (const int32_t i : who) {
    const Gpu& g = gpu(i);
    check(cudaEventSynchronize(g.end_.get()), fmt::format("work of GPU {}", i));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, g.begin_.get(), g.end_.get()), "time");
    slowest = std::max(slowest, static_cast<double>(ms) * 1e3);
  }
  return slowest;
}

double ProbeRig::time_flags(cudaError_t (*launch)(const kernels::FlagParams&, cudaStream_t), int32_t gpus,
                            int32_t rounds) {
  kernels::FlagParams params{.gpus = gpus, .rounds = rounds, .done = flag_rounds_, .timeout_ns = kFlagNs};
  for (int32_t i = 0; i < gpus; ++i) params.flags[i] = gpu(i).flags();
  std::vector<int32_t> who(static_cast<size_t>(gpus));
  std::iota(who.begin(), who.end(), 0);
  auto* failed = static_cast<uint64_t*>(host_.get()) + 1;
  const double us = timed(who, [&](int32_t i) {
    params.gpu = i;
    params.failed = failed + i;
    check(launch(params, gpu(i).stream()), "launch flags");
  });
  flag_rounds_ += static_cast<uint64_t>(rounds);
  for (int32_t i = 0; i < gpus; ++i)
    if (failed[i] != 0)
      throw Error(ErrorKind::environment, fmt::format("GPU {} saw no flag of GPU {} within {} ms", i,
                                                      failed[i] - 1, kFlagNs / 1'000'000));
  return us / rounds;
}

void ProbeRig::fill_chase(int64_t bytes, int32_t stride) {
  const auto stops = static_cast<size_t>(bytes / 4 / stride);
  std::vector<uint32_t> order(stops);
  std::iota(order.begin(), order.end(), 0u);
  Random random(1, RandomStream::workload);
  for (size_t i = stops - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  // The chain starts at word 0: its stop comes first in the order.
  std::swap(order[0], *std::find(order.begin(), order.end(), 0u));
  std::vector<uint32_t> words(static_cast<size_t>(bytes / 4));
  for (size_t i = 0; i < stops; ++i)
    words[size_t{order[i]} * static_cast<size_t>(stride)] =
        order[(i + 1) % stops] * static_cast<uint32_t>(stride);
  for (int32_t i = 0; i < std::min<int32_t>(2, static_cast<int32_t>(gpus_.size())); ++i) {
    select(i);
    Gpu& g = gpus_[static_cast<size_t>(i)];
    g.chase_ = device_memory(bytes);
    check(cudaMemcpy(g.chase_.get(), words.data(), words.size() * 4, cudaMemcpyHostToDevice), "upload");
  }
}

uint64_t ProbeRig::count_wrong(int32_t at, int64_t words, uint32_t seed) const {
  select(at);
  const Gpu& g = gpu(at);
  uint64_t wrong = 0;
  check(cudaMemset(g.wrong(), 0, sizeof wrong), "clear a count");
  check(cudaDeviceSynchronize(), "clear a count");
  check(kernels::launch_count_wrong(reinterpret_cast<const uint32_t*>(g.target()), words, seed, g.wrong(),
                                    g.stream()),
        "check words");
  check(cudaStreamSynchronize(g.stream()), "check words");
  check(cudaMemcpy(&wrong, g.wrong(), sizeof wrong, cudaMemcpyDeviceToHost), "read a count");
  return wrong;
}

}  // namespace plumb::hw

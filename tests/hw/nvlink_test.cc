// The NVLink world: one process per GPU. The parent touches no CUDA, so that its children may.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "hw/nvlink_world.h"
#include "hw/processes.h"
#include "model/error.h"
#include "tests/hw/rig.h"

namespace plumb::hw::test {
namespace {

using namespace std::chrono_literals;

constexpr int kSkipped = 77;

/// A whole dispatch and combine with answers equal to the received rows: every token comes back as the
/// ordered sum of its copies. Returns the exit code of the process.
int run_rank(Meeting& meeting, Rank rank, int32_t ranks) {
  check(cudaSetDevice(rank), "device of the rank");
  const auto world = make_nvlink_world(meet(meeting, rank, make_nvlink_id), rank, ranks);
  Case c = random_case(5);
  c.ranks = ranks;
  c.experts = 8 * ranks;
  c.topk = 4;
  c.hidden = 512;
  c.fp8 = false;
  c.scale_packs = 0;
  c.expand = c.zero_padding = c.wide_ids = false;
  c.alignment = 1;
  c.biases = 0;
  c.max_tokens = 200;
  c.tokens.assign(static_cast<size_t>(ranks), 150);
  c.ids.clear(), c.weights.clear(), c.x.clear(), c.scales.clear(), c.bias.clear();
  Random random(9, RandomStream::test);
  fill_routing(c, random);
  fill_payload(c, random);
  for (auto& x : c.x)
    for (size_t i = 1; i < x.size(); i += 2)
      x[i] = static_cast<uint8_t>((x[i] & 0x83) | 0x3c);  // finite bf16
  auto buffers = make_buffers(*world, std::vector(1, limits_of(c)));
  const auto r = static_cast<size_t>(rank);
  const DeviceMemory x = upload(c.x[r]);
  const DeviceMemory ids = upload(c.ids[r]);
  const DeviceMemory weights = upload(c.weights[r]);
  const DeviceMemory out = device_memory(int64_t{150} * c.hidden * 2);
  const Stream stream = make_stream();
  for (int round = 0; round < 3; ++round) {
    const DispatchInput in{.x = x.get(),
                           .topk_idx = ids.get(),
                           .topk_weights = static_cast<const float*>(weights.get()),
                           .tokens = 150};
    const Received got = buffers[0].dispatch(in, {.num_sms = 16, .host_sync = true}, stream.get());
    buffers[0].combine({.x = got.x, .out = out.get(), .handle = got.handle}, {.num_sms = 16}, stream.get());
    check(cudaStreamSynchronize(stream.get()), "finish");
    buffers[0].raise_fault();
    buffers[0].release(got.handle);
  }
  const auto combined_rows = download<uint16_t>(out.get(), int64_t{150} * c.hidden);
  const auto* sent = reinterpret_cast<const uint16_t*>(c.x[r].data());
  for (int32_t t = 0; t < 150; ++t) {
    std::vector<bool> hit(static_cast<size_t>(ranks));
    for (int32_t k = 0; k < c.topk; ++k) {
      const int32_t e = expert_of(c, rank, t, k);
      if (e >= 0) hit[static_cast<size_t>(e / c.local())] = true;
    }
    for (int32_t i = 0; i < c.hidden; ++i) {
      float sum = 0;
      for (const bool is_hit : hit)
        if (is_hit) sum += bf16_value(sent[t * c.hidden + i]);
      if (combined_rows[static_cast<size_t>(t * c.hidden + i)] != bf16_rounded(sum)) return 2;
    }
  }
  return 0;
}

TEST(GpuNvlink, TwoProcessesExchangeRows) {
  const auto outcomes = run_ranks(2, 60s, [](Rank rank, Meeting& meeting) {
    return device_count() < 2 ? kSkipped : run_rank(meeting, rank, 2);
  });
  EXPECT_EQ(failures(outcomes, kSkipped), "");
  if (outcomes[0].code == kSkipped) GTEST_SKIP() << "fewer than 2 CUDA devices";
}

}  // namespace
}  // namespace plumb::hw::test

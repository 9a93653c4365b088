// Ranks that make the same call with different options: a fault with rank, peer and both values on either
// side, within far less than the time-out, instead of wrong rows.
#include <chrono>

#include "kernels/call_options.h"
#include "model/error.h"
#include "tests/hw/rig.h"

namespace plumb::hw::test {
namespace {

constexpr int32_t kPacks = 158;

/// Two ranks with 8 tokens each; `max_tokens` decides whether blocks tell all ranks their counts.
Case two_ranks(int32_t max_tokens) {
  Case c;
  c.ranks = 2;
  c.experts = 4;
  c.topk = 2;
  c.hidden = 64;
  c.max_tokens = max_tokens;
  c.tokens = {8, 8};
  c.fp8 = true;
  c.scale_packs = kPacks;
  c.alignment = 8;
  c.expand = true;  // among the limits
  c.together = false;
  Random random(5, RandomStream::test);
  fill_routing(c, random);
  fill_payload(c, random);
  return c;
}

DispatchOptions plain_options() {
  return {.type = DType::fp8_e4m3, .scale_packs = 1, .num_sms = 4, .counted = false};
}

std::string fault_of(Buffer& buffer) {
  try {
    buffer.raise_fault();
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

std::string expected_text(const std::string& phase, int32_t rank, const std::string& what) {
  return fmt::format(
      "{}ranks {} and {} make this call with different options: {}; allowed: equal on all ranks; "
      "destroy this buffer",
      phase.empty() ? "" : fmt::format("phase '{}': ", phase), rank, 1 - rank, what);
}

class GpuOptions : public testing::Test {
 protected:
  void SetUp() override { PLUMB_NEED_DEVICE(); }

  /// Both ranks make a call, each on its stream; `call(rank, stream)`. Yields within a fifth of the time-out.
  template <class F>
  void both(F call) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t r = 0; r < 2; ++r) call(r, streams_[r].get());
    check(cudaDeviceSynchronize(), "finish");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  }
  /// Phases (empty: any) and texts as ranks 0 and 1 say them; the buffers are lost.
  void expect_faults(Rig& rig, const std::string (&phases)[2], const std::string (&texts)[2]) {
    for (int32_t r = 0; r < 2; ++r) {
      Buffer& buffer = rig.buffers[static_cast<size_t>(r)];
      std::string found = fault_of(buffer);
      if (phases[r].empty()) found.erase(0, found.find("ranks"));
      EXPECT_EQ(found, expected_text(phases[r], r, texts[r]));
      EXPECT_NE(fault_of(buffer).find("the buffer is lost"), std::string::npos);
    }
  }
  /// A dispatch in which rank 0 has plain_options() and rank 1 what `change` makes of them.
  template <class F>
  void expect_dispatch_fault(int32_t max_tokens, F change, const std::string (&phases)[2],
                             const std::string (&texts)[2]) {
    const Case c = two_ranks(max_tokens);
    Rig rig(c);
    both([&](size_t r, cudaStream_t stream) {
      DispatchOptions options = plain_options();
      if (r == 1) change(options);
      rig.buffers[r].dispatch(rig.input(r), options, stream);
    });
    expect_faults(rig, phases, texts);
  }
  /// A dispatch of both ranks that goes well.
  std::vector<Handle> first_dispatch(Rig& rig, const DispatchOptions& options) {
    std::vector<Handle> handles(2);
    both([&](size_t r, cudaStream_t stream) {
      handles[r] = rig.buffers[r].dispatch(rig.input(r), options, stream).handle;
    });
    for (Buffer& buffer : rig.buffers) EXPECT_EQ(fault_of(buffer), "no fault");
    return handles;
  }

  std::vector<Stream> streams_ = [] {
    std::vector<Stream> streams;
    if (device_count() > 0)
      for (int i = 0; i < 2; ++i) streams.push_back(make_stream());
    return streams;
  }();
};

constexpr int32_t kFew = 8;      // counts by the rank's first blocks
constexpr int32_t kMany = 1024;  // counts by every block

TEST_F(GpuOptions, RanksWithDifferentNumbersOfSmsAreNamedInBothWaysOfCounting) {
  for (const int32_t max_tokens : {kFew, kMany}) {
    SCOPED_TRACE(max_tokens);
    expect_dispatch_fault(max_tokens, [](auto& o) { o.num_sms = 7; }, {"counts", "counts"},
                          {"num_sms is 4 at rank 0, 7 at rank 1", "num_sms is 7 at rank 1, 4 at rank 0"});
  }
  // 1024 tokens are 64 a block for 16 SMs only: the ranks count in different ways.
  expect_dispatch_fault(kMany, [](auto& o) { o.num_sms = 17; }, {"counts", "counts"},
                        {"num_sms is 4 at rank 0, 17 at rank 1", "num_sms is 17 at rank 1, 4 at rank 0"});
}

TEST_F(GpuOptions, RanksWithDifferentRowsOrLayoutsAreNamed) {
  expect_dispatch_fault(kFew, [](auto& o) { o.type = DType::bf16, o.scale_packs = 0; }, {"counts", "counts"},
                        {"fp8 is true at rank 0, false at rank 1; scale_packs is 1 at rank 0, 0 at rank 1",
                         "fp8 is false at rank 1, true at rank 0; scale_packs is 0 at rank 1, 1 at rank 0"});
  expect_dispatch_fault(kMany, [](auto& o) { o.expand = true, o.alignment = 8; }, {"counts", "counts"},
                        {"expand is false at rank 0, true at rank 1; alignment is 0 at rank 0, 8 at rank 1",
                         "expand is true at rank 1, false at rank 0; alignment is 8 at rank 1, 0 at rank 0"});
  expect_dispatch_fault(kFew, [](auto& o) { o.column_scales = true; }, {"counts", "counts"},
                        {"column_scales is false at rank 0, true at rank 1",
                         "column_scales is true at rank 1, false at rank 0"});
}

/// Counts carry 8 bits of the options, in which 1 pack looks like 158 packs: found by the signals at the end,
/// or before if a rank waits long enough for counts to look at the options.
TEST_F(GpuOptions, OptionsThatLookAlikeInTheCountsAreNamedToo) {
  const std::string texts[2] = {"scale_packs is 1 at rank 0, 158 at rank 1",
                                "scale_packs is 158 at rank 1, 1 at rank 0"};
  expect_dispatch_fault(
      kFew, [](auto& o) { o.scale_packs = kPacks; }, {"", ""}, texts);
}

TEST_F(GpuOptions, CachedCallsWithOtherOptionsAreNamed) {
  const Case c = two_ranks(kFew);
  const auto cached = [&](Rig& rig, size_t r, Handle handle) {
    DispatchInput in = rig.input(r);
    in.topk_idx = nullptr, in.expert_totals = nullptr, in.cached = handle;
    return in;
  };
  {
    Rig rig(c);
    const auto handles = first_dispatch(rig, plain_options());
    both([&](size_t r, cudaStream_t stream) {
      DispatchOptions options = plain_options();
      if (r == 1) options.num_sms = 5;
      rig.buffers[r].dispatch(cached(rig, r, handles[r]), options, stream);
    });
    expect_faults(rig, {"enter", "enter"},
                  {"num_sms is 4 at rank 0, 5 at rank 1", "num_sms is 5 at rank 1, 4 at rank 0"});
  }
  Rig rig(c);
  const auto handles = first_dispatch(rig, plain_options());
  both([&](size_t r, cudaStream_t stream) {
    rig.buffers[r].dispatch(r == 0 ? cached(rig, r, handles[r]) : rig.input(r), plain_options(), stream);
  });
  expect_faults(rig, {"enter", "counts"},
                {"cached is true at rank 0, false at rank 1", "cached is false at rank 1, true at rank 0"});
}

TEST_F(GpuOptions, CombinesWithOtherOptionsAreNamed) {
  const Case c = two_ranks(kFew);
  DispatchOptions expanded = plain_options();
  expanded.expand = true;
  const auto expect_combine_fault = [&](const DispatchOptions& options, const CombineOptions& other,
                                        const std::string(&texts)[2]) {
    Rig rig(c);
    const auto handles = first_dispatch(rig, options);
    both([&](size_t r, cudaStream_t stream) {
      rig.buffers[r].combine(rig.combine_input(r, handles[r]), r == 0 ? CombineOptions{.num_sms = 4} : other,
                             stream);
    });
    expect_faults(rig, {"combine_enter", "combine_enter"}, texts);
  };
  expect_combine_fault(plain_options(), {.num_sms = 3},
                       {"num_sms is 4 at rank 0, 3 at rank 1", "num_sms is 3 at rank 1, 4 at rank 0"});
  expect_combine_fault(expanded, {.multiple_reduction = false, .num_sms = 4},
                       {"multiple_reduction is true at rank 0, false at rank 1",
                        "multiple_reduction is false at rank 1, true at rank 0"});
}

TEST(CallOptions, AWordHoldsAllOptions) {
  const kernels::CallOptions options{.num_sms = 256,
                                     .fp8 = true,
                                     .expand = false,
                                     .column_scales = true,
                                     .cached = false,
                                     .multiple_reduction = true,
                                     .scale_packs = 511,
                                     .alignment = 1023};
  EXPECT_EQ(kernels::options_in(options.word()), options);
  EXPECT_EQ(kernels::CallOptions{}.word(), 0u);  // num_sms is filled in by the kernel
}

}  // namespace
}  // namespace plumb::hw::test

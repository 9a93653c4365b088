// Life of a buffer: misuse is refused by name, faults end in errors, graphs replay, nothing leaks.
#include <chrono>
#include <numeric>

#include "hw/ledger.h"
#include "model/compare.h"
#include "model/error.h"
#include "tests/hw/rig.h"

namespace plumb::hw::test {
namespace {

/// Two ranks, four experts, one choice each: token t of rank r goes to expert (r + t) % 4.
Case small_case() {
  Case c;
  c.ranks = 2;
  c.experts = 4;
  c.topk = 2;
  c.hidden = 64;
  c.max_tokens = 8;
  c.tokens = {8, 5};
  c.alignment = 1;
  c.sms = 4;
  Random random(3, RandomStream::test);
  for (int32_t r = 0; r < 2; ++r) {
    std::vector<int32_t> ids;
    for (int32_t t = 0; t < c.tokens[static_cast<size_t>(r)]; ++t) {
      ids.push_back((r + t) % 4);
      ids.push_back((r + t + 1) % 4);
    }
    c.weights.push_back(std::vector<float>(ids.size(), 0.5f));
    c.ids.push_back(ids);
  }
  fill_payload(c, random);
  return c;
}

template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_text(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "found: " << message << "\nwanted: " << part;
}

TEST(GpuBuffer, LimitsOutOfRangeAreNamedTogether) {
  PLUMB_NEED_DEVICE();
  const auto world = make_local_world(2);
  const BufferLimits bad{.ranks = 2, .experts = 5, .topk = 33, .max_tokens = 0, .hidden = 12};
  const std::string message = message_of([&] { make_buffers(*world, std::vector(2, bad)); });
  expect_text(message, "experts is 5; allowed: a multiple of ranks (2)");
  expect_text(message, "topk is 33; allowed: 1..32");
  expect_text(message, "max_tokens is 0; allowed: >= 1");
  expect_text(message, "hidden is 12; allowed: row bytes must be a multiple of 16");
}

TEST(GpuBuffer, RanksMustAgreeOnTheirLimits) {
  PLUMB_NEED_DEVICE();
  const auto world = make_local_world(2);
  std::vector<BufferLimits> limits(2, limits_of(small_case()));
  limits[1].max_tokens = 9;
  expect_text(message_of([&] { make_buffers(*world, limits); }),
              "limits of rank 1 differ from rank 0: max_tokens is 9; allowed: 8");
}

TEST(GpuBuffer, MisuseIsRefusedBeforeTheFirstByte) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  Rig rig(c);
  const auto refused = [&](auto change_input, auto change_options) {
    std::vector<DispatchInput> inputs{rig.input(0), rig.input(1)};
    DispatchOptions options = rig.options();
    change_input(inputs[1]);
    change_options(options);
    return message_of([&] { dispatch_together(rig.buffers, inputs, options, rig.stream()); });
  };
  const auto same_input = [](DispatchInput&) {};
  const auto same_options = [](DispatchOptions&) {};
  expect_text(refused([](auto& in) { in.tokens = 9; }, same_options),
              "rank 1 dispatch: tokens is 9; allowed: 0..8 (max_tokens)");
  expect_text(refused([](auto& in) { in.x = nullptr; }, same_options), "rank 1 dispatch: x is null");
  expect_text(refused([](auto& in) { in.topk_idx = nullptr; }, same_options),
              "rank 1 dispatch: topk_idx is null");
  expect_text(refused(same_input, [](auto& o) { o.zero_padding = true; }), "zero_padding needs expand");
  expect_text(refused(same_input, [](auto& o) { o.expand = true; }), "expand is not among the limits");
  expect_text(refused(same_input, [](auto& o) { o.alignment = 3; }), "alignment is 3; allowed: 1..1");
  expect_text(refused(same_input, [](auto& o) { o.num_sms = 1000; }), "num_sms is 1000");
  expect_text(refused(same_input, [](auto& o) { o.id_bytes = 3; }), "id_bytes must be 4 or 8");
  // Nothing of this took a handle for good or disturbed the buffer.
  for (int i = 0; i < 10; ++i) {
    const auto received = rig.dispatch();
    rig.finish();
    EXPECT_EQ(received[0].handle.index, 0);
    for (size_t r = 0; r < 2; ++r) rig.buffers[r].release(received[r].handle);
  }
}

TEST(FieldCases, B41_OldAndForeignHandlesAreRefused) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  Rig rig(c);
  Rig other(c);
  const auto received = rig.dispatch();
  rig.finish();
  expect_text(message_of([&] {
                other.buffers[0].combine(rig.combine_input(0, received[0].handle), {}, other.stream());
              }),
              "the handle is of another buffer");
  rig.buffers[0].release(received[0].handle);
  expect_text(
      message_of([&] { rig.buffers[0].combine(rig.combine_input(0, received[0].handle), {}, rig.stream()); }),
      "the handle was released (generation 1; its memory is at generation 2)");
  expect_text(message_of([&] { rig.buffers[0].release(received[0].handle); }), "the handle was released");
}

TEST(FieldCases, B41_EachCallSeesOnlyItsOwnTokens) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  Rig rig(c);
  // Smaller and empty batches after larger ones, on one buffer.
  for (const int32_t tokens : {4, 1, 0, 4, 0, 2}) {
    std::vector<DispatchInput> inputs{rig.input(0), rig.input(1)};
    for (auto& in : inputs) in.tokens = tokens;
    DispatchOptions options = rig.options();
    options.host_sync = true;
    const auto received = dispatch_together(rig.buffers, inputs, options, rig.stream());
    // Token t of rank r chooses experts (r + t) % 4 and (r + t + 1) % 4; rank 0 owns experts 0 and 1.
    int64_t expected = 0;
    for (int32_t r = 0; r < 2; ++r)
      for (int32_t t = 0; t < tokens; ++t) expected += (r + t) % 4 < 2 || (r + t + 1) % 4 < 2 ? 1 : 0;
    EXPECT_EQ(received[0].copies, expected) << tokens;
    rig.finish();
    for (size_t r = 0; r < 2; ++r) rig.buffers[r].release(received[r].handle);
  }
}

TEST(GpuBuffer, HandlesRunOutWithAnError) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  Rig rig(c);
  for (int i = 0; i < 4; ++i) rig.dispatch();
  rig.finish();
  expect_text(message_of([&] { rig.dispatch(); }), "all 4 handles are in use");
}

TEST(GpuBuffer, RanksWithDifferentHandlesAreNamed) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  Rig rig(c);
  const auto first = rig.dispatch();
  const auto second = rig.dispatch();
  rig.finish();
  rig.combine({rig.combine_input(0, first[0].handle), rig.combine_input(1, second[1].handle)},
              {.num_sms = 4});
  check(cudaDeviceSynchronize(), "finish");
  expect_text(message_of([&] { rig.buffers[0].raise_fault(); }),
              "phase 'combine_enter': rank 0 uses the handle of dispatch 1, rank 1 that of dispatch 2");
}

TEST(GpuBuffer, UseAfterDestroyIsAnError) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  Rig rig(c);
  rig.buffers[0].destroy();
  expect_text(message_of([&] { rig.buffers[0].destroy(); }), "the buffer was destroyed before");
  expect_text(message_of([&] { rig.buffers[0].barrier(rig.stream()); }), "the buffer was destroyed");
}

TEST(FieldCases, B44_AMissingPeerIsNamedWithinTheTimeOutAndTheProcessGoesOn) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  {
    const auto world = make_local_world(2);
    BufferLimits limits = limits_of(c);
    limits.timeout_ns = 200'000'000;
    auto buffers = make_buffers(*world, std::vector(2, limits));
    Rig data(c);  // only for its inputs
    const Stream stream = make_stream();
    const auto begin = std::chrono::steady_clock::now();
    buffers[0].dispatch(data.input(0), {.num_sms = 4}, stream.get());  // rank 1 never comes
    check(cudaStreamSynchronize(stream.get()), "finish");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    expect_text(message_of([&] { buffers[0].raise_fault(); }),
                "rank 0 gave up waiting for rank 1 in phase 'counts': expected call 1, seen 0");
    expect_text(message_of([&] { buffers[0].barrier(stream.get()); }), "the buffer is lost");
  }
  Rig rig(c);  // a new buffer works
  rig.dispatch();
  rig.finish();
}

TEST(GpuBuffer, AMissingPeerLosesTheBufferAlsoBehindAnotherFault) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  c.ids[0][6] = 4;  // found first, so that it takes the record
  const auto world = make_local_world(2);
  BufferLimits limits = limits_of(c);
  limits.timeout_ns = 200'000'000;
  auto buffers = make_buffers(*world, std::vector(2, limits));
  Rig data(c);
  const Stream stream = make_stream();
  buffers[0].dispatch(data.input(0), {.num_sms = 4}, stream.get());
  check(cudaStreamSynchronize(stream.get()), "finish");
  expect_text(message_of([&] { buffers[0].raise_fault(); }), "rank 0 token 3: expert 4; allowed: -1..3");
  expect_text(message_of([&] { buffers[0].barrier(stream.get()); }), "the buffer is lost");
}

TEST(FieldCases, B44_ALateRankIsNotDeclaredDead) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  c.together = false;
  const auto world = make_local_world(2);
  BufferLimits limits = limits_of(c);
  limits.timeout_ns = 2'000'000'000;
  auto buffers = make_buffers(*world, std::vector(2, limits));
  Rig data(c);
  const Stream one = make_stream();
  const Stream two = make_stream();
  buffers[0].dispatch(data.input(0), {.num_sms = 4}, one.get());
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500)) {
  }
  buffers[1].dispatch(data.input(1), {.num_sms = 4}, two.get());
  check(cudaDeviceSynchronize(), "finish");
  EXPECT_EQ(message_of([&] { buffers[0].raise_fault(); }), "no error");
}

/// Rank 2 of 4 enters each call some 20 ms after the others: the matrix of waits names it, and nobody else.
TEST(GpuBuffer, WaitsNameTheSlowRank) {
  PLUMB_NEED_DEVICE();
  for (const bool expand : {false, true}) {
    Case c;
    c.ranks = 4;
    c.experts = 8;
    c.topk = 2;
    c.hidden = 64;
    c.max_tokens = 8;
    c.tokens = {8, 8, 8, 8};
    c.expand = expand;
    c.sms = 4;
    c.together = false;
    Random random(3, RandomStream::test);
    fill_routing(c, random);
    fill_payload(c, random);
    Rig rig(c);
    std::vector<Stream> streams;
    for (int32_t r = 0; r < 4; ++r) streams.push_back(make_stream());
    const auto late = [&](auto call) {
      for (const size_t r : {0, 1, 3}) call(r);
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(20)) {
      }
      call(2);
      rig.finish();
    };
    std::vector<Received> received(4);
    late([&](size_t r) {
      received[r] = rig.buffers[r].dispatch(rig.input(r), rig.options(), streams[r].get());
    });
    late([&](size_t r) {
      rig.buffers[r].combine(rig.combine_input(r, received[r].handle), {.num_sms = 4, .counted = true},
                             streams[r].get());
    });
    const std::vector<Wait> waits = measured_waits(rig.buffers);
    ASSERT_EQ(waits.size(), 12u);
    for (const Wait& wait : waits) {
      if (wait.source == 2)
        EXPECT_GT(wait.ns, 20'000'000);  // of 40 ms in two calls
      else
        EXPECT_LT(wait.ns, 10'000'000);
    }
    Trace trace;
    trace.header.executor = "cuda";
    trace.waits = waits;
    const auto matrix = wait_matrix(std::span(&trace, 1), "cuda");
    const auto findings = diagnose(*matrix);
    // The others differ by the latency of launches only, which may itself be an outlier.
    const auto worst =
        std::ranges::max_element(findings, {}, [](const WaitFinding& f) { return f.wait.value; });
    ASSERT_NE(worst, findings.end());
    EXPECT_EQ(worst->cause, WaitCause::slow_sender) << to_text(*matrix, findings);
    EXPECT_EQ(worst->source, 2);
    for (Buffer& buffer : rig.buffers) buffer.clear_counters();
    for (const Wait& wait : measured_waits(rig.buffers)) EXPECT_EQ(wait.ns, 0);
  }
}

TEST(GpuBuffer, TooManyRowsAreRefusedByAllRanksAndTheBufferGoesOn) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  const auto world = make_local_world(2);
  BufferLimits limits = limits_of(c);
  limits.max_copies = 9;  // rank 0 would receive 6 + 4 = 10 copies
  auto buffers = make_buffers(*world, std::vector(2, limits));
  Rig data(c);
  const Stream stream = make_stream();
  std::vector<DispatchInput> inputs{data.input(0), data.input(1)};
  dispatch_together(buffers, inputs, {.num_sms = 4}, stream.get());
  check(cudaStreamSynchronize(stream.get()), "finish");
  for (Buffer& buffer : buffers)
    expect_text(message_of([&] { buffer.raise_fault(); }),
                "would receive 10 rows; allowed: 9; nothing was sent");
  for (auto& in : inputs) in.tokens = 2;
  const auto received = dispatch_together(buffers, inputs, {.num_sms = 4, .host_sync = true}, stream.get());
  EXPECT_GT(received[0].copies, 0);
  for (Buffer& buffer : buffers) EXPECT_EQ(message_of([&] { buffer.raise_fault(); }), "no error");
}

TEST(GpuBuffer, BadExpertIdsAreNamedWithRankAndToken) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  c.ids[1][6] = 4;  // token 3
  Rig rig(c);
  rig.dispatch();
  check(cudaDeviceSynchronize(), "finish");
  expect_text(message_of([&] { rig.buffers[1].raise_fault(); }), "rank 1 token 3: expert 4; allowed: -1..3");
  c.ids[1][6] = c.ids[1][7];
  Rig twice(c);
  twice.dispatch();
  check(cudaDeviceSynchronize(), "finish");
  expect_text(message_of([&] { twice.buffers[1].raise_fault(); }), "rank 1 token 3: expert 1 chosen twice");
}

TEST(GpuBuffer, HostSyncCannotBeCaptured) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  c.host_sync = true;
  Rig rig(c);
  expect_text(message_of([&] { capture(rig.stream(), [&] { rig.dispatch(); }); }),
              "host_sync cannot be captured");
}

TEST(FieldCases, B47_AThousandReplaysOfOneGraphKeepEveryByte) {
  PLUMB_NEED_DEVICE();
  Case c = random_case(12);
  c.together = true;
  c.host_sync = false;
  Rig rig(c);
  std::vector<Received> received;
  const Graph graph = capture(rig.stream(), [&] {
    received = rig.dispatch();
    std::vector<CombineInput> inputs;
    for (size_t r = 0; r < received.size(); ++r) inputs.push_back(rig.combine_input(r, received[r].handle));
    combine_together(rig.buffers, inputs, {.multiple_reduction = c.multiple_reduction, .num_sms = c.sms},
                     rig.stream());
  });
  std::vector<std::vector<uint8_t>> first;
  for (int replay = 0; replay < 1000; ++replay) {
    check(cudaGraphLaunch(graph.get(), rig.stream()), "replay");
    if (replay != 0 && replay != 999) continue;
    rig.finish();
    for (size_t r = 0; r < received.size(); ++r) {
      const auto rows = static_cast<int64_t>(tensor_of(c, static_cast<int32_t>(r)).size());
      auto bytes = download<uint8_t>(received[r].x, c.zero_padding || !c.expand ? rows * c.row_bytes() : 0);
      if (replay == 0)
        first.push_back(std::move(bytes));
      else
        EXPECT_EQ(bytes, first[r]) << "rank " << r;
    }
  }
}

/// A micro-batch with a buffer of its own. Calls go on one stream, all else on another; only events order
/// them.
class MicroBatch {
 public:
  MicroBatch(const Case& c, int32_t number) : c_(c), number_(number), rig_(c) {
    for (size_t r = 0; r < rig_.buffers.size(); ++r) {
      x_.push_back(device_memory(bytes(r)));
      host_.push_back(pinned_memory(kRounds * bytes(r)));
      out_.push_back(pinned_memory(kRounds * bytes(r)));
      for (int64_t i = 0; i < kRounds * bytes(r) / 2; ++i) rows(host_, r)[i] = value(i);
    }
  }
  static constexpr int32_t kRounds = 6;

  void dispatch(int32_t round, cudaStream_t compute, cudaStream_t communication) {
    std::vector<DispatchInput> inputs;
    for (size_t r = 0; r < x_.size(); ++r) {
      copy(x_[r].get(), rows(host_, r) + round * bytes(r) / 2, bytes(r), compute);
      inputs.push_back(rig_.input(r));
      inputs.back().x = x_[r].get();
    }
    follow(compute, communication);
    received_ = dispatch_together(rig_.buffers, inputs, {.num_sms = c_.sms}, communication);
  }
  void answer_and_combine(cudaStream_t compute, cudaStream_t communication) {
    follow(communication, compute);
    std::vector<CombineInput> inputs;
    for (size_t r = 0; r < x_.size(); ++r) {
      copy(rig_.buffers[r].expert_out(), received_[r].x, received_[r].rows_capacity * c_.row_bytes(),
           compute);
      inputs.push_back({.out = rig_.out[r].get(), .handle = received_[r].handle});
    }
    follow(compute, communication);
    combine_together(rig_.buffers, inputs, {.num_sms = c_.sms}, communication);
    for (size_t r = 0; r < x_.size(); ++r) rig_.buffers[r].release(received_[r].handle);
  }
  void keep(int32_t round, cudaStream_t compute, cudaStream_t communication) {
    follow(communication, compute);
    for (size_t r = 0; r < x_.size(); ++r)
      copy(rows(out_, r) + round * bytes(r) / 2, rig_.out[r].get(), bytes(r), compute);
  }
  /// Experts answer with the row itself, so a sum is the row times its number of ranks, at most 2: exact.
  void expect_results() {
    rig_.finish();
    for (size_t r = 0; r < x_.size(); ++r)
      for (int64_t i = 0; i < kRounds * bytes(r) / 2; ++i) {
        const auto token = static_cast<size_t>(i % (bytes(r) / 2) / c_.hidden);
        const bool is_both = c_.ids[r][2 * token] / c_.local() != c_.ids[r][2 * token + 1] / c_.local();
        const float wanted = bf16_value(value(i)) * (is_both ? 2.0f : 1.0f);
        ASSERT_EQ(bf16_value(rows(out_, r)[i]), wanted)
            << "batch " << number_ << " rank " << r << " at " << i;
      }
  }

 private:
  int64_t bytes(size_t r) const { return int64_t{c_.tokens[r]} * c_.row_bytes(); }
  uint16_t value(int64_t i) const { return bf16_rounded(static_cast<float>((i * 7 + number_) % 251)); }
  static uint16_t* rows(const std::vector<PinnedMemory>& memory, size_t r) {
    return static_cast<uint16_t*>(memory[r].get());
  }
  static void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "copy");
  }
  /// What is enqueued on `second` from now on waits for what is on `first`.
  static void follow(cudaStream_t first, cudaStream_t second) {
    const Event event = make_event();
    check(cudaEventRecord(event.get(), first), "record");
    check(cudaStreamWaitEvent(second, event.get(), 0), "wait for the event");
  }

  const Case& c_;
  int32_t number_;
  Rig rig_;
  std::vector<DeviceMemory> x_;
  std::vector<PinnedMemory> host_, out_;
  std::vector<Received> received_;
};

TEST(GpuBuffer, CallsOnAStreamOfTheirOwnAreOrderedByEvents) {
  PLUMB_NEED_DEVICE();
  Case c = small_case();
  c.hidden = 4096;
  const Stream compute = make_stream();
  const Stream communication = make_stream();
  MicroBatch batches[2] = {{c, 0}, {c, 1}};
  const DeviceMemory busy = device_memory(64 << 20);
  for (int32_t round = 0; round < MicroBatch::kRounds; ++round) {
    for (MicroBatch& batch : batches) batch.dispatch(round, compute.get(), communication.get());
    check(cudaMemsetAsync(busy.get(), round, 64 << 20, compute.get()), "compute meanwhile");
    for (MicroBatch& batch : batches) batch.answer_and_combine(compute.get(), communication.get());
    for (MicroBatch& batch : batches) batch.keep(round, compute.get(), communication.get());
  }
  for (MicroBatch& batch : batches) batch.expect_results();
}

TEST(FieldCases, B46_AThousandBuffersLeaveNoMemoryBehind) {
  PLUMB_NEED_DEVICE();
  const Case c = small_case();
  const auto free_bytes = [] {
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    return static_cast<int64_t>(free);
  };
  {
    Rig warm(c);
    warm.dispatch();
    warm.finish();
  }
  const int64_t before = free_bytes();
  for (int i = 0; i < 1000; ++i) {
    const auto world = make_local_world(2);
    auto buffers = make_buffers(*world, std::vector(2, limits_of(c)));
    barrier_together(buffers, nullptr);
    check(cudaDeviceSynchronize(), "finish");
    for (Buffer& buffer : buffers) buffer.destroy();
  }
  EXPECT_NEAR(static_cast<double>(free_bytes()), static_cast<double>(before), 4.0 * (1 << 20));
}

}  // namespace
}  // namespace plumb::hw::test

// The calls of a buffer: check, prepare, launch.
#include "hw/buffer.h"

#include <algorithm>

#include "hw/buffer_state.h"
#include "kernels/launch.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

void refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "state of the stream");
  if (status != cudaStreamCaptureStatusNone)
    fail_usage(
        "dispatch: host_sync cannot be captured into a graph; leave it off and use the counts on the device");
}

/// Parts of a row, so that every warp of the launch has two when tokens are few; at least two where rows are
/// pushed.
int32_t parts_of(const kernels::CombineParams& p, int32_t sms) {
  constexpr int32_t kWarps = 16;       // of a block of combine
  constexpr int32_t kMinBytes = 1792;  // half of a chunk of its rings
  const int64_t fewest = kernels::may_push(p, sms) ? 2 : 1;
  const int64_t wanted = p.tokens == 0 ? 1 : ceil_div(int64_t{2} * sms * kWarps, p.tokens);
  const int64_t most = ceil_div(p.row_bytes, kMinBytes);  // may be one
  return static_cast<int32_t>(std::min(std::max(wanted, fewest), most));
}

void require_batch(size_t buffers, size_t inputs) {
  if (buffers != inputs || buffers < 1 || buffers > kernels::kMaxBatch)
    fail_usage("one launch for {} buffers with {} inputs; allowed: as many inputs as buffers, 1..{}", buffers,
               inputs, kernels::kMaxBatch);
}

}  // namespace

Buffer::Buffer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;
Buffer::~Buffer() = default;

Buffer::State& Buffer::live() const {
  if (!state_) fail_usage("the buffer was destroyed; allowed: no further call");
  if (state_->is_lost)
    throw Error(ErrorKind::environment,
                fmt::format("rank {}: the buffer is lost after an earlier fault; destroy it", state_->rank));
  return *state_;
}

std::vector<Buffer> make_buffers(World& world, std::span<const BufferLimits> own) {
  const std::vector<Rank> ranks = world.own_ranks();
  if (own.size() != ranks.size())
    fail_usage("limits for {} ranks; allowed: {}, one per own rank", own.size(), ranks.size());
  const std::vector<BufferLimits> all = world.gather(own);
  check_agreement(all);
  validate(all.front());
  if (all.front().ranks != world.ranks())
    fail_usage("limits say {} ranks; allowed: {}, those of the world", all.front().ranks, world.ranks());
  const kernels::WindowMap map = window_map(all.front(), std::ssize(ranks) < world.ranks());
  const std::shared_ptr<Windows> windows = world.make_windows(map.bytes, sync_bytes(map));
  const uint64_t group = world.next_group();
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < ranks.size(); ++i)
    buffers.push_back(Buffer(std::make_unique<Buffer::State>(own[i], ranks[i], group,
                                                             static_cast<int32_t>(ranks.size()), windows)));
  return buffers;
}

std::vector<Received> dispatch_together(std::span<Buffer> buffers, std::span<const DispatchInput> inputs,
                                        const DispatchOptions& options, cudaStream_t stream) {
  require_batch(buffers.size(), inputs.size());
  if (options.host_sync) refuse_capture(stream);
  std::vector<Received> received(buffers.size());
  std::vector<kernels::DispatchParams> params;
  for (Buffer& buffer : buffers) buffer.live().raise_fault();
  const int32_t sms = buffers[0].live().sms_of(options.num_sms, static_cast<int32_t>(buffers.size()));
  try {
    for (size_t i = 0; i < buffers.size(); ++i)
      params.push_back(buffers[i].live().dispatch_params(inputs[i], options, received[i]));
    check(kernels::launch_dispatch(params, {.sms = sms, .counted = options.counted, .stream = stream}),
          "launch dispatch");
  } catch (...) {
    for (size_t i = 0; i < buffers.size(); ++i)
      if (inputs[i].cached.generation == 0 && received[i].handle.generation != 0)
        buffers[i].release(received[i].handle);
    throw;
  }
  if (options.host_sync)
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].live().read_counts(received[i]);
  return received;
}

void combine_together(std::span<Buffer> buffers, std::span<const CombineInput> inputs,
                      const CombineOptions& options, cudaStream_t stream) {
  require_batch(buffers.size(), inputs.size());
  std::vector<kernels::CombineParams> params;
  for (Buffer& buffer : buffers) buffer.live().raise_fault();
  const int32_t sms = buffers[0].live().sms_of(options.num_sms, static_cast<int32_t>(buffers.size()));
  for (size_t i = 0; i < buffers.size(); ++i) {
    params.push_back(buffers[i].live().combine_params(inputs[i], options));
    params.back().parts = parts_of(params.back(), sms);
  }
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].live().stage_combine(inputs[i], sms, stream);
  check(kernels::launch_combine(params, {.sms = sms, .counted = options.counted, .stream = stream}),
        "launch combine");
}

void barrier_together(std::span<Buffer> buffers, cudaStream_t stream) {
  require_batch(buffers.size(), buffers.size());
  std::vector<kernels::BarrierParams> params;
  for (Buffer& buffer : buffers) {
    buffer.live().raise_fault();
    params.push_back({buffer.live().context});
  }
  check(kernels::launch_barrier(params, {.stream = stream}), "launch barrier");
}

Received Buffer::dispatch(const DispatchInput& input, const DispatchOptions& options, cudaStream_t stream) {
  return std::move(dispatch_together(std::span(this, 1), std::span(&input, 1), options, stream).front());
}

void Buffer::combine(const CombineInput& input, const CombineOptions& options, cudaStream_t stream) {
  combine_together(std::span(this, 1), std::span(&input, 1), options, stream);
}

void Buffer::barrier(cudaStream_t stream) { barrier_together(std::span(this, 1), stream); }

void Buffer::release(Handle handle) {
  HandleSlot& slot = live().slot_of(handle);
  slot.is_used = false;
  ++slot.generation;
}

void Buffer::destroy() {
  if (!state_) fail_usage("the buffer was destroyed before; allowed: once");
  state_.reset();
}

void* Buffer::expert_out() const { return live().windows->base(state_->rank) + state_->map.expert_out; }
float* Buffer::expert_weights() const {
  return reinterpret_cast<float*>(live().windows->base(state_->rank) + state_->map.expert_weights);
}
Rank Buffer::rank() const { return live().rank; }
const BufferLimits& Buffer::limits() const { return live().limits; }
void Buffer::raise_fault() { live().raise_fault(); }

kernels::Counters Buffer::counters() const {
  kernels::Counters result;
  check(cudaDeviceSynchronize(), "finish before reading counters");
  check(cudaMemcpy(&result, live().counters.get(), sizeof result, cudaMemcpyDeviceToHost), "read counters");
  return result;
}

std::vector<int64_t> Buffer::waits() const {
  const kernels::Counters counted = counters();
  std::vector<int64_t> result(static_cast<size_t>(limits().ranks));
  for (const auto& step : counted.waited_ns)
    for (size_t peer = 0; peer < result.size(); ++peer) result[peer] += static_cast<int64_t>(step[peer]);
  return result;
}

void Buffer::clear_counters() {
  check(cudaMemset(live().counters.get(), 0, sizeof(kernels::Counters)), "clear counters");
  check(cudaDeviceSynchronize(), "clear counters");
}

}  // namespace plumb::hw

// A case on the device: uploads it, runs calls, brings results back. Skips when there is no device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "hw/buffer.h"
#include "hw/owners.h"
#include "tests/hw/case.h"

namespace plumb::hw::test {

#define PLUMB_NEED_DEVICE()                                                         \
  do {                                                                              \
    std::string_view reason_;                                                       \
    if (device_count(&reason_) == 0) GTEST_SKIP() << "no CUDA device: " << reason_; \
  } while (false)

template <class T>
DeviceMemory upload(const std::vector<T>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  DeviceMemory memory = device_memory(bytes);
  if (!host.empty())
    check(cudaMemcpy(memory.get(), host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
          "upload");
  return memory;
}
template <class T>
std::vector<T> download(const void* device, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  if (count > 0)
    check(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return host;
}

inline BufferLimits limits_of(const Case& c) {
  return {.ranks = c.ranks,
          .experts = c.experts,
          .topk = c.topk,
          .max_tokens = c.max_tokens,
          .hidden = c.hidden,
          .scale_packs = c.scale_packs,
          .alignment = c.alignment,
          .expand = c.expand};
}

class Rig {
 public:
  /// All ranks on the current GPU.
  explicit Rig(const Case& c) : Rig(c, make_local_world(c.ranks)) {}
  /// The ranks that this process drives in a world; vectors here hold one element for each of them, in order.
  Rig(const Case& c, std::shared_ptr<World> world)
      : c_(c), world_(std::move(world)), own_(world_->own_ranks()) {
    buffers = make_buffers(*world_, std::vector<BufferLimits>(own_.size(), limits_of(c)));
    for (const Rank rank : own_) {
      const auto r = static_cast<size_t>(rank);
      x_.push_back(upload(c.x[r]));
      scales_.push_back(upload(c.scales[r]));
      std::vector<int64_t> wide(c.ids[r].begin(), c.ids[r].end());
      ids_.push_back(c.wide_ids ? upload(wide) : upload(c.ids[r]));
      weights_.push_back(upload(c.weights[r]));
      bias_.push_back(upload(c.bias[r]));
      totals.push_back(upload(std::vector<int32_t>(static_cast<size_t>(c.local()), 7)));
      const int64_t tokens = c.tokens[r];
      out.push_back(device_memory(tokens * c.hidden * 2));
      out_weights.push_back(device_memory(tokens * c.topk * 4));
      streams_.push_back(make_stream());
    }
  }

  DispatchOptions options() const {
    return {.type = c_.fp8 ? DType::fp8_e4m3 : DType::bf16,
            .scale_packs = c_.scale_packs,
            .id_bytes = c_.wide_ids ? 8 : 4,
            .expand = c_.expand,
            .zero_padding = c_.zero_padding,
            .column_scales = c_.column_scales,
            .alignment = c_.alignment,
            .num_sms = c_.sms,
            .host_sync = c_.host_sync,
            .counted = true};
  }
  const std::vector<Rank>& own() const { return own_; }
  DispatchInput input(size_t r) const {
    return {.x = x_[r].get(),
            .scales = static_cast<const uint32_t*>(scales_[r].get()),
            .topk_idx = ids_[r].get(),
            .topk_weights = c_.has_weights ? static_cast<const float*>(weights_[r].get()) : nullptr,
            .tokens = tokens(r),
            .expert_totals = static_cast<int32_t*>(totals[r].get())};
  }
  CombineInput combine_input(size_t r, Handle handle) const {
    const auto* bias = static_cast<const uint16_t*>(bias_[r].get());
    CombineInput in{
        .out = out[r].get(), .out_weights = static_cast<float*>(out_weights[r].get()), .handle = handle};
    for (int32_t b = 0; b < c_.biases; ++b) in.bias[b] = bias + int64_t{b} * tokens(r) * c_.hidden;
    return in;
  }

  /// A call of all ranks: in one launch, or each rank on its own stream.
  std::vector<Received> dispatch(const std::vector<DispatchInput>& inputs, const DispatchOptions& options) {
    if (c_.together) return dispatch_together(buffers, inputs, options, streams_[0].get());
    std::vector<Received> received;
    for (size_t r = 0; r < buffers.size(); ++r)
      received.push_back(buffers[r].dispatch(inputs[r], options, streams_[r].get()));
    return received;
  }
  std::vector<Received> dispatch() {
    std::vector<DispatchInput> inputs;
    for (size_t r = 0; r < buffers.size(); ++r) inputs.push_back(input(r));
    return dispatch(inputs, options());
  }
  void combine(const std::vector<CombineInput>& inputs, const CombineOptions& options) {
    if (c_.together) return combine_together(buffers, inputs, options, streams_[0].get());
    for (size_t r = 0; r < buffers.size(); ++r) buffers[r].combine(inputs[r], options, streams_[r].get());
  }
  void finish() {
    check(cudaDeviceSynchronize(), "finish");
    for (Buffer& buffer : buffers) buffer.raise_fault();
  }
  cudaStream_t stream() const { return streams_[0].get(); }

  std::vector<Buffer> buffers;
  std::vector<DeviceMemory> out, out_weights, totals;

 private:
  int32_t tokens(size_t r) const { return c_.tokens[static_cast<size_t>(own_[r])]; }

  const Case& c_;
  std::shared_ptr<World> world_;
  std::vector<Rank> own_;
  std::vector<DeviceMemory> x_, scales_, ids_, weights_, bias_;
  std::vector<Stream> streams_;
};

}  // namespace plumb::hw::test

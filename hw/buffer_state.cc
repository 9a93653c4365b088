// Memory of a buffer and the checks of its calls.
#include "hw/buffer_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "hw/fault_text.h"
#include "kernels/call_options.h"
#include "kernels/launch.h"
#include "kernels/shared_map.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

constexpr int64_t kStaticShared =
    4096;  // of the kernels' own variables and the system, of a block's shared memory

int32_t attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&value, which, device), "device attribute");
  return value;
}

/// Cuts one allocation into aligned arrays; with a null base it only measures.
struct Carver {
  char* base = nullptr;
  int64_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* result = reinterpret_cast<T*>(base + used);
    used = round_up(used + count * static_cast<int64_t>(sizeof(T)), 256);
    return base == nullptr ? nullptr : result;
  }
};

kernels::HandleMemory carve(const BufferLimits& l, Carver& from) {
  const int64_t selections = int64_t{l.max_tokens} * l.topk;
  kernels::HandleMemory out;
  out.ids = from.take<int32_t>(selections);
  out.slots = from.take<int32_t>(selections);
  out.slot_begin = from.take<int32_t>(l.ranks);
  out.sent = from.take<int32_t>(l.ranks);
  if (l.expand) {
    out.rows = from.take<int32_t>(selections);
    out.row_begin = from.take<int32_t>(l.experts);
    out.links = from.take<int32_t>(copies_capacity(l) * l.topk);
  }
  out.counts = from.take<int64_t>(count_words(l));
  return out;
}

void require(bool holds, Rank rank, std::string_view call, std::string_view rule) {
  if (!holds) fail_usage("rank {} {}: {}", rank, call, rule);
}

bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

int64_t count_words(const BufferLimits& l) {
  return kernels::kFirstCount + l.ranks + 3 * int64_t{l.experts / l.ranks};
}

Buffer::State::State(const BufferLimits& limits_in, Rank rank_in, uint64_t group_in, int32_t own_ranks_in,
                     std::shared_ptr<Windows> windows_in)
    : limits(limits_in),
      rank(rank_in),
      group(group_in),
      own_ranks(own_ranks_in),
      device_sms(attribute(cudaDevAttrMultiProcessorCount)),
      shared_bytes(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared),
      map(window_map(limits, has_far_peers())),
      windows(std::move(windows_in)),
      rank_state(device_memory(sizeof(kernels::RankState))),
      counters(device_memory(sizeof(kernels::Counters))),
      block_counts(device_memory(int64_t{device_sms} * (limits.ranks + limits.experts) * 8)),
      totals(device_memory((int64_t{limits.ranks} + limits.experts + 1) * 4)),
      numbers(device_memory(int64_t{limits.max_tokens} * limits.topk * 4)),
      fault(pinned_memory(sizeof(kernels::Fault))),
      host_counts(pinned_memory(count_words(limits) * 8)),
      handles(static_cast<size_t>(limits.num_handles)) {
  check(kernels::load_kernels(), "load the kernels");
  Carver measure;
  for (int32_t i = 0; i < limits.num_handles; ++i) carve(limits, measure);
  handle_memory = device_memory(measure.used);
  Carver from{static_cast<char*>(handle_memory.get()), 0};
  for (HandleSlot& slot : handles) slot = {.memory = carve(limits, from), .generation = 1};
  check(cudaMemset(handle_memory.get(), 0, static_cast<size_t>(measure.used)), "clear handles");
  check(cudaMemset(rank_state.get(), 0, sizeof(kernels::RankState)), "clear the state of a rank");
  check(cudaMemset(block_counts.get(), 0,
                   static_cast<size_t>(device_sms) * static_cast<size_t>(limits.ranks + limits.experts) * 8),
        "clear block counts");
  check(cudaMemset(totals.get(), 0, static_cast<size_t>(limits.ranks + limits.experts + 1) * 4),
        "clear totals");
  check(cudaMemset(counters.get(), 0, sizeof(kernels::Counters)), "clear counters");
  check(cudaDeviceSynchronize(), "create a buffer");
  context = {.rank = rank,
             .ranks = limits.ranks,
             .experts = limits.experts,
             .local_experts = limits.experts / limits.ranks,
             .topk = limits.topk,
             .max_tokens = limits.max_tokens,
             .peers = windows->peers(rank),
             .map = map,
             .copies_capacity = copies_capacity(limits),
             .rows_capacity = rows_capacity(limits),
             .state = static_cast<kernels::RankState*>(rank_state.get()),
             .block_counts = static_cast<uint64_t*>(block_counts.get()),
             .numbers = static_cast<int32_t*>(numbers.get()),
             .totals = static_cast<uint32_t*>(totals.get()),
             .fault = static_cast<kernels::Fault*>(fault.get()),
             .counters = static_cast<kernels::Counters*>(counters.get()),
             .timeout_ns = limits.timeout_ns};
}

HandleSlot& Buffer::State::slot_of(Handle handle) {
  if (handle.buffer != group)
    fail_usage("rank {}: the handle is of another buffer ({:#x}; this one is {:#x})", rank, handle.buffer,
               group);
  PLUMB_CHECK(handle.index >= 0 && handle.index < limits.num_handles, "handle index {}", handle.index);
  HandleSlot& slot = handles[static_cast<size_t>(handle.index)];
  if (!slot.is_used || slot.generation != handle.generation)
    fail_usage("rank {}: the handle was released (generation {}; its memory is at generation {})", rank,
               handle.generation, slot.generation);
  return slot;
}

Handle Buffer::State::take_handle(const DispatchInput& in, const DispatchOptions& options) {
  const auto free = std::ranges::find_if(handles, [](const HandleSlot& s) { return !s.is_used; });
  if (free == handles.end())
    fail_usage("rank {} dispatch: all {} handles are in use; allowed: num_handles at a time; release one",
               rank, limits.num_handles);
  free->is_used = true;
  free->tokens = in.tokens;
  free->expand = options.expand;
  free->alignment = options.alignment;
  return {group, free->generation, static_cast<int32_t>(free - handles.begin())};
}

int32_t Buffer::State::sms_of(int32_t asked, int32_t ranks_in_launch) const {
  const int32_t sms = asked != 0 ? asked : std::max(1, device_sms / own_ranks);
  const int32_t most = std::min(device_sms / ranks_in_launch, kernels::kMaxBlocks);
  if (sms < 1 || sms > most)
    fail_usage("rank {}: num_sms is {} for each of {} ranks of this device; allowed: 1..{}", rank, sms,
               ranks_in_launch, most);
  return sms;
}

kernels::DispatchParams Buffer::State::dispatch_params(const DispatchInput& in,
                                                       const DispatchOptions& options, Received& out) {
  const bool is_cached = in.cached.generation != 0;
  const bool is_fp8 = options.type == DType::fp8_e4m3;
  const auto need = [&](bool holds, std::string_view rule) { require(holds, rank, "dispatch", rule); };
  if (in.tokens < 0 || in.tokens > limits.max_tokens)
    fail_usage("rank {} dispatch: tokens is {}; allowed: 0..{} (max_tokens)", rank, in.tokens,
               limits.max_tokens);
  need(in.x != nullptr || in.tokens == 0, "x is null");
  need(is_aligned(in.x), "x must be aligned to 16 bytes");
  need(options.id_bytes == 4 || options.id_bytes == 8, "id_bytes must be 4 or 8");
  need(!options.zero_padding || options.expand, "zero_padding needs expand");
  need(!options.expand || limits.expand, "expand is not among the limits of the buffer");
  need(options.alignment >= 1 && options.alignment <= limits.alignment,
       fmt::format("alignment is {}; allowed: 1..{}", options.alignment, limits.alignment));
  need(options.scale_packs >= 0 && options.scale_packs <= limits.scale_packs,
       fmt::format("scale_packs is {}; allowed: 0..{}", options.scale_packs, limits.scale_packs));
  need(is_fp8 || options.scale_packs == 0, "scale_packs needs fp8 rows");
  need(options.scale_packs == 0 || in.scales != nullptr || in.tokens == 0, "scales is null");
  const int64_t row_bytes = limits.hidden * (is_fp8 ? int64_t{1} : int64_t{2});
  need(row_bytes % 16 == 0, fmt::format("row bytes must be a multiple of 16; found {}", row_bytes));
  if (is_cached) {
    const HandleSlot& slot = slot_of(in.cached);
    need(in.topk_idx == nullptr, "topk_idx must be null with a cached handle");
    need(!options.host_sync, "host_sync is not allowed with a cached handle");
    need(in.expert_totals == nullptr, "expert_totals must be null with a cached handle");
    need(slot.tokens == in.tokens,
         fmt::format("tokens is {}; allowed: {}, as in the handle's dispatch", in.tokens, slot.tokens));
    need(slot.expand == options.expand, "expand differs from the handle's dispatch");
    need(slot.alignment == options.alignment, "alignment differs from the handle's dispatch");
  } else {
    need(in.topk_idx != nullptr || in.tokens == 0, "topk_idx is null");
  }
  const kernels::DispatchBlock block = kernels::fit_dispatch_block(
      {limits.ranks, limits.experts, static_cast<int32_t>(row_bytes), 1, 1, options.expand}, shared_bytes);
  need(block.stages > 0,
       fmt::format("a row of {} bytes does not fit the shared memory ({} bytes)", row_bytes, shared_bytes));

  out.handle = is_cached ? in.cached : take_handle(in, options);
  kernels::DispatchParams p;
  p.context = context;
  p.options = kernels::CallOptions{.fp8 = is_fp8,
                                   .expand = options.expand,
                                   .column_scales = options.column_scales,
                                   .cached = is_cached,
                                   .scale_packs = options.scale_packs,
                                   .alignment = options.expand ? options.alignment : 0}
                  .word();
  p.handle = slot_of(out.handle).memory;
  p.x = in.x;
  p.scales = in.scales;
  p.scale_token_stride = in.scale_token_stride != 0 ? in.scale_token_stride : options.scale_packs;
  p.scale_pack_stride = in.scale_pack_stride;
  p.ids = in.topk_idx;
  p.weights = in.topk_weights;
  p.id_bytes = options.id_bytes;
  p.tokens = in.tokens;
  p.row_bytes = static_cast<int32_t>(row_bytes);
  p.scale_packs = options.scale_packs;
  p.alignment = options.alignment;
  p.stages = block.stages;
  p.plan_warps = block.plan_warps;
  p.shared = kernels::dispatch_map(block);
  p.record_bytes = token_layout({row_bytes, options.scale_packs, limits.topk, true}).record_bytes;
  p.scale_row_stride = options.column_scales ? 1 : options.scale_packs;
  p.scale_column_stride = options.column_scales ? scale_column_packs(limits) : 1;
  p.expand = options.expand;
  p.zero_padding = options.zero_padding;
  p.cached = is_cached;
  p.has_far_peers = has_far_peers();
  p.expert_totals = in.expert_totals;
  if (options.host_sync) {
    p.host_counts = static_cast<int64_t*>(host_counts.get());
    *static_cast<volatile int64_t*>(p.host_counts + kernels::kDispatchNumber) = 0;
  }

  char* base = windows->base(rank);
  out.x = base + map.x;
  out.scales = options.scale_packs > 0 ? reinterpret_cast<uint32_t*>(base + map.scales) : nullptr;
  out.scale_row_stride = p.scale_row_stride;
  out.scale_column_stride = p.scale_column_stride;
  out.topk_idx = options.expand ? nullptr : reinterpret_cast<int32_t*>(base + map.ids);
  out.weights = reinterpret_cast<float*>(base + map.weights);
  out.source = reinterpret_cast<int32_t*>(base + map.source);
  out.counts = p.handle.counts;
  out.rows_capacity = context.rows_capacity;
  return p;
}

kernels::CombineParams Buffer::State::combine_params(const CombineInput& in, const CombineOptions& options) {
  const HandleSlot& slot = slot_of(in.handle);
  const auto need = [&](bool holds, std::string_view rule) { require(holds, rank, "combine", rule); };
  need(in.out != nullptr || slot.tokens == 0, "out is null");
  need(is_aligned(in.out) && is_aligned(in.bias[0]) && is_aligned(in.bias[1]) && is_aligned(in.x),
       "x, out and biases must be aligned to 16 bytes");
  need(in.bias[1] == nullptr || in.bias[0] != nullptr, "bias[1] without bias[0]");
  kernels::CombineParams p;
  p.context = context;
  p.options =
      kernels::CallOptions{.expand = slot.expand, .multiple_reduction = options.multiple_reduction}.word();
  p.handle = slot.memory;
  p.bias[0] = in.bias[0];
  p.bias[1] = in.bias[1];
  p.out = in.out;
  p.out_weights = in.out_weights;
  p.tokens = slot.tokens;
  p.row_bytes = 2 * limits.hidden;
  p.record_bytes = token_layout({p.row_bytes, 0, limits.topk, false}).record_bytes;
  p.expand = slot.expand;
  p.multiple_reduction = options.multiple_reduction;
  p.has_far_peers = has_far_peers();
  return p;
}

void Buffer::State::stage_combine(const CombineInput& in, int32_t sms, cudaStream_t stream) {
  const HandleSlot& slot = slot_of(in.handle);
  char* base = windows->base(rank);
  const kernels::Launch launch{.sms = sms, .stream = stream};
  const int64_t* counts = slot.memory.counts;
  if (in.x != nullptr && in.x != base + map.expert_out)
    check(kernels::launch_stage(
              {in.x, base + map.expert_out, counts + kernels::kNumRows, 2 * int64_t{limits.hidden}}, launch),
          "stage rows");
  if (in.weights == nullptr || reinterpret_cast<const char*>(in.weights) == base + map.expert_weights) return;
  const int64_t* rows = counts + (slot.expand ? kernels::kNumRows : kernels::kNumCopies);
  const int64_t bytes = slot.expand ? 4 : 4 * int64_t{limits.topk};
  check(kernels::launch_stage({in.weights, base + map.expert_weights, rows, bytes}, launch), "stage weights");
}

void Buffer::State::read_counts(Received& out) {
  const auto* words = static_cast<const volatile int64_t*>(host_counts.get());
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = std::chrono::nanoseconds(limits.timeout_ns) * 2 + std::chrono::seconds(1);
  while (words[kernels::kDispatchNumber] == 0) {
    raise_fault();
    if (std::chrono::steady_clock::now() - begin < limit) continue;
    check(cudaPeekAtLastError(), "wait for counts");
    is_lost = true;
    throw Error(ErrorKind::environment,
                fmt::format("rank {}: no counts from its own kernel within the time-out", rank));
  }
  const int32_t local = limits.experts / limits.ranks;
  const auto list = [&](int32_t from, int32_t count) {
    std::vector<int64_t> values;
    for (int32_t i = 0; i < count; ++i) values.push_back(int64_t{words[kernels::kFirstCount + from + i]});
    return values;
  };
  out.copies = words[kernels::kNumCopies];
  out.rows = words[kernels::kNumRows];
  out.rank_prefix = list(0, limits.ranks);
  out.expert_rows = list(limits.ranks, local);
  out.expert_aligned = list(limits.ranks + local, local);
  out.expert_prefix = list(limits.ranks + 2 * local, local);
}

void Buffer::State::raise_fault() {
  auto* record = static_cast<kernels::Fault*>(fault.get());
  auto found = read_fault(record);
  // Ranks that end a call in different ways leave signals behind that a later call would mistake for its own.
  is_lost |= is_abandoned(record);
  // The record of a wait that was given up comes within microseconds, or never if it was taken.
  constexpr int kLooks = 1000;
  for (int i = 0; i < kLooks && is_lost && !found; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    found = read_fault(record);
  }
  if (!found && !is_lost) return;
  if (!found)
    throw Error(ErrorKind::environment,
                fmt::format("rank {} gave up a wait after the fault before; destroy this buffer", rank));
  is_lost |= found->kind == kernels::FaultKind::wrong_handle;
  if (!is_lost) {
    record->state = 0;
    check(cudaMemset(&context.state->has_fault, 0, sizeof context.state->has_fault), "free the fault record");
  }
  throw Error(ErrorKind::environment, to_string(*found));
}

}  // namespace plumb::hw

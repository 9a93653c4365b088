// The batch of the host executor on the device, calls of the buffers on it, their times and their bytes
// (docs/hw.md, CUDA executor). Vectors hold one element for each own rank of the world, in order.
#include "hw/kernel_run.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "hw/buffer.h"
#include "hw/owners.h"
#include "kernels/experts.h"
#include "model/error.h"
#include "model/numeric.h"

namespace plumb::hw {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;  // written before each timed call: more than the L2 holds
constexpr int32_t kWarmUps = 2;

size_t at(int64_t i) { return static_cast<size_t>(i); }

template <class T>
std::vector<T> download(const void* device, int64_t count) {
  std::vector<T> host(at(count));
  if (count > 0)
    check(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return host;
}

/// Rows of one tensor on the device, and what they must be.
template <class T>
struct Expected {
  Rank rank = 0;
  std::string_view tensor;
  const void* device = nullptr;
  const std::vector<T>& rows;
  int64_t width = 1;                           // elements of a row
  const std::vector<int32_t>* gaps = nullptr;  // rows that may hold anything, ascending
};

template <class T>
void compare_rows(const Expected<T>& e) {
  const auto found = download<T>(e.device, static_cast<int64_t>(e.rows.size()));
  for (size_t first = 0; first < found.size(); first += at(e.width)) {
    const auto row = static_cast<int32_t>(first / at(e.width));
    if (e.gaps != nullptr && std::ranges::binary_search(*e.gaps, row)) continue;
    if (std::memcmp(found.data() + first, e.rows.data() + first, at(e.width) * sizeof(T)) != 0)
      throw Error(ErrorKind::mismatch,
                  fmt::format("rank {}: row {} of '{}' is not the host's", e.rank, row, e.tensor));
  }
}

class Runner {
 public:
  Runner(World& world, const Plan& plan, const HostBatch& batch, const KernelRunOptions& options)
      : world_(world),
        plan_(plan),
        program_(plan.program()),
        batch_(batch),
        shape_(batch.shape()),
        options_(options),
        own_(world.own_ranks()),
        dispatches_(program_.kind != ProgramKind::combine),
        combines_(program_.kind != ProgramKind::dispatch) {}

  std::vector<RankRecord> run();

 private:
  size_t own() const { return own_.size(); }
  void prepare();
  void make_all_buffers();
  void choose_sms();
  void add_inputs(Rank r);
  void* upload(const void* from, size_t bytes);
  DispatchOptions dispatch_options(bool counted) const;
  void dispatch(bool counted);
  void combine(bool counted);
  void run_experts();
  void check_received() const;
  void check_combined() const;
  void check_bytes() const;
  void start_cold(int32_t value);
  void finish();
  void spoil_results();
  void count_once();
  template <class F>
  Seconds time(F call);

  World& world_;
  const Plan& plan_;
  const plumb::Program& program_;
  const HostBatch& batch_;
  const Shape& shape_;
  const KernelRunOptions& options_;
  const std::vector<Rank> own_;
  const bool dispatches_;
  const bool combines_;
  Stream stream_;
  DeviceMemory flush_;
  std::vector<Buffer> buffers_;
  std::vector<DeviceMemory> memory_;
  std::vector<DispatchInput> inputs_;
  std::vector<CombineInput> combine_inputs_;
  std::vector<Received> received_;
  std::vector<int64_t> copies_;  // [ranks] that each rank receives
  std::vector<int64_t> rows_;    // [ranks] of its tensor
  int32_t sms_ = 0;
  bool has_fewer_sms_ = false;
};

void Runner::prepare() {
  stream_ = make_stream();
  flush_ = device_memory(kFlushBytes);
  make_all_buffers();
  choose_sms();
  for (const Rank r : own_) add_inputs(r);
}

/// Sized for this batch, not for the worst case.
void Runner::make_all_buffers() {
  for (const auto& rows : canonical_arrivals(batch_, {.expand = false}))
    copies_.push_back(static_cast<int64_t>(rows.size()));
  for (const auto& rows :
       canonical_arrivals(batch_, {.expand = program_.expand, .alignment = shape_.alignment}))
    rows_.push_back(static_cast<int64_t>(rows.size()));
  const BufferLimits limits{.ranks = shape_.ranks,
                            .experts = shape_.experts,
                            .topk = shape_.topk,
                            .max_tokens = std::max(shape_.max_tokens, 1),
                            .hidden = shape_.hidden,
                            .scale_packs = shape_.scale_packs(),
                            .alignment = program_.expand ? shape_.alignment : 1,
                            .expand = program_.expand,
                            .max_copies = std::max<int64_t>(1, std::ranges::max(copies_)),
                            .max_rows = std::max<int64_t>(1, std::ranges::max(rows_)),
                            .timeout_ns = options_.timeout_ns};
  buffers_ = make_buffers(world_, std::vector(own(), limits));
}

void Runner::choose_sms() {
  int device = 0;
  int sms = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "number of SMs");
  const int32_t share = sms / static_cast<int32_t>(own());
  sms_ = program_.num_sms == 0 ? share : std::min(program_.num_sms, share);
  has_fewer_sms_ = program_.num_sms > share;
}

void* Runner::upload(const void* from, size_t bytes) {
  memory_.push_back(device_memory(static_cast<int64_t>(bytes)));
  if (bytes > 0) check(cudaMemcpy(memory_.back().get(), from, bytes, cudaMemcpyHostToDevice), "upload");
  return memory_.back().get();
}

void Runner::add_inputs(Rank r) {
  const RowFormat format = record_format(shape_, shape_.dispatch_layout(), 0);
  const int32_t tokens = shape_.tokens[at(r)];
  const size_t row_bytes = at(format.hidden_bytes);
  const size_t packs = at(shape_.scale_packs());
  std::vector<std::byte> record(at(format.row_bytes));
  std::vector<std::byte> x(at(tokens) * row_bytes);
  std::vector<uint32_t> scales(at(tokens) * packs);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int32_t t = 0; t < tokens; ++t) {
    batch_.write_row(format, r, t, record);
    std::memcpy(x.data() + at(t) * row_bytes, record.data() + format.hidden, row_bytes);
    if (packs > 0) std::memcpy(scales.data() + at(t) * packs, record.data() + format.scales, packs * 4);
    const auto choices = batch_.choices(r, t);
    ids.insert(ids.end(), choices.begin(), choices.end());
    for (int32_t k = 0; k < shape_.topk; ++k) weights.push_back(batch_.weight(r, t, k));
  }
  DispatchInput in{.x = upload(x.data(), x.size()), .tokens = tokens};
  in.scales = static_cast<const uint32_t*>(upload(scales.data(), scales.size() * 4));
  in.topk_idx = upload(ids.data(), ids.size() * 4);
  in.topk_weights = static_cast<const float*>(upload(weights.data(), weights.size() * 4));
  inputs_.push_back(in);
  if (!combines_) return;

  CombineInput back;
  std::vector<float> values(at(shape_.hidden));
  std::vector<uint16_t> bias(at(tokens) * values.size());
  for (int32_t b = 0; b < program_.num_biases; ++b) {
    for (int32_t t = 0; t < tokens; ++t) {
      batch_.bias(b, r, t, values);
      to_bf16(values, std::span(bias).subspan(at(t) * values.size(), values.size()));
    }
    back.bias[b] = upload(bias.data(), bias.size() * 2);
  }
  back.out = upload(bias.data(), bias.size() * 2);
  back.out_weights = static_cast<float*>(upload(weights.data(), weights.size() * 4));
  combine_inputs_.push_back(back);
}

DispatchOptions Runner::dispatch_options(bool counted) const {
  return {.type = shape_.dispatch_type,
          .scale_packs = shape_.scale_packs(),
          .id_bytes = 4,
          .expand = program_.expand,
          .zero_padding = program_.zero_padding,
          .alignment = program_.expand ? shape_.alignment : 1,
          .num_sms = sms_,
          .host_sync = program_.host_sync,
          .counted = counted};
}

/// The first call numbers the rows; later ones do so again, or are cached when the program is.
void Runner::dispatch(bool counted) {
  std::vector<DispatchInput> inputs = inputs_;
  for (size_t r = 0; r < received_.size(); ++r) {
    if (program_.cached) {
      inputs[r].topk_idx = nullptr;
      inputs[r].cached = received_[r].handle;
    } else {
      buffers_[r].release(received_[r].handle);
    }
  }
  received_ = dispatch_together(buffers_, inputs, dispatch_options(counted), stream_.get());
}

void Runner::combine(bool counted) {
  for (size_t r = 0; r < received_.size(); ++r) combine_inputs_[r].handle = received_[r].handle;
  combine_together(buffers_, combine_inputs_,
                   {.multiple_reduction = program_.multiple_reduction, .num_sms = sms_, .counted = counted},
                   stream_.get());
}

void Runner::finish() {
  check(cudaStreamSynchronize(stream_.get()), "run the kernels");
  for (Buffer& buffer : buffers_) buffer.raise_fault();
}

/// What the ranks' experts make of the rows that the dispatch before delivered, into the window: combine
/// reads it there.
void Runner::run_experts() {
  for (size_t i = 0; i < own(); ++i) {
    const Received& in = received_[i];
    const int64_t weights = program_.expand ? rows_[at(own_[i])] : copies_[at(own_[i])] * shape_.topk;
    check(kernels::launch_experts({.x = in.x,
                                   .scales = in.scales,
                                   .ids = in.topk_idx,
                                   .weights = in.weights,
                                   .counts = in.counts,
                                   .out = buffers_[i].expert_out(),
                                   .rank = own_[i],
                                   .ranks = shape_.ranks,
                                   .local_experts = shape_.local_experts(),
                                   .topk = shape_.topk,
                                   .hidden = shape_.hidden,
                                   .scale_packs = shape_.scale_packs(),
                                   .scale_block = shape_.scale_block,
                                   .is_fp8 = shape_.dispatch_type == DType::fp8_e4m3,
                                   .has_ue8m0_scales = shape_.scale_format == ScaleFormat::ue8m0,
                                   .kind = static_cast<kernels::ExpertKind>(options_.expert)},
                                  stream_.get()),
          "run the experts");
    check(cudaMemcpyAsync(buffers_[i].expert_weights(), in.weights, at(weights) * 4, cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "weights");
  }
}

void Runner::check_received() const {
  for (size_t i = 0; i < own(); ++i) {
    const Rank r = own_[i];
    const plumb::Received host = options_.oracle->received(r);
    const Received& device = received_[i];
    const auto* gaps = program_.expand && !program_.zero_padding ? &host.padding_rows : nullptr;
    compare_rows<std::byte>({r, "received", device.x, host.x, shape_.dispatch_row_bytes(), gaps});
    compare_rows<std::byte>(
        {r, "scales", device.scales, host.scales, std::max<int64_t>(4 * shape_.scale_packs(), 1), gaps});
    compare_rows<int32_t>({r, "source", device.source, host.copy_source, 1});
    if (!program_.expand) compare_rows<int32_t>({r, "topk_idx", device.topk_idx, host.topk_idx, shape_.topk});
    compare_rows<float>(
        {r, "weights", device.weights, host.weights, program_.expand ? 1 : shape_.topk, gaps});
  }
}

void Runner::check_combined() const {
  for (size_t i = 0; i < own(); ++i) {
    const Combined host = options_.oracle->combined(own_[i]);
    compare_rows<uint16_t>({own_[i], "combined", combine_inputs_[i].out, host.x, shape_.hidden});
    compare_rows<float>(
        {own_[i], "combined weights", combine_inputs_[i].out_weights, host.weights, shape_.topk});
  }
}

void Runner::check_bytes() const {
  if (options_.oracle != nullptr && dispatches_) check_received();
  if (options_.oracle != nullptr && combines_) check_combined();
}

/// Empties the cache; ranks in other processes leave a barrier together.
void Runner::start_cold(int32_t value) {
  check(cudaMemsetAsync(flush_.get(), value, at(kFlushBytes), stream_.get()), "flush the cache");
  if (own() < at(shape_.ranks)) barrier_together(buffers_, stream_.get());
}

/// Median event time of cold calls.
template <class F>
Seconds Runner::time(F call) {
  const Event begin = make_event();
  const Event end = make_event();
  std::vector<float> ms;
  for (int32_t i = 0; i < kWarmUps + options_.repeat; ++i) {
    start_cold(i);
    check(cudaEventRecord(begin.get(), stream_.get()), "begin");
    call();
    check(cudaEventRecord(end.get(), stream_.get()), "end");
    finish();
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, begin.get(), end.get()), "event time");
    if (i >= kWarmUps) ms.push_back(elapsed);
  }
  const auto middle = ms.begin() + static_cast<std::ptrdiff_t>((ms.size() - 1) / 2);
  std::ranges::nth_element(ms, middle);
  return {static_cast<double>(*middle) / 1e3};
}

/// Overwrites all results, so that none of an earlier call is taken for one of the next.
void Runner::spoil_results() {
  const auto spoil = [&](void* memory, int64_t bytes) {
    check(cudaMemsetAsync(memory, 0xa5, at(bytes), stream_.get()), "spoil results");
  };
  for (size_t i = 0; i < own(); ++i) {
    const int64_t rows = rows_[at(own_[i])];
    if (dispatches_) spoil(received_[i].x, rows * shape_.dispatch_row_bytes());
    if (!combines_) continue;
    spoil(buffers_[i].expert_out(), rows * 2 * shape_.hidden);
    spoil(combine_inputs_[i].out, inputs_[i].tokens * int64_t{2} * shape_.hidden);
    spoil(combine_inputs_[i].out_weights, inputs_[i].tokens * int64_t{4} * shape_.topk);
  }
}

/// One cold counted call of each, with counters of its own.
void Runner::count_once() {
  spoil_results();
  for (Buffer& buffer : buffers_) buffer.clear_counters();
  start_cold(0);
  if (dispatches_) dispatch(true);
  if (combines_) {
    run_experts();
    start_cold(1);
    combine(true);
  }
  finish();
}

std::vector<RankRecord> Runner::run() {
  prepare();
  RankRecord record{.sms = sms_, .has_fewer_sms = has_fewer_sms_};
  dispatch(false);
  finish();
  if (dispatches_) {
    record.total_s[kDispatchCall] = time([this] { dispatch(false); }).value;
    record.counted_s[kDispatchCall] = time([this] { dispatch(true); }).value;
  }
  if (combines_) {
    run_experts();
    record.total_s[kCombineCall] = time([this] { combine(false); }).value;
    record.counted_s[kCombineCall] = time([this] { combine(true); }).value;
  }
  check_bytes();
  std::vector<RankRecord> records(own(), record);
  for (size_t call = 0; call < kCountedCalls; ++call) {
    count_once();
    for (size_t i = 0; i < own(); ++i) records[i].counters[call] = buffers_[i].counters();
  }
  check_bytes();
  return records;
}

}  // namespace

std::string why_interpreted(const Plan& plan, const Shape& shape, int32_t most_ranks) {
  const plumb::Program& program = plan.program();
  const bool has_dispatch = program.kind == ProgramKind::dispatch || program.kind == ProgramKind::round_trip;
  if (!has_dispatch && program.kind != ProgramKind::combine)
    return fmt::format("no kernels of {}", to_string(program.kind));
  if (plan.grouping().nodes() > 1)
    return fmt::format("no kernels between {} scale-up domains", plan.grouping().nodes());
  if (has_dispatch && program.placement != RowPlacement::direct) return "the kernels place rows directly";
  if (shape.ranks > most_ranks) return fmt::format("{} ranks, one launch takes {}", shape.ranks, most_ranks);
  if (2 * int64_t{shape.hidden} % 16 != 0 || shape.dispatch_row_bytes() % 16 != 0)
    return "row bytes are no multiple of 16";
  for (const Phase& phase : plan.phases()) {
    const auto is_step = [&](const char* name) { return phase.name == name; };
    if (phase.name != "experts" && std::ranges::none_of(kernels::kStepNames, is_step))
      return fmt::format("no kernel of phase '{}'", phase.name);
  }
  return "";
}

std::vector<RankRecord> run_kernels(World& world, const Plan& plan, const HostBatch& batch,
                                    const KernelRunOptions& options) {
  auto runner = std::make_unique<Runner>(world, plan, batch, options);
  try {
    return runner->run();
  } catch (...) {
    // Freeing windows is collective and would wait for a rank that is lost; the end of the process frees all.
    if (world.own_ranks().size() < at(world.ranks())) static_cast<void>(runner.release());
    throw;
  }
}

}  // namespace plumb::hw

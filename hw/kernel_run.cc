// The batch of the host executor on the device, calls of the buffers on it, their times, and their stamps as
// spans of the plan's phases (docs/hw.md, CUDA executor).
#include "hw/kernel_run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "hw/buffer.h"
#include "hw/ledger.h"
#include "hw/owners.h"
#include "model/error.h"
#include "model/numeric.h"

namespace plumb::hw {
namespace {

using kernels::Step;

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
  Runner(const Plan& plan, const HostBatch& batch, const HostResult* oracle, const KernelRunOptions& options)
      : plan_(plan),
        program_(plan.program()),
        batch_(batch),
        shape_(batch.shape()),
        oracle_(oracle),
        options_(options),
        stream_(make_stream()),
        flush_(device_memory(kFlushBytes)) {
    dispatches_ = program_.kind != ProgramKind::combine;
    combines_ = program_.kind != ProgramKind::dispatch;
    world_ = make_local_world(shape_.ranks);
    make_all_buffers();
    choose_sms();
    for (Rank r = 0; r < shape_.ranks; ++r) add_inputs(r);
  }

  KernelRunResult run();

 private:
  void make_all_buffers();
  void choose_sms();
  void add_inputs(Rank r);
  void* upload(const void* from, size_t bytes);
  DispatchOptions dispatch_options(bool counted) const;
  void dispatch(bool counted);
  void combine(bool counted);
  void fill_expert_out();
  void check_received() const;
  void check_combined() const;
  void check_bytes() const;
  void flush_cache(int32_t value);
  void finish();
  template <class F>
  Seconds time(F call);
  void add_spans(std::vector<Span>& spans) const;

  const Plan& plan_;
  const plumb::Program& program_;
  const HostBatch& batch_;
  const Shape& shape_;
  const HostResult* oracle_;
  const KernelRunOptions& options_;
  bool dispatches_ = false;
  bool combines_ = false;
  Stream stream_;
  DeviceMemory flush_;
  std::unique_ptr<World> world_;
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
  buffers_ = make_buffers(*world_, std::vector(at(shape_.ranks), limits));
}

void Runner::choose_sms() {
  int device = 0;
  int sms = 0;
  check(cudaGetDevice(&device), "current device");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "number of SMs");
  const int32_t share = sms / shape_.ranks;
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

/// Rows and weights that combine sends home, into the window: combine reads them there.
void Runner::fill_expert_out() {
  const int64_t row_bytes = 2 * int64_t{shape_.hidden};
  for (Rank r = 0; r < shape_.ranks; ++r) {
    auto* out = static_cast<char*>(buffers_[at(r)].expert_out());
    const int64_t rows = rows_[at(r)];
    if (oracle_ == nullptr) {
      check(cudaMemset(out, 0x3c, at(rows * row_bytes)), "expert outputs");
    } else if (rows > 0) {
      const RowFormat& format = oracle_->format("expert_out");
      PLUMB_CHECK(oracle_->rows("expert_out", r) == rows, "rank {}: {} expert outputs for {} rows", r,
                  oracle_->rows("expert_out", r), rows);
      const auto first = oracle_->row("expert_out", r, 0);
      check(cudaMemcpy2D(out, at(row_bytes), first.data() + format.hidden, at(format.row_bytes),
                         at(row_bytes), at(rows), cudaMemcpyHostToDevice),
            "expert outputs");
    }
    const int64_t weights = program_.expand ? rows : copies_[at(r)] * shape_.topk;
    check(cudaMemcpy(buffers_[at(r)].expert_weights(), received_[at(r)].weights, at(weights) * 4,
                     cudaMemcpyDeviceToDevice),
          "weights");
  }
}

void Runner::check_received() const {
  for (Rank r = 0; r < shape_.ranks; ++r) {
    const plumb::Received host = oracle_->received(r);
    const Received& device = received_[at(r)];
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
  for (Rank r = 0; r < shape_.ranks; ++r) {
    const Combined host = oracle_->combined(r);
    compare_rows<uint16_t>({r, "combined", combine_inputs_[at(r)].out, host.x, shape_.hidden});
    compare_rows<float>(
        {r, "combined weights", combine_inputs_[at(r)].out_weights, host.weights, shape_.topk});
  }
}

void Runner::check_bytes() const {
  if (oracle_ != nullptr && dispatches_) check_received();
  if (oracle_ != nullptr && combines_) check_combined();
}

void Runner::flush_cache(int32_t value) {
  check(cudaMemsetAsync(flush_.get(), value, at(kFlushBytes), stream_.get()), "flush the cache");
}

/// Median event time of cold calls.
template <class F>
Seconds Runner::time(F call) {
  const Event begin = make_event();
  const Event end = make_event();
  std::vector<float> ms;
  for (int32_t i = 0; i < kWarmUps + options_.repeat; ++i) {
    flush_cache(i);
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

/// One rank's stamps of one call as spans. What the first block stamps ends when the rank's last block says
/// so: the begin of `last`.
struct Stamped {
  const kernels::Counters& counters;
  Rank rank;
  int32_t ranks;
  int64_t begin(Step step) const {
    return static_cast<int64_t>(counters.begin_ns[static_cast<size_t>(step)]);
  }
  int64_t end(Step step) const { return static_cast<int64_t>(counters.end_ns[static_cast<size_t>(step)]); }
  bool has(Step step) const { return begin(step) != 0 && end(step) >= begin(step); }
  Span span(Step step, PhaseId phase, int64_t from, int64_t to) const {
    Span span{.rank = rank, .phase = phase, .begin_ns = from, .end_ns = std::max(from, to)};
    for (int32_t peer = 0; peer < ranks; ++peer) {
      span.messages += static_cast<int64_t>(counters.messages[static_cast<size_t>(step)][peer]);
      span.bytes += static_cast<int64_t>(counters.bytes[static_cast<size_t>(step)][peer]);
    }
    return span;
  }
};

constexpr std::array kDispatchSteps = {Step::enter, Step::notify, Step::counts, Step::dispatch,
                                       Step::flush, Step::copy,   Step::pad};
constexpr std::array kCombineSteps = {Step::combine_local, Step::combine_enter, Step::combine_up,
                                      Step::combine_reduce, Step::combine_flush};

/// Spans of one call over all ranks, times from `offset_ns` on; returns the last end.
int64_t add_call(const Plan& plan, std::span<const kernels::Counters> counters, std::span<const Step> steps,
                 int64_t offset_ns, std::vector<Span>& spans) {
  const auto ranks = static_cast<int32_t>(counters.size());
  std::vector<Span> found;
  for (Rank r = 0; r < ranks; ++r) {
    const Stamped stamped{counters[at(r)], r, ranks};
    for (const Step step : steps) {
      // The reads of combine_up are one with the sums of combine_reduce.
      const Step timed = step == Step::combine_up ? Step::combine_reduce : step;
      const auto phase = plan.find_phase(kernels::kStepNames[static_cast<size_t>(step)]);
      if (!phase || !stamped.has(timed)) continue;
      int64_t end = stamped.end(timed);
      if (timed == Step::dispatch && stamped.has(Step::flush))
        end = std::max(end, stamped.begin(Step::flush));
      if (timed == Step::combine_reduce && stamped.has(Step::combine_flush))
        end = std::max(end, stamped.begin(Step::combine_flush));
      found.push_back(stamped.span(step, *phase, stamped.begin(timed), end));
    }
  }
  if (found.empty()) return offset_ns;
  const int64_t start = std::ranges::min_element(found, {}, &Span::begin_ns)->begin_ns;
  int64_t last = offset_ns;
  for (Span& span : found) {
    span.begin_ns += offset_ns - start;
    span.end_ns += offset_ns - start;
    last = std::max(last, span.end_ns);
    spans.push_back(span);
  }
  return last;
}

void Runner::add_spans(std::vector<Span>& spans) const {
  std::vector<kernels::Counters> counters;
  for (const Buffer& buffer : buffers_) counters.push_back(buffer.counters());
  const int64_t end = dispatches_ ? add_call(plan_, counters, kDispatchSteps, 0, spans) : 0;
  if (combines_) add_call(plan_, counters, kCombineSteps, end, spans);
}

KernelRunResult Runner::run() {
  KernelRunResult result;
  result.sms = sms_;
  result.has_fewer_sms = has_fewer_sms_;
  dispatch(false);
  finish();
  if (dispatches_) {
    result.total = time([this] { dispatch(false); });
    result.counted = time([this] { dispatch(true); });
  }
  if (combines_) {
    fill_expert_out();
    result.total = result.total + time([this] { combine(false); });
    result.counted = result.counted + time([this] { combine(true); });
  }
  check_bytes();
  for (Buffer& buffer : buffers_) buffer.clear_counters();
  flush_cache(0);
  if (dispatches_) dispatch(true);
  flush_cache(1);
  if (combines_) combine(true);
  finish();
  check_bytes();
  add_spans(result.spans);
  result.ledger = measured_ledger(plan_, buffers_);
  result.waits = measured_waits(buffers_);
  return result;
}

}  // namespace

std::string why_interpreted(const Plan& plan, const Shape& shape) {
  const plumb::Program& program = plan.program();
  const bool has_dispatch = program.kind == ProgramKind::dispatch || program.kind == ProgramKind::round_trip;
  if (!has_dispatch && program.kind != ProgramKind::combine)
    return fmt::format("no kernels of {}", to_string(program.kind));
  if (plan.grouping().nodes() > 1)
    return fmt::format("no kernels between {} scale-up domains", plan.grouping().nodes());
  if (has_dispatch && program.placement != RowPlacement::direct) return "the kernels place rows directly";
  if (shape.ranks > kernels::kMaxBatch)
    return fmt::format("{} ranks, one launch takes {}", shape.ranks, kernels::kMaxBatch);
  if (2 * int64_t{shape.hidden} % 16 != 0 || shape.dispatch_row_bytes() % 16 != 0)
    return "row bytes are no multiple of 16";
  for (const Phase& phase : plan.phases()) {
    const auto is_step = [&](const char* name) { return phase.name == name; };
    if (phase.name != "experts" && std::ranges::none_of(kernels::kStepNames, is_step))
      return fmt::format("no kernel of phase '{}'", phase.name);
  }
  return "";
}

KernelRunResult run_kernels(const Plan& plan, const HostBatch& batch, const HostResult* oracle,
                            const KernelRunOptions& options) {
  return Runner(plan, batch, oracle, options).run();
}

}  // namespace plumb::hw

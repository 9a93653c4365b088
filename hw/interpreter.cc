// Flattens a plan into the tables of kernels/interpret.h, runs it, and reads back memory, times and counts.
#include "hw/interpreter.h"

#include <algorithm>
#include <cstring>

#include "hw/owners.h"
#include "hw/stream_chunks.h"
#include "kernels/interpret.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

using kernels::InterpretOp;
using kernels::Work;

constexpr int64_t kArenaAlignment = 256;
constexpr int32_t kMaxBlocks = 16;  // of a queue; more only wait

static_assert(kernels::kWholeInterpretOp == kWholeOp);

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// A host table and its copy on the device.
template <class T>
class Table {
 public:
  std::vector<T> host;
  T* upload() {
    const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
    device_ = device_memory(std::max<int64_t>(bytes, 1));
    if (!host.empty())
      check(cudaMemcpy(device_.get(), host.data(), at(bytes), cudaMemcpyHostToDevice), "upload of the plan");
    return static_cast<T*>(device_.get());
  }
  void download() {
    if (!host.empty())
      check(cudaMemcpy(host.data(), device_.get(), host.size() * sizeof(T), cudaMemcpyDeviceToHost),
            "download of results");
  }

 private:
  DeviceMemory device_;
};

/// The tables of one plan.
class Interpreter {
 public:
  Interpreter(const Plan& plan, const HostBatch& batch, ExpertFunction expert,
              const InterpreterOptions& options, HostMemory& memory)
      : plan_(plan), batch_(batch), shape_(batch.shape()), options_(options), memory_(memory) {
    check_fit();
    add_phases();
    add_ops();
    add_batch();
    params_.expert = static_cast<kernels::InterpretExpert>(expert);
    params_.has_weighted_sums = plan.program().kind == ProgramKind::low_latency_combine;
  }

  InterpreterResult run();

 private:
  void check_fit() const;
  void add_phases();
  void add_ops();
  void add_batch();
  void add_items(const Op& op, OpId id, InterpretOp& out);
  void add_groups(const Op& op, InterpretOp& out);
  void add_expert_rows(const Op& op, InterpretOp& out);
  void add_edges(OpId id, const OpChunks& chunks, InterpretOp& out);
  OpPieces pieces_of(const Op& op, const InterpretOp& flat) const;
  void check_item(const Op& op, OpId id, const Item& item) const;
  void make_queues(int32_t count);
  void make_arenas();
  void upload(int32_t queues);
  InterpreterResult result();
  void copy_arenas(cudaMemcpyKind kind, std::string_view what);
  [[noreturn]] void raise(const kernels::InterpretFault& fault) const;

  const Plan& plan_;
  const HostBatch& batch_;
  const Shape& shape_;
  const InterpreterOptions& options_;
  HostMemory& memory_;
  std::vector<std::vector<Arrival>> arrivals_;  // made when a compute op needs them
  kernels::InterpretParams params_;
  Table<InterpretOp> ops_;
  Table<int32_t> deps_;
  Table<int32_t> needs_;
  Table<kernels::InterpretItem> items_;
  Table<int8_t> lanes_;
  Table<kernels::InterpretGroup> groups_;
  Table<kernels::InterpretExpertRow> expert_rows_;
  Table<kernels::InterpretPhase> phases_;
  Table<kernels::InterpretFormat> formats_;
  Table<kernels::InterpretArena> arenas_;
  Table<int32_t> queue_ops_;
  Table<int32_t> queue_begin_;
  Table<uint32_t> words_;  // zeroed: done, landed [ops], joined [barriers], queue_next [queues], aborted
  Table<int32_t> members_;
  Table<kernels::InterpretRecord> records_;
  Table<int32_t> choices_;
  Table<float> weights_;
  DeviceMemory arena_memory_;
  PinnedMemory fault_;
};

bool moves_rows(const Op& op) {
  return op.kind == OpKind::put || op.kind == OpKind::get || op.kind == OpKind::copy ||
         op.kind == OpKind::reduce;
}

void Interpreter::check_fit() const {
  if (plan_.ranks_per_op() != 1)
    fail_usage("the plan is coarse ({} ranks per op): its rows are not known; run the plan it was made of",
               plan_.ranks_per_op());
  if (plan_.grouping().ranks != shape_.ranks)
    fail_usage("the plan has {} ranks, the shape {}; pass the shape that the plan was built from",
               plan_.grouping().ranks, shape_.ranks);
  if (shape_.topk > kMaxTopk)
    fail_usage("top-k is {}; the interpreter's allowed: 1 .. {}", shape_.topk, kMaxTopk);
  for (const Op& op : plan_.ops()) {
    const Phase& phase = plan_.phases()[op.phase];
    if (!moves_rows(op) || phase.to == kNoRegion) continue;
    if (op.rows > 0 && op.first_item == kNone)
      fail_usage("the plan has no rows (phase '{}', rank {} -> {}); build it with items", phase.name, op.src,
                 op.dst);
    for (const RegionId from : {phase.from, phase.also_from})
      if (from != kNoRegion && memory_.format(from).row_bytes != memory_.format(phase.to).row_bytes)
        throw Error(ErrorKind::mismatch,
                    fmt::format("phase '{}': rows of {} bytes in '{}' do not fit rows of {} bytes in '{}'",
                                phase.name, memory_.format(from).row_bytes, plan_.regions()[from].name,
                                memory_.format(phase.to).row_bytes, plan_.regions()[phase.to].name));
  }
}

void Interpreter::add_phases() {
  for (const Phase& phase : plan_.phases())
    phases_.host.push_back({.from = phase.from,
                            .also_from = phase.also_from,
                            .to = phase.to,
                            .row_bytes = phase.row_bytes,
                            .duration_ns = static_cast<int64_t>(phase.duration.value * 1e9)});
  for (size_t r = 0; r < plan_.regions().size(); ++r) {
    const RowFormat& format = memory_.format(static_cast<RegionId>(r));
    formats_.host.push_back({.plan_bytes = format.plan_bytes,
                             .row_bytes = format.row_bytes,
                             .hidden = format.hidden,
                             .hidden_bytes = format.hidden_bytes,
                             .scales = format.scales,
                             .ids = format.ids,
                             .weights = format.weights,
                             .source = format.source,
                             .scale_block = std::max(format.scale_block, 1),
                             .is_fp8 = format.type == DType::fp8_e4m3,
                             .has_ue8m0_scales = format.scale_format == ScaleFormat::ue8m0});
  }
  for (const Barrier& barrier : plan_.barriers()) members_.host.push_back(barrier.members);
}

void Interpreter::add_ops() {
  StreamChunks streams(plan_);
  for (OpId id = 0; id < static_cast<OpId>(plan_.ops().size()); ++id) {
    const Op& op = plan_.ops()[at(id)];
    const Phase& phase = plan_.phases()[op.phase];
    InterpretOp out{.phase = op.phase, .src = op.src, .dst = op.dst};
    if (op.kind == OpKind::put || op.kind == OpKind::get) out.messages = op.messages;
    if (op.kind == OpKind::barrier) {
      out.work = Work::barrier;
      out.barrier = op.rows;
    } else if (op.kind == OpKind::compute) {
      add_expert_rows(op, out);
    } else if (op.kind != OpKind::wait && phase.to == kNoRegion) {
      out.work = Work::flags;
      out.count = op.rows;
    } else if (op.kind != OpKind::wait) {
      add_items(op, id, out);
    }
    add_edges(id, streams.add(pieces_of(op, out)), out);
    ops_.host.push_back(out);
  }
  records_.host.resize(ops_.host.size());
}

void Interpreter::add_edges(OpId id, const OpChunks& chunks, InterpretOp& out) {
  out.first_dep = static_cast<int32_t>(deps_.host.size());
  for (const Dep& dep : plan_.deps(id))
    if (dep.on != On::stream) deps_.host.push_back(dep.op);
  out.num_deps = static_cast<int32_t>(deps_.host.size()) - out.first_dep;
  deps_.host.insert(deps_.host.end(), chunks.streams.begin(), chunks.streams.end());
  out.num_streams = static_cast<int32_t>(chunks.streams.size());
  out.chunk = chunks.pieces;
  out.chunks = chunks.chunks;
  out.first_need = static_cast<int64_t>(needs_.host.size());
  needs_.host.insert(needs_.host.end(), chunks.needs.begin(), chunks.needs.end());
}

/// Rows of an op whose tables are made. Slots beyond those of `from` are those of `also_from`.
OpPieces Interpreter::pieces_of(const Op& op, const InterpretOp& flat) const {
  const Phase& phase = plan_.phases()[op.phase];
  OpPieces pieces;
  if (flat.work == Work::none || flat.work == Work::barrier || flat.work == Work::flags) return pieces;
  const auto read = [&](int32_t slot) {
    const int64_t first = phase.from == kNoRegion ? 0 : memory_.rows(phase.from, op.src);
    if (slot == kNone) return;
    if (slot < first || phase.also_from == kNoRegion)
      pieces.reads.push_back({phase.from, slot});
    else
      pieces.reads.push_back({phase.also_from, static_cast<int32_t>(slot - first)});
  };
  for (int64_t i = flat.first; i < flat.first + flat.count; ++i) {
    if (flat.work == Work::move) {
      read(items_.host[at(i)].src_slot);
      pieces.add(items_.host[at(i)].dst_slot);
    } else if (flat.work == Work::reduce) {
      const kernels::InterpretGroup& group = groups_.host[at(i)];
      for (int32_t k = 0; k < group.count; ++k) read(items_.host[at(group.first + k)].src_slot);
      pieces.add(group.slot);
    } else {
      read(expert_rows_.host[at(i)].slot);
      pieces.add(expert_rows_.host[at(i)].slot);
    }
  }
  return pieces;
}

/// The kernel trusts the tables, so that an item beyond its region is refused here.
void Interpreter::check_item(const Op& op, OpId id, const Item& item) const {
  const Phase& phase = plan_.phases()[op.phase];
  const auto rows = [&](RegionId region, Rank rank) {
    return region == kNoRegion ? 0 : memory_.rows(region, rank);
  };
  const int64_t readable = rows(phase.from, op.src) + rows(phase.also_from, op.src);
  if (item.src_slot != kNone && (item.src_slot < 0 || item.src_slot >= readable))
    throw Error(ErrorKind::mismatch,
                fmt::format("op {} (phase '{}', rank {} -> {}) reads slot {}, of 0 .. {}", id, phase.name,
                            op.src, op.dst, item.src_slot, readable - 1));
  if (item.dst_slot < 0 || item.dst_slot >= rows(phase.to, op.dst))
    throw Error(ErrorKind::mismatch,
                fmt::format("op {} (phase '{}', rank {} -> {}) writes slot {}, of 0 .. {}", id, phase.name,
                            op.src, op.dst, item.dst_slot, rows(phase.to, op.dst) - 1));
}

void Interpreter::add_items(const Op& op, OpId id, InterpretOp& out) {
  out.work = Work::move;
  out.first = static_cast<int64_t>(items_.host.size());
  for (const Item& item : plan_.items(op)) {
    check_item(op, id, item);
    items_.host.push_back({item.src_slot, item.dst_slot});
  }
  const auto lanes = plan_.lanes(op);
  lanes_.host.insert(lanes_.host.end(), lanes.begin(), lanes.end());
  out.count = static_cast<int64_t>(items_.host.size()) - out.first;
  if (op.kind == OpKind::reduce) add_groups(op, out);
}

/// A reduce writes rows 0 .. messages - 1; those without items become zeros.
void Interpreter::add_groups(const Op& op, InterpretOp& out) {
  const int64_t begin = out.first;
  const int64_t end = begin + out.count;
  const int64_t rows = memory_.rows(plan_.phases()[op.phase].to, op.dst);
  std::vector<bool> is_written(at(rows));
  out.work = Work::reduce;
  out.first = static_cast<int64_t>(groups_.host.size());
  for (int64_t i = begin; i < end; ++i) {
    const int32_t slot = items_.host[at(i)].dst_slot;
    if (i == begin || slot != items_.host[at(i - 1)].dst_slot)
      groups_.host.push_back({.first = i, .count = 0, .slot = slot});
    ++groups_.host.back().count;
    is_written[at(slot)] = true;
  }
  for (int32_t slot = 0; slot < std::min<int64_t>(op.messages, rows); ++slot)
    if (!is_written[at(slot)]) groups_.host.push_back({.first = end, .count = 0, .slot = slot});
  out.count = static_cast<int64_t>(groups_.host.size()) - out.first;
}

void Interpreter::add_expert_rows(const Op& op, InterpretOp& out) {
  const Phase& phase = plan_.phases()[op.phase];
  out.work = Work::experts;
  out.first = static_cast<int64_t>(expert_rows_.host.size());
  if (phase.from == kNoRegion || phase.to == kNoRegion) return;
  if (arrivals_.empty()) arrivals_ = canonical_arrivals(batch_, received_layout(plan_, shape_));
  const auto& rows = arrivals_[at(op.dst)];
  const int64_t slots = std::min(memory_.rows(phase.from, op.src), memory_.rows(phase.to, op.dst));
  for (int64_t slot = 0; slot < std::min<int64_t>(slots, static_cast<int64_t>(rows.size())); ++slot)
    if (rows[at(slot)].source != kNone)
      expert_rows_.host.push_back({static_cast<int32_t>(slot), rows[at(slot)].position});
  out.count = static_cast<int64_t>(expert_rows_.host.size()) - out.first;
}

void Interpreter::add_batch() {
  const int64_t words = int64_t{shape_.ranks} * shape_.max_tokens * shape_.topk;
  choices_.host.assign(at(words), kNone);
  weights_.host.assign(at(words), 0.0f);
  for (Rank r = 0; r < shape_.ranks; ++r)
    for (int32_t t = 0; t < shape_.tokens[at(r)]; ++t)
      for (int32_t k = 0; k < shape_.topk; ++k) {
        const int64_t index = (int64_t{r} * shape_.max_tokens + t) * shape_.topk + k;
        choices_.host[at(index)] = batch_.choices(r, t)[at(k)];
        weights_.host[at(index)] = batch_.weight(r, t, k);
      }
}

/// Rank r's ops stand in queue r % count, by ascending id.
void Interpreter::make_queues(int32_t count) {
  std::vector<std::vector<int32_t>> queues(at(count));
  for (OpId id = 0; id < static_cast<OpId>(plan_.ops().size()); ++id)
    queues[at(issuer(plan_.ops()[at(id)]) % count)].push_back(id);
  for (const auto& queue : queues) {
    queue_begin_.host.push_back(static_cast<int32_t>(queue_ops_.host.size()));
    queue_ops_.host.insert(queue_ops_.host.end(), queue.begin(), queue.end());
  }
  queue_begin_.host.push_back(static_cast<int32_t>(queue_ops_.host.size()));
}

void Interpreter::make_arenas() {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
  const auto regions = static_cast<RegionId>(plan_.regions().size());
  for (RegionId region = 0; region < regions; ++region)
    for (Rank r = 0; r < shape_.ranks; ++r) {
      offsets.push_back(bytes);
      bytes += round_up(memory_.rows(region, r) * memory_.format(region).row_bytes, kArenaAlignment);
    }
  if (bytes > options_.memory_limit)
    fail_usage("the regions of all {} ranks need {} bytes on the device, the limit is {}; use fewer tokens",
               shape_.ranks, bytes, options_.memory_limit);
  arena_memory_ = device_memory(bytes);
  for (size_t i = 0; i < offsets.size(); ++i) {
    const auto region = static_cast<RegionId>(static_cast<int64_t>(i) / shape_.ranks);
    arenas_.host.push_back({static_cast<char*>(arena_memory_.get()) + offsets[i],
                            memory_.rows(region, static_cast<Rank>(static_cast<int64_t>(i) % shape_.ranks))});
  }
}

void Interpreter::copy_arenas(cudaMemcpyKind kind, std::string_view what) {
  for (size_t i = 0; i < arenas_.host.size(); ++i) {
    const auto region = static_cast<RegionId>(static_cast<int64_t>(i) / shape_.ranks);
    const auto rank = static_cast<Rank>(static_cast<int64_t>(i) % shape_.ranks);
    const size_t bytes = at(memory_.rows(region, rank) * memory_.format(region).row_bytes);
    if (bytes == 0) continue;
    void* host = memory_.row(region, rank, 0).data();
    void* device = arenas_.host[i].rows;
    const bool is_upload = kind == cudaMemcpyHostToDevice;
    check(cudaMemcpy(is_upload ? device : host, is_upload ? host : device, bytes, kind), what);
  }
}

void Interpreter::raise(const kernels::InterpretFault& fault) const {
  const auto describe = [&](OpId id) {
    const Op& op = plan_.ops()[at(id)];
    return fmt::format("op {} ({}, phase '{}', rank {} -> {})", id, to_string(op.kind),
                       plan_.phases()[op.phase].name, op.src, op.dst);
  };
  const Op& dep = plan_.ops()[at(fault.dep)];
  const std::string what =
      dep.kind == OpKind::barrier
          ? fmt::format("barrier {} by {}: expected {} members, seen {}", dep.rows, describe(fault.dep),
                        fault.expected, fault.seen)
          : fmt::format("{}: expected {} {}, seen {}", describe(fault.dep),
                        fault.is_stream != 0 ? "rows" : "flag", fault.expected, fault.seen);
  throw Error(ErrorKind::environment,
              fmt::format("rank {} gave up after {} ms: {} waits for {}", issuer(plan_.ops()[at(fault.op)]),
                          options_.timeout_ns / 1'000'000, describe(fault.op), what));
}

/// Uploads all tables; the words are zeroed before each run.
void Interpreter::upload(int32_t queues) {
  const size_t ops = ops_.host.size();
  words_.host.assign(2 * ops + members_.host.size() + at(queues) + 1, 0);
  fault_ = pinned_memory(sizeof(kernels::InterpretFault));
  auto& p = params_;
  p.ops = ops_.upload();
  p.deps = deps_.upload();
  p.needs = needs_.upload();
  p.items = items_.upload();
  p.lanes = lanes_.upload();
  p.groups = groups_.upload();
  p.expert_rows = expert_rows_.upload();
  p.phases = phases_.upload();
  p.formats = formats_.upload();
  p.arenas = arenas_.upload();
  p.queue_ops = queue_ops_.upload();
  p.queue_begin = queue_begin_.upload();
  p.members = members_.upload();
  p.records = records_.upload();
  p.choices = choices_.upload();
  p.weights = weights_.upload();
  p.done = words_.upload();
  p.landed = p.done + ops;
  p.joined = p.landed + ops;
  p.queue_next = p.joined + members_.host.size();
  p.aborted = p.queue_next + queues;
  p.queues = queues;
  p.ranks = shape_.ranks;
  p.topk = shape_.topk;
  p.max_tokens = shape_.max_tokens;
  p.local_experts = shape_.local_experts();
  p.timeout_ns = options_.timeout_ns;
  p.fault = static_cast<kernels::InterpretFault*>(fault_.get());
}

/// The records of the last run, times since its first op was taken.
InterpreterResult Interpreter::result() {
  records_.download();
  uint64_t start = ~uint64_t{0};
  for (const auto& record : records_.host) start = std::min(start, record.taken_ns);
  InterpreterResult result;
  for (size_t i = 0; i < records_.host.size(); ++i) {
    const kernels::InterpretRecord& record = records_.host[i];
    const auto since = [&](uint64_t ns) { return static_cast<int64_t>(ns - start); };
    result.times.push_back({since(record.taken_ns), since(record.begin_ns), since(record.end_ns)});
    result.total_ns = std::max(result.total_ns, result.times.back().end_ns);
    const Op& op = plan_.ops()[i];
    result.moved.push_back({.phase = op.phase,
                            .src = op.src,
                            .dst = op.dst,
                            .messages = record.messages,
                            .bytes = record.bytes});
  }
  return result;
}

InterpreterResult Interpreter::run() {
  int32_t resident = 0;
  check(kernels::interpreter_blocks(resident), "size of the interpreter");
  const int32_t queues = std::min(shape_.ranks, resident);
  const int32_t fit = resident / queues;
  const int32_t blocks = options_.blocks != 0 ? options_.blocks : std::min(fit, kMaxBlocks);
  if (blocks < 1 || blocks > fit)
    fail_usage("{} blocks for each of {} queues; allowed: 1 .. {}", blocks, queues, fit);
  if (options_.repeat < 1) fail_usage("{} repetitions; allowed: 1 or more", options_.repeat);
  make_queues(queues);
  make_arenas();
  upload(queues);
  const Stream stream = make_stream();
  std::vector<InterpreterResult> results;
  for (int32_t i = 0; i < options_.repeat; ++i) {
    copy_arenas(cudaMemcpyHostToDevice, "upload of the initial rows");
    check(cudaMemset(params_.done, 0, words_.host.size() * sizeof(uint32_t)), "clear flags");
    check(cudaDeviceSynchronize(), "upload of the plan");
    check(kernels::launch_interpreter(params_, blocks * queues, stream.get()), "launch the interpreter");
    check(cudaStreamSynchronize(stream.get()), "run the interpreter");
    if (params_.fault->state == 1) raise(*params_.fault);
    results.push_back(result());
  }
  copy_arenas(cudaMemcpyDeviceToHost, "download of the rows");
  const auto middle = results.begin() + (options_.repeat - 1) / 2;
  std::ranges::nth_element(results, middle, {}, &InterpreterResult::total_ns);
  return std::move(*middle);
}

}  // namespace

InterpreterResult interpret(const Plan& plan, const HostBatch& batch, ExpertFunction expert,
                            const InterpreterOptions& options, HostMemory& memory) {
  return Interpreter(plan, batch, expert, options, memory).run();
}

}  // namespace plumb::hw

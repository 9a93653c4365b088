// Execution of ops: rows are checked one by one, then moved with memcpy or summed in fp32.
#include "model/host_run.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "model/error.h"
#include "model/numeric.h"

namespace plumb {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

constexpr int64_t kBytesPerThread = int64_t{1} << 20;  // below, starting a thread costs more than it saves

/// Where the bf16 elements of a row stand: the hidden part of a record, or all of a row that is none.
std::span<const std::byte> elements_of(const RowFormat& format, std::span<const std::byte> row) {
  return format.is_record() ? row.subspan(at(format.hidden), at(format.hidden_bytes)) : row;
}

}  // namespace

HostRun::HostRun(const Plan& plan, const HostBatch& batch, ExpertFunction function, int32_t threads,
                 HostMemory& memory)
    : plan_(plan), batch_(batch), function_(function), threads_(threads), memory_(memory), order_(plan) {}

std::vector<LedgerEntry> HostRun::execute() {
  std::vector<LedgerEntry> moved;
  moved.reserve(plan_.ops().size());
  for (id_ = 0; id_ < static_cast<OpId>(plan_.ops().size()); ++id_) {
    order_.begin(id_);
    moved.push_back(execute_op());
  }
  order_.finish();
  return moved;
}

std::string HostRun::describe() const {
  return fmt::format("op {} ({}, phase '{}', rank {} -> {})", id_, to_string(op().kind), phase().name,
                     op().src, op().dst);
}

void HostRun::fail(const std::string& what) const {
  throw Error(ErrorKind::mismatch, fmt::format("{}: {}", describe(), what));
}

/// Messages are the one thing that memcpy has none of: those of the op count when they can carry its rows.
LedgerEntry HostRun::execute_op() {
  LedgerEntry moved{.phase = op().phase, .src = op().src, .dst = op().dst, .messages = 0, .bytes = 0};
  rows_written_ = 0;
  switch (op().kind) {
    case OpKind::wait:
    case OpKind::barrier:
      return moved;
    case OpKind::compute:
      run_experts();
      return moved;
    case OpKind::put:
    case OpKind::get:
      moved.messages = std::min(op().messages, op().rows);
      break;
    case OpKind::copy:
    case OpKind::reduce:
      break;
  }
  if (phase().to == kNoRegion) {  // flags and signals: no rows of a region
    moved.bytes = op().rows * phase().row_bytes;
    return moved;
  }
  const auto items = plan_.items(op());
  check_formats();
  if (op().kind == OpKind::reduce) {
    reduce_rows(items);
    moved.messages = rows_written_;
  } else {
    move_rows(items);
  }
  moved.bytes = static_cast<int64_t>(items.size()) * memory_.format(phase().to).plan_bytes;
  return moved;
}

void HostRun::check_formats() const {
  const RowFormat& to = memory_.format(phase().to);
  for (const RegionId from : {phase().from, phase().also_from})
    if (from != kNoRegion && memory_.format(from).row_bytes != to.row_bytes)
      fail(fmt::format("rows of {} bytes in '{}' do not fit rows of {} bytes in '{}'",
                       memory_.format(from).plan_bytes, plan_.regions()[from].name, to.plan_bytes,
                       plan_.regions()[phase().to].name));
}

HostRun::Place HostRun::place_of(int32_t src_slot) const {
  if (src_slot == kNone) return {};
  if (phase().from == kNoRegion) fail(fmt::format("reads slot {}, but its phase reads no region", src_slot));
  const int64_t rows = memory_.rows(phase().from, op().src);
  if (src_slot < rows || phase().also_from == kNoRegion) return {phase().from, src_slot};
  return {phase().also_from, src_slot - rows};
}

std::span<const std::byte> HostRun::bytes_of(Place place) const {
  return memory_.row(place.region, op().src, place.slot);
}

void HostRun::check_read(Place place) const {
  if (place.region == kNoRegion) return;
  const std::string& name = plan_.regions()[place.region].name;
  const int64_t rows = memory_.rows(place.region, op().src);
  if (place.slot < 0 || place.slot >= rows)
    fail(fmt::format("reads slot {} of '{}' on rank {}, which has slots 0 .. {}", place.slot, name, op().src,
                     rows - 1));
  const OpId writer = memory_.writer(place.region, op().src, place.slot);
  if (writer == HostMemory::kNever)
    fail(fmt::format("reads slot {} of '{}' on rank {}, which nothing has written", place.slot, name,
                     op().src));
  if (writer >= 0 && !order_.is_ordered(writer, id_))
    fail(fmt::format("reads slot {} of '{}' on rank {}, but no edge makes it wait for op {}, which writes it",
                     place.slot, name, op().src, writer));
}

/// Checks that the current op may write the row, and notes that it did.
void HostRun::take_row(Rank rank, int64_t slot) {
  const RegionId region = phase().to;
  const std::string& name = plan_.regions()[region].name;
  const int64_t rows = memory_.rows(region, rank);
  if (slot < 0 || slot >= rows)
    fail(fmt::format("writes slot {} of '{}' on rank {}, which has slots 0 .. {}", slot, name, rank,
                     rows - 1));
  const OpId writer = memory_.writer(region, rank, slot);
  if (writer >= 0 && plan_.ops()[at(writer)].phase == op().phase)
    fail(fmt::format("writes slot {} of '{}' on rank {}, which op {} of the same phase has written", slot,
                     name, rank, writer));
  if (writer >= 0 && !order_.is_ordered(writer, id_))
    fail(fmt::format("overwrites slot {} of '{}' on rank {}, but no edge makes it wait for op {}", slot, name,
                     rank, writer));
  memory_.set_writer(region, rank, slot, id_);
  ++rows_written_;
}

void HostRun::move_rows(std::span<const Item> items) {
  for (const Item& item : items) {
    check_read(place_of(item.src_slot));
    take_row(op().dst, item.dst_slot);
  }
  const RegionId to = phase().to;
  const int64_t bytes = static_cast<int64_t>(items.size()) * memory_.format(to).row_bytes;
  for_each(items.size(), bytes, [&](size_t i) {
    const auto row = memory_.row(to, op().dst, items[i].dst_slot);
    const Place from = place_of(items[i].src_slot);
    if (from.region == kNoRegion)
      std::memset(row.data(), 0, row.size());
    else
      std::memcpy(row.data(), bytes_of(from).data(), row.size());
  });
}

/// Biases carry no metadata that would tell a wrong one: each must be read once, for its own token.
void HostRun::check_biases(std::span<const Item> items) const {
  if (phase().also_from == kNoRegion) return;
  const int64_t biases = memory_.rows(phase().also_from, op().src);
  const int64_t tokens = memory_.rows(phase().to, op().dst);
  std::vector<bool> is_read(at(biases));
  for (const Item& item : items) {
    const Place place = place_of(item.src_slot);
    if (place.region != phase().also_from) continue;
    if (place.slot % tokens != item.dst_slot || is_read[at(place.slot)])
      fail(fmt::format("adds bias row {} to token {}, {}", place.slot, item.dst_slot,
                       is_read[at(place.slot)] ? "for the second time" : "which is not its own"));
    is_read[at(place.slot)] = true;
  }
  const auto missing = std::find(is_read.begin(), is_read.end(), false);
  if (missing != is_read.end())
    fail(fmt::format("leaves out bias row {} of {}", missing - is_read.begin(), biases));
}

void HostRun::reduce_rows(std::span<const Item> items) {
  std::vector<size_t> begins;  // of groups of equal destination
  for (size_t i = 0; i < items.size(); ++i) {
    check_read(place_of(items[i].src_slot));
    if (i > 0 && items[i].dst_slot == items[i - 1].dst_slot) continue;
    begins.push_back(i);
    take_row(op().dst, items[i].dst_slot);
  }
  begins.push_back(items.size());
  check_biases(items);
  const auto group = [&](auto span, size_t g) { return span.subspan(begins[g], begins[g + 1] - begins[g]); };
  if (memory_.format(phase().to).has_metadata())
    for (size_t g = 0; g + 1 < begins.size(); ++g) merge_metadata(group(items, g));
  const int64_t bytes = static_cast<int64_t>(items.size()) * memory_.format(phase().to).row_bytes;
  const auto lanes = plan_.lanes(op());
  for_each(begins.size() - 1, bytes, [&](size_t g) { sum_hidden(group(items, g), group(lanes, g)); });
  zero_rows_without_items();
}

/// The sum of a group carries the ids and weights of all its rows. No two may answer for one position, and
/// they stand in order of their last positions.
void HostRun::merge_metadata(std::span<const Item> group) {
  const RowFormat& format = memory_.format(phase().to);
  const int32_t topk = batch_.shape().topk;
  const auto out = memory_.row(phase().to, op().dst, group[0].dst_slot);
  const auto store = [&](int64_t offset, auto value) {
    std::memcpy(out.data() + offset, &value, sizeof value);
  };
  for (int32_t k = 0; k < topk; ++k) {
    store(format.ids + 4 * k, kNone);
    store(format.weights + 4 * k, 0.0f);
  }
  int32_t last_position = kNone;
  for (const Item& item : group) {
    const Place place = place_of(item.src_slot);
    if (place.region == kNoRegion) continue;
    const auto row = bytes_of(place);
    int32_t position = kNone;
    for (int32_t k = 0; k < topk; ++k) {
      const int32_t id = load_id(format, row, k);
      if (id < 0) continue;
      position = k;
      if (load_id(format, out, k) >= 0)
        fail(fmt::format("sums two rows that answer for top-k position {} into slot {} of '{}' on rank {}", k,
                         item.dst_slot, plan_.regions()[phase().to].name, op().dst));
      store(format.ids + 4 * k, id);
      store(format.weights + 4 * k, load_weight(format, row, k));
    }
    if (position < last_position)
      fail(fmt::format(
          "adds a row of top-k position {} after one of position {} into slot {} of '{}' on rank {}",
          position, last_position, item.dst_slot, plan_.regions()[phase().to].name, op().dst));
    last_position = position;
  }
}

/// fp32, in order of the items, beginning with the first one itself, rounded once to bf16. In a low-latency
/// combine each row is first multiplied by the weight of the choice it answers (its lane).
void HostRun::sum_hidden(std::span<const Item> group, std::span<const int8_t> lanes) {
  const RowFormat& format = memory_.format(phase().to);
  const auto out_row = memory_.row(phase().to, op().dst, group[0].dst_slot);
  const size_t elements = elements_of(format, out_row).size() / 2;
  const bool is_weighted = plan_.program().kind == ProgramKind::low_latency_combine;
  std::vector<uint16_t> codes(elements);
  std::vector<float> term(elements);
  std::vector<float> sum(elements);
  bool is_first = true;
  for (size_t i = 0; i < group.size(); ++i) {
    const Place place = place_of(group[i].src_slot);
    if (place.region == kNoRegion) continue;
    const auto bytes = elements_of(memory_.format(place.region), bytes_of(place));
    std::memcpy(codes.data(), bytes.data(), 2 * elements);
    from_bf16(codes, term);
    if (is_weighted && lanes[i] >= 0) {
      const float weight = batch_.weight(op().dst, group[i].dst_slot, lanes[i]);
      for (float& value : term) value *= weight;
    }
    if (is_first)
      sum = term;
    else
      for (size_t j = 0; j < elements; ++j) sum[j] += term[j];
    is_first = false;
  }
  to_bf16(sum, codes);
  std::memcpy(out_row.data() + (format.is_record() ? format.hidden : 0), codes.data(), 2 * elements);
}

/// A reduce writes rows 0 .. messages - 1; the sum of nothing (a masked token) is zeros.
void HostRun::zero_rows_without_items() {
  const RowFormat& format = memory_.format(phase().to);
  for (int64_t slot = 0; slot < op().messages; ++slot) {
    if (slot < memory_.rows(phase().to, op().dst) && memory_.writer(phase().to, op().dst, slot) == id_)
      continue;
    take_row(op().dst, slot);
    const auto row = memory_.row(phase().to, op().dst, slot);
    std::memset(row.data(), 0, row.size());
    for (int32_t k = 0; format.has_metadata() && k < batch_.shape().topk; ++k)
      std::memcpy(row.data() + format.ids + 4 * k, &kNone, sizeof kNone);
  }
}

void HostRun::run_experts() {
  if (phase().from == kNoRegion || phase().to == kNoRegion) return;
  const RowFormat& in = memory_.format(phase().from);
  const RowFormat& out = memory_.format(phase().to);
  const auto arrivals = canonical_arrivals(batch_, received_layout(plan_, batch_.shape()));
  const auto& rows = arrivals[at(op().dst)];
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < memory_.rows(phase().from, op().src); ++slot) {
    if (at(slot) >= rows.size() || rows[at(slot)].source == kNone) continue;  // padding
    check_read({phase().from, slot});
    take_row(op().dst, slot);
    slots.push_back(slot);
  }
  for_each(slots.size(), static_cast<int64_t>(slots.size()) * in.row_bytes, [&](size_t i) {
    const ExpertCall call{in, memory_.row(phase().from, op().src, slots[i]), op().dst,
                          rows[at(slots[i])].position, function_};
    run_expert(batch_, call, out, memory_.row(phase().to, op().dst, slots[i]));
  });
}

void HostRun::for_each(size_t count, int64_t bytes, const std::function<void(size_t)>& body) const {
  const auto wanted = static_cast<size_t>(std::min<int64_t>(threads_, bytes / kBytesPerThread));
  const size_t workers = std::min(wanted, count);
  if (workers <= 1) {
    for (size_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::vector<std::jthread> threads;
  for (size_t w = 0; w < workers; ++w)
    threads.emplace_back([=, &body] {
      for (size_t i = count * w / workers; i < count * (w + 1) / workers; ++i) body(i);
    });
}

}  // namespace plumb

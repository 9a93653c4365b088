// Contents of regions before the first op, and the work of the experts.
#include "model/host_payload.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "model/error.h"
#include "model/host_counts.h"
#include "model/numeric.h"
#include "model/random.h"

namespace plumb {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

template <class T>
void store(std::span<std::byte> row, int64_t offset, T value) {
  std::memcpy(row.data() + offset, &value, sizeof value);
}
template <class T>
T load(std::span<const std::byte> row, int64_t offset) {
  T value;
  std::memcpy(&value, row.data() + offset, sizeof value);
  return value;
}

void store_bf16(std::span<const float> values, int64_t offset, std::span<std::byte> row) {
  for (size_t i = 0; i < values.size(); ++i)
    store(row, offset + 2 * static_cast<int64_t>(i), to_bf16(values[i]));
}

/// Quantises a whole row; stores the codes inside the window and all scales.
/// `values`: the row, or whole blocks of it that hold the stored window; then the scales of these blocks
/// stand for all.
void store_fp8(std::span<const float> values, int64_t num_blocks, const RowFormat& format,
               std::span<std::byte> row) {
  const BlockScaling scaling{.block = format.scale_block, .format = format.scale_format};
  std::vector<uint8_t> codes(values.size());
  std::vector<float> scales(at(ceil_div(static_cast<int64_t>(values.size()), scaling.block)));
  quantise_row(values, scaling, codes, scales);
  std::memcpy(row.data() + format.hidden, codes.data(), at(format.hidden_bytes));
  for (int64_t i = 0; i < num_blocks; ++i) {
    const float scale = scales[at(i) % scales.size()];
    if (scaling.format == ScaleFormat::fp32)
      store(row, format.scales + 4 * i, scale);
    else
      store(row, format.scales + i, to_ue8m0(scale));
  }
}

}  // namespace

std::string_view to_string(ExpertFunction function) {
  switch (function) {
    case ExpertFunction::identity:
      return "identity";
    case ExpertFunction::scaled:
      return "scaled";
    case ExpertFunction::weighted:
      return "weighted";
  }
  return "?";
}

HostBatch::HostBatch(const Shape& shape, const Routing& routing, uint64_t seed, HostValues values)
    : shape_(shape),
      seed_(seed),
      values_(std::move(values)),
      table_(at(shape.ranks)),
      weights_(table_.size()) {
  for (Rank r = 0; r < shape_.ranks; ++r) {
    auto& table = table_[at(r)];
    routing.rows(r, table);
    PLUMB_CHECK(table.size() == at(int64_t{shape_.tokens[at(r)]} * shape_.topk),
                "the routing of rank {} has {} choices, {} tokens x top-{} expected", r, table.size(),
                shape_.tokens[at(r)], shape_.topk);
    Random random(seed_, RandomStream::weights, static_cast<uint64_t>(r));
    auto& weights = weights_[at(r)];
    weights.reserve(table.size());
    for (size_t i = 0; i < table.size(); ++i) {
      const auto token = static_cast<int32_t>(i / at(shape_.topk));
      const auto position = static_cast<int32_t>(i % at(shape_.topk));
      // 24 bits, so that the float is exact; drawn for masked choices too, so that a mask changes no other.
      const float drawn = static_cast<float>(random.next() >> 40) * 0x1p-24f;
      if (table[i] < 0)
        weights.push_back(std::numeric_limits<float>::quiet_NaN());
      else
        weights.push_back(values_.weight ? values_.weight(r, token, position) : drawn);
    }
  }
}

std::span<const int32_t> HostBatch::choices(Rank rank, int32_t token) const {
  return std::span(table_[at(rank)]).subspan(at(int64_t{token} * shape_.topk), at(shape_.topk));
}

float HostBatch::weight(Rank rank, int32_t token, int32_t position) const {
  return weights_[at(rank)][at(int64_t{token} * shape_.topk + position)];
}

void HostBatch::fill_random(uint64_t index, std::span<float> out) const {
  Random random(seed_, RandomStream::payload, index);
  for (size_t i = 0; i < out.size(); i += 4) {
    const uint64_t bits = random.next();
    for (size_t j = i; j < std::min(i + 4, out.size()); ++j)
      out[j] = static_cast<float>(static_cast<int16_t>(bits >> (16 * (j - i)))) * 0x1p-15f;
  }
}

void HostBatch::x(Rank rank, int32_t token, std::span<float> out) const {
  if (values_.x)
    values_.x(rank, token, out);
  else
    fill_random(static_cast<uint64_t>(int64_t{rank} * shape_.max_tokens + token), out);
}

void HostBatch::bias(int32_t index, Rank rank, int32_t token, std::span<float> out) const {
  if (values_.bias)
    values_.bias(index, rank, token, out);
  else  // beyond the indices of x, which are below 2^62
    fill_random((static_cast<uint64_t>(index + 1) << 62) |
                    static_cast<uint64_t>(int64_t{rank} * shape_.max_tokens + token),
                out);
  for (float& value : out) value = from_bf16(to_bf16(value));
}

void HostBatch::write_row(const RowFormat& format, Rank rank, int32_t token, std::span<std::byte> row) const {
  // Only what is stored is drawn: elements come in order, so a window holds the begin of the whole row.
  const int64_t block = format.type == DType::bf16 ? 1 : format.scale_block;
  const int64_t drawn =
      values_.x ? shape_.hidden : std::min<int64_t>(shape_.hidden, round_up(format.elements(), block));
  std::vector<float> values(at(drawn));
  x(rank, token, values);
  if (format.type == DType::bf16)
    store_bf16(std::span(values).first(at(format.elements())), format.hidden, row);
  else
    store_fp8(values, ceil_div(shape_.hidden, format.scale_block), format, row);
  if (format.source != kAbsent) store(row, format.source, rank * shape_.max_tokens + token);
  if (format.ids == kAbsent) return;
  const auto ids = choices(rank, token);
  for (int32_t k = 0; k < shape_.topk; ++k) {
    const bool is_masked = ids[at(k)] < 0;
    store(row, format.ids + 4 * k, is_masked ? kNone : ids[at(k)]);
    store(row, format.weights + 4 * k, is_masked ? 0.0f : weight(rank, token, k));
  }
}

void HostBatch::write_raw(Rank rank, int64_t slot, bool is_bf16, std::span<std::byte> row) const {
  const uint64_t index =
      (uint64_t{3} << 62) | (static_cast<uint64_t>(rank) << 40) | static_cast<uint64_t>(slot);
  if (is_bf16) {
    std::vector<float> values(row.size() / 2);
    fill_random(index, values);
    store_bf16(values, 0, row);
    return;
  }
  Random random(seed_, RandomStream::payload, index);
  for (size_t i = 0; i < row.size(); i += 8) {
    const uint64_t bits = random.next();
    std::memcpy(row.data() + i, &bits, std::min(row.size() - i, sizeof bits));
  }
}

ReceivedLayout received_layout(const Plan& plan, const Shape& shape) {
  const ProgramKind kind = plan.program().kind;
  if (kind == ProgramKind::low_latency_dispatch || kind == ProgramKind::low_latency_combine)
    return {.expand = true, .alignment = 1};
  return {.expand = plan.program().expand, .alignment = shape.alignment};
}

std::vector<std::vector<Arrival>> canonical_arrivals(const HostBatch& batch, ReceivedLayout layout) {
  const bool expand = layout.expand;
  const Shape& shape = batch.shape();
  const int32_t local_experts = shape.local_experts();
  // One group per rank in the plain layout, per expert in the expanded one; filled by ascending source.
  std::vector<std::vector<Arrival>> groups(at(expand ? shape.experts : shape.ranks));
  for (Rank s = 0; s < shape.ranks; ++s)
    for (int32_t t = 0; t < shape.tokens[at(s)]; ++t) {
      const int32_t source = s * shape.max_tokens + t;
      const auto choices = batch.choices(s, t);
      for (int32_t k = 0; k < shape.topk; ++k) {
        const ExpertId e = choices[at(k)];
        if (e < 0) continue;
        auto& group = groups[at(expand ? e : shape.rank_of(e))];
        if (expand)
          group.push_back({.source = source, .position = static_cast<int8_t>(k)});
        else if (group.empty() || group.back().source != source)
          group.push_back({.source = source});
      }
    }
  if (!expand) return groups;
  std::vector<std::vector<Arrival>> result(at(shape.ranks));
  for (ExpertId e = 0; e < shape.experts; ++e) {
    auto& rows = result[at(e / local_experts)];
    rows.insert(rows.end(), groups[at(e)].begin(), groups[at(e)].end());
    rows.resize(at(round_up(static_cast<int64_t>(rows.size()), layout.alignment)));
  }
  return result;
}

void decode_hidden(const RowFormat& format, std::span<const std::byte> row, std::span<float> out) {
  if (format.type == DType::bf16) {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = from_bf16(load<uint16_t>(row, format.hidden + 2 * static_cast<int64_t>(i)));
    return;
  }
  std::vector<float> scales(at(ceil_div(static_cast<int64_t>(out.size()), format.scale_block)));
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    scales[i] = format.scale_format == ScaleFormat::fp32
                    ? load<float>(row, format.scales + 4 * index)
                    : from_ue8m0(load<uint8_t>(row, format.scales + index));
  }
  std::vector<uint8_t> codes(out.size());
  std::memcpy(codes.data(), row.data() + format.hidden, codes.size());
  dequantise_row(codes, scales, format.scale_block, out);
}

int32_t load_id(const RowFormat& format, std::span<const std::byte> row, int32_t position) {
  return load<int32_t>(row, format.ids + 4 * position);
}
float load_weight(const RowFormat& format, std::span<const std::byte> row, int32_t position) {
  return load<float>(row, format.weights + 4 * position);
}
int32_t load_source(const RowFormat& format, std::span<const std::byte> row) {
  return load<int32_t>(row, format.source);
}

void run_expert(const HostBatch& batch, const ExpertCall& call, const RowFormat& out,
                std::span<std::byte> out_row) {
  const Shape& shape = batch.shape();
  const int32_t source = load_source(call.in, call.row);
  const Rank source_rank = source / shape.max_tokens;
  std::vector<float> x(at(call.in.elements()));
  decode_hidden(call.in, call.row, x);
  x.resize(at(out.elements()));
  std::vector<float> y(x.size());
  std::vector<float> term(x.size());
  for (int32_t k = 0; k < shape.topk; ++k) {
    // A low-latency message names no experts: the slot tells which, here by way of the source's choices.
    const bool in_row = call.in.has_metadata();
    const ExpertId e =
        in_row ? load_id(call.in, call.row, k) : batch.choices(source_rank, source % shape.max_tokens)[at(k)];
    const bool is_local =
        e >= 0 && shape.rank_of(e) == call.rank && (call.position == kNone || call.position == k);
    const float weight = !is_local ? 0.0f
                         : in_row  ? load_weight(call.in, call.row, k)
                                   : batch.weight(source_rank, source % shape.max_tokens, k);
    if (out.has_metadata()) {
      store(out_row, out.ids + 4 * k, is_local ? e : kNone);
      store(out_row, out.weights + 4 * k, weight);
    }
    if (!is_local || call.function == ExpertFunction::identity) continue;
    const float factor = call.function == ExpertFunction::scaled ? static_cast<float>(e + 1) : weight;
    // Two loops: each product is rounded on its own, never fused into the sum.
    for (size_t i = 0; i < x.size(); ++i) term[i] = factor * x[i];
    for (size_t i = 0; i < x.size(); ++i) y[i] += term[i];
  }
  store_bf16(call.function == ExpertFunction::identity ? x : y, out.hidden, out_row);
}

namespace {

void store_words(std::span<const int64_t> words, std::span<std::byte> row) {
  std::memcpy(row.data(), words.data(), std::min(row.size(), words.size_bytes()));
}

class Filler {
 public:
  Filler(const Plan& plan, const HostBatch& batch, ExpertFunction function, HostMemory& memory)
      : plan_(plan), batch_(batch), shape_(batch.shape()), function_(function), memory_(memory) {}

  void fill(RegionId region) {
    const std::string& name = plan_.regions()[region].name;
    if (name == "input" && memory_.format(region).is_record())
      each_row(region, [&](Rank r, int64_t slot, auto row) {
        batch_.write_row(memory_.format(region), r, static_cast<int32_t>(slot), row);
      });
    else if (name == "counts_out" || name == "offsets_out")
      fill_counts(region, name == "offsets_out");
    else if (name == "bias")
      fill_bias(region);
    else if (name == "expert_out")
      fill_expert_out(region);
    else
      each_row(region, [&](Rank r, int64_t slot, auto row) {
        batch_.write_raw(r, slot, plan_.program().kind == ProgramKind::reduce_scatter, row);
      });
  }

 private:
  template <class Write>
  void each_row(RegionId region, Write write) {
    for (Rank r = 0; r < shape_.ranks; ++r)
      for (int64_t slot = 0; slot < memory_.rows(region, r); ++slot) {
        write(r, slot, memory_.row(region, r, slot));
        memory_.set_writer(region, r, slot, HostMemory::kInitial);
      }
  }

  void fill_counts(RegionId region, bool offsets) {
    const HostCounts table(batch_);
    for (Rank r = 0; r < shape_.ranks; ++r)
      for (Rank peer = 0; peer < shape_.ranks; ++peer) {
        const int64_t slot = offsets ? by_forwarder(plan_, peer) : peer;
        const auto row = memory_.row(region, r, slot);
        if (offsets)
          store_words(table.offsets(peer, r, plan_.program().expand), row);
        else
          store_words(table.row(r, peer), row);
        memory_.set_writer(region, r, slot, HostMemory::kInitial);
      }
  }

  void fill_bias(RegionId region) {
    const RowFormat& format = memory_.format(region);
    std::vector<float> values(at(shape_.hidden));
    each_row(region, [&](Rank r, int64_t slot, std::span<std::byte> row) {
      const int32_t tokens = shape_.tokens[at(r)];
      batch_.bias(static_cast<int32_t>(slot / tokens), r, static_cast<int32_t>(slot % tokens), values);
      store_bf16(std::span(values).first(at(format.elements())), format.hidden, row);
      for (int32_t k = 0; format.ids != kAbsent && k < shape_.topk; ++k)
        store(row, format.ids + 4 * k, kNone);
    });
  }

  /// What the experts would make of rows that a dispatch has delivered in the canonical order.
  void fill_expert_out(RegionId region) {
    const RowFormat& out = memory_.format(region);
    const TokenLayout layout =
        out.has_metadata()
            ? shape_.dispatch_layout()
            : low_latency_dispatch_layout(shape_.hidden, shape_.dispatch_type == DType::fp8_e4m3);
    const RowFormat in = record_format(shape_, layout, 2 * int64_t{out.elements()});
    std::vector<std::byte> row(at(in.row_bytes));
    const auto arrivals = canonical_arrivals(batch_, received_layout(plan_, shape_));
    for (Rank r = 0; r < shape_.ranks; ++r)
      for (size_t i = 0; i < arrivals[at(r)].size(); ++i) {
        const auto [source, position] = arrivals[at(r)][i];
        if (source == kNone) continue;
        batch_.write_row(in, source / shape_.max_tokens, source % shape_.max_tokens, row);
        const auto slot = static_cast<int64_t>(i);
        run_expert(batch_, {in, row, r, position, function_}, out, memory_.row(region, r, slot));
        memory_.set_writer(region, r, slot, HostMemory::kInitial);
      }
  }

  const Plan& plan_;
  const HostBatch& batch_;
  const Shape& shape_;
  const ExpertFunction function_;
  HostMemory& memory_;
};

}  // namespace

void fill_initial(const Plan& plan, const HostBatch& batch, ExpertFunction function, HostMemory& memory) {
  std::vector<bool> is_read(plan.regions().size());
  std::vector<bool> is_written(plan.regions().size());
  for (const Phase& phase : plan.phases()) {
    if (phase.from != kNoRegion) is_read[phase.from] = true;
    if (phase.also_from != kNoRegion) is_read[phase.also_from] = true;
    if (phase.to != kNoRegion) is_written[phase.to] = true;
  }
  Filler filler(plan, batch, function, memory);
  for (size_t i = 0; i < is_read.size(); ++i)
    if (is_read[i] && !is_written[i]) filler.fill(static_cast<RegionId>(i));
}

}  // namespace plumb

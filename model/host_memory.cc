// Arenas of the host executor and the formats of their rows.
#include "model/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "model/error.h"

namespace plumb {
namespace {

/// Bytes cut off from the end of a payload: a multiple of 32, so that what follows keeps its alignment.
int64_t trimmed_bytes(int64_t bytes, int64_t window_bytes) {
  if (window_bytes == 0 || bytes <= window_bytes) return 0;
  return (bytes - window_bytes) / kRecordAlignment * kRecordAlignment;
}

bool holds_counts(const std::string& region) {
  return region.starts_with("counts") || region.starts_with("offsets");
}

bool is_record_of(const Shape& shape, const TokenLayout& layout) {
  const bool is_fp8 = shape.dispatch_type == DType::fp8_e4m3;
  return layout == shape.dispatch_layout() || layout == shape.combine_layout() ||
         layout == low_latency_dispatch_layout(shape.hidden, is_fp8) ||
         layout == low_latency_combine_layout(shape.hidden);
}

}  // namespace

RowFormat record_format(const Shape& shape, const TokenLayout& layout, int64_t window_bytes) {
  if (!is_record_of(shape, layout))
    fail_usage(
        "the plan moves records of {} bytes with {} bytes of hidden data, which are not those of the "
        "shape ({} in dispatch, {} in combine); pass the shape that the plan was built from",
        layout.record_bytes, layout.hidden_bytes, shape.dispatch_layout().record_bytes,
        shape.combine_layout().record_bytes);
  const int64_t cut = trimmed_bytes(layout.hidden_bytes, window_bytes);
  const auto behind_hidden = [&](int64_t offset) {
    return offset == kAbsent || offset < layout.hidden ? offset : offset - cut;
  };
  RowFormat format{.plan_bytes = layout.record_bytes, .row_bytes = layout.record_bytes - cut};
  format.type = layout.hidden_bytes == 2 * int64_t{shape.hidden} ? DType::bf16 : DType::fp8_e4m3;
  format.hidden = layout.hidden;
  format.hidden_bytes = layout.hidden_bytes - cut;
  const bool is_token_record = layout.expert_ids != kAbsent;
  if (format.type == DType::fp8_e4m3) {
    format.scales = behind_hidden(layout.scales);
    // The low-latency kernels quantise by themselves, always in blocks of 128 with fp32 scales.
    format.scale_block = is_token_record ? shape.scale_block : 128;
    format.scale_format = is_token_record ? shape.scale_format : ScaleFormat::fp32;
    format.scales_bytes = is_token_record ? 4 * int64_t{shape.scale_packs()} : layout.scales_bytes;
  }
  if (!is_token_record) {
    format.source = layout.source;
    return format;
  }
  format.ids = behind_hidden(layout.expert_ids);
  format.weights = behind_hidden(layout.weights);
  const bool has_source = layout.metadata_raw > 8 * int64_t{shape.topk};
  if (has_source) format.source = behind_hidden(layout.source);
  return format;
}

RowFormat row_format(const Shape& shape, const Region& region, int64_t window_bytes) {
  if (region.layout.record_bytes != 0) return record_format(shape, region.layout, window_bytes);
  const int64_t cut = holds_counts(region.name) ? 0 : trimmed_bytes(region.row_bytes, window_bytes);
  return {.plan_bytes = region.row_bytes, .row_bytes = region.row_bytes - cut};
}

void HostMemory::Free::operator()(std::byte* bytes) const { std::free(bytes); }

HostMemory::HostMemory(const Plan& plan, const Shape& shape, const HostOptions& options)
    : ranks_(plan.grouping().ranks) {
  for (const Region& region : plan.regions()) {
    formats_.push_back(row_format(shape, region, options.window_bytes));
    PLUMB_CHECK(region.rows.size() == static_cast<size_t>(ranks_), "region '{}' has rows on {} of {} ranks",
                region.name, region.rows.size(), ranks_);
  }
  int64_t need = 0;
  for (size_t i = 0; i < formats_.size(); ++i)
    for (const int64_t rows : plan.regions()[i].rows) {
      int64_t bytes = 0;
      const bool overflow =
          __builtin_mul_overflow(rows, formats_[i].row_bytes + int64_t{sizeof(OpId)}, &bytes) ||
          __builtin_add_overflow(need, bytes, &need);
      if (overflow) need = std::numeric_limits<int64_t>::max();
    }
  if (need > options.memory_limit)
    fail_usage(
        "the regions of all {} ranks need {} bytes on this host, the limit is {} bytes; set a window "
        "of hidden bytes, use fewer tokens, or raise the limit",
        ranks_, need, options.memory_limit);
  for (size_t i = 0; i < formats_.size(); ++i)
    for (const int64_t rows : plan.regions()[i].rows) {
      const auto count = static_cast<size_t>(std::max<int64_t>(rows, 1));
      const auto row_bytes = static_cast<size_t>(std::max<int64_t>(formats_[i].row_bytes, 1));
      // calloc: pages that no row touches cost nothing.
      auto* bytes = static_cast<std::byte*>(std::calloc(count, row_bytes));
      if (bytes == nullptr)
        throw Error(ErrorKind::environment, fmt::format("no memory for {} rows of {} bytes of region '{}'",
                                                        count, row_bytes, plan.regions()[i].name));
      arenas_.push_back({.rows = rows,
                         .bytes = std::unique_ptr<std::byte[], Free>(bytes),
                         .writers = std::vector<OpId>(static_cast<size_t>(rows), kNever)});
    }
}

}  // namespace plumb

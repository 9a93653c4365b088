// The largest calls that a buffer must serve, agreed by all ranks at creation, and the window that follows.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/params.h"

namespace plumb::hw {

struct BufferLimits {
  int32_t ranks = 1;    // 1..128 of one scale-up domain
  int32_t experts = 1;  // a multiple of ranks
  int32_t topk = 1;     // 1..32
  int32_t max_tokens = 0;
  int32_t hidden = 0;       // elements; row bytes must be a multiple of 16 in every type used
  int32_t scale_packs = 0;  // 4-byte packs beside a row, at most; 0 = bf16 only
  int32_t alignment = 1;    // largest alignment of the expand layout
  bool expand = false;      // whether expanded calls are served
  int64_t max_copies = 0;   // received copies; 0 = worst case. More in a call is refused by all ranks.
  int64_t max_rows = 0;     // rows of the tensor; 0 = worst case
  int32_t num_handles = 4;  // dispatches whose handles live at the same time
  int64_t timeout_ns = 10'000'000'000;
};

/// Throws Error(usage) naming every field out of range with found and allowed values.
void validate(const BufferLimits& limits);

/// Throws Error(usage) that names the first rank and field that differ from rank 0's.
void check_agreement(std::span<const BufferLimits> by_rank);

int64_t copies_capacity(const BufferLimits& limits);
int64_t rows_capacity(const BufferLimits& limits);
/// Packs between two columns of column-major scales: the rows rounded up to 4 (16 bytes).
int64_t scale_column_packs(const BufferLimits& limits);

/// Places of all areas, each at a multiple of 256 bytes; the synchronisation words come first.
/// `has_far_peers`: some ranks are on other GPUs.
kernels::WindowMap window_map(const BufferLimits& limits, bool has_far_peers);
/// Bytes from the start of the window that must be zero before the first call.
int64_t sync_bytes(const kernels::WindowMap& map);

}  // namespace plumb::hw

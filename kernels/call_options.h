// What all ranks of a call must ask for alike, as one word that travels with their signals. Device-safe.
#pragma once

#include <cstdint>

#include "model/hd.h"

namespace plumb::kernels {

/// Options of a call. Compared are scale_packs modulo 512 and alignment modulo 1024.
struct CallOptions {
  int32_t num_sms = 1;  // 1..256
  bool fp8 = false;
  bool expand = false;
  bool column_scales = false;
  bool cached = false;
  bool multiple_reduction = false;
  int32_t scale_packs = 0;
  int32_t alignment = 0;  // expand only, where it decides about places

  friend constexpr bool operator==(const CallOptions&, const CallOptions&) = default;

  PLUMB_HD constexpr uint32_t word() const {
    const auto bits = [](int32_t value, uint32_t width, uint32_t at) {
      return (static_cast<uint32_t>(value) & ((1u << width) - 1)) << at;
    };
    return bits(num_sms - 1, 8, 0) | bits(fp8, 1, 8) | bits(expand, 1, 9) | bits(column_scales, 1, 10) |
           bits(cached, 1, 11) | bits(multiple_reduction, 1, 12) | bits(scale_packs, 9, 13) |
           bits(alignment, 10, 22);
  }
};

/// The options in a word.
PLUMB_HD constexpr CallOptions options_in(uint32_t word) {
  const auto bits = [&](uint32_t width, uint32_t at) {
    return static_cast<int32_t>(word >> at & ((1u << width) - 1));
  };
  return {.num_sms = bits(8, 0) + 1,
          .fp8 = bits(1, 8) != 0,
          .expand = bits(1, 9) != 0,
          .column_scales = bits(1, 10) != 0,
          .cached = bits(1, 11) != 0,
          .multiple_reduction = bits(1, 12) != 0,
          .scale_packs = bits(9, 13),
          .alignment = bits(10, 22)};
}

}  // namespace plumb::kernels

// Numbers of rows on the device, with the bits of model/numeric.h.
#pragma once

#include <cstdint>

namespace plumb::kernels {

__device__ __forceinline__ float bf16_value(uint32_t code) { return __uint_as_float(code << 16); }
__device__ __forceinline__ uint16_t bf16_code(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ float e4m3_value(uint32_t code) {
  const uint32_t sign = (code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return __uint_as_float(sign | 0x7fc00000u);
  if (magnitude < 8)
    return __uint_as_float(sign | __float_as_uint(static_cast<float>(magnitude) * 0.001953125f));
  return __uint_as_float(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}
__device__ __forceinline__ float ue8m0_value(uint32_t code) {
  if (code == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(code == 0 ? 0x00400000u : code << 23);
}

}  // namespace plumb::kernels

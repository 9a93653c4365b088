// Asks the caches for a record before it is needed.
#pragma once

#include <cstdint>

namespace plumb::sim {

inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  // GCC 12 takes a function that does nothing but prefetch for one without effect, and drops its calls.
  asm volatile("");
}

/// condition ? a : b, never as a branch.
class Selector {
 public:
  explicit Selector(bool condition) : mask_(-static_cast<uintptr_t>(condition)) { asm("" : "+r"(mask_)); }
  uintptr_t select(uintptr_t a, uintptr_t b) const { return b ^ ((a ^ b) & mask_); }

 private:
  uintptr_t mask_;
};

}  // namespace plumb::sim

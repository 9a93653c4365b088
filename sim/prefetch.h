// Asks the caches for a record before it is needed.
#pragma once

namespace plumb::sim {

inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  // GCC 12 takes a function that does nothing but prefetch for one without effect, and drops its calls.
  asm volatile("");
}

}  // namespace plumb::sim

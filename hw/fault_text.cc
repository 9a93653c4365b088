// Texts of faults; tests pin them.
#include "hw/fault_text.h"

#include <atomic>

#include "model/error.h"

namespace plumb::hw {

std::optional<kernels::Fault> read_fault(const kernels::Fault* pinned) {
  if (*static_cast<const volatile uint64_t*>(&pinned->state) != 1) return std::nullopt;
  std::atomic_thread_fence(std::memory_order_acquire);
  return *pinned;
}

std::string to_string(const kernels::Fault& f) {
  const char* step = kernels::kStepNames[static_cast<int>(f.step)];
  switch (f.kind) {
    case kernels::FaultKind::timeout:
      return fmt::format(
          "rank {} gave up waiting for rank {} in phase '{}': expected call {}, seen {}; the peer is dead, "
          "late "
          "or made other calls; destroy this buffer",
          f.rank, f.peer, step,
          f.step == kernels::Step::combine_enter || f.step == kernels::Step::enter ? f.expected >> 32
                                                                                   : f.expected,
          f.step == kernels::Step::combine_enter || f.step == kernels::Step::enter ? f.seen >> 32 : f.seen);
    case kernels::FaultKind::overflow:
      return fmt::format(
          "rank {} would receive {} rows; allowed: {}; nothing was sent; raise max_copies or max_rows (found "
          "by "
          "rank {})",
          f.peer, f.seen, f.expected, f.rank);
    case kernels::FaultKind::bad_expert:
      return fmt::format("rank {} token {}: expert {}; allowed: -1..{}; it was taken as no choice", f.rank,
                         f.token, f.seen, f.expected - 1);
    case kernels::FaultKind::repeated_expert:
      return fmt::format(
          "rank {} token {}: expert {} chosen twice; allowed: once; this call's rows are wrong", f.rank,
          f.token, f.seen);
    case kernels::FaultKind::wrong_handle:
      return fmt::format("phase '{}': rank {} uses the handle of dispatch {}, rank {} that of dispatch {}",
                         step, f.rank, f.expected, f.peer, f.seen);
    case kernels::FaultKind::none:
      break;
  }
  return "no fault";
}

}  // namespace plumb::hw

// Texts of faults; tests pin them.
#include "hw/fault_text.h"

#include <atomic>

#include "kernels/call_options.h"
#include "model/error.h"

namespace plumb::hw {

namespace {

/// "num_sms is 4 at rank 0, 8 at rank 1", and so on for all options that differ.
std::string differences(const kernels::Fault& f) {
  const kernels::CallOptions own = kernels::options_in(static_cast<uint32_t>(f.expected));
  const kernels::CallOptions other = kernels::options_in(static_cast<uint32_t>(f.seen));
  std::string text;
  const auto compare = [&](std::string_view name, auto member) {
    if (own.*member != other.*member)
      text += fmt::format("{}{} is {} at rank {}, {} at rank {}", text.empty() ? "" : "; ", name, own.*member,
                          f.rank, other.*member, f.peer);
  };
  using Options = kernels::CallOptions;
  compare("num_sms", &Options::num_sms);
  compare("fp8", &Options::fp8);
  compare("expand", &Options::expand);
  compare("column_scales", &Options::column_scales);
  compare("cached", &Options::cached);
  compare("multiple_reduction", &Options::multiple_reduction);
  compare("scale_packs", &Options::scale_packs);
  compare("alignment", &Options::alignment);
  return text;
}

}  // namespace

std::optional<kernels::Fault> read_fault(const kernels::Fault* pinned) {
  if (*static_cast<const volatile uint64_t*>(&pinned->state) != 1) return std::nullopt;
  std::atomic_thread_fence(std::memory_order_acquire);
  return *pinned;
}

bool is_abandoned(const kernels::Fault* pinned) {
  return *static_cast<const volatile uint64_t*>(&pinned->lost) != 0;
}

std::string to_string(const kernels::Fault& f) {
  const char* step = kernels::kStepNames[static_cast<int>(f.step)];
  switch (f.kind) {
    case kernels::FaultKind::timeout:
      return fmt::format(
          "rank {} gave up waiting for rank {} in phase '{}': expected call {}, seen {}; the peer is dead, "
          "late "
          "or made other calls; destroy this buffer",
          f.rank, f.peer, step, f.expected, f.seen);
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
    case kernels::FaultKind::options_differ:
      return fmt::format(
          "phase '{}': ranks {} and {} make this call with different options: {}; allowed: equal on all "
          "ranks; "
          "destroy this buffer",
          step, f.rank, f.peer, differences(f));
    case kernels::FaultKind::wrong_handle:
      return fmt::format("phase '{}': rank {} uses the handle of dispatch {}, rank {} that of dispatch {}",
                         step, f.rank, f.expected, f.peer, f.seen);
    case kernels::FaultKind::none:
      break;
  }
  return "no fault";
}

}  // namespace plumb::hw

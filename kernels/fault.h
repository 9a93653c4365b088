// What a kernel reports when a wait runs out or its input is wrong: one record per rank in pinned memory
// that the host reads at any time. Device-safe.
#pragma once

#include <cstdint>

namespace plumb::kernels {

/// Steps of the kernels; names as in docs/plan.md where a plan has them.
enum class Step : uint32_t {
  enter,
  notify,
  counts,
  dispatch,
  flush,
  copy,
  pad,
  combine_enter,
  combine_local,
  combine_up,
  combine_flush,
  combine_reduce,
  barrier,
  count_,  // number of steps
};
inline constexpr int32_t kSteps = static_cast<int32_t>(Step::count_);
inline constexpr const char* kStepNames[kSteps] = {
    "enter",         "notify",        "counts",     "dispatch",      "flush",          "copy",   "pad",
    "combine_enter", "combine_local", "combine_up", "combine_flush", "combine_reduce", "barrier"};

enum class FaultKind : uint32_t {
  none,
  timeout,          // a peer's signal did not come: expected, seen = numbers of calls; the buffer is lost
  overflow,         // more rows for `peer` than its buffer holds: expected = capacity, seen = rows
  bad_expert,       // `peer` met an expert id out of range: expected = number of experts, seen = id
  repeated_expert,  // `peer` met an expert twice in one row: seen = id
  options_differ,   // `peer` makes the same call with other options: expected, seen = CallOptions::word()
  wrong_handle,     // `peer` uses a handle of another dispatch: expected, seen = dispatch numbers
};

/// The first fault of a rank; `state` is written last. `lost` is set, for good, when a wait was given up,
/// also if the record is taken.
struct Fault {
  uint64_t lost = 0;
  uint64_t state = 0;  // 1: complete
  FaultKind kind = FaultKind::none;
  Step step = Step::enter;
  int32_t rank = 0;
  int32_t peer = 0;
  int32_t token = 0;  // of a bad row, at `peer`
  int64_t expected = 0;
  int64_t seen = 0;
};

}  // namespace plumb::kernels

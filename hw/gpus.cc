// A forked process asks the driver and leaves the answer in shared memory.
#include "hw/gpus.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "hw/check.h"
#include "hw/processes.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

constexpr std::chrono::seconds kLimit{60};  // the first call of CUDA on a host of many GPUs takes seconds

struct Answer {
  int32_t count = 0;
  int32_t together = 0;
  char reason[256] = {};
};

/// Ends before the first GPU that one of those before it does not reach, or that does not reach it.
int32_t count_together(int32_t count) {
  for (int32_t b = 0; b < count; ++b)
    for (int32_t a = 0; a < b; ++a) {
      int there = 0;
      int back = 0;
      check(cudaDeviceCanAccessPeer(&there, a, b), "peer access");
      check(cudaDeviceCanAccessPeer(&back, b, a), "peer access");
      if (there == 0 || back == 0) return b;
    }
  return count;
}

}  // namespace

VisibleGpus visible_gpus() {
  const SharedMemory memory(sizeof(Answer));
  auto* answer = new (memory.get()) Answer;
  const auto outcomes = run_ranks(1, kLimit, [&](Rank, Meeting&) {
    std::string_view reason;
    answer->count = device_count(&reason);
    answer->together = std::min(answer->count, 1);
    reason.copy(answer->reason, sizeof answer->reason - 1);
    try {
      answer->together = count_together(answer->count);
    } catch (const Error& error) {  // the parent has used CUDA
      std::string_view(error.what()).copy(answer->reason, sizeof answer->reason - 1);
    }
    return 0;
  });
  if (const std::string failed = failures(outcomes); !failed.empty())
    throw Error(ErrorKind::environment, "the process that counts GPUs: " + failed);
  return {.count = answer->count, .together = answer->together, .reason = answer->reason};
}

}  // namespace plumb::hw

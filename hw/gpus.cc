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
  PeerAccess peers;
  char reason[256] = {};
};

}  // namespace

VisibleGpus visible_gpus() {
  const SharedMemory memory(sizeof(Answer));
  auto* answer = new (memory.get()) Answer;
  const auto outcomes = run_ranks(1, kLimit, [&](Rank, Meeting&) {
    std::string_view reason;
    answer->count = device_count(&reason);
    answer->peers = PeerAccess(std::min(answer->count, 1));
    reason.copy(answer->reason, sizeof answer->reason - 1);
    try {
      answer->peers = ask_peer_access(answer->count);
    } catch (const Error& error) {  // the parent has used CUDA
      std::string_view(error.what()).copy(answer->reason, sizeof answer->reason - 1);
    }
    return 0;
  });
  if (const std::string failed = failures(outcomes); !failed.empty())
    throw Error(ErrorKind::environment, "the process that counts GPUs: " + failed);
  return {.count = answer->count, .peers = answer->peers, .reason = answer->reason};
}

}  // namespace plumb::hw

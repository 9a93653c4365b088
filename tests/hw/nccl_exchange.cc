// Grouped ncclSend and ncclRecv.
#include "tests/hw/nccl_exchange.h"

#include <nccl.h>

#include <cstring>

#include "model/error.h"

namespace plumb::hw {
namespace {

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw Error(ErrorKind::environment,
              fmt::format("{}: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

}  // namespace

struct NcclExchange::State {
  ncclComm_t comm = nullptr;
  int32_t ranks = 0;
};

NcclExchange::NcclExchange(const NvlinkId& id, Rank rank, int32_t ranks) : state_(std::make_unique<State>()) {
  ncclUniqueId unique;
  static_assert(sizeof unique == kNvlinkIdBytes);
  std::memcpy(&unique, id.data(), sizeof unique);
  state_->ranks = ranks;
  check(ncclCommInitRank(&state_->comm, ranks, unique, rank), "join NCCL's exchange");
}
NcclExchange::~NcclExchange() {
  if (state_->comm != nullptr) ncclCommDestroy(state_->comm);
}

void NcclExchange::enqueue(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  const auto size = static_cast<size_t>(bytes);
  check(ncclGroupStart(), "start a group");
  for (int32_t r = 0; r < state_->ranks; ++r) {
    check(ncclSend(from, size, ncclChar, r, state_->comm, stream), "send");
    check(ncclRecv(static_cast<char*>(to) + r * bytes, size, ncclChar, r, state_->comm, stream), "receive");
  }
  check(ncclGroupEnd(), "end a group");
}

}  // namespace plumb::hw

// NCCL communicator, symmetric memory and windows with owners.
#include "hw/nvlink_world.h"

#include <nccl.h>
#include <nccl_device.h>

#include <cstring>
#include <string>

#include "hw/owners.h"
#include "kernels/lsa_table.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

void check(ncclResult_t result, std::string_view what) {
  if (result == ncclSuccess) return;
  throw Error(ErrorKind::environment,
              fmt::format("{}: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

struct CommTraits {
  static void destroy(ncclComm_t comm) { ncclCommDestroy(comm); }
};
struct SymmetricTraits {
  static void destroy(void* memory) { ncclMemFree(memory); }
};
using Comm = Owner<ncclComm_t, CommTraits>;
using SymmetricMemory = Owner<void*, SymmetricTraits>;

class NvlinkWindows : public Windows {
 public:
  NvlinkWindows(std::shared_ptr<Comm> comm, int32_t ranks, int64_t bytes, int64_t zero_bytes)
      : comm_(std::move(comm)) {
    void* memory = nullptr;
    check(ncclMemAlloc(&memory, static_cast<size_t>(bytes)),
          fmt::format("allocate a window of {} bytes", bytes));
    memory_ = SymmetricMemory(memory);
    hw::check(cudaMemset(memory, 0, static_cast<size_t>(zero_bytes)), "clear a window");
    hw::check(cudaDeviceSynchronize(), "clear a window");
    check(ncclCommWindowRegister(comm_->get(), memory, static_cast<size_t>(bytes), &window_,
                                 NCCL_WIN_COLL_SYMMETRIC),
          "register a window");
    // NCCL 2.28 reports success without a window when the communicator has no symmetric memory.
    if (window_ == nullptr)
      throw Error(
          ErrorKind::environment,
          "NCCL made no window: symmetric memory is off (peer access, NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE)");
    table_ = device_memory(static_cast<int64_t>(sizeof(char*)) * ranks);
    const Stream stream = make_stream();
    hw::check(kernels::launch_lsa_table(window_, ranks, static_cast<char**>(table_.get()), stream.get()),
              "ask for the peers' addresses");
    hw::check(cudaStreamSynchronize(stream.get()), "ask for the peers' addresses");
  }
  NvlinkWindows(const NvlinkWindows&) = delete;
  NvlinkWindows& operator=(const NvlinkWindows&) = delete;
  ~NvlinkWindows() override {
    if (window_ != nullptr) ncclCommWindowDeregister(comm_->get(), window_);
  }
  char* base(Rank) const override { return static_cast<char*>(memory_.get()); }
  char* const* peers(Rank) const override { return static_cast<char* const*>(table_.get()); }

 private:
  std::shared_ptr<Comm> comm_;
  SymmetricMemory memory_;
  ncclWindow_t window_ = nullptr;
  DeviceMemory table_;
};

class NvlinkWorld : public World {
 public:
  NvlinkWorld(const NvlinkId& id, Rank rank, int32_t ranks) : rank_(rank), ranks_(ranks) {
    ncclUniqueId unique;
    static_assert(sizeof unique == kNvlinkIdBytes);
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, ranks, unique, rank), fmt::format("join as rank {} of {}", rank, ranks));
    comm_ = std::make_shared<Comm>(comm);
    const int32_t domain = ncclTeamLsa(comm).nRanks;
    if (domain != ranks)
      throw Error(
          ErrorKind::environment,
          fmt::format("nvlink world: {} ranks, but a load/store domain holds {}; allowed: all ranks in one "
                      "domain of GPUs that reach each other's memory",
                      ranks, domain));
  }
  std::string_view name() const override { return "nvlink"; }
  int32_t ranks() const override { return ranks_; }
  std::vector<Rank> own_ranks() const override { return {rank_}; }
  std::shared_ptr<Windows> make_windows(int64_t bytes, int64_t zero_bytes) override {
    auto windows = std::make_shared<NvlinkWindows>(comm_, ranks_, bytes, zero_bytes);
    gather_bytes({});  // no rank signals a window that is not yet clear and registered
    return windows;
  }
  std::vector<BufferLimits> gather(std::span<const BufferLimits> own) override {
    const BufferLimits& mine = own.front();
    std::vector<BufferLimits> all(static_cast<size_t>(ranks_));
    std::vector<char> bytes(sizeof mine);
    std::memcpy(bytes.data(), &mine, sizeof mine);
    const std::vector<char> gathered = gather_bytes(bytes);
    for (size_t r = 0; r < all.size(); ++r)
      std::memcpy(&all[r], gathered.data() + r * sizeof mine, sizeof mine);
    return all;
  }

 private:
  /// Equal numbers of bytes from all ranks, in order; empty: a barrier, of a word, as NCCL's kernels read no
  /// less.
  std::vector<char> gather_bytes(const std::vector<char>& own) {
    const size_t size = std::max(own.size(), sizeof(uint64_t));
    const DeviceMemory memory = device_memory(static_cast<int64_t>(size) * ranks_);
    char* to = static_cast<char*>(memory.get());
    char* from = to + size * static_cast<size_t>(rank_);
    const Stream stream = make_stream();
    if (!own.empty())
      hw::check(cudaMemcpy(from, own.data(), own.size(), cudaMemcpyHostToDevice), "send limits");
    check(ncclAllGather(from, to, size, ncclChar, comm_->get(), stream.get()), "gather limits");
    hw::check(cudaStreamSynchronize(stream.get()), "gather limits");
    std::vector<char> all(size * static_cast<size_t>(ranks_));
    hw::check(cudaMemcpy(all.data(), to, all.size(), cudaMemcpyDeviceToHost), "receive limits");
    return all;
  }

  Rank rank_;
  int32_t ranks_;
  std::shared_ptr<Comm> comm_;
};

void require_same_nccl() {
  const int version = loaded_nccl_version();
  if (version != NCCL_VERSION_CODE)
    throw Error(
        ErrorKind::environment,
        fmt::format("NCCL {} is loaded, but {} was compiled against; allowed: the same, since device code "
                    "depends on it",
                    version, NCCL_VERSION_CODE));
}

}  // namespace

int loaded_nccl_version() {
  int version = 0;
  check(ncclGetVersion(&version), "version of NCCL");
  return version;
}

NvlinkId make_nvlink_id() {
  require_same_nccl();
  ncclUniqueId unique;
  check(ncclGetUniqueId(&unique), "make an identifier");
  NvlinkId id;
  std::memcpy(id.data(), &unique, id.size());
  return id;
}

std::unique_ptr<World> make_nvlink_world(const NvlinkId& id, Rank rank, int32_t ranks) {
  require_same_nccl();
  if (ranks < 1 || ranks > kernels::kMaxRanks || rank < 0 || rank >= ranks)
    fail_usage("nvlink world: rank {} of {}; allowed: ranks 1..{}", rank, ranks, kernels::kMaxRanks);
  return std::make_unique<NvlinkWorld>(id, rank, ranks);
}

}  // namespace plumb::hw

// The local world: all ranks on one GPU, so a peer's window is plain device memory.
#include "hw/owners.h"
#include "hw/world.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

class LocalWindows : public Windows {
 public:
  LocalWindows(int32_t ranks, int64_t bytes, int64_t zero_bytes) {
    std::vector<char*> bases;
    for (Rank r = 0; r < ranks; ++r) {
      memory_.push_back(device_memory(bytes));
      bases.push_back(static_cast<char*>(memory_.back().get()));
      check(cudaMemset(bases.back(), 0, static_cast<size_t>(zero_bytes)), "clear a window");
    }
    bases_ = bases;
    table_ = device_memory(static_cast<int64_t>(sizeof(char*)) * ranks);
    check(cudaMemcpy(table_.get(), bases.data(), sizeof(char*) * bases.size(), cudaMemcpyHostToDevice),
          "copy the table of peers");
    check(cudaDeviceSynchronize(), "create windows");
  }
  char* base(Rank own) const override { return bases_.at(static_cast<size_t>(own)); }
  char* const* peers(Rank) const override { return static_cast<char* const*>(table_.get()); }

 private:
  std::vector<DeviceMemory> memory_;
  std::vector<char*> bases_;
  DeviceMemory table_;
};

class LocalWorld : public World {
 public:
  explicit LocalWorld(int32_t ranks) : ranks_(ranks) {}
  std::string_view name() const override { return "local"; }
  int32_t ranks() const override { return ranks_; }
  std::vector<Rank> own_ranks() const override {
    std::vector<Rank> all;
    for (Rank r = 0; r < ranks_; ++r) all.push_back(r);
    return all;
  }
  std::shared_ptr<Windows> make_windows(int64_t bytes, int64_t zero_bytes) override {
    return std::make_shared<LocalWindows>(ranks_, bytes, zero_bytes);
  }
  std::vector<BufferLimits> gather(std::span<const BufferLimits> own) override {
    return {own.begin(), own.end()};
  }

 private:
  int32_t ranks_;
};

}  // namespace

std::unique_ptr<World> make_local_world(int32_t ranks) {
  if (ranks < 1 || ranks > kernels::kMaxBatch)
    fail_usage("local world: ranks is {}; allowed: 1..{}", ranks, kernels::kMaxBatch);
  return std::make_unique<LocalWorld>(ranks);
}

}  // namespace plumb::hw

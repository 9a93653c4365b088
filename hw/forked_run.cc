// Each rank leaves its record, or its error, in memory that it shares with the parent.
#include "hw/forked_run.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "hw/check.h"
#include "hw/processes.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

/// What a rank leaves behind.
struct Slot {
  RankRecord record;
  int32_t is_done = 0;
  int32_t error_kind = 0;   // 0: none
  int32_t error_order = 0;  // 1 of the rank that failed first
  char error[2048] = {};
  char device[256] = {};
};
static_assert(std::is_trivially_copyable_v<Slot>);

template <size_t kSize>
void copy_text(const std::string& text, char (&to)[kSize]) {
  to[text.copy(to, kSize - 1)] = '\0';
}

void run_rank(const NvlinkMaker& maker, const NvlinkId& id, Rank rank, const Plan& plan,
              const std::function<std::vector<RankRecord>(World&)>& body, Slot& slot) {
  check(cudaSetDevice(rank), "device of the rank");
  auto world = maker.make_world(id, rank, plan.grouping().ranks);
  try {
    slot.record = body(*world).front();
  } catch (...) {
    static_cast<void>(world.release());  // its end is collective, too
    throw;
  }
  slot.is_done = 1;
}

/// The error of the rank that failed first: the others may only say that they lost it.
void raise_first(const std::vector<Outcome>& outcomes, const Slot* slots) {
  const Slot* failed = nullptr;
  for (size_t r = 0; r < outcomes.size(); ++r)
    if (slots[r].error_kind != 0 && (failed == nullptr || slots[r].error_order < failed->error_order))
      failed = &slots[r];
  if (failed != nullptr) throw Error(static_cast<ErrorKind>(failed->error_kind), failed->error);
  if (const std::string text = failures(outcomes); !text.empty()) throw Error(ErrorKind::environment, text);
}

}  // namespace

ForkedRun run_forked(const NvlinkMaker& maker, const Plan& plan, const HostBatch& batch,
                     const KernelRunOptions& options, const std::function<std::string()>& describe,
                     std::chrono::milliseconds limit) {
  const auto ranks = static_cast<size_t>(plan.grouping().ranks);
  const SharedMemory memory(ranks * sizeof(Slot));
  auto* slots = static_cast<Slot*>(memory.get());
  for (size_t r = 0; r < ranks; ++r) new (slots + r) Slot;
  const auto outcomes = run_ranks(plan.grouping().ranks, limit, [&](Rank rank, Meeting& meeting) {
    Slot& slot = slots[rank];
    const auto fail = [&](ErrorKind kind, const std::string& text) {
      int none = 0;
      slot.error_order = meeting.failed.compare_exchange_strong(none, rank + 1) ? 1 : 2;
      copy_text(text, slot.error);
      slot.error_kind = static_cast<int32_t>(kind);
      return static_cast<int>(kind);
    };
    setenv("NCCL_NVLS_ENABLE", "0", 0);  // the kernels use no multicast
    try {
      const NvlinkId id = meet(meeting, rank, maker.make_id);
      const auto body = [&](World& world) { return run_kernels(world, plan, batch, options); };
      run_rank(maker, id, rank, plan, body, slot);
      if (rank == 0) copy_text(describe(), slot.device);
    } catch (const Error& error) {
      return fail(error.kind(), error.what());
    } catch (const std::exception& error) {
      return fail(ErrorKind::environment, fmt::format("rank {}: {}", rank, error.what()));
    }
    return 0;
  });
  raise_first(outcomes, slots);
  ForkedRun result{.by_rank = {}, .device = slots[0].device};
  for (size_t r = 0; r < ranks; ++r) {
    PLUMB_CHECK(slots[r].is_done == 1, "rank {} ended well without a record", r);
    result.by_rank.push_back(slots[r].record);
  }
  return result;
}

}  // namespace plumb::hw

// Whether a plan's edges order its ops: the host executor runs ops one after another, so it would not notice
// a missing edge by itself. Internal to the host executor.
#pragma once

#include <cstdint>
#include <vector>

#include "model/plan.h"

namespace plumb {

/// Which ops have ended before an op begins, by the plan's edges alone; members of a barrier join their
/// predecessors. Uses ops^2 / 8 bytes, so it is kept only for plans of at most kMaxOps ops; above, every
/// earlier op counts as ended.
class OpOrder {
 public:
  static constexpr int64_t kMaxOps = 8192;

  explicit OpOrder(const Plan& plan);

  /// Takes the next op in order of ids. Throws Error(mismatch) when it waits for a barrier that not all
  /// members have joined, or joins one twice.
  void begin(OpId id);
  /// Throws Error(mismatch) naming barrier, members and joined when a barrier is not complete.
  void finish() const;
  /// Whether `earlier` has ended before `later` (the op of the last begin()) begins.
  bool is_ordered(OpId earlier, OpId later) const;

 private:
  using Word = uint64_t;
  Word* set(OpId id) { return sets_.data() + static_cast<size_t>(id) * words_; }
  void join(const Op& op, OpId id);
  void merge(OpId into, const Word* from);

  const Plan& plan_;
  size_t words_ = 0;                             // of a set, 0 when sets are not kept
  std::vector<Word> sets_;                       // [ops][words]: predecessors of each op
  std::vector<std::vector<Rank>> joined_;        // [barriers]
  std::vector<std::vector<Word>> barrier_sets_;  // [barriers]: members and their predecessors
};

}  // namespace plumb

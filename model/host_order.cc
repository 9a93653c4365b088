// Predecessor sets of ops as bit sets.
#include "model/host_order.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {
namespace {

constexpr size_t kWordBits = 64;

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::mismatch, message); }

}  // namespace

OpOrder::OpOrder(const Plan& plan)
    : plan_(plan), joined_(plan.barriers().size()), barrier_sets_(plan.barriers().size()) {
  const size_t ops = plan.ops().size();
  if (static_cast<int64_t>(ops) > kMaxOps) return;
  words_ = (ops + kWordBits - 1) / kWordBits;
  sets_.resize(ops * words_);
  for (auto& barrier_set : barrier_sets_) barrier_set.resize(words_);
}

void OpOrder::begin(OpId id) {
  const Op& op = plan_.ops()[static_cast<size_t>(id)];
  for (const Dep& dep : plan_.deps(id)) {
    const Op& earlier = plan_.ops()[static_cast<size_t>(dep.op)];
    const Word* predecessors = words_ == 0 ? nullptr : set(dep.op);
    if (earlier.kind == OpKind::barrier) {
      const auto barrier = static_cast<size_t>(earlier.rows);
      const int32_t members = plan_.barriers()[barrier].members;
      if (static_cast<int32_t>(joined_[barrier].size()) != members)
        fail(fmt::format(
            "op {} (phase '{}', rank {}) waits for barrier {}, which {} of {} members have joined", id,
            plan_.phases()[op.phase].name, issuer(op), barrier, joined_[barrier].size(), members));
      predecessors = barrier_sets_[barrier].data();
    }
    if (words_ == 0) continue;
    merge(id, predecessors);
    set(id)[static_cast<size_t>(dep.op) / kWordBits] |= Word{1} << (static_cast<size_t>(dep.op) % kWordBits);
  }
  if (op.kind == OpKind::barrier) join(op, id);
}

void OpOrder::join(const Op& op, OpId id) {
  const auto barrier = static_cast<size_t>(op.rows);
  auto& joined = joined_[barrier];
  if (std::find(joined.begin(), joined.end(), op.src) != joined.end())
    fail(fmt::format("rank {} joins barrier {} twice, in op {}", op.src, barrier, id));
  joined.push_back(op.src);
  if (words_ == 0) return;
  auto& all = barrier_sets_[barrier];
  for (size_t i = 0; i < words_; ++i) all[i] |= set(id)[i];
  all[static_cast<size_t>(id) / kWordBits] |= Word{1} << (static_cast<size_t>(id) % kWordBits);
}

void OpOrder::merge(OpId into, const Word* from) {
  Word* to = set(into);
  for (size_t i = 0; i < words_; ++i) to[i] |= from[i];
}

void OpOrder::finish() const {
  for (size_t b = 0; b < joined_.size(); ++b)
    if (static_cast<int32_t>(joined_[b].size()) != plan_.barriers()[b].members)
      fail(fmt::format("barrier {} was joined by {} of {} members", b, joined_[b].size(),
                       plan_.barriers()[b].members));
}

bool OpOrder::is_ordered(OpId earlier, OpId later) const {
  if (words_ == 0) return true;
  const Word word = sets_[static_cast<size_t>(later) * words_ + static_cast<size_t>(earlier) / kWordBits];
  return (word >> (static_cast<size_t>(earlier) % kWordBits)) & 1;
}

}  // namespace plumb

// What came out of a played plan, and what did not end.
#include <algorithm>

#include "model/error.h"
#include "sim/plan_player.h"

namespace plumb::sim {

namespace {

constexpr int kReportLines = 10;

std::string name_op(const Plan& plan, OpId id) {
  const Op& o = plan.ops()[static_cast<size_t>(id)];
  const std::string& phase = plan.phases()[o.phase].name;
  if (o.src == o.dst)
    return fmt::format("{} of phase {} at rank {} (op {})", to_string(o.kind), phase, o.src, id);
  return fmt::format("{} of phase {} from rank {} to rank {} over {} (op {})", to_string(o.kind), phase,
                     o.src, o.dst, to_string(o.link), id);
}

}  // namespace

Ps PlanPlayer::last_end() const {
  Ps last = 0;
  for (const PhaseUse& use : uses_) last = std::max(last, use.end);
  return last;
}

Ledger PlanPlayer::ledger() const {
  std::vector<LedgerEntry> entries;
  entries.reserve(states_.size());  // grown step by step it would be there twice
  for (size_t i = 0; i < states_.size(); ++i) {
    const Op& o = plan_.ops()[i];
    const OpState& s = states_[i];
    if (o.kind == OpKind::wait || o.kind == OpKind::barrier || o.kind == OpKind::compute || s.arrived == 0)
      continue;
    entries.push_back({.phase = o.phase,
                       .src = o.src,
                       .dst = o.dst,
                       .messages = int64_t{o.messages} * s.arrived / s.chunks,
                       .bytes = bytes_before(o, s, s.arrived)});
  }
  return Ledger(std::move(entries));
}

std::optional<WaitMatrix> PlanPlayer::waits() const {
  if (last_from_.empty()) return std::nullopt;
  WaitMatrix matrix(static_cast<int32_t>(ranks_));
  for (size_t dst = 0; dst < ranks_; ++dst)
    for (size_t src = 0; src < ranks_; ++src)
      matrix.at(static_cast<Rank>(src), static_cast<Rank>(dst)) =
          to_seconds(last_from_[dst * ranks_ + src]);  // -1: nothing came
  return matrix;
}

/// Ops whose edges have all fired stand first: the others wait for them.
std::string PlanPlayer::unfinished_report() const {
  std::string text;
  int lines = 0;
  int64_t left_out = 0;
  const auto add = [&](const std::string& line) {
    if (lines++ < kReportLines)
      text += "  " + line + "\n";
    else
      ++left_out;
  };
  for (size_t r = 0; r < ranks_; ++r)
    if (dead_since_[r] != kNever)
      add(fmt::format("rank {} is dead since {:.3f} us", r, to_seconds(dead_since_[r]).value * 1e6));
  for (const bool waits : {false, true})
    for (OpId id = 0; id < static_cast<OpId>(states_.size()); ++id) {
      const OpState& s = states_[static_cast<size_t>(id)];
      if (s.arrived == s.chunks || (s.waiting > 0) != waits) continue;
      if (!waits && op(id).kind == OpKind::barrier) {
        const Barrier& barrier = plan_.barriers()[static_cast<size_t>(op(id).rows)];
        add(fmt::format("{}: {} of {} members have come", name_op(plan_, id),
                        barriers_[static_cast<size_t>(op(id).rows)].arrived, barrier.members));
        continue;
      }
      if (!waits) {
        add(fmt::format("{}: {} of {} chunks released, {} given to the network, {} landed",
                        name_op(plan_, id), s.released, s.chunks, s.pulled, s.arrived));
        continue;
      }
      for (const Dep& dep : plan_.deps(id)) {
        const OpState& d = states_[static_cast<size_t>(dep.op)];
        const bool fired = dep.on == On::sent ? d.sent == d.chunks : d.arrived == d.chunks;
        if (fired) continue;
        add(fmt::format("{} waits for {} ({})", name_op(plan_, id), name_op(plan_, dep.op),
                        to_string(dep.on)));
        break;
      }
    }
  if (left_out > 0) text += fmt::format("  and {} more\n", left_out);
  return text;
}

}  // namespace plumb::sim

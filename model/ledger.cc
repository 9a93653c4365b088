// Ledgers: sums over sorted entries, so that 8 million ops need one sort and no map.
#include "model/ledger.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {
namespace {

/// Source and destination as one number, in the order of (src, dst) for ranks >= 0.
uint64_t pair_key(const LedgerEntry& entry) {
  return uint64_t{static_cast<uint32_t>(entry.src)} << 32 | static_cast<uint32_t>(entry.dst);
}

bool is_before(const LedgerEntry& a, const LedgerEntry& b) {
  if (a.phase != b.phase) return a.phase < b.phase;
  return pair_key(a) < pair_key(b);
}

bool is_same_place(const LedgerEntry& a, const LedgerEntry& b) {
  return a.phase == b.phase && pair_key(a) == pair_key(b);
}

void add(LedgerEntry& sum, const LedgerEntry& entry) {
  const bool overflow = __builtin_add_overflow(sum.messages, entry.messages, &sum.messages) ||
                        __builtin_add_overflow(sum.bytes, entry.bytes, &sum.bytes);
  PLUMB_CHECK(!overflow, "ledger above 2^63 at phase {} {} -> {}", entry.phase, entry.src, entry.dst);
}

std::string describe(const Plan& plan, const LedgerEntry& place, const LedgerEntry* expected,
                     const LedgerEntry* measured) {
  const std::string phase = place.phase < plan.phases().size() ? plan.phases()[place.phase].name : "?";
  const auto amount = [](const LedgerEntry* entry) {
    return entry ? fmt::format("{} messages, {} bytes", entry->messages, entry->bytes)
                 : std::string("nothing");
  };
  return fmt::format("phase {} '{}' {} -> {}: expected {}; measured {}\n", place.phase, phase, place.src,
                     place.dst, amount(expected), amount(measured));
}

bool moves(const Op& op) {
  return op.kind == OpKind::put || op.kind == OpKind::get || op.kind == OpKind::copy ||
         op.kind == OpKind::reduce;
}

}  // namespace

Ledger::Ledger(std::vector<LedgerEntry> entries) : entries_(std::move(entries)) {
  // Executors that walk the plan in order often yield sorted entries.
  if (!std::is_sorted(entries_.begin(), entries_.end(), is_before))
    std::sort(entries_.begin(), entries_.end(), is_before);
  size_t kept = 0;
  for (size_t i = 0; i < entries_.size();) {
    LedgerEntry sum = entries_[i];
    for (++i; i < entries_.size() && is_same_place(entries_[i], sum); ++i) add(sum, entries_[i]);
    PLUMB_CHECK(sum.messages >= 0 && sum.bytes >= 0, "{} messages, {} bytes at phase {} {} -> {}",
                sum.messages, sum.bytes, sum.phase, sum.src, sum.dst);
    if (sum.messages != 0 || sum.bytes != 0) entries_[kept++] = sum;
  }
  entries_.resize(kept);
}

LedgerEntry Ledger::total() const {
  LedgerEntry sum;
  for (const LedgerEntry& entry : entries_) add(sum, entry);
  return sum;
}

LedgerEntry Ledger::total(PhaseId phase) const {
  const auto begin = std::lower_bound(entries_.begin(), entries_.end(), phase,
                                      [](const LedgerEntry& entry, PhaseId p) { return entry.phase < p; });
  LedgerEntry sum;
  sum.phase = phase;
  for (auto it = begin; it != entries_.end() && it->phase == phase; ++it) add(sum, *it);
  return sum;
}

Ledger account(const Plan& plan) {
  std::vector<LedgerEntry> entries;
  entries.reserve(static_cast<size_t>(std::count_if(plan.ops().begin(), plan.ops().end(), moves)));
  for (const Op& op : plan.ops())
    if (moves(op))
      entries.push_back(
          {.phase = op.phase, .src = op.src, .dst = op.dst, .messages = op.messages, .bytes = op.bytes});
  return Ledger(std::move(entries));
}

std::vector<LedgerEntry> account_phases(const Plan& plan) {
  std::vector<LedgerEntry> totals(plan.phases().size());
  for (size_t p = 0; p < totals.size(); ++p) totals[p].phase = static_cast<PhaseId>(p);
  for (const Op& op : plan.ops()) {
    if (!moves(op)) continue;
    LedgerEntry& total = totals[op.phase];
    total.messages += op.messages;
    if (__builtin_add_overflow(total.bytes, op.bytes, &total.bytes))
      fail_usage("the bytes of phase '{}' do not fit 63 bits; use smaller messages or fewer ranks",
                 plan.phases()[op.phase].name);
  }
  return totals;
}

std::string difference(const Plan& plan, const Ledger& expected, const Ledger& measured, int limit) {
  std::string text;
  int64_t found = 0;
  const auto report = [&](const LedgerEntry* a, const LedgerEntry* b) {
    if (found++ < limit) text += describe(plan, a ? *a : *b, a, b);
  };
  auto a = expected.entries().begin();
  auto b = measured.entries().begin();
  const auto a_end = expected.entries().end();
  const auto b_end = measured.entries().end();
  while (a != a_end || b != b_end) {
    if (b == b_end || (a != a_end && is_before(*a, *b))) {
      report(&*a++, nullptr);
    } else if (a == a_end || is_before(*b, *a)) {
      report(nullptr, &*b++);
    } else {
      if (*a != *b) report(&*a, &*b);
      ++a, ++b;
    }
  }
  if (found > limit) text += fmt::format("and {} more\n", found - limit);
  return text;
}

}  // namespace plumb

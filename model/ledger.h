// Messages and bytes per (phase, source, destination): what a plan promises and what each executor measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/plan.h"

namespace plumb {

struct LedgerEntry {
  PhaseId phase = 0;
  Rank src = 0;
  Rank dst = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
  bool operator==(const LedgerEntry&) const = default;
};

/// Entries sorted by (phase, src, dst), merged, none empty.
class Ledger {
 public:
  Ledger() = default;
  /// Sorts and merges. Throws LogicError for a negative sum or one above 2^63.
  explicit Ledger(std::vector<LedgerEntry> entries);

  const std::vector<LedgerEntry>& entries() const { return entries_; }
  LedgerEntry total() const;  // of all phases; phase, src, dst are 0
  LedgerEntry total(PhaseId phase) const;
  bool operator==(const Ledger&) const = default;

 private:
  std::vector<LedgerEntry> entries_;
};

/// What the plan's put, get, copy and reduce ops add up to; wait, barrier and compute move nothing. Takes one
/// sort.
Ledger account(const Plan& plan);

/// The first `limit` differences, one line each, naming phase, pair, expected and measured, and the number of
/// the others; empty when equal.
std::string difference(const Plan& plan, const Ledger& expected, const Ledger& measured, int limit = 10);

}  // namespace plumb

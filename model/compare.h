// Lines traces of several executors up: one plan, per phase the time of each executor, what moved, and the
// error against a reference. Also names who is slow from a matrix of waiting times. Definitions:
// docs/trace.md, sections 3 and 4.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/plan.h"
#include "model/trace.h"
#include "model/units.h"

namespace plumb {

/// What a comparison may know beside the traces.
struct CompareInput {
  const Plan* plan = nullptr;      // splits bytes by class of path, and checks the ledgers
  bool allow_incomplete = false;   // of runs that ended early
  BytesPerSecond scale_up_rate{};  // the fastest that one rank can send or receive payload; 0 = not checked
  BytesPerSecond scale_out_rate{};
};

/// Bytes that leave a rank, by class of path; of all ranks together.
struct WireBytes {
  int64_t scale_up = 0;
  int64_t scale_out = 0;
  int64_t total() const { return scale_up + scale_out; }
  bool operator==(const WireBytes&) const = default;
};

/// One executor's time of one phase, over its repeats.
struct ComparedTime {
  Seconds p50{};  // lower median, 0 = not measured
  Seconds max{};
  Seconds lower{};         // lower bound, 0 = none
  std::string bottleneck;  // of the run whose time is p50
  std::optional<double>
      error;  // (p50 - reference) / reference; none for host, the reference and unmeasured phases
};

/// One phase, or the whole run (the last row, named "total").
struct ComparisonRow {
  std::string phase;
  int32_t sms = kNone;              // SMs of a rank that drive it, 0 = all, kNone = not known
  int64_t messages = 0;             // of all ranks
  int64_t logical = 0;              // bytes of all ranks, also those that stay inside a rank
  std::optional<WireBytes> wire;    // known with a plan
  std::vector<ComparedTime> times;  // by executor
};

struct ComparedExecutor {
  std::string name;
  std::string machine;
  int32_t repeats = 0;
};

struct Comparison {
  Digest plan;
  std::string program;
  int32_t ranks = 0;                        // 0 = not known
  std::vector<ComparedExecutor> executors;  // in the order host, analytic, sim, cuda
  int32_t reference = kNone;                // index of the executor that errors refer to
  std::vector<ComparisonRow> rows;          // phases, then the total
};

/// Joins traces of one plan; repeats of one executor are reduced to p50 and maximum. Throws Error(usage) for
/// no traces, or a link rate without a plan, and Error(mismatch) naming the traces and both values for:
/// different plans or phases, one executor on different machines, an incomplete run (unless allowed),
/// different messages or bytes in a phase of complete runs, a ledger that is not the plan's, a rank faster
/// than the link rate.
Comparison compare(std::span<const Trace> traces, const CompareInput& input = {});

/// Text table, one line per phase and executor; the names of columns carry the units, "-" = not known. Rates
/// are per rank in one direction: bytes / ranks / p50.
std::string to_table(const Comparison& comparison);

/// Time that each destination waited for the data of each source: [source][destination]. The diagonal is not
/// used.
class WaitMatrix {
 public:
  explicit WaitMatrix(int32_t ranks);
  int32_t ranks() const { return ranks_; }
  Seconds& at(Rank source, Rank destination) { return waits_[index(source, destination)]; }
  Seconds at(Rank source, Rank destination) const { return waits_[index(source, destination)]; }

 private:
  size_t index(Rank source, Rank destination) const;
  int32_t ranks_;
  std::vector<Seconds> waits_;
};

/// The waits of one executor, over its repeats: the lower median of each pair. Nothing when no trace of it
/// has any.
std::optional<WaitMatrix> wait_matrix(std::span<const Trace> traces, std::string_view executor);

enum class WaitCause : uint8_t { slow_sender, slow_receiver, bad_path };
std::string_view to_string(WaitCause cause);

struct WaitFinding {
  WaitCause cause = WaitCause::bad_path;
  Rank source = kNone;       // kNone of a slow receiver
  Rank destination = kNone;  // kNone of a slow sender
  Seconds wait{};            // median of its row or column, or the single value
  Seconds typical{};         // median of all pairs
};

/// Outliers of the matrix, by cause, then rank: a row is a slow sender, a column a slow receiver, a single
/// value outside of these a bad path. A value is an outlier when it exceeds `factor` times the median of all
/// pairs, that median plus five deviations (1.4826 times the median absolute deviation), and that median plus
/// 1 us. Takes O(ranks^2).
std::vector<WaitFinding> diagnose(const WaitMatrix& waits, double factor = 2);

/// "slow sender rank 3: wait 61.000 us, typical 12.100 us".
std::string to_text(const WaitFinding& finding);

/// The matrix in microseconds (up to 32 ranks) and one line per finding.
std::string to_text(const WaitMatrix& waits, std::span<const WaitFinding> findings);

/// Matrix and findings of each executor whose traces hold waits, "" when none does.
std::string waits_text(std::span<const Trace> traces);

}  // namespace plumb

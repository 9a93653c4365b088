// Predicts every row of the public record that a machine file and a costs file describe, and says how far off
// each prediction is. Which row is predicted how is data: experiments/validate.yaml (docs/validation.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/executor.h"
#include "model/machine.h"
#include "model/published.h"
#include "model/routing.h"
#include "model/shape.h"

namespace plumb {

/// What a row is evidence of. Fit rows chose constants, held-out rows judge them; secondary families have no
/// target (other libraries, assumed data), and their fit rows are told apart too.
enum class RowSet : uint8_t { fit, held_out, secondary, secondary_fit };
std::string_view to_string(RowSet set);

/// Patterns for the fields of a row, by field name; a row fits when each field named here fits one of its
/// patterns. '*' in a pattern stands for any text.
using RowMatch = std::map<std::string, std::vector<std::string>>;
bool fits(const RowMatch& match, const PublishedRow& row);
bool fits_pattern(std::string_view pattern, std::string_view text);

struct MachineRule {
  RowMatch match;
  std::string machine;           // path of the machine file
  std::vector<std::string> set;  // "key=value" applied to it
};

/// How the rows that fit are predicted, or why they are not.
struct RowRule {
  RowMatch match;
  std::string skip;  // reason; the other fields are then unused
  std::string family;
  bool is_target = false;
  std::string program;                      // "v1", "v2" or "low_latency"
  std::string costs;                        // name of a costs file
  RowMatch fit;                             // of the rows that fit the rule, those that chose constants
  std::vector<std::string> without_phases;  // not in the measured time, e.g. the copy after the main kernel
  std::map<std::string, int64_t> counted_bytes;  // of a row, by its type: what the source's bandwidth counts
  std::string assumed_dispatch_type, assumed_combine_type;  // where the row is silent
  int32_t tokens = 0;                                       // where the row is silent
  int32_t sms = 0;                                          // where the row is silent
  int32_t chunk_rows = 6;
  int32_t dispatch_hidden =
      0;                    // gives dispatch messages the size that the source states; 0 = that of the row
  int32_t gate_groups = 0;  // group-limited gate; 0 = uniform
  int32_t gate_group_topk = 0;
  int64_t gather_bytes = 0;  // a token's bytes in an all-gather before each dispatch
  Seconds pair_gap{};        // between dispatch and combine measured as one
};

struct ValidationPlan {
  std::vector<PublishedRow> rows;
  std::vector<MachineRule> machines;  // the first that fits
  std::vector<RowRule> rules;         // the first that fits
  std::string costs_directory;
  uint64_t seed = 1;
  int32_t experts = 256;  // where the row is silent
  int32_t topk = 8;
  int32_t hidden = 7168;
};

/// Reads the rules and the records they name; paths in the file are relative to it. Throws ConfigError.
ValidationPlan read_validation(const std::string& path);

/// A published row and how it is predicted.
struct RuledRow {
  const PublishedRow& row;
  const RowRule& rule;
};
/// Throws Error(usage) for an id that is not in the record (naming the nearest) or that no rule describes.
RuledRow find_row(const ValidationPlan& plan, std::string_view id);

/// Time of a run in the sense of a row: mean over ranks of the end of their last span outside
/// `without_phases`, as the benchmarks of the libraries report the time of a rank.
Seconds measured_time(const Trace& trace, const Plan& plan, const RowRule& rule);

/// Distinct ranks, distinct nodes and choices of a token, mean over the batch.
struct FanOut {
  double ranks = 0;
  double nodes = 0;
  double choices = 0;
};
FanOut fan_out(const Shape& shape, const Routing& routing, const Grouping& grouping);

/// The number that a source prints for a run of `time`: microseconds, or counted bytes over time in GB/s.
/// `type`: of the rows that the unit counts. Nothing when the rule does not say what the unit counts.
std::optional<double> value_in_unit(const RuledRow& ruled, const FanOut& fan, std::string_view type,
                                    int32_t tokens, Seconds time);
/// Its inverse: the time that a published value stands for.
std::optional<Seconds> time_of_value(const RuledRow& ruled, const FanOut& fan, std::string_view type,
                                     int32_t tokens);

/// What an executor said of a row, in the row's unit.
struct Prediction {
  std::string executor;
  double value = 0;
  double error = 0;  // value / published - 1
  std::string bottleneck;
};

struct ValidatedRow {
  PublishedRow row;
  std::string family;
  RowSet set = RowSet::held_out;
  bool is_assumed = false;  // the source does not give the types
  std::vector<Prediction> predictions;
};

struct UncoveredRow {
  std::string id;
  std::string reason;
};

/// Absolute relative errors of a set of rows.
struct ErrorSummary {
  int64_t count = 0;
  double median_error = 0;
  double worst_error = 0;
  std::string worst_id;
};

struct ValidationResult {
  std::vector<ValidatedRow> rows;
  std::vector<UncoveredRow> uncovered;
  /// By executor, then set; the target families only (fit, held_out), and all others (secondary,
  /// secondary_fit).
  std::map<std::string, std::map<std::string, ErrorSummary>> summary;
  /// By executor, then family, then set.
  std::map<std::string, std::map<std::string, std::map<std::string, ErrorSummary>>> families;
};

/// Makes an executor for one machine; the machine and the fabric outlive it.
using ExecutorFactory = std::function<std::unique_ptr<Executor>(const Machine&, const Fabric&, const Costs&)>;

/// Runs each executor on the plan of each row. The time of a row is the mean over ranks of the end of their
/// last span outside `without_phases`, as the benchmarks of the libraries report the time of a rank. Routings
/// have a fixed seed. `only`: rows to run, all when empty. Serial, deterministic.
ValidationResult run_validation(const ValidationPlan& plan,
                                const std::map<std::string, ExecutorFactory>& executors,
                                const RowMatch& only = {});

/// Fills summary and families from the rows: run_validation() does it; for results put together from parts.
void sum_up(ValidationResult& result);

/// The factory of the analytic executor.
ExecutorFactory analytic_factory();

/// Text tables: families and sets, then all rows when `with_rows`, then what is not covered.
std::string to_table(const ValidationResult& result, bool with_rows = true);
/// One JSON document: summary, families, rows, uncovered. Numbers are plain, errors are ratios.
std::string to_json(const ValidationResult& result);
/// Rows as CSV: id, family, set, executor, unit, published, predicted, error (a ratio).
std::string to_csv(const ValidationResult& result);

}  // namespace plumb

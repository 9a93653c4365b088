// Fits constants of an implementation (model/costs.h) to measured runs of plans, and says how well they hold
// for runs that were kept out of the fit. Method, equations and the file it writes: docs/calibration.md.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/costs.h"
#include "model/fabric.h"
#include "model/machine.h"
#include "model/plan.h"
#include "model/trace.h"

namespace plumb {

/// One plan on one machine, and its runs. What it refers to must outlive it.
struct CalibrationPoint {
  std::string label;  // unique among the points
  const Plan& plan;
  const Machine& machine;
  const Fabric& fabric;
  std::vector<Trace> traces;  // repeats; empty = not measured
};

/// Gives a trace to the point whose plan it ran; `name` stands for the trace in messages. Throws
/// Error(mismatch) when no point has the trace's plan digest (naming it and those of the points) or the
/// machines differ, and for a run that ended early; Error(usage) when several points fit, for a run of the
/// host executor (it times the CPU), one without a time, another executor than that of earlier traces, or one
/// that was given before.
void assign(std::span<CalibrationPoint> points, Trace trace, const std::string& name);

struct CalibrationOptions {
  /// Names of calibration_parameters(). Empty: as many as the points can tell apart, in that order, but for
  /// feeds.
  std::vector<std::string> fit{};
  /// Labels kept out of the fit. Nothing: every second point, by label (numbers in it by value).
  std::optional<std::vector<std::string>> held_out{};
  bool use_phases = false;  // times of phases count beside the total
};

/// A constant before and after the fit, in seconds, bytes per second or as a ratio.
struct FittedParameter {
  std::string name;
  double before = 0;
  double after = 0;
  double standard_error =
      std::numeric_limits<double>::quiet_NaN();  // NaN: at a bound, or nothing left to judge by
  bool is_at_bound = false;
  bool is_determined =
      true;  // false: the fit moved it until the times no longer said more, and left it there
};

/// A constant that was not fitted although nobody excluded it.
struct LeftOutParameter {
  std::string name;
  std::string reason;
};

struct CalibratedPoint {
  std::string label;
  Digest plan;
  Digest traces;  // of the CSV forms of its traces, in any order
  int32_t repeats = 0;
  bool is_held_out = false;
  Seconds measured{};  // lower median over the repeats
  Seconds before{};    // predicted with the costs at the start
  Seconds after{};     // predicted with the fitted costs
  double error = 0;    // after / measured - 1
};

/// Errors of the total times of some points; 0 when there are none.
struct CalibrationErrors {
  int64_t count = 0;
  double rms = 0;
  double median = 0;  // of absolute errors, lower median
  double worst = 0;   // with its sign
  std::string worst_label;
};

struct Calibration {
  std::string executor;  // that measured
  Digest traces;         // of all points' traces
  std::vector<FittedParameter> parameters;
  std::vector<LeftOutParameter> left_out;
  std::vector<CalibratedPoint> points;      // by label; measured ones only
  CalibrationErrors fit, held_out, before;  // before: of all points, with the costs at the start
  int32_t iterations = 0;
  Costs costs;  // fitted values are those of the text form, so a file of them reads back the same
};

/// Names of the constants of these costs that can be fitted, in the order in which a fit prefers them:
/// scale_up_share, scale_out_share, memory_share, sm.rates (of the machine's GPU), sm.factors.I.factor,
/// sm.feeds.I.share, .half_sms and .own_rows (where the costs give them; only when named: bare movers tell
/// them better), fixed.I.time, fixed.I.per_sm (where the costs give it), sm.row_time, message_time,
/// kernel_gap, host_sync, scale_up_barrier, scale_out_barrier, scale_up_latency, scale_out_latency,
/// fixed.I.per_doubling.
std::vector<std::string> calibration_parameters(const Costs& costs);

/// Least squares on the logarithm of predicted / measured times, by Levenberg-Marquardt on the analytic
/// executor. Deterministic. Costs a number of estimates of each plan in proportion to parameters times
/// iterations (about ten). Throws Error(usage) for unknown names and labels, no measured point, fewer
/// measured times than parameters, and for named parameters that the points cannot determine: each with what
/// it does not differ from.
Calibration calibrate(std::span<const CalibrationPoint> points, const Costs& start,
                      const CalibrationOptions& options);

struct CostsFileOptions {
  std::string name{};     // of the file, without .yaml
  std::string extends{};  // name of the costs file beside it that holds the start; "" = write every value
};

/// A costs file that load_costs() reads: the fitted values, each with its source; with `extends` nothing
/// else. The comment at its top lists the points. Same calibration, same bytes.
std::string to_yaml(const Calibration& calibration, const CostsFileOptions& options);

/// All values of `costs` as a costs file of that name.
std::string to_yaml(const Costs& costs, const std::string& name);

}  // namespace plumb

// The measured side of a calibration: which trace belongs to which point, and what a point's runs took.
// Internal to the calibration.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/calibrate.h"

namespace plumb::detail {

/// Stands for the total time where a phase is asked for.
inline constexpr int32_t kTotal = -1;

double lower_median(std::vector<double> values);

/// Lower median over the repeats of a point, seconds; 0 when one of them lacks the time.
double measured_time(const CalibrationPoint& point, int32_t phase);

/// Of the CSV forms of a point's traces, whatever their order.
Digest content_of(const CalibrationPoint& point);

/// Points that have traces, by label (numbers in it by value). Throws Error(usage) for none, and for equal
/// labels.
std::vector<CalibrationPoint> measured_points(std::span<const CalibrationPoint> points);

/// Which points are kept out of the fit: those of the labels, else every second one. Throws Error(usage) for
/// an unknown label, or when none is left.
std::vector<bool> choose_held_out(const std::vector<CalibrationPoint>& points,
                                  const std::optional<std::vector<std::string>>& labels);

}  // namespace plumb::detail

// Where more SMs stop to pay: the knee of a sweep, measured and predicted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/calibrate.h"
#include "model/experiment.h"

namespace plumb {

struct SweepTime {
  int32_t sms = 0;
  Seconds time{};
};

/// The smallest number of SMs at which the sweep is within `share` of its best time, on straight lines
/// between its points: T(n) = (1 + share) min T. `sweep`: ascending SMs. Worked example: 4, 8, 12 SMs take
/// 200, 110, 100 us; with 5 % the knee is where 105 us are met, 8 + 4 (110 - 105) / (110 - 100) = 10 SMs.
/// Throws LogicError for an empty sweep or SMs that do not ascend.
double knee_of(std::span<const SweepTime> sweep, double share);

/// A sweep as a branch that SMs limit and a plateau behind it: T(n) = max(a + b / n, c).
struct Bend {
  double sms = 0;     // where both meet: b / (c - a)
  double misfit = 0;  // root of the mean square of relative differences from the sweep
};

/// The bend that describes a sweep best. The branch is fitted to the first points, two or more, the plateau
/// to all others, each by least squares of relative errors; of all such splits the one whose curve is nearest
/// to the sweep counts. Unlike knee_of() it does not depend on how far the time still falls behind the bend.
/// `sweep`: ascending SMs, three or more. Worked example: 10 us + 800 us / n until 8 SMs, 110 us behind:
/// 4, 8, 12, 16 SMs take 210, 110, 110, 110 us, the bend is at 800 / (110 - 10) = 8 SMs. Throws LogicError
/// for fewer points or SMs that do not ascend.
Bend bend_of(std::span<const SweepTime> sweep);

/// Points of a calibration that differ in nothing but their SMs.
struct SmSweep {
  std::string label;  // what the labels of its points begin with
  std::vector<SweepTime> measured;
  std::vector<SweepTime> predicted;  // by the fitted costs
};

/// The sweeps of at least three points, in the order of their first point. `experiments` holds the
/// calibration's points by label.
std::vector<SmSweep> sm_sweeps(std::span<const Experiment> experiments,
                               std::span<const CalibratedPoint> points);

}  // namespace plumb

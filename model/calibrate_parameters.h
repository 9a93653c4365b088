// Constants of a costs file by name: where each stands, its bounds, and how its value is written. Internal to
// the calibration.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/costs.h"

namespace plumb::detail {

enum class CostKind : uint8_t { share, rate, factor, time, count };

/// Values are ratios, bytes per second, seconds or numbers of SMs.
struct CostParameter {
  std::string name;
  CostKind kind = CostKind::time;
  bool is_default = true;  // fitted although nobody names it
  std::function<double&(Costs&)> value;
  std::function<std::string&(Costs&)> source;
};

/// Bounds that read_costs() allows.
Range<double> bounds(CostKind kind);

/// In the order in which a fit prefers them: what moves all bytes first, then times. `gpu`: whose SM rate is
/// meant.
std::vector<CostParameter> cost_parameters(const Costs& costs, const std::string& gpu);

/// Gives `costs` an SM rate of this GPU alone, with the value in force so far (`machine_rate` when the costs
/// name none). Returns false, and changes nothing, when there is no such value.
bool own_sm_rate(Costs& costs, const std::string& gpu, BytesPerSecond machine_rate);

/// Shortest text that reads back as the same number: "0.811", "2.6 us", "24.2 GB/s".
std::string text_of(CostKind kind, double value);
/// The nearest value with so many significant digits; times below 1 fs are 0.
double rounded(CostKind kind, double value, int digits = 6);

}  // namespace plumb::detail

// The stored efficiency: how much longer packets took than flows in measured runs, and where nothing was
// measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "sim/flow_routes.h"

namespace plumb::sim {

/// One range that runs of both fidelities cover.
struct EfficiencyRow {
  std::string kind;  // of fabric: "leaf_spine", or a machine file's name
  FlowPolicy policy = FlowPolicy::split;
  Range<int64_t> ranks{};
  Range<int64_t> bytes_per_pair{};  // mean payload of a message
  double ratio = 1;                 // packet / flow time, middle of the runs' smallest and largest
  double spread = 0;                // half of the difference between these two
};

/// Measured ratio of simulated times.
struct Efficiency {
  double ratio = 1;
  double spread = 0;
};

class FlowEfficiency {
 public:
  /// Reads a file (docs/simulator.md, "Stored efficiency"). Throws ConfigError with all problems: an unknown
  /// key, an empty range, rows that overlap.
  static FlowEfficiency load(const std::string& path);
  static FlowEfficiency parse(std::string_view text, std::string name);

  /// Nothing outside of the ranges that were measured: there is no claim then.
  std::optional<Efficiency> efficiency(std::string_view kind, FlowPolicy policy, int64_t ranks,
                                       int64_t bytes_per_pair) const;
  const std::vector<EfficiencyRow>& rows() const { return rows_; }

 private:
  static FlowEfficiency read(ConfigFile file);
  std::vector<EfficiencyRow> rows_;
};

}  // namespace plumb::sim

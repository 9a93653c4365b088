// Virtual lanes of the links: how many, how much buffer each has, which service level uses which, and who
// goes first. Read from the `lanes` section of a machine file; the packet simulation obeys them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/program.h"
#include "model/units.h"

namespace plumb {

inline constexpr int32_t kServiceLevels = 16;

/// One entry of a table of VL arbitration. Weight 0: the entry never sends.
struct LaneWeight {
  int32_t lane = 0;
  int32_t weight = 0;  // 0..255, in units of 64 B (InfiniBand specification, VL arbitration)
};

struct Lanes {
  int32_t count = 1;  // data lanes, 1..16 (InfiniBand offers at most 15)
  /// Input buffer of a port for each lane.
  Sourced<Bytes> buffer = {Bytes{65536}, "assumed: 400 Gb/s x 0.6 us round trip of credits, and two packets"};
  /// Grain of credits: InfiniBand 64 B, UnifiedBus 160 B.
  Sourced<Bytes> credit_unit = {Bytes{64}, "assumed"};
  std::array<int32_t, kServiceLevels> sl_to_vl{};
  std::vector<LaneWeight> high;  // served first until high_limit is used up
  std::vector<LaneWeight> low;
  int32_t high_limit = 255;  // units of 4096 B; 0 = one packet, 255 = no limit
  std::array<bool, kServiceLevels>
      adaptive{};  // routing of that level may choose by load; else one path per flow

  int32_t lane(int32_t service_level) const { return sl_to_vl[service_level]; }
};

/// Reads a `lanes` mapping (docs/machine.md). Problems: a lane that does not exist, a level outside 0..15, a
/// weight outside 0..255, not 16 entries in sl_to_vl, a lane in use that no arbitration table serves.
Lanes read_lanes(ConfigMap map);

/// The service level that traffic really gets, and who decided so.
struct EffectiveLevel {
  int32_t level = 0;
  std::string origin;   // "program" or "environment PLUMB_SL"
  std::string warning;  // not empty when the environment overrides another value of the program: print it
};

/// `environment`: value of PLUMB_SL, nothing when it is not set. Throws Error(usage) for a level that is no
/// whole number in 0..15, wherever it came from: there is no fall-back to 0.
EffectiveLevel effective_service_level(const Program& program, std::optional<std::string_view> environment);

/// "service level 3 (program), lane 1, adaptive routing off": for reports.
std::string to_string(const EffectiveLevel& level, const Lanes& lanes);

}  // namespace plumb

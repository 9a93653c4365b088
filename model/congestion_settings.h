// Parameters of congestion control. The defaults are start values of the literature, not measurements:
// calibrate.
#pragma once

#include <cstdint>

#include "model/units.h"

namespace plumb {

enum class CongestionKind : uint8_t { none, infiniband, dcqcn, caqm };

/// InfiniBand: FECN at switches, BECN back, a table of gaps at the source (InfiniBand specification, annex
/// A10).
struct InfinibandCongestion {
  int64_t threshold_bytes = 32768;  // waiting for an output before it counts as congested
  bool mark_victims = false;        // mark also where the lane has no credits: not a root of congestion
  int32_t marking_rate = 0;         // packets let through between two marks
  int32_t min_packet_bytes = 0;     // smaller ones are not marked
  int32_t ccti_increase = 1;        // steps up the table at each BECN
  int32_t ccti_limit = 127;
  int32_t ccti_min = 0;
  Seconds ccti_timer = microseconds(153.6);  // 150 x 1.024 us; one step down at each expiry
  double gap_per_step = 0.25;                // entry i of the table: gap of i x this, in packet times
};

/// DCQCN (Zhu et al., SIGCOMM 2015): RED marks, one notification per flow and interval, rate with additive
/// increase.
struct Dcqcn {
  int64_t min_bytes = 40960;  // of a queue; no marks below, all marked above max_bytes
  int64_t max_bytes = 163840;
  double max_probability = 0.2;
  double gain = 1.0 / 16;
  Seconds notification_interval = microseconds(4);
  Seconds alpha_timer = microseconds(55);
  Seconds increase_timer = microseconds(55);
  int32_t fast_recovery_steps = 5;
  BytesPerSecond additive_increase = gigabytes_per_second(0.5);
  BytesPerSecond min_rate = gigabytes_per_second(0.05);
};

/// UnifiedBus C-AQM: each packet asks for a growth of its window; switches grant it from what their output
/// can take, or refuse, or ask for a decrease (UB Base Specification 2.0 as implemented by ns-3-UB, whose
/// values these are).
struct Caqm {
  double alpha = 0.5;   // growth of the window per window sent, in MTU
  double beta = 0.5;    // decrease per mark, in MTU
  double lambda = 0.5;  // share of the free capacity handed out per period
  int32_t theta = 10;   // round trips without refusal until slow start resumes
  int32_t target_queue_mtu = 10;
  int32_t initial_window_mtu = 10;
  double mark_probability = 0.1;
  Seconds update_period = nanoseconds(500);
};

struct CongestionSettings {
  CongestionKind kind = CongestionKind::none;
  InfinibandCongestion infiniband{};
  Dcqcn dcqcn{};
  Caqm caqm{};
};

}  // namespace plumb

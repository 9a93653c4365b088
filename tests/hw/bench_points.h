// What the NVLink benchmark measures: the points of an experiment file (experiments/two_gpus.yaml) of
// dispatch and combine between two ranks, the same in a graph where a call is short, and NCCL's exchange of
// the same payload.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/experiment.h"
#include "model/trace.h"

namespace plumb::hw {

inline constexpr int32_t kBenchRanks = 2;

enum class BenchCall { dispatch, combine, nccl };

struct BenchPoint {
  int32_t tokens = 0, sms = 0, hidden = 0;
  BenchCall call = BenchCall::dispatch;
  bool fp8 = false, expand = false, cached = false, graph = false;
  int32_t experiment = 0;  // index; of an NCCL point one with these tokens

  bool is_combine() const { return call == BenchCall::combine; }
  int32_t scale_packs() const { return fp8 ? hidden / 128 : 0; }
  int64_t row_bytes() const { return int64_t{hidden} * (fp8 ? 1 : 2); }
  int64_t wire_row_bytes() const { return row_bytes() + scale_packs() * 4; }
};

/// The points of the experiments, by tokens and layout, so that few buffers are made. Throws Error(usage)
/// naming the point that is not dispatch or combine of plumb's kernels between 2 ranks with equal numbers of
/// tokens.
std::vector<BenchPoint> bench_points(const std::vector<Experiment>& experiments);

/// What the project asked of two H200, in us.
std::optional<double> target_us(const BenchPoint& point);

/// A trace of the experiment's plan with this total time. Messages and bytes are the plan's.
Trace bench_trace(const Experiment& experiment, double us, const std::string& note);

}  // namespace plumb::hw

// The analytic executor: lower bound, estimate and bottleneck of any plan in closed form. Method, equations
// and worked numbers: docs/analytic.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/costs.h"
#include "model/executor.h"
#include "model/fabric.h"
#include "model/machine.h"

namespace plumb {

/// Phases joined by `stream` edges, which run at the same time. Vectors over ranks are 0 where a rank takes
/// no part.
struct PipelineTime {
  std::vector<PhaseId> phases;
  std::string bottleneck;  // resource with the largest time; "latency" when waiting takes longer than moving
  Seconds work{};          // largest time of a resource of a rank, or of a link
  Seconds wait{};          // latencies, first chunks, barriers, fixed times
  std::vector<double> begin;  // [ranks], seconds
  std::vector<double> sent;   // all that the rank issues has left it
  std::vector<double> end;    // and all that it receives has arrived
};

struct Estimate {
  Seconds total{};         // with the costs of the implementation; never below `lower`
  Seconds lower{};         // hardware only: nominal rates, one-way latencies, every byte once
  std::string bottleneck;  // what takes the largest part of the critical path
  std::vector<PhaseTime> phases;
  std::vector<PipelineTime> pipelines;  // in an order that fits their edges
};

/// Estimates a plan on a machine. Needs no items; linear in ops and edges. Throws Error(usage) naming two
/// ranks when a put or get has no path in the fabric, or ranks and grouping do not fit.
class AnalyticExecutor : public Executor {
 public:
  /// `machine` and `fabric` must outlive it.
  AnalyticExecutor(const Machine& machine, const Fabric& fabric, Costs costs);

  std::string_view name() const override { return "analytic"; }
  Trace run(const Plan& plan) override;
  Estimate estimate(const Plan& plan) const;

 private:
  const Machine& machine_;
  const Fabric& fabric_;
  const Costs costs_;
};

}  // namespace plumb

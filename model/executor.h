// The one interface behind which a plan is run: host, analytic, sim, cuda.
#pragma once

#include <string_view>

#include "model/plan.h"
#include "model/trace.h"

namespace plumb {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::string_view name() const = 0;
  /// Runs the plan and returns what happened. Throws Error(mismatch) when the ledger it measured is not the
  /// plan's, Error(usage) when the plan does not fit (e.g. no path between two ranks).
  virtual Trace run(const Plan& plan) = 0;
};

}  // namespace plumb

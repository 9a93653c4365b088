// The CUDA executor for a point, when the build has it.
#pragma once

#include "model/experiment.h"
#include "model/trace.h"

namespace plumb {

/// Runs the plan on the visible GPUs, as run.world says; forks the ranks when each takes a GPU, so that this
/// process must not have used CUDA. Throws Error(environment) when the build has no CUDA or the machine no
/// GPU, and what hw::CudaExecutor throws.
Trace run_cuda(const Experiment& experiment, const Routing& routing, const Plan& plan);

}  // namespace plumb

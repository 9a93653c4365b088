// Built with and without hw; PLUMB_HAS_HW tells.
#include "tools/run_cuda.h"

#include <algorithm>

#include "model/error.h"
#ifdef PLUMB_HAS_HW
#include "hw/cuda_executor.h"
#endif

namespace plumb {

#ifdef PLUMB_HAS_HW
Trace run_cuda(const Experiment& experiment, const Routing& routing, const Plan& plan) {
  hw::CudaExecutor executor({.shape = experiment.shape,
                             .routing = routing,
                             .seed = experiment.run.seed,
                             .expert = experiment.run.expert,
                             .values = {},
                             .options = experiment.run.host},
                            {.repeat = std::max(1, experiment.run.repeat)});
  return executor.run(plan);
}
#else
Trace run_cuda(const Experiment&, const Routing&, const Plan&) {
  throw Error(ErrorKind::environment, "executor 'cuda' is not in this build: built without CUDA");
}
#endif

}  // namespace plumb

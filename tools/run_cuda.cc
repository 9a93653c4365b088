// Built with and without hw and NCCL; PLUMB_HAS_HW and PLUMB_HAS_NVLINK tell.
#include "tools/run_cuda.h"

#include <algorithm>

#include "model/error.h"
#ifdef PLUMB_HAS_HW
#include "hw/cuda_executor.h"
#endif
#ifdef PLUMB_HAS_NVLINK
#include "hw/nvlink_world.h"
#endif

namespace plumb {

#ifdef PLUMB_HAS_HW
namespace {

hw::NvlinkMaker nvlink_maker() {
#ifdef PLUMB_HAS_NVLINK
  return {.make_id = hw::make_nvlink_id, .make_world = hw::make_nvlink_world};
#else
  return {};
#endif
}

}  // namespace

Trace run_cuda(const Experiment& experiment, const Routing& routing, const Plan& plan) {
  hw::CudaExecutor executor({.shape = experiment.shape,
                             .routing = routing,
                             .seed = experiment.run.seed,
                             .expert = experiment.run.expert,
                             .values = {},
                             .options = experiment.run.host},
                            {.repeat = std::max(1, experiment.run.repeat),
                             .world = experiment.run.world,
                             .nvlink = nvlink_maker()});
  return executor.run(plan);
}
#else
Trace run_cuda(const Experiment&, const Routing&, const Plan&) {
  throw Error(ErrorKind::environment, "executor 'cuda' is not in this build: built without CUDA");
}
#endif

}  // namespace plumb

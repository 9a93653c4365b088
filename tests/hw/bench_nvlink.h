// Times dispatch and combine of the NVLink world: two processes, a GPU each.
#pragma once

#include <map>
#include <string>

namespace plumb::hw {

/// hw_bench --world nvlink [--experiment FILE] [--link GB/s of a direction] [--repeats N] [--limit s]
/// [--machine TEXT] [--out FILE] [--traces FOLDER] Forks before any call of CUDA; returns the exit code.
/// Prints each figure of the experiment (experiments/two_gpus.yaml) beside its floor, its target and NCCL's
/// exchange; JSON goes to the file, traces for calibration to the folder. Ends after `limit` (240 s) at the
/// latest, with what was measured.
int run_nvlink_bench(std::map<std::string, std::string> arguments, int argc, char** argv);

}  // namespace plumb::hw

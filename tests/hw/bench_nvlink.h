// Times dispatch and combine of the NVLink world: two processes, a GPU each.
#pragma once

#include <map>
#include <string>

namespace plumb::hw {

/// hw_bench --world nvlink [--link GB/s of a direction] [--repeats N] [--limit s] [--machine TEXT] [--out
/// FILE] Forks before any call of CUDA; returns the exit code. Prints each figure beside its floor and its
/// target; JSON goes to the file. Ends after `limit` (240 s) at the latest, with what was measured.
int run_nvlink_bench(std::map<std::string, std::string> arguments, int argc, char** argv);

}  // namespace plumb::hw

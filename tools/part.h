// Parts of a run: part I of N holds the points whose index modulo N is I, so that N processes on a cluster
// share an experiment. Each writes its points to one folder; `plumb merge` joins them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/experiment.h"
#include "tools/run_result.h"

namespace plumb {

struct Part {
  int32_t index = 0;
  int32_t count = 1;
};

/// Reads "1/4", or for "auto" what an engine that started this process says: Open MPI (OMPI_COMM_WORLD_RANK
/// and _SIZE), MPICH and relatives (PMI_RANK, PMI_SIZE) or srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS), times
/// the array that a Slurm job is a task of (SLURM_ARRAY_TASK_ID, _MIN, _STEP, _COUNT). Throws Error(usage)
/// naming the value or variable that is wrong, or that there is none.
Part parse_part(std::string_view text);

/// What must be equal for parts to belong together: the file, its machines, overrides, executors, version.
std::string run_digest(const std::string& experiment_file, const std::vector<std::string>& overrides,
                       const std::vector<Experiment>& points);

/// Makes the folder ready: no result.json, a part file that says "not complete", no files of this part's
/// points and no parts of another number of parts. Others of the same run may do the same at the same time.
void start_part(const std::string& folder, const Part& part, const std::string& digest);

/// Writes result.I-of-N.json. `indices`: of result.points in the experiment of `total` points.
void write_part(const std::string& folder, const Part& part, const std::string& digest,
                const RunResult& result, const std::vector<size_t>& indices, size_t total);

/// Removes all part files.
void remove_parts(const std::string& folder);

/// All parts of a folder, points in order. Throws Error(usage) naming the part that is missing, has not ended
/// or belongs to another run.
RunResult merge_parts(const std::string& folder);

}  // namespace plumb

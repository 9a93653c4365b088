// Independent pieces of work in processes of their own, on all cores: a simulation's state is process-wide,
// and one piece that fails does not take the others along.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plumb {

/// Result of one piece: its text, or the error that ended it and the exit code that goes with it.
struct PieceResult {
  std::string text;
  std::string error;  // empty: no error
  int exit_code = 0;
};

/// Runs work(0) .. work(count - 1), at most `jobs` at a time (0 = one per core), and returns the results in
/// order. Errors thrown by a piece come back as its result. `progress` names the work on stderr when that is
/// a terminal.
std::vector<PieceResult> run_pieces(int32_t count, int32_t jobs, const std::string& progress,
                                    const std::function<std::string(int32_t)>& work);

}  // namespace plumb

// The result of `plumb run`: points of an experiment, joined into one document (docs/json.md) and shown as
// tables. A part of a run holds some of the points (tools/part.h).
#pragma once

#include <string>
#include <vector>

#include "tools/point.h"

namespace plumb {

struct RunResult {
  std::string experiment;
  std::vector<std::string> on;  // executors
  Json points;                  // what run_point() gives, or label, error and exit_code
};

/// Where a result goes beside the screen; "" = nowhere.
struct ResultFiles {
  std::string folder;  // result.json
  std::string csv;
  bool print_json = false;  // instead of tables
};

/// "" of a file's name for the only point, else "point3-".
std::string prefix_of(size_t point, size_t points);

/// The document of schema plumb.run/1. `points` must not be empty.
Json run_json(const RunResult& result);

/// 0, or the worst of what points failed with and of ledgers that differ.
int exit_code_of(const RunResult& result);

/// Prints tables of the points and who waits for whom; nothing of no points.
void print_tables(const RunResult& result);

/// Writes the files and prints; returns the exit code.
int publish(const RunResult& result, const ResultFiles& files);

/// Removes what earlier runs left of the points whose index modulo `count` is `index`; traces without a
/// point's prefix count as those of point 0.
void remove_point_files(const std::string& folder, int32_t index, int32_t count);

}  // namespace plumb

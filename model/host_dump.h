// Writes what a host run left in memory as plain arrays, for tools that compare other implementations with
// it. Format: docs/host.md.
#pragma once

#include <string>

#include "model/host_result.h"

namespace plumb {

/// Creates the directory when only its last part is missing, and proves that files can be made in it. Meant
/// for before a run. Throws Error(environment) naming the path: missing parent, not a directory, not
/// writable.
void check_dump_directory(const std::string& directory);

/// Writes the tensors of all ranks and, last, index.json with "complete": true; an index.json of an earlier
/// dump is removed first, so that a partial dump has none. Files are written under temporary names and
/// renamed. Throws as check_dump_directory(), and Error(environment) naming the file when writing fails.
void dump(const HostResult& result, const std::string& directory);

}  // namespace plumb

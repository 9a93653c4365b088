// Files that are written whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace plumb {

/// Checks before any work that `path` can be written: its folder exists (or, for a folder, can be made) and
/// is writable. Throws Error(environment) naming the path and what is wrong.
void check_writable_file(const std::string& path);
void check_writable_folder(const std::string& path);

/// Follows links; a device is written in place. Else writes to a neighbour with the ending ".part", then
/// renames: a file that is there is complete. Throws Error(environment) naming the path, e.g. when the disk
/// is full.
void write_file(const std::string& path, std::string_view content);

/// A file by its path in the checkout that is the current folder or that the binary was built in, or
/// as installed beside the binary. Throws Error(usage) naming the places when there is none.
std::string shipped_file(const std::string& path);
/// experiments/validate.yaml.
std::string shipped_rules();

/// The whole file as text. Throws Error(usage) naming the path.
std::string read_file(const std::string& path);

}  // namespace plumb

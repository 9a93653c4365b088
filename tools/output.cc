// Checks of output places and atomic writing.
#include "tools/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "model/error.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::environment, fmt::format("cannot write '{}': {}", path, why));
}

}  // namespace

void check_writable_file(const std::string& path) {
  const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(parent)) refuse(path, fmt::format("'{}' is no folder", parent.string()));
  if (fs::is_directory(path)) refuse(path, "it is a folder");
  if (::access(parent.c_str(), W_OK) != 0)
    refuse(path, fmt::format("folder '{}': {}", parent.string(), std::strerror(errno)));
  if (fs::exists(path) && ::access(path.c_str(), W_OK) != 0) refuse(path, std::strerror(errno));
}

void check_writable_folder(const std::string& path) {
  if (fs::exists(path) && !fs::is_directory(path)) refuse(path, "it exists and is no folder");
  std::error_code error;
  fs::create_directories(path, error);
  if (error) refuse(path, error.message());
  if (::access(path.c_str(), W_OK) != 0) refuse(path, std::strerror(errno));
}

void write_file(const std::string& given, std::string_view content) {
  // A link stays a link; a device or pipe is written as it is.
  std::error_code ignored;
  fs::path end = given;
  for (int i = 0; i < 32 && fs::is_symlink(end, ignored); ++i)
    end = end.parent_path() / fs::read_symlink(end);
  const std::string path = end.string();
  const bool is_special = fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);
  const std::string part = is_special ? path : path + ".part";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(part.c_str(), "wb"), &std::fclose);
  if (!file) refuse(path, std::strerror(errno));
  const bool is_written = std::fwrite(content.data(), 1, content.size(), file.get()) == content.size();
  const bool is_closed = std::fclose(file.release()) == 0;
  if (!is_written || !is_closed) {
    const std::string why = std::strerror(errno);
    if (!is_special) std::remove(part.c_str());
    refuse(path, why);
  }
  if (is_special) return;
  std::error_code error;
  fs::rename(part, path, error);
  if (error) refuse(path, error.message());
}

std::string shipped_file(const std::string& path) {
  std::error_code error;
  const fs::path folder =
      fs::read_symlink("/proc/self/exe", error).parent_path();  // BUILD/PRESET/tools or PREFIX/bin
  std::string tried;
  for (const fs::path& root : {fs::path("."), folder / "../../..", folder / "../share/plumb"}) {
    const fs::path file = (root / path).lexically_normal();
    if (fs::exists(file)) return file.string();
    tried += fmt::format("{}'{}'", tried.empty() ? "" : ", ", file.string());
  }
  fail_usage("'{}' was found at none of {}; run inside a checkout or an installation", path, tried);
}

std::string shipped_rules() { return shipped_file("experiments/validate.yaml"); }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || fs::is_directory(path))
    fail_usage("cannot read '{}': {}", path, fs::exists(path) ? "no file" : "it does not exist");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace plumb

// The exceptions of the project and the check macro. Only `main` prints them and maps them to exit codes.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace plumb {

/// A place in a text file; line and column (in bytes) count from 1, 0 = unknown.
struct Location {
  std::string file;
  int line = 0;
  int column = 0;
};

/// Returns "file:line:column", leaving out what is unknown.
std::string to_string(const Location& where);

/// What kind of failure an Error is: decides the exit code of `plumb`.
enum class ErrorKind {
  mismatch = 1,     // a check failed, traces differ, a ledger does not match
  usage = 2,        // bad command line, configuration or input data
  environment = 3,  // missing device, unwritable output, NCCL error, time-out
};

/// Something that a user, a file or a device can cause. The message says what, where, found value, allowed
/// values.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// A broken invariant of our own code.
class LogicError : public std::logic_error {
  using std::logic_error::logic_error;
};

/// One problem of an input file, with the source line it stands in.
struct Problem {
  Location where;
  std::string message;
  std::string source_line;  // empty when unknown
  int length = 1;           // bytes to underline from where.column, up to the end of the line
};

/// Orders problems by file (in order of first appearance), line and column; equal places keep their order.
void sort_by_position(std::vector<Problem>& problems);

/// Renders "file:line:column: error: message", the source line and a caret line, for every problem, in order
/// of position, without a newline at the end. At most 20 problems of a file are shown in full; the rest are
/// counted.
std::string render(const std::vector<Problem>& problems);

/// All problems of one or several input files; what() is render(problems()). Kind: usage.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

/// Throws Error(usage) with a formatted message.
template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}

/// Returns the known name nearest to `name` when it is near enough to be a typing error, else "". Near
/// enough: edits (a swap of neighbours is one) <= max(1, length of name / 3); of equally near names the
/// first.
std::string nearest_name(std::string_view name, const std::vector<std::string_view>& known);

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace plumb

/// Throws LogicError with condition, place and the formatted values. On in every build type.
#define PLUMB_CHECK(condition, ...) \
  ((condition) ? void() : ::plumb::check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)))

// Rendering of problems in the manner of a compiler, spelling suggestions, and the failure path of
// PLUMB_CHECK.
#include "model/error.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace plumb {
namespace {

constexpr size_t kMaxShown = 20;  // problems of one file that are shown in full

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// The line under a source line: blanks up to `column` (tabs stay tabs, so that any tab width lines up), a
/// caret, and tildes up to `length` bytes. One mark per UTF-8 character.
std::string caret_line(std::string_view line, int column, int length) {
  const size_t begin = std::min(static_cast<size_t>(column) - 1, line.size());
  const size_t end = std::min(begin + static_cast<size_t>(std::max(length, 1)), line.size());
  std::string result;
  for (size_t i = 0; i < begin; ++i)
    if (!is_continuation(line[i])) result += line[i] == '\t' ? '\t' : ' ';
  result += '^';
  for (size_t i = begin + 1; i < end; ++i)
    if (!is_continuation(line[i])) result += '~';
  return result;
}

std::string render_one(const Problem& problem) {
  const std::string place = to_string(problem.where);
  std::string result = place.empty() ? "" : place + ": ";
  result += "error: " + problem.message;
  if (problem.source_line.empty() || problem.where.column < 1) return result;
  return result + "\n" + problem.source_line + "\n" +
         caret_line(problem.source_line, problem.where.column, problem.length);
}

std::vector<Problem> sorted(std::vector<Problem> problems) {
  sort_by_position(problems);
  return problems;
}

/// Edits (insert, delete, replace, swap of neighbours) that turn a into b; any number above `limit` once it
/// is known to exceed it. Optimal string alignment: no part is edited twice.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return limit + 1;
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> previous(b.size() + 1);
  std::vector<size_t> current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

std::string to_string(const Location& where) {
  std::string result = where.file;
  if (where.line < 1) return result;
  if (!result.empty()) result += ":";
  result += std::to_string(where.line);
  if (where.column >= 1) result += ":" + std::to_string(where.column);
  return result;
}

void sort_by_position(std::vector<Problem>& problems) {
  std::map<std::string, size_t> file_order;
  for (const Problem& problem : problems) file_order.emplace(problem.where.file, file_order.size());
  std::stable_sort(problems.begin(), problems.end(), [&](const Problem& a, const Problem& b) {
    if (a.where.file != b.where.file) return file_order[a.where.file] < file_order[b.where.file];
    if (a.where.line != b.where.line) return a.where.line < b.where.line;
    return a.where.column < b.where.column;
  });
}

std::string render(const std::vector<Problem>& problems) {
  const std::vector<Problem> ordered = sorted(problems);
  std::string result;
  for (size_t begin = 0; begin < ordered.size();) {
    const std::string& file = ordered[begin].where.file;
    size_t end = begin;
    while (end < ordered.size() && ordered[end].where.file == file) ++end;
    const size_t shown_end = std::min(end, begin + kMaxShown);
    for (size_t i = begin; i < shown_end; ++i) result += (i > 0 ? "\n" : "") + render_one(ordered[i]);
    if (shown_end < end)
      result +=
          fmt::format("\n{}{} more problems not shown", file.empty() ? "" : file + ": ", end - shown_end);
    begin = end;
  }
  return result;
}

ConfigError::ConfigError(std::vector<Problem> problems)
    : Error(ErrorKind::usage, render(problems)), problems_(sorted(std::move(problems))) {}

std::string nearest_name(std::string_view name, const std::vector<std::string_view>& known) {
  const size_t limit = std::max<size_t>(1, name.size() / 3);
  std::string_view best;
  size_t best_distance = limit + 1;
  for (const std::string_view candidate : known) {
    const size_t distance = edit_distance(name, candidate, limit);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return std::string(best);
}

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw LogicError(fmt::format("{}:{}: check failed: {}: {}", file, line, condition, message));
}

}  // namespace plumb

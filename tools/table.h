// Text tables for people and CSV for programs, from the same cells.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plumb {

/// Columns are as wide as their widest cell; cells that look like numbers stand right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  /// Throws LogicError when the number of cells is not that of the header.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  std::string text() const;
  /// RFC 4180: quotes only where needed, lines end in \n.
  std::string csv() const;
  /// A <table> with escaped cells.
  std::string html() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// Text as it can stand in HTML and SVG, also in quoted attributes. Control characters become blanks.
std::string html_escaped(std::string_view text);

/// Four significant digits, "-" for a value that is not finite.
std::string number(double value);
/// "+1.2 %", with a sign; "-" when not finite.
std::string percent(double fraction);

}  // namespace plumb

// Aligned text tables and CSV.
#include "tools/table.h"

#include <algorithm>
#include <cmath>

#include "model/error.h"

namespace plumb {
namespace {

bool is_numeric(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("+-.0123456789e% ") == std::string::npos;
}

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string out = "\"";
  for (const char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  PLUMB_CHECK(cells.size() == header_.size(), "{} cells under {} columns", cells.size(), header_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> width;
  std::vector<bool> right(header_.size(), true);
  for (size_t c = 0; c < header_.size(); ++c) {
    width.push_back(header_[c].size());
    for (const auto& row : rows_) {
      width[c] = std::max(width[c], row[c].size());
      right[c] = right[c] && (is_numeric(row[c]) || row[c] == "-");
    }
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c)
      line += right[c] ? fmt::format("{:>{}}  ", cells[c], width[c])
                       : fmt::format("{:<{}}  ", cells[c], width[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line(header_);
  for (const auto& row : rows_) add_line(row);
  return out;
}

std::string Table::csv() const {
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (size_t c = 0; c < cells.size(); ++c) out += (c == 0 ? "" : ",") + quoted(cells[c]);
    out += '\n';
  };
  add_line(header_);
  for (const auto& row : rows_) add_line(row);
  return out;
}

std::string Table::html() const {
  std::string out = "<table>\n<tr>";
  for (const std::string& cell : header_) out += "<th>" + html_escaped(cell) + "</th>";
  out += "</tr>\n";
  for (const auto& row : rows_) {
    out += "<tr>";
    for (const std::string& cell : row)
      out += (is_numeric(cell) ? "<td class=\"n\">" : "<td>") + html_escaped(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0) return "0";
  const double magnitude = std::fabs(value);
  const int digits = magnitude >= 1000 ? 0 : magnitude >= 100 ? 1 : magnitude >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

std::string percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:+.1f} %", fraction * 100) : "-";
}

}  // namespace plumb

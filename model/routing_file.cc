// The trace file of routing, docs/routing.md: a strict reader and a writer.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "model/error.h"
#include "model/routing.h"

namespace plumb {
namespace {

constexpr std::string_view kMagic = "#plumb.routing/1";
constexpr size_t kMaxProblems = 20;

std::string column_line(int32_t topk) {
  std::string line = "rank,token";
  for (int32_t i = 0; i < topk; ++i) line += fmt::format(",e{}", i);
  return line;
}

class Reader {
 public:
  Reader(const std::string& path, const Shape& shape)
      : path_(path), shape_(shape), in_(path, std::ios::binary) {
    if (!in_) fail_usage("routing file {}: cannot be opened for reading", path);
  }

  std::vector<int32_t> read() {
    expect_line(kMagic, "the first line");
    expect_number("#ranks", shape_.ranks);
    expect_number("#experts", shape_.experts);
    expect_number("#topk", shape_.topk);
    read_tokens();
    expect_line(column_line(shape_.topk), "the column line");
    std::vector<int32_t> table;
    table.reserve(static_cast<size_t>(shape_.total_tokens() * shape_.topk));
    for (Rank r = 0; r < shape_.ranks; ++r)
      for (int32_t t = 0; t < shape_.tokens[static_cast<size_t>(r)]; ++t) read_row(r, t, table);
    if (next_line()) stop(1, "a line after the last row that the header announces");
    if (in_.bad()) fail_usage("routing file {}: cannot be read at line {}", path_, line_number_);
    if (!problems_.empty()) throw ConfigError(std::move(problems_));
    return table;
  }

 private:
  /// Moves to the next line; false at the end of the file.
  bool next_line() {
    ++line_number_;
    at_ = 0;
    if (!std::getline(in_, line_)) {
      line_.clear();
      return false;
    }
    if (in_.eof()) stop(line_.size() + 1, "the last line does not end with a newline; the file may be cut");
    return true;
  }

  [[noreturn]] void stop_at_end(const std::string& expected) {
    if (in_.bad()) fail_usage("routing file {}: cannot be read at line {}", path_, line_number_);
    stop(1, "the file ends here; expected " + expected);
  }

  void record(size_t column, const std::string& message, size_t length = 1) {
    problems_.push_back({.where = {path_, line_number_, static_cast<int>(column)},
                         .message = message,
                         .source_line = line_,
                         .length = static_cast<int>(length)});
    if (problems_.size() == kMaxProblems) throw ConfigError(std::move(problems_));
  }

  [[noreturn]] void stop(size_t column, const std::string& message, size_t length = 1) {
    record(column, message, length);
    throw ConfigError(std::move(problems_));
  }

  void expect_line(std::string_view text, std::string_view what) {
    if (!next_line()) stop_at_end(fmt::format("{} \"{}\"", what, text));
    const auto differ = std::mismatch(line_.begin(), line_.end(), text.begin(), text.end()).first;
    if (line_ != text)
      stop(static_cast<size_t>(differ - line_.begin()) + 1, fmt::format("{} must be \"{}\"", what, text));
  }

  void expect_text(std::string_view text) {
    if (!std::string_view(line_).substr(at_).starts_with(text))
      stop(at_ + 1, fmt::format("expected \"{}\"", text));
    at_ += text.size();
  }

  /// Reads an integer in its shortest form; leaves its first column in number_column_.
  int32_t number() {
    number_column_ = at_ + 1;
    int32_t value = 0;
    const char* const begin = line_.data() + at_;
    const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), value);
    number_length_ = static_cast<size_t>(end - begin);
    if (error == std::errc::result_out_of_range)
      stop(number_column_, "the number does not fit 32 bits", number_length_);
    if (error != std::errc{}) stop(number_column_, "expected an integer");
    if (number_length_ != fmt::formatted_size("{}", value))
      stop(number_column_, fmt::format("write the number as {}", value), number_length_);
    at_ += number_length_;
    return value;
  }

  void expect_end() {
    if (at_ != line_.size()) stop(at_ + 1, "unexpected text; the line should end here", line_.size() - at_);
  }

  void expect_number(std::string_view key, int32_t wanted) {
    if (!next_line()) stop_at_end(fmt::format("the line \"{} {}\"", key, wanted));
    expect_text(fmt::format("{} ", key));
    const int32_t found = number();
    expect_end();
    if (found != wanted)
      stop(number_column_,
           fmt::format("{} is {} in the file and {} in the shape", key.substr(1), found, wanted),
           number_length_);
  }

  void read_tokens() {
    if (!next_line()) stop_at_end("the line \"#tokens ...\" with the tokens of each rank");
    expect_text("#tokens");
    for (Rank r = 0; r < shape_.ranks; ++r) {
      expect_text(" ");
      const int32_t found = number();
      const int32_t wanted = shape_.tokens[static_cast<size_t>(r)];
      if (found != wanted)
        stop(number_column_,
             fmt::format("rank {} has {} tokens in the file and {} in the shape", r, found, wanted),
             number_length_);
    }
    expect_end();
  }

  void read_row(Rank rank, int32_t token, std::vector<int32_t>& table) {
    if (!next_line()) stop_at_end(fmt::format("the row of rank {}, token {}", rank, token));
    expect_place("rank", rank, rank, token);
    expect_text(",");
    expect_place("token", token, rank, token);
    const size_t row = table.size();
    for (int32_t i = 0; i < shape_.topk; ++i) {
      expect_text(",");
      const int32_t expert = number();
      check_expert(expert, std::span<const int32_t>(table).subspan(row));
      table.push_back(expert);
    }
    expect_end();
  }

  void expect_place(std::string_view what, int32_t wanted, Rank rank, int32_t token) {
    const int32_t found = number();
    if (found != wanted)
      stop(number_column_,
           fmt::format("{} {}; expected the row of rank {}, token {} (rows go by rank, then token)", what,
                       found, rank, token),
           number_length_);
  }

  void check_expert(int32_t expert, std::span<const int32_t> row) {
    if (expert < kNone || expert >= shape_.experts)
      record(number_column_,
             fmt::format("expert {}; allowed: 0 .. {}, or -1 for no choice", expert, shape_.experts - 1),
             number_length_);
    else if (expert != kNone && std::find(row.begin(), row.end(), expert) != row.end())
      record(number_column_,
             fmt::format("expert {} stands twice in this row; the experts of a token must differ", expert),
             number_length_);
  }

  const std::string& path_;
  const Shape& shape_;
  std::ifstream in_;
  std::string line_;
  int line_number_ = 0;
  size_t at_ = 0;  // next character of line_
  size_t number_column_ = 0;
  size_t number_length_ = 0;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<int32_t> read_routing_file(const std::string& path, const Shape& shape) {
  validate_gate(shape);
  return Reader(path, shape).read();
}

void write_routing_file(const std::string& path, const Shape& shape, const Routing& routing) {
  PLUMB_CHECK(routing.topk() == shape.topk, "routing of top {}, shape of top {}", routing.topk(), shape.topk);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!out)
    throw Error(ErrorKind::environment, fmt::format("routing file {}: cannot be opened for writing", path));
  fmt::memory_buffer text;
  fmt::format_to(std::back_inserter(text), "{}\n#ranks {}\n#experts {}\n#topk {}\n#tokens {}\n{}\n", kMagic,
                 shape.ranks, shape.experts, shape.topk, fmt::join(shape.tokens, " "),
                 column_line(shape.topk));
  std::vector<int32_t> rows;
  for (Rank r = 0; r < shape.ranks; ++r) {
    routing.rows(r, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto topk = static_cast<size_t>(shape.topk);
      if (i % topk == 0) fmt::format_to(std::back_inserter(text), "{},{}", r, i / topk);
      fmt::format_to(std::back_inserter(text), ",{}", rows[i]);
      if (i % topk == topk - 1) text.push_back('\n');
    }
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    text.clear();
  }
  out.close();
  if (!out) throw Error(ErrorKind::environment, fmt::format("routing file {}: writing failed", path));
}

}  // namespace plumb

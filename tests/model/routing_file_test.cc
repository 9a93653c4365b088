// The trace file of routing: bytes, round trip, replay and every complaint of its reader.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "model/error.h"
#include "model/routing.h"

namespace plumb {
namespace {

template <class Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

#define EXPECT_TEXT(whole, part) EXPECT_NE((whole).find(part), std::string::npos) << (whole)

std::string spec_error(const Shape& shape, const RoutingSpec& spec) {
  return error_of([&] { Routing::generate(shape, spec); });
}

std::vector<int32_t> table_of(const Shape& shape, const Routing& routing) {
  std::vector<int32_t> table;
  for (Rank r = 0; r < shape.ranks; ++r) {
    const std::vector<int32_t> rows = routing.rows(r);
    EXPECT_EQ(rows.size(), static_cast<size_t>(int64_t{shape.tokens[static_cast<size_t>(r)]} * shape.topk));
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

Shape ragged_shape(int32_t ranks, int32_t experts, int32_t topk) {
  Shape shape = uniform_shape(ranks, experts, topk, 0, 256);
  for (Rank r = 0; r < ranks; ++r) shape.tokens[static_cast<size_t>(r)] = r * 7 % 13;
  shape.max_tokens = 12;
  return shape;
}

const std::vector<RoutingKind> kGenerators = {
    RoutingKind::uniform,    RoutingKind::balanced, RoutingKind::group_limited, RoutingKind::zipf,
    RoutingKind::hot_expert, RoutingKind::hot_rank, RoutingKind::unbalanced};

class RoutingFile : public testing::Test {
 protected:
  RoutingFile()
      : path_(testing::TempDir() + "plumb_routing_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~RoutingFile() override { std::remove(path_.c_str()); }

  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  /// The problems of reading `text`, each as "line:column: message".
  std::vector<std::string> problems(const std::string& text, const Shape& shape) {
    write(text);
    std::vector<std::string> result;
    try {
      read_routing_file(path_, shape);
    } catch (const ConfigError& error) {
      for (const Problem& p : error.problems()) {
        EXPECT_EQ(p.where.file, path_);
        result.push_back(std::to_string(p.where.line) + ":" + std::to_string(p.where.column) + ": " +
                         p.message);
      }
    }
    return result;
  }
  static Shape shape() {
    Shape shape = uniform_shape(2, 8, 2, 2, 256);
    shape.tokens = {2, 1};
    return shape;
  }
  const std::string path_;
};

using Lines = std::vector<std::string>;
constexpr const char* kHead =
    "#plumb.routing/1\n#ranks 2\n#experts 8\n#topk 2\n#tokens 2 1\nrank,token,e0,e1\n";

TEST_F(RoutingFile, WritesTheDocumentedBytes) {
  write_routing_file(path_, shape(), Routing::from_table(shape(), {5, 3, -1, -1, 0, 7}));
  EXPECT_EQ(content(), std::string(kHead) + "0,0,5,3\n0,1,-1,-1\n1,0,0,7\n");
}

TEST_F(RoutingFile, RoundTripKeepsEveryGenerator) {
  const Shape ragged = ragged_shape(8, 32, 4);
  for (const RoutingKind kind : kGenerators) {
    const Routing routing = Routing::generate(ragged, {.kind = kind, .hot_ratio = 1.5, .masked_ratio = 0.25});
    write_routing_file(path_, ragged, routing);
    EXPECT_EQ(read_routing_file(path_, ragged), table_of(ragged, routing)) << to_string(kind);
  }
}

TEST_F(RoutingFile, ReplayYieldsTheRowsOfTheFile) {
  write(std::string(kHead) + "0,0,5,3\n0,1,-1,-1\n1,0,0,7\n");
  RoutingSpec spec{.kind = RoutingKind::replay, .file = path_};
  const Routing routing = Routing::generate(shape(), spec);
  EXPECT_EQ(routing.rows(0), (std::vector<int32_t>{5, 3, -1, -1}));
  EXPECT_EQ(routing.rows(1), (std::vector<int32_t>{0, 7}));
  spec.masked_ratio = 0.5;
  EXPECT_TEXT(spec_error(shape(), spec), "masked_ratio is 0.5; allowed: 0");
  EXPECT_TEXT(spec_error(shape(), {.kind = RoutingKind::replay}), "file is empty");
}

TEST_F(RoutingFile, MissingFileIsNamed) {
  EXPECT_TEXT(error_of([&] { read_routing_file(path_, shape()); }), path_ + ": cannot be opened for reading");
  try {
    write_routing_file("/nonexistent/x", shape(), Routing::from_table(shape(), {5, 3, -1, -1, 0, 7}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::environment);
    EXPECT_TEXT(std::string(error.what()), "/nonexistent/x: cannot be opened for writing");
  }
}

TEST_F(RoutingFile, HeaderMustFitTheShape) {
  const std::string rows = "0,0,5,3\n0,1,-1,-1\n1,0,0,7\n";
  const auto with = [&](std::string from, const std::string& to) {
    std::string text = kHead + rows;
    text.replace(text.find(from), from.size(), to);
    return problems(text, shape());
  };
  EXPECT_EQ(with("/1", "/2"), Lines{"1:16: the first line must be \"#plumb.routing/1\""});
  EXPECT_EQ(with("#ranks 2", "#ranks 3"), Lines{"2:8: ranks is 3 in the file and 2 in the shape"});
  EXPECT_EQ(with("#experts 8", "#expert 8"), Lines{"3:1: expected \"#experts \""});
  EXPECT_EQ(with("#topk 2", "#topk 2 "), Lines{"4:8: unexpected text; the line should end here"});
  EXPECT_EQ(with("#tokens 2 1", "#tokens 2 2"),
            Lines{"5:11: rank 1 has 2 tokens in the file and 1 in the shape"});
  EXPECT_EQ(with("#tokens 2 1", "#tokens 2"), Lines{"5:10: expected \" \""});
  EXPECT_EQ(with("#tokens 2 1", "#tokens 2 1 1"), Lines{"5:12: unexpected text; the line should end here"});
  EXPECT_EQ(with("e0,e1", "e0"), Lines{"6:14: the column line must be \"rank,token,e0,e1\""});
}

TEST_F(RoutingFile, RowsMustBeInFormOrderAndComplete) {
  const auto rows = [&](const std::string& text) { return problems(kHead + text, shape()); };
  EXPECT_EQ(rows("0,0,5,3\n1,0,0,7\n"),
            Lines{"8:1: rank 1; expected the row of rank 0, token 1 (rows go by rank, then token)"});
  EXPECT_EQ(rows("0,0,5,3\n0,0,5,3\n1,0,0,7\n"),
            Lines{"8:3: token 0; expected the row of rank 0, token 1 (rows go by rank, then token)"});
  EXPECT_EQ(rows("0,0,5,3\n0,1,1,2\n"),
            Lines{"9:1: the file ends here; expected the row of rank 1, token 0"});
  EXPECT_EQ(rows("0,0,5,3\n0,1,1,2\n1,0,0,7\n1,1,0,7\n"),
            Lines{"10:1: a line after the last row that the header announces"});
  EXPECT_EQ(rows("0,0,5,3\n0,1,1,2\n1,0,0,7"),
            Lines{"9:8: the last line does not end with a newline; the file may be cut"});
  EXPECT_EQ(rows("0,0,5\n"), Lines{"7:6: expected \",\""});
  EXPECT_EQ(rows("0,0,5,3,1\n"), Lines{"7:8: unexpected text; the line should end here"});
  EXPECT_EQ(rows("0,0,5,\n"), Lines{"7:7: expected an integer"});
  EXPECT_EQ(rows("0,0, 5,3\n"), Lines{"7:5: expected an integer"});
  EXPECT_EQ(rows("0,0,05,3\n"), Lines{"7:5: write the number as 5"});
  EXPECT_EQ(rows("0,0,5.0,3\n"), Lines{"7:6: expected \",\""});
  EXPECT_EQ(rows("0,0,5,3\r\n"), Lines{"7:8: unexpected text; the line should end here"});
  EXPECT_EQ(rows("0,0,99999999999,3\n"), Lines{"7:5: the number does not fit 32 bits"});
  EXPECT_EQ(problems("", shape()),
            Lines{"1:1: the file ends here; expected the first line \"#plumb.routing/1\""});
}

TEST_F(RoutingFile, AllWrongExpertsAreCollected) {
  EXPECT_EQ(problems(std::string(kHead) + "0,0,8,3\n0,1,-2,1\n1,0,7,7\n", shape()),
            (Lines{"7:5: expert 8; allowed: 0 .. 7, or -1 for no choice",
                   "8:5: expert -2; allowed: 0 .. 7, or -1 for no choice",
                   "9:7: expert 7 stands twice in this row; the experts of a token must differ"}));
}

TEST_F(RoutingFile, ReadingStopsAtTwentyProblems) {
  const Shape long_shape = uniform_shape(1, 8, 1, 30, 256);
  std::string text = "#plumb.routing/1\n#ranks 1\n#experts 8\n#topk 1\n#tokens 30\nrank,token,e0\n";
  for (int t = 0; t < 30; ++t) text += "0," + std::to_string(t) + ",9\n";
  EXPECT_EQ(problems(text, long_shape).size(), 20u);
}

}  // namespace
}  // namespace plumb

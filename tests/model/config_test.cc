// The strict reader: exact texts of its errors, what YAML it refuses, and a fuzz test.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "model/random.h"

namespace plumb {
namespace {

enum class Mode { direct, hybrid };
const std::vector<std::pair<std::string_view, Mode>> kModes{{"direct", Mode::direct},
                                                            {"hybrid", Mode::hybrid}};

/// A file of the kind that the project reads: a shape, a network and a list.
struct Example {
  int64_t ranks = 0;
  int64_t topk = 0;
  Mode mode = Mode::direct;
  bool cached = false;
  double skew = 0;
  Sourced<BytesPerSecond> rate;
  Seconds latency{};
  std::vector<std::string> names;
};

Example read_example(ConfigMap root) {
  Example result;
  ConfigMap shape = root.map("shape");
  result.ranks = shape.integer("ranks", {1, 2048});
  result.topk = shape.integer("topk", {1, 32}, 8);
  result.mode = shape.choice<Mode>("mode", kModes, Mode::direct);
  result.cached = shape.flag("cached", false);
  result.skew = shape.number("skew", {0, 10}, 1);
  if (std::optional<ConfigMap> network = root.optional_map("network")) {
    result.rate =
        network->sourced<BytesPerSecond>("rate", {gigabytes_per_second(1), gigabytes_per_second(200)});
    result.latency =
        network->quantity<Seconds>("latency", {nanoseconds(1), microseconds(100)}, microseconds(1));
  }
  if (std::optional<ConfigList> links = root.optional_list("links"))
    for (size_t i = 0; i < links->size(); ++i) result.names.push_back(links->map(i).text("name"));
  return result;
}

constexpr std::string_view kValid = R"(# an example
shape:
  ranks: 64
  topk: 4
  mode: hybrid   # of the two
  cached: true
  skew: 0.5
network:
  rate: {value: 400 Gbit/s, source: datasheet ConnectX-7, note: "one port, each way"}
  latency: 1.5 us
links:
  - name: a
  - {name: 'b'}
)";

Example parse_example(std::string_view text, const std::vector<std::string>& assignments = {}) {
  ConfigFile file = ConfigFile::parse(text, "a.yaml");
  for (const std::string& assignment : assignments) file.set(assignment);
  const Example result = read_example(file.root());
  file.finish();
  return result;
}

/// The text of the Error that `action` throws, "" when it throws none.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
}

std::string example_error(const std::string& text, const std::vector<std::string>& assignments = {}) {
  return error_of([&] { parse_example(text, assignments); });
}

/// The error of a file that holds only "x: VALUE", read by `read`.
std::string value_error(const std::string& value, const std::function<void(ConfigMap)>& read) {
  return error_of([&] {
    ConfigFile file = ConfigFile::parse("x: " + value + "\n", "a");
    read(file.root());
    file.finish();
  });
}

std::string integer_error(const std::string& value, Range<int64_t> range = {1, 32}) {
  return value_error(value, [&](ConfigMap root) { root.integer("x", range); });
}

std::string rate_error(const std::string& value) {
  return value_error(value, [](ConfigMap root) {
    root.quantity<BytesPerSecond>("x", {gigabytes_per_second(1), gigabytes_per_second(100)});
  });
}

TEST(Config, ReadsAValidFile) {
  const Example example = parse_example(kValid);
  EXPECT_EQ(example.ranks, 64);
  EXPECT_EQ(example.topk, 4);
  EXPECT_EQ(example.mode, Mode::hybrid);
  EXPECT_TRUE(example.cached);
  EXPECT_EQ(example.skew, 0.5);
  EXPECT_EQ(example.rate.value, BytesPerSecond{50e9});
  EXPECT_EQ(example.rate.source, "datasheet ConnectX-7");
  EXPECT_EQ(example.latency, Seconds{1.5e-6});
  EXPECT_EQ(example.names, (std::vector<std::string>{"a", "b"}));
}

TEST(Config, UsesFallbacksForAbsentKeys) {
  const Example example = parse_example("shape: {ranks: 2}\n");
  EXPECT_EQ(example.topk, 8);
  EXPECT_EQ(example.mode, Mode::direct);
  EXPECT_EQ(example.skew, 1);
}

TEST(FieldCases, B49_MistypedKeyIsReportedWithTheNearestName) {
  EXPECT_EQ(example_error("shape:\n  ranks: 8\n  topkk: 4\n"),
            "a.yaml:3:3: error: unknown key 'topkk' in 'shape' (did you mean 'topk'?)\n"
            "  topkk: 4\n"
            "  ^~~~~");
}

TEST(FieldCases, B49_KeyOneLevelTooHighIsSentHome) {
  EXPECT_EQ(example_error("shape:\n  ranks: 8\ntopk: 4\n"),
            "a.yaml:3:1: error: unknown key 'topk' (it belongs in 'shape')\n"
            "topk: 4\n"
            "^~~~");
}

TEST(FieldCases, B49_KeyOneLevelTooLowIsSentHome) {
  EXPECT_EQ(example_error("shape:\n  ranks: 8\n  links: []\n"),
            "a.yaml:3:3: error: unknown key 'links' in 'shape' (it belongs at the top)\n"
            "  links: []\n"
            "  ^~~~~");
}

TEST(FieldCases, B49_MissingKeyIsNamedAtItsMapping) {
  EXPECT_EQ(example_error("shape:\n  topk: 4\n"),
            "a.yaml:1:1: error: missing key 'ranks' in 'shape'\n"
            "shape:\n"
            "^~~~~");
  EXPECT_EQ(example_error("links: []\n"),
            "a.yaml:1:1: error: missing key 'shape'\n"
            "links: []\n"
            "^");
}

TEST(FieldCases, B49_AllProblemsOfAFileAreListedInOrder) {
  EXPECT_EQ(
      example_error("shape:\n  rank: 8\n  topk: 40\nnetwork:\n  rate: {value: 400}\nlinks:\n  - {nam: a}\n"),
      "a.yaml:1:1: error: missing key 'ranks' in 'shape'\n"
      "shape:\n"
      "^~~~~\n"
      "a.yaml:2:3: error: unknown key 'rank' in 'shape' (did you mean 'ranks'?)\n"
      "  rank: 8\n"
      "  ^~~~\n"
      "a.yaml:3:9: error: 'topk' is 40, allowed 1 .. 32\n"
      "  topk: 40\n"
      "        ^~\n"
      "a.yaml:5:3: error: missing key 'source' in 'network.rate'\n"
      "  rate: {value: 400}\n"
      "  ^~~~\n"
      "a.yaml:5:17: error: 'rate' is '400', expected a rate with a unit such as 50 GB/s or 400 Gbit/s\n"
      "  rate: {value: 400}\n"
      "                ^~~\n"
      "a.yaml:7:5: error: missing key 'name' in 'links[0]'\n"
      "  - {nam: a}\n"
      "    ^\n"
      "a.yaml:7:6: error: unknown key 'nam' in 'links[0]' (did you mean 'name'?)\n"
      "  - {nam: a}\n"
      "     ^~~");
}

TEST(FieldCases, B50_SecondBlockOfTheSameNameIsRefused) {
  EXPECT_EQ(example_error("links:\n  - name: a\nshape: {ranks: 8}\nlinks:\n  - name: b\n"),
            "a.yaml:4:1: error: duplicate key 'links', first given in line 1\n"
            "links:\n"
            "^~~~~");
}

TEST(FieldCases, B50_SameNodeTwiceNamesBothLines) {
  EXPECT_EQ(example_error("nodes:\n  n0: {gpus: 8}\n  n1: {gpus: 8}\n  \"n0\": {gpus: 4}\n"),
            "a.yaml:4:3: error: duplicate key 'n0' in 'nodes', first given in line 2\n"
            "  \"n0\": {gpus: 4}\n"
            "  ^~~~");
  EXPECT_EQ(example_error("shape: {ranks: 1, ranks: 2}\n"),
            "a.yaml:1:19: error: duplicate key 'ranks' in 'shape', first given in line 1\n"
            "shape: {ranks: 1, ranks: 2}\n"
            "                  ^~~~~");
}

TEST(FieldCases, B52_EqualRatesInAnyUnit) {
  for (const std::string rate : {"400Gbps", "50GBps", "50000MBps", "\"50 GB/s\""}) {
    const Example example =
        parse_example("shape: {ranks: 2}\nnetwork:\n  rate: {value: " + rate + ", source: paper 1}\n");
    EXPECT_EQ(example.rate.value, BytesPerSecond{50e9}) << rate;
  }
}

TEST(FieldCases, B52_BareNumberIsNoRate) {
  EXPECT_EQ(rate_error("400"),
            "a:1:4: error: 'x' is '400', expected a rate with a unit such as 50 GB/s or 400 Gbit/s\n"
            "x: 400\n"
            "   ^~~");
}

TEST(FieldCases, B52_BitByteTypoIsCaughtByTheRange) {
  EXPECT_EQ(rate_error("400 GB/s"),
            "a:1:4: error: 'x' is 400 GB/s, allowed 1.000 GB/s .. 100.0 GB/s (b is a bit, B is a byte)\n"
            "x: 400 GB/s\n"
            "   ^~~~~~~~");
  // 9 TB/s is no typing error of a bit: an eighth of it is still out of range.
  EXPECT_EQ(rate_error("9 TB/s"),
            "a:1:4: error: 'x' is 9 TB/s, allowed 1.000 GB/s .. 100.0 GB/s\n"
            "x: 9 TB/s\n"
            "   ^~~~~~");
}

TEST(Config, IntegersArePlainDecimal) {
  EXPECT_EQ(integer_error("32"), "");
  EXPECT_EQ(integer_error("-3", {-5, 5}), "");
  EXPECT_EQ(integer_error("8.5"),
            "a:1:4: error: 'x' is '8.5', expected an integer in plain decimal digits, of 64 bits\n"
            "x: 8.5\n"
            "   ^~~");
  for (const char* text :
       {"0x10", "010", "1_000", "1e3", "+8", "many", "9223372036854775808", "~a", "8 ranks", "inf"})
    EXPECT_NE(integer_error(text).find("', expected an integer in plain decimal digits, of 64 bits"),
              std::string::npos)
        << text;
}

TEST(Config, QuotedNumberIsText) {
  EXPECT_EQ(integer_error("\"8\""),
            "a:1:4: error: 'x' is text, expected an integer\n"
            "x: \"8\"\n"
            "   ^~~");
}

TEST(Config, WrongKindsAreNamed) {
  EXPECT_EQ(integer_error("[8]"),
            "a:1:4: error: 'x' is a list, expected an integer in plain decimal digits, of 64 bits\n"
            "x: [8]\n"
            "   ^");
  EXPECT_EQ(value_error("8", [](ConfigMap root) { root.map("x"); }),
            "a:1:4: error: 'x' is '8', expected a mapping\n"
            "x: 8\n"
            "   ^");
  EXPECT_EQ(value_error("{a: 1}", [](ConfigMap root) { root.list("x"); }),
            "a:1:4: error: 'x' is a mapping, expected a list\n"
            "x: {a: 1}\n"
            "   ^");
  EXPECT_EQ(value_error("\n  a: 1", [](ConfigMap root) { root.text("x"); }),
            "a:1:1: error: 'x' is a mapping, expected text\n"
            "x: \n"
            "^");
}

TEST(Config, KeyWithoutValueIsAProblem) {
  EXPECT_EQ(
      example_error("shape:\n  ranks:\n  topk: 4\n"),
      "a.yaml:2:3: error: 'ranks' has no value, expected an integer in plain decimal digits, of 64 bits\n"
      "  ranks:\n"
      "  ^~~~~");
  EXPECT_EQ(example_error("shape:\n"),
            "a.yaml:1:1: error: 'shape' has no value, expected a mapping\n"
            "shape:\n"
            "^~~~~");
  EXPECT_NE(example_error("shape: {ranks: null}\n").find("'ranks' has no value"), std::string::npos);
}

TEST(Config, RangesPrintTheirBounds) {
  EXPECT_EQ(integer_error("33"), "a:1:4: error: 'x' is 33, allowed 1 .. 32\nx: 33\n   ^~");
  EXPECT_NE(integer_error("0", {1, INT64_MAX}).find("'x' is 0, allowed at least 1\n"), std::string::npos);
  EXPECT_NE(integer_error("9", {INT64_MIN, 8}).find("'x' is 9, allowed at most 8\n"), std::string::npos);
  EXPECT_EQ(value_error("-0.5",
                        [](ConfigMap root) {
                          root.number("x", {0, HUGE_VAL});
                        }),
            "a:1:4: error: 'x' is -0.5, allowed at least 0\nx: -0.5\n   ^~~~");
  EXPECT_EQ(value_error("120 %",
                        [](ConfigMap root) {
                          root.percent("x", {0, 1}, 0);
                        }),
            "a:1:4: error: 'x' is 120 %, allowed 0 % .. 100 %\nx: 120 %\n   ^~~~~");
  EXPECT_EQ(value_error("2 ms",
                        [](ConfigMap root) {
                          root.quantity<Seconds>("x", {{}, microseconds(100)});
                        }),
            "a:1:4: error: 'x' is 2 ms, allowed 0 ns .. 100.0 us\nx: 2 ms\n   ^~~~");
  EXPECT_EQ(value_error("2 GiB",
                        [](ConfigMap root) {
                          root.quantity<Bytes>("x", {{1}, {1 << 20}});
                        }),
            "a:1:4: error: 'x' is 2 GiB, allowed 1 B .. 1.000 MiB\nx: 2 GiB\n   ^~~~~");
}

TEST(Config, ARefusedValueReadsAsTheFallbackOrTheLowerBound) {
  ConfigFile file = ConfigFile::parse("a: 99\nb: 99\nd: huge\n", "a");
  ConfigMap root = file.root();
  EXPECT_EQ(root.integer("a", {3, 32}), 3);
  EXPECT_EQ(root.integer("b", {3, 32}, 8), 8);
  EXPECT_EQ(root.integer("c", {3, 32}), 3);
  EXPECT_EQ(root.quantity<Bytes>("d", {{64}, {128}}), Bytes{64});
  EXPECT_THROW(file.finish(), ConfigError);
}

TEST(Config, ChoiceListsItsNames) {
  EXPECT_EQ(example_error("shape:\n  ranks: 8\n  mode: hibrid\n"),
            "a.yaml:3:9: error: 'mode' is 'hibrid', allowed: direct, hybrid (did you mean 'hybrid'?)\n"
            "  mode: hibrid\n"
            "        ^~~~~~");
  EXPECT_EQ(example_error("shape: {ranks: 8, mode: }\n"),
            "a.yaml:1:19: error: 'mode' has no value, allowed: direct, hybrid\n"
            "shape: {ranks: 8, mode: }\n"
            "                  ^~~~");
}

TEST(Config, OnlyTrueAndFalseAreFlags) {
  for (const char* text : {"yes", "no", "on", "off", "True", "1", "\"true\"", "~"}) {
    const std::string error = value_error(text, [](ConfigMap root) { root.flag("x", false); });
    EXPECT_NE(error.find(", expected true or false"), std::string::npos) << text;
  }
}

TEST(Config, SourceMustSayWhereANumberComesFrom) {
  const auto error_with = [](const std::string& pair) {
    return example_error("shape: {ranks: 8}\nnetwork:\n  rate: " + pair + "\n");
  };
  EXPECT_EQ(error_with("{value: 50 GB/s, source: vibes}"),
            "a.yaml:3:34: error: the source of 'rate' is 'vibes', expected one of the words datasheet, "
            "measured, paper, assumed, published, fitted and then which or why\n"
            "  rate: {value: 50 GB/s, source: vibes}\n"
            "                                 ^~~~~");
  EXPECT_NE(error_with("{value: 50 GB/s, source: measured}").find("the source of 'rate' is 'measured'"),
            std::string::npos);
  EXPECT_NE(error_with("{value: 50 GB/s, source: papers 1}").find("the source of 'rate' is 'papers 1'"),
            std::string::npos);
  EXPECT_NE(error_with("{value: 50 GB/s, source: }").find("the source of 'rate' has no value"),
            std::string::npos);
  EXPECT_EQ(error_with("50 GB/s"),
            "a.yaml:3:9: error: 'rate' is '50 GB/s', expected {value: ..., source: ...}\n"
            "  rate: 50 GB/s\n"
            "        ^~~~~~~");
  EXPECT_EQ(error_with("{value: 50 GB/s, source: paper 1, nota: x}"),
            "a.yaml:3:43: error: unknown key 'nota' in 'network.rate' (did you mean 'note'?)\n"
            "  rate: {value: 50 GB/s, source: paper 1, nota: x}\n"
            "                                          ^~~~");
}

TEST(Config, SourcedCountsAndRatiosHaveNoUnit) {
  ConfigFile file = ConfigFile::parse(
      "sms: {value: 132, source: datasheet H100}\nratio: {value: 0.5, source: assumed half}\n", "a");
  ConfigMap root = file.root();
  EXPECT_EQ(root.sourced<int64_t>("sms", {1, 1024}).value, 132);
  EXPECT_EQ(root.sourced<double>("ratio", {0, 1}).value, 0.5);
  const Sourced<Bytes> absent = root.sourced<Bytes>("mtu", {{256}, {8192}}, {Bytes{4096}, "assumed usual"});
  EXPECT_EQ(absent.value, Bytes{4096});
  EXPECT_EQ(absent.source, "assumed usual");
  file.finish();
}

TEST(Config, ListsOfScalarsNameTheirElements) {
  ConfigFile file = ConfigFile::parse("sizes: [1, 64, two]\nnames: [a, \"b\", [c]]\n", "a");
  ConfigMap root = file.root();
  EXPECT_EQ(root.integer_list("sizes", {1, 32}), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(root.text_list("names", {}), (std::vector<std::string>{"a", "b", ""}));
  EXPECT_EQ(root.text_list("absent", {"z"}), (std::vector<std::string>{"z"}));
  EXPECT_EQ(error_of([&] { file.finish(); }),
            "a:1:12: error: 'sizes[1]' is 64, allowed 1 .. 32\n"
            "sizes: [1, 64, two]\n"
            "           ^~\n"
            "a:1:16: error: 'sizes[2]' is 'two', expected an integer in plain decimal digits, of 64 bits\n"
            "sizes: [1, 64, two]\n"
            "               ^~~\n"
            "a:2:17: error: 'names[2]' is a list, expected text\n"
            "names: [a, \"b\", [c]]\n"
            "                ^");
}

TEST(Config, KeysGivenByTheUserAreListedInOrder) {
  ConfigFile file = ConfigFile::parse("zeta: 1\nalpha: 2\n", "a");
  ConfigMap root = file.root();
  EXPECT_EQ(root.keys(), (std::vector<std::string>{"zeta", "alpha"}));
  EXPECT_TRUE(root.has("zeta"));
  EXPECT_FALSE(root.has("beta"));
  EXPECT_EQ(to_string(root.location("alpha")), "a:2:8");
  EXPECT_EQ(root.raw("zeta"), "1");
  root.ignore("alpha");
  file.finish();
}

TEST(Config, FailPointsAtTheValue) {
  ConfigFile file = ConfigFile::parse("a: {b: 7}\nc: [1, 2]\n", "a");
  ConfigMap map = file.root().map("a");
  map.ignore("b");
  map.fail("b", "is odd");
  map.fail("none", "about the map");
  ConfigList list = file.root().list("c");
  list.fail(1, "is even");
  EXPECT_EQ(error_of([&] { file.finish(); }),
            "a:1:1: error: about the map\na: {b: 7}\n^\n"
            "a:1:8: error: is odd\na: {b: 7}\n       ^\n"
            "a:2:8: error: is even\nc: [1, 2]\n       ^");
}

TEST(Config, OneProblemForAKeyReadTwice) {
  ConfigFile file = ConfigFile::parse("x: 99\n", "a");
  file.root().integer("x", {1, 2});
  file.root().integer("x", {1, 2});
  EXPECT_EQ(error_of([&] { file.finish(); }), "a:1:4: error: 'x' is 99, allowed 1 .. 2\nx: 99\n   ^~");
}

TEST(Config, RefusesAWrongTop) {
  EXPECT_EQ(example_error("- 1\n"), "a.yaml:1:1: error: the file is a list, expected a mapping\n- 1\n^");
  EXPECT_EQ(example_error(""), "a.yaml:1:1: error: the file is empty, expected a mapping");
  EXPECT_EQ(example_error("# nothing\n---\n"),
            "a.yaml:1:1: error: the file is empty, expected a mapping\n# nothing\n^");
}

TEST(Yaml, RefusesASecondDocument) {
  EXPECT_EQ(example_error("shape: {ranks: 8}\n---\nshape: {ranks: 9}\n"),
            "a.yaml:2:1: error: a second document begins here, only one is allowed\n---\n^~~");
  EXPECT_EQ(example_error("--- # the first\nshape: {ranks: 8}\n...\n"), "");
}

TEST(Yaml, RefusesMergeKeysAnchorsAliasesAndTags) {
  EXPECT_EQ(example_error("base: &b {ranks: 8}\nshape:\n  <<: *b\n  topk: !!int 4\n"),
            "a.yaml:1:7: error: anchor '&b' is not allowed, write the value out where it is used\n"
            "base: &b {ranks: 8}\n"
            "      ^~\n"
            "a.yaml:3:3: error: merge key '<<' is not allowed, write the keys out\n"
            "  <<: *b\n"
            "  ^~\n"
            "a.yaml:3:7: error: alias '*b' is not allowed, write the value out\n"
            "  <<: *b\n"
            "      ^~\n"
            "a.yaml:4:9: error: tag '!!int' is not allowed, types follow from the key\n"
            "  topk: !!int 4\n"
            "        ^~~~~");
  EXPECT_NE(example_error("a: ! 4\n").find("tag '!' is not allowed"), std::string::npos);
  EXPECT_NE(example_error("a: !x {b: 1}\n").find("tag '!x' is not allowed"), std::string::npos);
  EXPECT_NE(example_error("a: &x\n").find("anchor '&x' is not allowed"), std::string::npos);
}

TEST(Yaml, RefusesKeysThatAreNoText) {
  EXPECT_EQ(example_error("? [a, b]\n: 1\n"),
            "a.yaml:1:3: error: a key must be text, found a list (or one without its closing bracket)\n"
            "? [a, b]\n"
            "  ^");
  EXPECT_NE(example_error("{a: 1}: 2\n").find("a key must be text"), std::string::npos);
  EXPECT_NE(example_error(": 1\n").find("a key must be text"), std::string::npos);
}

TEST(Yaml, SyntaxErrorsHaveAPlace) {
  EXPECT_EQ(example_error("shape:\n  ranks: 8: 9\n"),
            "a.yaml:2:11: error: not valid YAML: illegal map value\n"
            "  ranks: 8: 9\n"
            "          ^");
  EXPECT_EQ(example_error("shape:\n  list: [1, 2\n\n"),
            "a.yaml:2:14: error: not valid YAML: end of sequence flow not found\n"
            "  list: [1, 2\n"
            "             ^");
  EXPECT_EQ(example_error("shape: {ranks: 8"),
            "a.yaml:1:17: error: not valid YAML: end of map flow not found\n"
            "shape: {ranks: 8\n"
            "                ^");
}

TEST(Yaml, RefusesBytesThatAreNoText) {
  using namespace std::string_literals;
  EXPECT_EQ(example_error("a: 1\nb: x\0\n"s), "a.yaml:2:5: error: control character 0x00 is not allowed");
  EXPECT_EQ(example_error("a: \xFF\n"), "a.yaml:1:4: error: invalid UTF-8: byte 0xff is not allowed");
  EXPECT_NE(example_error("a: \xC0\xAF\n").find("byte 0xc0"), std::string::npos);          // overlong
  EXPECT_NE(example_error("a: \xED\xA0\x80\n").find("byte 0xed"), std::string::npos);      // surrogate
  EXPECT_NE(example_error("a: \xF4\x90\x80\x80\n").find("byte 0xf4"), std::string::npos);  // above U+10FFFF
  EXPECT_NE(example_error("a: \xE2\x82").find("byte 0xe2"), std::string::npos);            // cut short
  EXPECT_NE(example_error("a: 1\rb: 2\r").find("control character 0x0d"), std::string::npos);
  EXPECT_NE(example_error("a: \x04\n").find("control character 0x04"), std::string::npos);
  EXPECT_NE(example_error("a: \"\\0\"\n").find("NUL"), std::string::npos);
}

TEST(Yaml, AcceptsCrLfAndAByteOrderMark) {
  EXPECT_EQ(parse_example("\xEF\xBB\xBFshape:\r\n  ranks: 8\r\n  topk: 2\r\n").topk, 2);
  EXPECT_EQ(example_error("shape:\r\n  ranks: 8\r\n  topk: 40\r\n"),
            "a.yaml:3:9: error: 'topk' is 40, allowed 1 .. 32\n  topk: 40\n        ^~");
}

TEST(Yaml, BoundsDepthAndSize) {
  const auto nested = [](int levels) {
    return "a: " + std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']') + "\n";
  };
  EXPECT_NE(example_error(nested(100)).find("more than 64 levels of mappings and lists"), std::string::npos);
  EXPECT_NE(example_error(nested(100'000)).find("more than 64 levels"), std::string::npos);
  EXPECT_EQ(example_error(nested(60)).find("more than 64 levels"), std::string::npos);
  std::string steps;
  for (int i = 0; i < 100; ++i) steps += "- ";
  EXPECT_NE(example_error(steps + "a\n").find("more than 64 levels"), std::string::npos);
  EXPECT_EQ(example_error(std::string((64u << 20) + 1, '#')), "'a.yaml' is larger than 64.00 MiB");
}

TEST(Yaml, LongLinesAndValuesAreCutInMessages) {
  const std::string error = integer_error(std::string(1000, 'y'));
  EXPECT_NE(error.find("'" + std::string(60, 'y') + "...', expected"), std::string::npos);
  EXPECT_LT(error.size(), 200u);
}

TEST(ConfigFile, LoadNamesAPathThatItCannotRead) {
  const std::string missing = testing::TempDir() + "no_such_file.yaml";
  EXPECT_EQ(error_of([&] { ConfigFile::load(missing); }),
            "cannot read '" + missing + "': No such file or directory");
  EXPECT_EQ(error_of([] { ConfigFile::load("/"); }), "cannot read '/': Is a directory");
}

TEST(ConfigFile, LoadReadsAFile) {
  const std::string path = testing::TempDir() + "plumb_config_test.yaml";
  std::ofstream(path) << kValid;
  ConfigFile file = ConfigFile::load(path);
  EXPECT_EQ(file.name(), path);
  EXPECT_EQ(read_example(file.root()).ranks, 64);
  std::filesystem::remove(path);
}

TEST(ConfigFile, SetReplacesAndAdds) {
  const Example example =
      parse_example(kValid, {"shape.ranks=8", "network.rate.value=25 GB/s", "shape.skew=2"});
  EXPECT_EQ(example.ranks, 8);
  EXPECT_EQ(example.rate.value, BytesPerSecond{25e9});
  EXPECT_EQ(example.rate.source, "datasheet ConnectX-7");
  EXPECT_EQ(example.skew, 2);
  EXPECT_EQ(parse_example("shape: {ranks: 8}\n", {"links=[{name: z}]"}).names, std::vector<std::string>{"z"});
  EXPECT_EQ(parse_example("", {"shape.ranks=8"}).ranks, 8);
}

TEST(ConfigFile, ProblemsOfAnAssignmentPointIntoIt) {
  EXPECT_EQ(example_error("shape: {ranks: 0}\n", {"shape.mode=hybrid", "shape.topk=40", "shape.topkk=4"}),
            "a.yaml:1:16: error: 'ranks' is 0, allowed 1 .. 2048\n"
            "shape: {ranks: 0}\n"
            "               ^\n"
            "<set>:2:12: error: 'topk' is 40, allowed 1 .. 32\n"
            "shape.topk=40\n"
            "           ^~\n"
            "<set>:3:7: error: unknown key 'topkk' in 'shape' (did you mean 'topk'?)\n"
            "shape.topkk=4\n"
            "      ^~~~~");
}

TEST(ConfigFile, SetRefusesABadForm) {
  const auto set_error = [](const std::string& assignment) {
    ConfigFile file = ConfigFile::parse(kValid, "a.yaml");
    return error_of([&] { file.set(assignment); });
  };
  EXPECT_EQ(set_error("shape.ranks"),
            "cannot set 'shape.ranks': expected the form key=value or key.key=value in one line");
  EXPECT_EQ(set_error("shape.ranks="), "cannot set 'shape.ranks=': no value after '='");
  EXPECT_EQ(set_error("shape..ranks=1"), "cannot set 'shape..ranks=1': a key is empty");
  EXPECT_EQ(set_error("=1"), "cannot set '=1': a key is empty");
  EXPECT_EQ(set_error("shape.ranks.x=1"),
            "cannot set 'shape.ranks.x=1': 'shape.ranks' is '64', not a mapping");
  EXPECT_EQ(set_error("links.0=1"), "cannot set 'links.0=1': 'links' is a list, not a mapping");
  EXPECT_NE(set_error("shape.ranks=1\nx: 2").find("in one line"), std::string::npos);
  EXPECT_NE(set_error("shape.ranks=\xFF").find("cannot set"), std::string::npos);
  EXPECT_EQ(set_error("shape.ranks=[1"),
            "<set>:1:13: error: a key must be text, found a list (or one without its closing bracket)\n"
            "shape.ranks=[1\n            ^");
  std::string deep = "a";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  EXPECT_NE(set_error(deep + "=1").find("cannot set"), std::string::npos);
}

TEST(ConfigFile, SetAfterReadingIsAnErrorOfOurs) {
  ConfigFile file = ConfigFile::parse("x: 1\n", "a");
  file.root();
  EXPECT_THROW(file.set("x=2"), LogicError);
}

/// One to four random edits: a flipped byte, a cut, a piece moved, or characters that mean something to YAML.
std::string mutate(std::string text, Random& random) {
  static constexpr std::string_view kMeta = "{}[]:,-?&*!|>'\"%@`#~<=.\t\n\r \\\0\x04\xEF\xBB\xBF\xFF";
  for (uint64_t edits = 1 + random.below(4); edits > 0 && !text.empty(); --edits) {
    const size_t at = random.below(text.size());
    switch (random.below(5)) {
      case 0:
        text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1u << random.below(8)));
        break;
      case 1:
        text.resize(at);
        break;
      case 2:
        text.insert(at, text.substr(random.below(text.size()), random.below(40)));
        break;
      case 3:
        text.insert(at, 1 + random.below(3), kMeta[random.below(kMeta.size())]);
        break;
      default:
        text.erase(at, 1 + random.below(8));
        break;
    }
  }
  return text;
}

TEST(ConfigFuzz, DamagedFilesGiveErrorsOnly) {
  Random random(20250101, RandomStream::test);
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = mutate(std::string(kValid), random);
    std::vector<std::string> assignments;
    if (i % 4 == 0)
      assignments.push_back(mutate("network.rate={value: [1, 'x'], source: \"paper 1\"}", random));
    try {
      parse_example(text, assignments);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "");
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << error.what() << " for iteration " << i << ":\n" << text;
    }
  }
  // Damage to a comment or a name is not noticed; damage to most else is. Both must occur for the test to
  // mean anything.
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace plumb

// Texts of errors, spelling suggestions, and the check macro.
#include "model/error.h"

#include <gtest/gtest.h>

namespace plumb {
namespace {

TEST(Location, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(to_string(Location{"a.yaml", 3, 7}), "a.yaml:3:7");
  EXPECT_EQ(to_string(Location{"a.yaml", 3, 0}), "a.yaml:3");
  EXPECT_EQ(to_string(Location{"a.yaml", 0, 0}), "a.yaml");
  EXPECT_EQ(to_string(Location{"", 3, 7}), "3:7");
}

TEST(Render, UnderlinesTheToken) {
  EXPECT_EQ(render({{{"a.yaml", 3, 3}, "bad", "  topk: 40", 4}}),
            "a.yaml:3:3: error: bad\n"
            "  topk: 40\n"
            "  ^~~~");
}

TEST(Render, KeepsTabsBeforeTheCaret) {
  EXPECT_EQ(render({{{"a.yaml", 1, 4}, "bad", "\ta\tbc", 2}}),
            "a.yaml:1:4: error: bad\n"
            "\ta\tbc\n"
            "\t \t^~");
}

TEST(Render, CountsCharactersNotBytes) {
  // "µ" has two bytes: the token begins at byte 4, character 3, and its three bytes are two characters.
  EXPECT_EQ(render({{{"a.yaml", 1, 4}, "bad", "µ µs", 3}}),
            "a.yaml:1:4: error: bad\n"
            "µ µs\n"
            "  ^~");
}

TEST(Render, StopsAtTheEndOfTheLine) {
  EXPECT_EQ(render({{{"a", 1, 3}, "bad", "abc", 9}}), "a:1:3: error: bad\nabc\n  ^");
  EXPECT_EQ(render({{{"a", 1, 9}, "bad", "abc", 9}}), "a:1:9: error: bad\nabc\n   ^");
}

TEST(Render, NeedsNoSourceLine) {
  EXPECT_EQ(render({{{"a.yaml", 0, 0}, "bad", "", 1}}), "a.yaml: error: bad");
  EXPECT_EQ(render({{{}, "bad", "", 1}}), "error: bad");
  EXPECT_EQ(render({}), "");
}

TEST(Render, OrdersByFileLineAndColumn) {
  EXPECT_EQ(render({{{"b", 2, 1}, "3rd", ""},
                    {{"b", 1, 9}, "2nd", ""},
                    {{"a", 1, 1}, "4th", ""},
                    {{"b", 1, 2}, "1st", ""}}),
            "b:1:2: error: 1st\n"
            "b:1:9: error: 2nd\n"
            "b:2:1: error: 3rd\n"
            "a:1:1: error: 4th");
}

TEST(Render, CountsProblemsAfterTwenty) {
  std::vector<Problem> problems;
  for (int line = 25; line >= 1; --line) problems.push_back({{"a", line, 1}, "bad", ""});
  problems.push_back({{"b", 1, 1}, "also", ""});
  const std::string text = render(problems);
  EXPECT_NE(text.find("a:20:1: error: bad\na: 5 more problems not shown\nb:1:1: error: also"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("a:21:1"), std::string::npos);
}

TEST(ConfigError, IsAUsageErrorWithSortedProblems) {
  const ConfigError error({{{"a", 2, 1}, "second", ""}, {{"a", 1, 1}, "first", ""}});
  EXPECT_EQ(error.kind(), ErrorKind::usage);
  EXPECT_EQ(error.problems().front().message, "first");
  EXPECT_STREQ(error.what(), "a:1:1: error: first\na:2:1: error: second");
}

TEST(NearestName, FindsTypingErrors) {
  const std::vector<std::string_view> known{"topk", "hidden", "bandwidth"};
  EXPECT_EQ(nearest_name("topkk", known), "topk");           // one too many
  EXPECT_EQ(nearest_name("tokp", known), "topk");            // swapped: one edit
  EXPECT_EQ(nearest_name("bandwith", known), "bandwidth");   // one missing
  EXPECT_EQ(nearest_name("bendwitdh", known), "bandwidth");  // replaced and swapped: 2 <= 9 / 3
  EXPECT_EQ(nearest_name("topk", known), "topk");
}

TEST(NearestName, LeavesStrangersAlone) {
  EXPECT_EQ(nearest_name("tpok2", {"topk"}), "");  // swap and insert: 2 > max(1, 5 / 3)
  EXPECT_EQ(nearest_name("ranks", {"topk", "hidden"}), "");
  EXPECT_EQ(nearest_name("topk", {}), "");
  EXPECT_EQ(nearest_name("", {"topk"}), "");
}

TEST(NearestName, PrefersTheNearerThenTheFirst) {
  EXPECT_EQ(nearest_name("sends", {"bonds", "send"}), "send");  // 2 edits against 1
  EXPECT_EQ(nearest_name("cat", {"bat", "hat"}), "bat");        // both 1
}

TEST(Check, ThrowsConditionAndValues) {
  const int found = 3;
  PLUMB_CHECK(found == 3, "found {}", found);
  try {
    PLUMB_CHECK(found == 4, "found {}", found);
    FAIL() << "no exception";
  } catch (const LogicError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("error_test.cc:"), std::string::npos) << text;
    EXPECT_NE(text.find(": check failed: found == 4: found 3"), std::string::npos) << text;
  }
}

TEST(FailUsage, FormatsItsMessage) {
  try {
    fail_usage("{} of {}", 1, 2);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(), "1 of 2");
  }
}

}  // namespace
}  // namespace plumb

// Results and failures of a process of its own.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include <gtest/gtest.h>

#include "model/error.h"
#include "sim/simgrid/child.h"

namespace plumb::sim {
namespace {

TEST(Child, ReturnsBytesOfAnyNumber) {
  const std::string big(1 << 20, '\0');  // more than a pipe holds
  EXPECT_EQ(run_in_child([&] { return big; }), big);
  EXPECT_EQ(run_in_child([] { return std::string(); }), "");
}

TEST(Child, ItsErrorIsThrownHere) {
  try {
    run_in_child([]() -> std::string { fail_usage("rank {} is wrong", 7); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(), "rank 7 is wrong");
  }
}

std::string failure(const std::function<std::string()>& body) {
  try {
    run_in_child(body);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::environment);
    return error.what();
  }
  return "none";
}

TEST(Child, EveryOtherEndIsAnError) {
  EXPECT_EQ(failure([]() -> std::string { throw std::runtime_error("lost"); }), "lost");
  EXPECT_EQ(failure([]() -> std::string { ::_exit(3); }),
            "a simulation process ended without an answer, exit code 3");
  EXPECT_EQ(failure([]() -> std::string {
              std::raise(SIGKILL);
              return "";
            }),
            "a simulation process ended by signal 9");
}

}  // namespace
}  // namespace plumb::sim

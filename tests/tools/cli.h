// Runs the `plumb` binary in a test, with a folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

namespace plumb {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Output {
  int exit_code = -1;
  std::string text;    // stdout
  std::string errors;  // stderr
};

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Only the tests of pictures wait for them.
class WithoutGnuplot {
 public:
  WithoutGnuplot() { ::setenv("PATH", "/nowhere", 1); }
  ~WithoutGnuplot() { ::setenv("PATH", path_.c_str(), 1); }

 private:
  const std::string path_ = std::getenv("PATH");
};

/// A folder of the test's own, empty at its start.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("plumb-" + std::string(info->name()) + "-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Output plumb(const std::string& arguments) const {
    const fs::path errors = folder_ / "stderr";
    const std::string command =
        "cd " PLUMB_SOURCE_DIR " && " PLUMB_BINARY " " + arguments + " 2>" + errors.string();
    Output out;
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    size_t n = 0;
    while ((n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) out.text.append(buffer.data(), n);
    const int status = ::pclose(pipe);
    out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    out.errors = read(errors);
    return out;
  }

  Json json(const std::string& arguments) const {
    const Output out = plumb(arguments);
    EXPECT_EQ(out.exit_code, 0) << out.errors;
    return Json::parse(out.text, nullptr, false);
  }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  std::string experiment(const std::string& more = "") const {
    return write("e.yaml", std::string("schema: plumb.experiment/1\nmachine: {file: " PLUMB_SOURCE_DIR
                                       "/topologies/h200-cx7.yaml, nodes: 2}\n"
                                       "program: {kind: round_trip, mode: hybrid, num_sms: 8}\n"
                                       "shape: {experts: 32, topk: 4, hidden: 256, tokens_per_rank: 8}\n"
                                       "run: {on: [host, analytic]}\n") +
                               more);
  }

  fs::path folder_;
};

}  // namespace plumb

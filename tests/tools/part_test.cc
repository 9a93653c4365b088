// A run spread over processes of a cluster: parts, what engines set in the environment, and merging.
#include <cstdlib>
#include <map>
#include <set>

#include "tests/tools/cli.h"

namespace plumb {
namespace {

/// Variables of engines, cleared at the start and the end of a test.
class Parts : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    clear();
    // Three points, so that two parts differ in size.
    path_ = experiment("sweep: {shape.topk: [1, 2, 4]}\n");
  }
  void TearDown() override {
    clear();
    Cli::TearDown();
  }
  static void clear() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                             "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_ARRAY_TASK_ID",
                             "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"})
      ::unsetenv(name);
  }
  using Variables = std::map<std::string, std::string>;
  static void set(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }

  std::string in(const std::string& name) const { return (folder_ / name).string(); }
  Output part(const std::string& which, const std::string& name = "parts",
              const std::string& more = "") const {
    return plumb("run " + path_ + " --jobs 1 --part " + which + " -o " + in(name) + " " + more);
  }
  /// The files of a folder, those of parts left out.
  std::map<std::string, std::string> files(const std::string& name) const {
    std::map<std::string, std::string> result;
    for (const auto& entry : fs::directory_iterator(in(name))) {
      const std::string file = entry.path().filename().string();
      if (file.find("-of-") == std::string::npos) result[file] = read(entry.path());
    }
    return result;
  }
  void expect_refused(const Output& out, const std::string& text) const {
    EXPECT_EQ(out.exit_code, 2) << out.errors;
    EXPECT_NE(out.errors.find(text), std::string::npos) << out.errors;
  }

  std::string path_;
};

TEST_F(Parts, MergedTheyAreTheBytesOfOneRun) {
  const Output whole = plumb("run " + path_ + " -o " + in("whole") + " --csv " + in("whole.csv"));
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  for (const std::string which : {"1/2", "0/2"}) ASSERT_EQ(part(which).exit_code, 0);
  EXPECT_FALSE(fs::exists(in("parts/result.json")));  // not before all parts are there
  const Output merged = plumb("merge " + in("parts") + " --csv " + in("parts.csv"));
  EXPECT_EQ(merged.exit_code, 0) << merged.errors;
  EXPECT_EQ(merged.text, whole.text);
  EXPECT_EQ(read(in("parts.csv")), read(in("whole.csv")));
  const auto files_of_parts = files("parts");
  EXPECT_EQ(files_of_parts.count("point2-host.csv"), 1u);
  EXPECT_EQ(files_of_parts, files("whole"));
}

TEST_F(Parts, EnginesSayWhichPartAProcessIs) {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "1-of-2"},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, "2-of-3"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}, "0-of-2"},
      {{{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "4"}}, "3-of-4"},
      {{{"SLURM_ARRAY_TASK_ID", "5"},
        {"SLURM_ARRAY_TASK_COUNT", "3"},
        {"SLURM_ARRAY_TASK_MIN", "1"},
        {"SLURM_ARRAY_TASK_STEP", "2"}},
       "2-of-3"},
      // Two processes in each of three tasks: task 1, process 1 is part 3 of 6.
      {{{"SLURM_ARRAY_TASK_ID", "1"},
        {"SLURM_ARRAY_TASK_COUNT", "3"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"}},
       "3-of-6"}};
  for (const auto& [variables, name] : cases) {
    set(variables);
    const Output out = part("auto", name);
    EXPECT_EQ(out.exit_code, 0) << name << out.errors;
    EXPECT_TRUE(fs::exists(in(name + "/result." + name + ".json"))) << name;
  }
}

TEST_F(Parts, AutoRefusesAnEnvironmentThatSaysNothingOrNonsense) {
  expect_refused(part("auto"), "none of OMPI_COMM_WORLD_SIZE");
  set({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}});
  expect_refused(part("auto"), "PMI_RANK is 'x'");
  set({{"PMI_SIZE", "2"}});
  expect_refused(part("auto"), "PMI_SIZE is set, but PMI_RANK is not");
  set({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}});
  expect_refused(part("auto"), "part 2 of 2");
  // --array=0,7: no even steps.
  set({{"SLURM_ARRAY_TASK_ID", "7"}, {"SLURM_ARRAY_TASK_COUNT", "2"}, {"SLURM_ARRAY_TASK_MIN", "0"}});
  expect_refused(part("auto"), "SLURM_ARRAY_TASK_ID is 7");
}

TEST_F(Parts, PartsThatDoNotExistAreRefused) {
  for (const std::string which : {"2/2", "-1/2", "1/0"})
    expect_refused(part(which), "parts of N are 0 .. N - 1");
  for (const std::string which : {"1", "a/b", "1/", "1/2/3"})
    expect_refused(part(which), "--part is '" + which);
  expect_refused(plumb("run " + path_ + " --part 0/2"), "--part needs -o FOLDER");
  expect_refused(part("0/2", "parts", "--csv " + in("x.csv")), "plumb merge");
}

TEST_F(Parts, MergeNamesThePartThatIsMissingOrOfAnotherRun) {
  expect_refused(plumb("merge " + in("nowhere")), "is no folder");
  fs::create_directories(in("parts"));
  expect_refused(plumb("merge " + in("parts")), "holds no parts");
  ASSERT_EQ(part("0/3").exit_code, 0);
  ASSERT_EQ(part("2/3").exit_code, 0);
  expect_refused(plumb("merge " + in("parts")), "part 1 of 3 is missing");
  ASSERT_EQ(part("1/3", "parts", "--set shape.hidden=512").exit_code, 0);
  expect_refused(plumb("merge " + in("parts")), "parts 0 and 1");
  EXPECT_FALSE(fs::exists(in("parts/result.json")));
  // A part that was started and did not come to its end.
  write("parts/result.1-of-3.json", "{\"schema\": \"plumb.run_part/1\", \"ended\": false}\n");
  expect_refused(plumb("merge " + in("parts")), "part 1 of 3 has not ended");
  write("parts/result.1-of-3.json", "{");
  expect_refused(plumb("merge " + in("parts")), "is no part of a run");
}

TEST_F(Parts, ARunWithAnotherNumberOfPartsLeavesNoneOfTheOld) {
  for (const std::string which : {"0/3", "1/3", "2/3"}) ASSERT_EQ(part(which).exit_code, 0);
  ASSERT_EQ(plumb("merge " + in("parts")).exit_code, 0);
  for (const std::string which : {"0/2", "1/2"}) ASSERT_EQ(part(which).exit_code, 0);
  EXPECT_FALSE(fs::exists(in("parts/result.2-of-3.json")));
  EXPECT_FALSE(fs::exists(in("parts/result.json")));
  EXPECT_EQ(plumb("merge " + in("parts")).exit_code, 0);
  // A whole run in the same folder takes the parts away.
  ASSERT_EQ(plumb("run " + path_ + " -o " + in("parts")).exit_code, 0);
  EXPECT_FALSE(fs::exists(in("parts/result.0-of-2.json")));
}

TEST_F(Parts, MorePartsThanPointsAreFine) {
  for (int i = 0; i < 5; ++i) ASSERT_EQ(part(std::to_string(i) + "/5").exit_code, 0) << i;
  const Json merged = json("merge " + in("parts") + " --json");
  EXPECT_EQ(merged["points"].size(), 3u);
  EXPECT_TRUE(merged["complete"]);
}

TEST_F(Parts, AFailedPointIsMergedAsFailed) {
  path_ = experiment("sweep: {shape.tokens_per_rank: [1, 4096]}\n");
  const std::string limit = "--on host --set 'run.host_memory=1 MB'";
  EXPECT_EQ(part("0/2", "parts", limit).exit_code, 0);
  EXPECT_EQ(part("1/2", "parts", limit).exit_code, 2);
  const Output out = plumb("merge " + in("parts"));
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_NE(out.errors.find("shape.tokens_per_rank=4096"), std::string::npos) << out.errors;
  const Json result = Json::parse(read(in("parts/result.json")));
  EXPECT_FALSE(result["complete"]);
  EXPECT_TRUE(result["points"][0]["executors"][0]["ledger_ok"]);
  EXPECT_TRUE(result["points"][1].contains("error"));
}

TEST_F(Parts, TwoMpiRanksShareASweep) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  ASSERT_EQ(plumb("run " + path_ + " -o " + in("whole")).exit_code, 0);
  const std::string command =
      "cd " PLUMB_SOURCE_DIR
      " && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 2 " PLUMB_BINARY " run " +
      path_ + " --jobs 1 --part auto -o " + in("parts") + " >" + in("mpi.txt") + " 2>&1";
  // Open MPI counts slots and may see one core only.
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  const int status = std::system(command.c_str());
  ::unsetenv("OMPI_MCA_rmaps_base_oversubscribe");
  ASSERT_EQ(status, 0) << read(in("mpi.txt"));
  EXPECT_TRUE(fs::exists(in("parts/result.1-of-2.json"))) << read(in("mpi.txt"));
  ASSERT_EQ(plumb("merge " + in("parts")).exit_code, 0);
  EXPECT_EQ(files("parts"), files("whole"));
}

}  // namespace
}  // namespace plumb

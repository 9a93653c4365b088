// How ranks find each other: variables of launchers, meetings over TCP and by a file, deaths. No GPU.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "hw/launch.h"
#include "hw/processes.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

using namespace std::chrono_literals;

class Table {
 public:
  Table(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}
  operator Variables() const {
    return [values = values_](const char* name) -> const char* {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    };
  }

 private:
  std::map<std::string, std::string> values_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Launch, SeatsOfAllLaunchersAreRead) {
  const auto check_seat = [](const Table& table, const std::string& launcher) {
    const auto seat = seat_of(table);
    ASSERT_TRUE(seat.has_value()) << launcher;
    EXPECT_EQ(seat->launcher, launcher);
    EXPECT_EQ(seat->rank, 5);
    EXPECT_EQ(seat->ranks, 16);
    EXPECT_EQ(seat->local_rank, 1);
  };
  check_seat({{"RANK", "5"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}}, "torchrun");
  check_seat(
      {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "16"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
      "Open MPI");
  check_seat({{"PMI_RANK", "5"}, {"PMI_SIZE", "16"}, {"MPI_LOCALRANKID", "1"}}, "MPICH");
  check_seat({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}}, "Slurm");
  EXPECT_FALSE(seat_of(Table{{"PATH", "/bin"}}).has_value());
}

TEST(Launch, AnInnerLauncherCountsBeforeSlurm) {
  // mpirun in a job of one task: Slurm's variables are those of the batch step.
  const Table table{{"SLURM_PROCID", "0"},         {"SLURM_NTASKS", "1"},
                    {"SLURM_LOCALID", "0"},        {"OMPI_COMM_WORLD_RANK", "3"},
                    {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}};
  EXPECT_EQ(seat_of(table)->launcher, "Open MPI");
  // srun sets PMI's variables, but no local rank of MPICH: Slurm has all three.
  const Table srun{{"SLURM_PROCID", "1"},
                   {"SLURM_NTASKS", "2"},
                   {"SLURM_LOCALID", "1"},
                   {"PMI_RANK", "1"},
                   {"PMI_SIZE", "2"}};
  EXPECT_EQ(seat_of(srun)->launcher, "Slurm");
}

TEST(Launch, WrongVariablesAreNamedWithFoundAndAllowed) {
  const auto error = [](const Table& table) { return message_of([&] { seat_of(table); }); };
  EXPECT_EQ(error({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
            "environment variable RANK is '2'; allowed: 0 .. 1");
  EXPECT_EQ(error({{"RANK", "0"}, {"WORLD_SIZE", "two"}, {"LOCAL_RANK", "0"}}),
            "environment variable WORLD_SIZE is 'two'; allowed: 1 .. 1048576");
  EXPECT_EQ(error({{"RANK", "0"}, {"WORLD_SIZE", "0x2"}, {"LOCAL_RANK", "0"}}),
            "environment variable WORLD_SIZE is '0x2'; allowed: 1 .. 1048576");
  EXPECT_EQ(error({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
            "environment variable SLURM_LOCALID is not set; Slurm sets SLURM_PROCID, SLURM_NTASKS and "
            "SLURM_LOCALID, "
            "of which others are set");
}

TEST(Launch, TheMeetingPlaceIsAFileOrTheMastersAddress) {
  const Seat slurm{.rank = 1, .ranks = 2, .launcher = "Slurm"};
  EXPECT_EQ(meeting_place(slurm, Table{{"PLUMB_MEETING_FILE", "/shared/job7"}, {"MASTER_ADDR", "a"}}).file,
            "/shared/job7");
  EXPECT_EQ(meeting_place(slurm, Table{{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}}).port, 29500);
  // torchrun's agent listens on MASTER_PORT.
  const Seat torchrun{.rank = 1, .ranks = 2, .launcher = kTorchrun};
  EXPECT_EQ(meeting_place(torchrun, Table{{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}}).port, 29501);
  EXPECT_EQ(message_of([&] {
              meeting_place(torchrun, Table{{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "65535"}});
            }),
            "environment variable MASTER_PORT is '65535'; allowed: 1 .. 65534");
  EXPECT_EQ(
      message_of([&] {
        meeting_place(slurm, Table{{"MASTER_PORT", "29500"}});
      }),
      "environment variable MASTER_ADDR is not set; the 2 ranks started by Slurm meet at MASTER_ADDR and "
      "MASTER_PORT, or by PLUMB_MEETING_FILE in a folder that all of them see");
}

/// Different ports of the loopback that are free now.
template <size_t Count>
std::array<uint16_t, Count> free_ports() {
  std::array<int, Count> sockets{};
  std::array<uint16_t, Count> ports{};
  for (size_t i = 0; i < Count; ++i) {
    sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(sockets[i], reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(sockets[i], reinterpret_cast<sockaddr*>(&address), &size), 0);
    ports[i] = ntohs(address.sin_port);
  }
  for (const int fd : sockets) close(fd);
  return ports;
}

uint16_t free_port() { return free_ports<1>()[0]; }

std::vector<char> hello() { return {'h', 'e', 'l', 'l', 'o'}; }

TEST(Rendezvous, RankZerosBytesReachAllOverTcpAndByAFile) {
  const std::string folder = testing::TempDir() + "plumb-rendezvous-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  for (const MeetingPlace& place :
       {MeetingPlace{.host = "127.0.0.1", .port = free_port()}, MeetingPlace{.file = folder + "/id"}}) {
    const auto outcomes = run_ranks(3, 20s, [&](Rank rank, Meeting&) {
      Rendezvous met({.rank = rank, .ranks = 3}, place, hello, 10s);
      met.watch([](const Seat&, Rank) { _exit(9); });  // nobody dies here
      return met.message() == hello() ? 0 : 1;
    });
    EXPECT_EQ(failures(outcomes), "") << place.file;
  }
  std::filesystem::remove_all(folder);
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  const MeetingPlace place{.host = "127.0.0.1", .port = free_port()};
  const auto text = message_of([&] { Rendezvous({.rank = 0, .ranks = 3}, place, hello, 60ms); });
  EXPECT_EQ(text, "these of 3 ranks did not come to 127.0.0.1:" + std::to_string(place.port) +
                      " within 60 ms: 1, 2");
  const auto late = message_of([&] { Rendezvous({.rank = 2, .ranks = 3}, place, hello, 60ms); });
  EXPECT_EQ(late.substr(0, late.rfind(':')),
            "rank 2 found no rank 0 at 127.0.0.1:" + std::to_string(place.port) + " within 60 ms");
}

TEST(Rendezvous, AnOldFileIsRefused) {
  const std::string path = testing::TempDir() + "plumb-old-" + std::to_string(getpid());
  std::ofstream(path) << "old";
  EXPECT_EQ(message_of([&] { Rendezvous({.rank = 0, .ranks = 2}, {.file = path}, hello, 50ms); }),
            "PLUMB_MEETING_FILE '" + path + "' exists; allowed: a path that is new for each job");
  std::filesystem::remove(path);
}

TEST(Rendezvous, TwoProcessesOfOneRankAreRefused) {
  const MeetingPlace place{.host = "127.0.0.1", .port = free_port()};
  const SharedMemory memory(256);
  auto* text = static_cast<char*>(memory.get());
  run_ranks(3, 20s, [&](Rank rank, Meeting&) {
    const std::string found =
        message_of([&] { Rendezvous({.rank = rank > 0 ? 1 : 0, .ranks = 3}, place, hello, 3s); });
    if (rank == 0) found.copy(text, 255);
    return 0;
  });
  EXPECT_STREQ(text, "a second process says that it is rank 1 of 3");
}

TEST(Rendezvous, ARankThatDiesIsNamedToAllOthers) {
  const MeetingPlace place{.host = "127.0.0.1", .port = free_port()};
  const auto outcomes = run_ranks(4, 20s, [&](Rank rank, Meeting&) {
    Rendezvous met({.rank = rank, .ranks = 4}, place, hello, 10s);
    if (rank == 2) _exit(0);  // without leaving
    met.watch([](const Seat&, Rank dead) { _exit(10 + dead); });
    for (int i = 0; i < 10'000; ++i) usleep(1000);  // what a wait for the peer would do
    return 1;
  });
  for (const size_t r : {0, 1, 3}) EXPECT_EQ(outcomes[r].code, 12) << r;
}

TEST(Rendezvous, ARankThatThrowsIsADeathAndOneThatEndsIsNot) {
  const MeetingPlace place{.host = "127.0.0.1", .port = free_port()};
  const auto outcomes = run_ranks(3, 20s, [&](Rank rank, Meeting&) {
    if (rank == 1) {
      Rendezvous met({.rank = rank, .ranks = 3}, place, hello, 10s);
      return 0;
    }
    Rendezvous met({.rank = rank, .ranks = 3}, place, hello, 10s);
    if (rank == 2) throw Error(ErrorKind::environment, "out of luck");
    met.watch([](const Seat&, Rank dead) { _exit(10 + dead); });
    for (int i = 0; i < 10'000; ++i) usleep(1000);
    return 1;
  });
  EXPECT_EQ(outcomes[0].code, 12);
  EXPECT_EQ(outcomes[1].code, 0);
}

NvlinkId seven() {
  NvlinkId id{};
  id.fill(7);
  return id;
}

TEST(Launch, ForksWithoutALauncherAndMeetsUnderOne) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) unsetenv(name);
  const auto body = [](const Seat& seat, const NvlinkId& id) {
    return seat.ranks == 2 && seat.local_rank == seat.rank && id == seven() ? 0 : 4;
  };
  EXPECT_EQ(launch({.ranks = 2}, seven, body), 0);
  const std::string port = std::to_string(free_port());
  const auto outcomes = run_ranks(2, 20s, [&](Rank rank, Meeting&) {
    setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port.c_str(), 1);
    return launch({}, seven, body);
  });
  EXPECT_EQ(failures(outcomes), "");
}

/// What a shell command prints, and its exit status; it is killed after 20 s.
std::pair<std::string, int> output_of(const std::string& command) {
  std::FILE* pipe = popen(("timeout -k 10 20 " + command + " 2>&1 </dev/null").c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return {text, pclose(pipe)};
}

/// A program of the machine that starts a process for each rank.
struct Launcher {
  std::string name;                   // as Seat::launcher
  std::vector<std::string> programs;  // the first in PATH that is of this launcher counts
  std::string version;  // part of what its --version prints, as mpirun may be of another MPI; empty: any
  std::string options;
  std::vector<std::string> needs;  // other programs, by name or path
};

void PrintTo(const Launcher& launcher, std::ostream* out) { *out << launcher.name; }

/// Whether `program` is in PATH or in a folder of daemons, which the PATH of a user may lack.
bool has_program(const std::string& program) {
  return output_of("bash -c 'PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v " + program + "'")
             .second == 0;
}

/// The program of `launcher`; empty: none.
std::string program_of(const Launcher& launcher) {
  for (const std::string& program : launcher.programs)
    if (has_program(program) &&
        (launcher.version.empty() ||
         output_of(program + " --version").first.find(launcher.version) != std::string::npos))
      return program;
  return {};
}

/// Options of `env` that remove what launchers set: the test itself may run under one.
std::string without_launchers() {
  std::string options;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    for (const char* prefix : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "PLUMB_MEETING_FILE", "OMPI_",
                               "PMIX_", "PMI_", "MPI_", "HYDRA_", "SLURM_"})
      if (name.starts_with(prefix)) options += "-u " + name + " ";
  }
  return options;
}

/// Two processes of hw_launch_ranks under a real launcher.
class LaunchedRanks : public testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(PLUMB_LAUNCH_RANKS)) GTEST_SKIP() << "no program " PLUMB_LAUNCH_RANKS;
    program_ = program_of(GetParam());
    if (program_.empty())
      GTEST_SKIP() << "no " << GetParam().programs.back() << " of " << GetParam().name << " in PATH";
    for (const std::string& program : GetParam().needs)
      if (!has_program(program)) GTEST_SKIP() << "no " << program << " in PATH or sbin";
  }

  /// What the job prints, and its exit status. `place` are variables that say where the ranks meet,
  /// `argument` is that of hw_launch_ranks.
  std::pair<std::string, int> run(const std::string& place, const std::string& argument = "") const {
    std::string start = program_;
    if (GetParam().name == "Slurm") {
      const auto ports = free_ports<2>();
      start = "bash " PLUMB_WITH_SLURM " " + std::to_string(ports[0]) + " " + std::to_string(ports[1]) + " " +
              start;
    }
    // Containers run as root, which Open MPI refuses otherwise.
    return output_of("env " + without_launchers() +
                     "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " + place + " " + start +
                     " " + GetParam().options + " " PLUMB_LAUNCH_RANKS " " + argument);
  }

  static std::string over_tcp() { return "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(free_port()); }

 private:
  std::string program_;
};

// --oversubscribe: two ranks may exceed the cores.
INSTANTIATE_TEST_SUITE_P(Launch, LaunchedRanks,
                         testing::Values(Launcher{.name = "Open MPI",
                                                  .programs = {"mpirun.openmpi", "mpirun"},
                                                  .version = "open-mpi.org",
                                                  .options = "-np 2 --oversubscribe",
                                                  .needs = {}},
                                         Launcher{.name = "MPICH",
                                                  .programs = {"mpirun.mpich", "mpirun"},
                                                  .version = "HYDRA",
                                                  .options = "-np 2",
                                                  .needs = {}},
                                         Launcher{.name = "Slurm",
                                                  .programs = {"srun"},
                                                  .version = "",
                                                  .options = "-n 2",
                                                  .needs = {PLUMB_WITH_SLURM, "slurmctld", "slurmd",
                                                            "scontrol", "sinfo", "munged"}}),
                         [](const auto& test) {
                           return test.param.name == "Open MPI" ? "OpenMpi" : test.param.name;
                         });

TEST_P(LaunchedRanks, MeetOverTcpAndByAFile) {
  const std::string file = testing::TempDir() + "plumb-launched-" + std::to_string(getpid());
  for (const std::string& place : {over_tcp(), "PLUMB_MEETING_FILE=" + file}) {
    const auto [text, code] = run(place);
    EXPECT_EQ(code, 0) << text;
    for (const std::string rank : {"0", "1"}) {
      const std::string line =
          "rank " + rank + " of 2, local rank " + rank + ", by " + GetParam().name + ": met";
      EXPECT_NE(text.find(line), std::string::npos) << place << "\n" << text;
    }
  }
  std::filesystem::remove(file);
}

TEST_P(LaunchedRanks, EndWhenOneFails) {
  const auto [text, code] = run(over_tcp(), "1");
  EXPECT_NE(code, 0) << text;
  EXPECT_NE(text.find("rank 1 fails as asked"), std::string::npos) << text;
  EXPECT_EQ(text.find(": met"), std::string::npos) << text;  // what rank 0 would say after 10 s
}

TEST(Launch, AForkedRankThatFailsIsNamed) {
  const auto text = message_of([] {
    launch({.ranks = 2}, seven, [](const Seat& seat, const NvlinkId&) { return seat.rank == 1 ? 5 : 0; });
  });
  EXPECT_EQ(text, "rank 1 ended with code 5");
}

TEST(Processes, AFailureBeforeTheMeetingEndsTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = run_ranks(3, 60s, [](Rank rank, Meeting& meeting) {
    meet(meeting, rank, []() -> NvlinkId { throw Error(ErrorKind::environment, "no device here"); });
    return 0;
  });
  EXPECT_EQ(failures(outcomes),
            "rank 0 ended with code 1; rank 1 ended with code 1; rank 2 ended with code 1");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);  // not the limit of the meeting, 30 s
}

TEST(Processes, WithoutAnIdTheOthersWaitNoLongerThanTheLimit) {
  const auto outcomes = run_ranks(2, 60s, [](Rank rank, Meeting& meeting) {
    if (rank == 0) return 0;  // ends without a word
    meet(meeting, rank, seven, 50ms);
    return 0;
  });
  EXPECT_EQ(failures(outcomes), "rank 1 ended with code 1");
}

TEST(Processes, ARankThatHangsIsKilledAndNamed) {
  const auto outcomes = run_ranks(2, 100ms, [](Rank rank, Meeting&) {
    while (rank == 1) usleep(1000);
    return 0;
  });
  EXPECT_TRUE(outcomes[1].is_late);
  EXPECT_EQ(failures(outcomes), "rank 1 was killed: it did not end in time");
}

}  // namespace
}  // namespace plumb::hw

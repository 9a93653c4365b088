// Variables of launchers, and the choice between them and a fork.
#include "hw/launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "hw/processes.h"
#include "model/error.h"
#include "model/shape.h"

namespace plumb::hw {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* ranks;
  const char* local_rank;
};

// Slurm is last: its variables are set around an mpirun or torchrun of a job too.
constexpr std::array kLaunchers = {
    Launcher{kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

int32_t number_of(const Variables& variables, const char* name, int32_t low, int32_t high) {
  const std::string_view text = variables(name);
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    fail_usage("environment variable {} is '{}'; allowed: {} .. {}", name, text, low, high);
  return value;
}

Seat seat_under(const Launcher& launcher, const Variables& variables) {
  Seat seat;
  seat.launcher = launcher.name;
  seat.ranks = number_of(variables, launcher.ranks, 1, kMaxRanks);
  seat.rank = number_of(variables, launcher.rank, 0, seat.ranks - 1);
  seat.local_rank = number_of(variables, launcher.local_rank, 0, seat.ranks - 1);
  return seat;
}

}  // namespace

std::optional<Seat> seat_of(const Variables& variables) {
  const Launcher* partial = nullptr;
  for (const Launcher& launcher : kLaunchers) {
    int32_t set = 0;
    for (const char* name : {launcher.rank, launcher.ranks, launcher.local_rank})
      set += variables(name) != nullptr;
    if (set == 3) return seat_under(launcher, variables);
    if (set > 0 && partial == nullptr) partial = &launcher;
  }
  if (partial == nullptr) return {};
  for (const char* name : {partial->rank, partial->ranks, partial->local_rank})
    if (variables(name) == nullptr)
      fail_usage("environment variable {} is not set; {} sets {}, {} and {}, of which others are set", name,
                 partial->name, partial->rank, partial->ranks, partial->local_rank);
  return {};
}

MeetingPlace meeting_place(const Seat& seat, const Variables& variables) {
  MeetingPlace place;
  if (const char* file = variables("PLUMB_MEETING_FILE"); file != nullptr) {
    if (*file == '\0') fail_usage("environment variable PLUMB_MEETING_FILE is empty; allowed: a path");
    place.file = file;
    return place;
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (variables(name) == nullptr || *variables(name) == '\0')
      fail_usage(
          "environment variable {} is not set; the {} ranks started by {} meet at MASTER_ADDR and "
          "MASTER_PORT, "
          "or by PLUMB_MEETING_FILE in a folder that all of them see",
          name, seat.ranks, seat.launcher);
  place.host = variables("MASTER_ADDR");
  const int32_t offset = seat.launcher == kTorchrun ? 1 : 0;
  place.port = static_cast<uint16_t>(number_of(variables, "MASTER_PORT", 1, 65535 - offset) + offset);
  return place;
}

int launch(const LaunchOptions& options, const std::function<NvlinkId()>& make,
           const std::function<int(const Seat&, const NvlinkId&)>& body) {
  const Variables variables = [](const char* name) { return std::getenv(name); };
  if (const auto seat = seat_of(variables)) {
    if (seat->ranks == 1) return body(*seat, make());
    Rendezvous met(
        *seat, meeting_place(*seat, variables),
        [&] {
          const NvlinkId id = make();
          return std::vector<char>(id.begin(), id.end());
        },
        options.meeting);
    NvlinkId id;
    if (met.message().size() != id.size())
      throw Error(ErrorKind::environment, fmt::format("rank 0 sent an identifier of {} bytes; allowed: {}",
                                                      met.message().size(), id.size()));
    std::copy(met.message().begin(), met.message().end(), id.begin());
    met.watch(end_process);
    return body(*seat, id);
  }
  const auto outcomes = run_ranks(options.ranks, options.run, [&](Rank rank, Meeting& meeting) {
    const NvlinkId id = meet(meeting, rank, make, options.meeting);
    return body({.rank = rank, .ranks = options.ranks, .local_rank = rank, .launcher = "fork"}, id);
  });
  if (const std::string failed = failures(outcomes); !failed.empty())
    throw Error(ErrorKind::environment, failed);
  return 0;
}

}  // namespace plumb::hw

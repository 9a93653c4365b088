// How the ranks of a world of several processes come to be: started by a launcher (torchrun, MPI, Slurm),
// which tells each its place in environment variables, or forked here, a process for each GPU. docs/hw.md,
// section Launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "hw/nvlink_world.h"
#include "hw/rendezvous.h"

namespace plumb::hw {

/// The value of an environment variable, null when it is not set: std::getenv or a test's table.
using Variables = std::function<const char*(const char* name)>;

/// Which rank this process is, as its launcher says: the first of torchrun, Open MPI, MPICH and Slurm that
/// sets all its variables; nothing when none sets any. Throws Error(usage) naming variable, found and allowed
/// values for those of a launcher that sets a part of them, for text that is no number and for a rank that is
/// out of range.
std::optional<Seat> seat_of(const Variables& variables);

/// Where the ranks meet: PLUMB_MEETING_FILE, else MASTER_ADDR and MASTER_PORT (under torchrun the port after
/// it, as its agent listens on MASTER_PORT itself). Throws Error(usage) naming the variable that is missing
/// or wrong.
MeetingPlace meeting_place(const Seat& seat, const Variables& variables);

struct LaunchOptions {
  int32_t ranks = 2;                          // to fork when no launcher started this process
  std::chrono::milliseconds meeting{30'000};  // until all ranks have met
  std::chrono::milliseconds run{600'000};     // of forked ranks, which are killed then
};

/// Runs `body` as one rank (under a launcher) or forks one process for each rank, before any call of CUDA.
/// `make` gives the identifier on rank 0. A rank that dies ends the others, with a message that names it:
/// forked ones within 10 s, those that met over TCP as soon as its connection is gone (kLostPeer when its
/// machine is). Returns the exit code of `body`, 0 for forked ranks that all ended with 0. Throws
/// Error(environment) naming the forked ranks that failed or the ranks that did not come, Error(usage) as
/// above.
int launch(const LaunchOptions& options, const std::function<NvlinkId()>& make,
           const std::function<int(const Seat&, const NvlinkId&)>& body);

}  // namespace plumb::hw

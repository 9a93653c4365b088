// A rank that a launcher starts: meets the others, checks what rank 0 gave it, and says so. With a number as
// argument that rank fails after the meeting. Needs no GPU.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "hw/launch.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

NvlinkId make_id() {
  NvlinkId id{};
  id.fill(7);
  return id;
}

int run(Rank failing) {
  return launch({.ranks = 2}, make_id, [&](const Seat& seat, const NvlinkId& id) {
    if (id != make_id()) throw Error(ErrorKind::mismatch, "another identifier than that of rank 0");
    if (seat.rank == failing)
      throw Error(ErrorKind::environment, fmt::format("rank {} fails as asked", seat.rank));
    for (int i = 0; failing != kNone && i < 10'000; ++i) usleep(1000);  // until the failure ends this rank
    std::printf("rank %d of %d, local rank %d, by %s: met\n", seat.rank, seat.ranks, seat.local_rank,
                seat.launcher.c_str());
    return 0;
  });
}

}  // namespace
}  // namespace plumb::hw

int main(int argc, char** argv) {
  try {
    return plumb::hw::run(argc > 1 ? std::atoi(argv[1]) : plumb::kNone);
  } catch (const plumb::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.kind());
  }
}

// Fork, wait with a limit, kill by own process id.
#include "hw/processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "model/error.h"

namespace plumb::hw {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{10};  // of the others once a rank has failed
constexpr useconds_t kPollMicroseconds = 1000;

[[noreturn]] void run_child(Rank rank, Meeting& meeting, const std::function<int(Rank, Meeting&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives its parent
  int code = 1;
  try {
    code = body(rank, meeting);
  } catch (const std::exception& error) {
    int none = 0;
    meeting.failed.compare_exchange_strong(none, rank + 1);
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);  // no destructors of the parent's objects
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes)
    : memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
      bytes_(bytes) {
  if (memory_ == MAP_FAILED)
    throw Error(ErrorKind::environment, fmt::format("map {} shared bytes: {}", bytes, std::strerror(errno)));
}
SharedMemory::~SharedMemory() { munmap(memory_, bytes_); }

NvlinkId meet(Meeting& meeting, Rank rank, const std::function<NvlinkId()>& make,
              std::chrono::milliseconds limit) {
  if (rank == 0) {
    meeting.id = make();
    meeting.has_id = 1;
  }
  const auto end = Clock::now() + limit;
  while (meeting.has_id == 0) {
    if (const int failed = meeting.failed; failed != 0)
      throw Error(ErrorKind::environment,
                  fmt::format("rank {} failed before the ranks met; see its message", failed - 1));
    if (Clock::now() > end)
      throw Error(ErrorKind::environment,
                  fmt::format("rank 0 shared no identifier within {} ms", limit.count()));
    usleep(kPollMicroseconds);
  }
  return meeting.id;
}

std::vector<Outcome> run_ranks(int32_t ranks, std::chrono::milliseconds limit,
                               const std::function<int(Rank, Meeting&)>& body) {
  const SharedMemory memory(sizeof(Meeting));
  auto* meeting = new (memory.get()) Meeting;
  std::vector<pid_t> children(static_cast<size_t>(ranks), 0);
  std::vector<Outcome> outcomes(children.size());
  std::fflush(stdout);  // or each child prints what the parent has not
  std::fflush(stderr);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) run_child(rank, *meeting, body);
    if (child < 0) meeting->failed = rank + 1;  // the others end at the meeting
    children[static_cast<size_t>(rank)] = child < 0 ? 0 : child;
  }
  auto end = Clock::now() + limit;
  bool is_failed = false;
  for (bool is_running = true; is_running;) {
    is_running = false;
    if (meeting->failed != 0 && !is_failed) is_failed = true, end = std::min(end, Clock::now() + kGrace);
    const bool is_late = Clock::now() > end;
    for (size_t r = 0; r < children.size(); ++r) {
      if (children[r] == 0) continue;
      if (is_late) kill(children[r], SIGKILL), outcomes[r].is_late = true;
      int status = 0;
      if (waitpid(children[r], &status, is_late ? 0 : WNOHANG) == 0) {
        is_running = true;
        continue;
      }
      children[r] = 0;
      if (WIFEXITED(status)) outcomes[r] = {.code = WEXITSTATUS(status)};
    }
    if (is_running) usleep(kPollMicroseconds);
  }
  return outcomes;
}

std::string failures(const std::vector<Outcome>& outcomes, int allowed) {
  std::string text;
  for (size_t r = 0; r < outcomes.size(); ++r) {
    const Outcome& o = outcomes[r];
    if (o.code == 0 || (o.code != -1 && o.code == allowed)) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", r,
                        o.is_late      ? "was killed: it did not end in time"
                        : o.code == -1 ? "died of a signal or was never started"
                                       : fmt::format("ended with code {}", o.code));
  }
  return text;
}

}  // namespace plumb::hw

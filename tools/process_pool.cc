// Forked workers that send their result through a pipe.
#include "tools/process_pool.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "model/error.h"

namespace plumb {
namespace {

struct Worker {
  int32_t piece = 0;
  pid_t pid = -1;
  int pipe = -1;
};

bool write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

/// In the child: runs the piece, sends a status character and the text, and ends without the parent's
/// clean-up.
[[noreturn]] void serve(int fd, int32_t piece, const std::function<std::string(int32_t)>& work) {
  std::string text;
  int code = 0;
  try {
    text = work(piece);
  } catch (const Error& error) {
    code = static_cast<int>(error.kind());
    text = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ErrorKind::environment);
    text = std::string("internal error: ") + error.what();
  }
  const bool is_sent = write_all(fd, text);
  std::fflush(nullptr);
  ::_exit(is_sent ? code : 255);
}

Worker start(int32_t piece, const std::function<std::string(int32_t)>& work) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error(ErrorKind::environment, fmt::format("pipe: {}", std::strerror(errno)));
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(ErrorKind::environment, fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) {
    ::close(ends[0]);
    serve(ends[1], piece, work);
  }
  ::close(ends[1]);
  return {.piece = piece, .pid = pid, .pipe = ends[0]};
}

/// Reads what is there; true at the end of the pipe.
bool drain(const Worker& worker, std::string& text) {
  char buffer[1 << 16];
  const ssize_t n = ::read(worker.pipe, buffer, sizeof buffer);
  if (n > 0) text.append(buffer, static_cast<size_t>(n));
  return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

void finish(const Worker& worker, PieceResult& result) {
  ::close(worker.pipe);
  int status = 0;
  while (::waitpid(worker.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    result.error =
        fmt::format("the worker was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    result.exit_code = static_cast<int>(ErrorKind::environment);
  } else if (WEXITSTATUS(status) != 0) {
    result.error.swap(result.text);
    result.exit_code = std::min(WEXITSTATUS(status), static_cast<int>(ErrorKind::environment));
  }
}

void show_progress(const std::string& name, int32_t done, int32_t count) {
  if (name.empty() || ::isatty(STDERR_FILENO) == 0) return;
  constexpr int32_t kWidth = 30;
  const int32_t filled = count == 0 ? kWidth : static_cast<int32_t>(int64_t{kWidth} * done / count);
  std::fprintf(stderr, "\r%s [%s%s] %d/%d", name.c_str(),
               std::string(static_cast<size_t>(filled), '#').c_str(),
               std::string(static_cast<size_t>(kWidth - filled), ' ').c_str(), done, count);
  if (done == count) std::fprintf(stderr, "\r%*s\r", static_cast<int>(name.size()) + kWidth + 24, "");
  std::fflush(stderr);
}

}  // namespace

std::vector<PieceResult> run_pieces(int32_t count, int32_t jobs, const std::string& progress,
                                    const std::function<std::string(int32_t)>& work) {
  if (jobs <= 0) jobs = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  std::vector<PieceResult> results(static_cast<size_t>(count));
  std::vector<Worker> workers;
  int32_t next = 0;
  int32_t done = 0;
  show_progress(progress, done, count);
  while (done < count) {
    while (next < count && static_cast<int32_t>(workers.size()) < jobs)
      workers.push_back(start(next++, work));
    std::vector<pollfd> waiting;
    for (const Worker& worker : workers)
      waiting.push_back({.fd = worker.pipe, .events = POLLIN, .revents = 0});
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR)
      throw Error(ErrorKind::environment, fmt::format("poll: {}", std::strerror(errno)));
    for (size_t i = waiting.size(); i-- > 0;) {
      if (waiting[i].revents == 0) continue;
      PieceResult& result = results[static_cast<size_t>(workers[i].piece)];
      if (!drain(workers[i], result.text)) continue;
      finish(workers[i], result);
      workers.erase(workers.begin() + static_cast<ptrdiff_t>(i));
      show_progress(progress, ++done, count);
    }
  }
  return results;
}

}  // namespace plumb

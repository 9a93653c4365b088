// fork, a pipe, and a first byte that says what follows.
#include "sim/simgrid/child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "model/error.h"

namespace plumb::sim {

namespace {

constexpr char kResult = 'r', kError = 'e', kOther = 'o';

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

[[noreturn]] void be_child(int fd, const std::function<std::string()>& body) {
  std::string answer;
  try {
    answer = kResult + body();
  } catch (const Error& error) {
    answer = {kError, static_cast<char>(error.kind())};
    answer += error.what();
  } catch (const std::exception& error) {
    answer = std::string(1, kOther) + error.what();
  }
  write_all(fd, answer);
  ::close(fd);
  std::fflush(nullptr);
  ::_exit(0);  // no destructors and exit handlers of the parent's
}

}  // namespace

std::string run_in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error(ErrorKind::environment, fmt::format("pipe: {}", std::strerror(errno)));
  std::fflush(nullptr);  // or the child prints it once more
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw Error(ErrorKind::environment, fmt::format("fork: {}", std::strerror(errno)));
  }
  if (child == 0) {
    ::close(ends[0]);
    be_child(ends[1], body);
  }
  ::close(ends[1]);
  const std::string answer = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    throw Error(ErrorKind::environment,
                fmt::format("a simulation process ended by signal {}", WTERMSIG(status)));
  if (answer.empty())
    throw Error(
        ErrorKind::environment,
        fmt::format("a simulation process ended without an answer, exit code {}", WEXITSTATUS(status)));
  if (answer[0] == kError) throw Error(static_cast<ErrorKind>(answer[1]), answer.substr(2));
  if (answer[0] == kOther) throw Error(ErrorKind::environment, answer.substr(1));
  return answer.substr(1);
}

}  // namespace plumb::sim

// Runs gnuplot: the script from a file that has no name, the picture through a pipe.
#include "tools/gnuplot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "model/error.h"
#include "tools/table.h"

extern char** environ;

namespace plumb {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

[[noreturn]] void fail(const std::string& why) {
  throw Error(ErrorKind::environment, fmt::format("gnuplot: {}", why));
}

File script_file(const std::string& script) {
  File file(std::tmpfile(), &std::fclose);
  if (!file) fail(fmt::format("no temporary file: {}", std::strerror(errno)));
  if (std::fwrite(script.data(), 1, script.size(), file.get()) != script.size() ||
      std::fflush(file.get()) != 0)
    fail(fmt::format("cannot write its script: {}", std::strerror(errno)));
  std::rewind(file.get());
  return file;
}

/// What gnuplot prints for a script; nothing when it is not installed.
std::optional<std::string> run(const std::string& script) {
  const File input = script_file(script);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(input.get()), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::string name = "gnuplot", option = "--default-settings";  // no start-up file of the user
  std::array<char*, 3> arguments = {name.data(), option.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, name.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  if (error == 0) {
    std::array<char, 65536> buffer;
    ssize_t count = 0;
    while ((count = ::read(ends[0], buffer.data(), buffer.size())) > 0 || (count < 0 && errno == EINTR))
      if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  }
  ::close(ends[0]);
  if (error == ENOENT || error == EACCES) return std::nullopt;
  if (error != 0) fail(std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail(fmt::format("ended with status {}", WIFEXITED(status) ? WEXITSTATUS(status) : status));
  return text;
}

void erase_all(std::string& text, std::string_view begin, std::string_view end) {
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    const size_t last = text.find(end, at + begin.size());
    text.erase(at, last == std::string::npos ? std::string::npos : last + end.size() - at);
  }
}

std::string cleaned(std::string svg, const std::string& title) {
  erase_all(svg, "<!--", "-->");
  erase_all(svg, "<desc>", "</desc>");
  erase_all(svg, "<title>", "</title>");
  erase_all(svg, "<defs>", "</defs>");  // point symbols, of the same names in each picture
  erase_all(svg, " id=\"gnuplot_", "\"");
  // Cells of a heat map have sharp edges.
  for (size_t at = svg.find("<image "); at != std::string::npos; at = svg.find("<image ", at + 1))
    svg.insert(at + 7, "image-rendering='optimizeSpeed' ");
  svg.insert(svg.find('>') + 1, "<title>" + html_escaped(title) + "</title>");
  return svg + "\n";
}

}  // namespace

std::string gnuplot_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "'";
}

std::optional<std::vector<std::string>> draw(std::span<const Picture> pictures) {
  std::string script;
  for (const Picture& picture : pictures)
    script += fmt::format(
        "set output\nreset session\nset encoding utf8\n"
        "set terminal svg size {},{} dynamic standalone font 'sans-serif,11' noenhanced background "
        "'#ffffff'\n{}",
        picture.width, picture.height, picture.script);
  const std::optional<std::string> text = run(script);
  if (!text) return std::nullopt;
  std::vector<std::string> drawn;
  size_t at = 0;
  for (const Picture& picture : pictures) {
    const size_t begin = text->find("<svg", at);
    at = text->find("</svg>", at) + 6;
    if (begin == std::string::npos || at <= begin)
      fail(fmt::format("no picture '{}' in its output", picture.title));
    drawn.push_back(cleaned(text->substr(begin, at - begin), picture.title));
  }
  return drawn;
}

}  // namespace plumb

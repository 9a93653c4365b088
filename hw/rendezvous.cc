// Sockets of the meeting. Rank 0 listens; each other rank sends who it is (kMagic, ranks, rank: 3 words of 32
// bits in network order), gets the length of the message and the message, and keeps the connection. Later a
// connection carries single notes: kLeave, or kDead and a rank. One that ends without kLeave is a death,
// which rank 0 tells all.
#include "hw/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "model/error.h"

namespace plumb::hw {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Note = uint32_t[2];

constexpr uint32_t kMagic = 0x706c6d31, kLeave = 1, kDead = 2;  // "plm1"
constexpr uint32_t kMaxMessage = 1 << 20;
constexpr Milliseconds kRetry{20}, kHello{2000};

/// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorKind::environment, what); }

Milliseconds left_until(Clock::time_point end) {
  return std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(end - Clock::now()));
}

/// Limits of single calls, and signs of life, so that a host that is gone is noticed within kLostPeer.
void prepare(int fd, Milliseconds limit) {
  const timeval time{.tv_sec = limit.count() / 1000, .tv_usec = limit.count() % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

bool send_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, size -= static_cast<size_t>(sent);
  }
  return true;
}
bool receive_all(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, size -= static_cast<size_t>(got);
  }
  return true;
}

bool send_note(int fd, uint32_t kind, Rank rank) {
  const Note note = {htonl(kind), htonl(static_cast<uint32_t>(rank))};
  return send_all(fd, note, sizeof note);
}

struct AddressList {
  addrinfo* first = nullptr;
  AddressList(const MeetingPlace& place, bool listens) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    const bool is_loopback =
        place.host == "localhost" || place.host.starts_with("127.") || place.host == "::1";
    if (listens && !is_loopback) hints.ai_flags = AI_PASSIVE;
    const char* host = listens && !is_loopback ? nullptr : place.host.c_str();
    const int error = getaddrinfo(host, std::to_string(place.port).c_str(), &hints, &first);
    if (error != 0) fail(fmt::format("MASTER_ADDR '{}': {}", place.host, gai_strerror(error)));
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() { freeaddrinfo(first); }
};

Descriptor listen_at(const MeetingPlace& place) {
  const AddressList addresses(place, true);
  int error = 0;
  for (const addrinfo* a = addresses.first; a != nullptr; a = a->ai_next) {
    Descriptor fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    const int yes = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd.get() >= 0 && bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0)
      return fd;
    error = errno;
  }
  fail(fmt::format("rank 0 cannot listen at {}:{}: {}", place.host, place.port, std::strerror(error)));
}

Descriptor connect_to(const MeetingPlace& place, Rank rank, Clock::time_point end, Milliseconds limit) {
  int error = 0;
  while (Clock::now() < end) {
    const AddressList addresses(place, false);
    for (const addrinfo* a = addresses.first; a != nullptr; a = a->ai_next) {
      Descriptor fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      if (fd.get() < 0) continue;
      prepare(fd.get(), left_until(end));
      if (connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
      error = errno;
    }
    std::this_thread::sleep_for(kRetry);  // rank 0 may not listen yet
  }
  fail(fmt::format("rank {} found no rank 0 at {}:{} within {} ms: {}", rank, place.host, place.port,
                   limit.count(), std::strerror(error)));
}

std::string missing(const std::vector<Descriptor>& peers) {
  std::string text;
  for (size_t r = 1; r < peers.size(); ++r)
    if (peers[r].get() < 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
  return text;
}

/// Rank 0: until all others have come. What is no rank of ours (a port scan) is dropped.
std::vector<Descriptor> accept_all(const Seat& seat, const MeetingPlace& place, Clock::time_point end,
                                   Milliseconds limit) {
  const Descriptor door = listen_at(place);
  std::vector<Descriptor> peers(static_cast<size_t>(seat.ranks));
  for (int32_t come = 1; come < seat.ranks;) {
    if (Clock::now() >= end)
      fail(fmt::format("these of {} ranks did not come to {}:{} within {} ms: {}", seat.ranks, place.host,
                       place.port, limit.count(), missing(peers)));
    pollfd waiting{.fd = door.get(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, static_cast<int>(left_until(end).count())) <= 0) continue;
    Descriptor fd(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() < 0) continue;
    prepare(fd.get(), std::min(kHello, left_until(end)));
    uint32_t hello[3];
    if (!receive_all(fd.get(), hello, sizeof hello) || ntohl(hello[0]) != kMagic) continue;
    const uint32_t ranks = ntohl(hello[1]), rank = ntohl(hello[2]);
    if (ranks != static_cast<uint32_t>(seat.ranks))
      fail(fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", rank, ranks,
                       seat.ranks));
    if (rank == 0 || rank >= ranks || peers[rank].get() >= 0)
      fail(fmt::format("a second process says that it is rank {} of {}", rank, ranks));
    prepare(fd.get(), left_until(end));
    peers[rank] = std::move(fd);
    ++come;
  }
  return peers;
}

std::vector<char> receive_message(int fd, const MeetingPlace& place, Rank rank) {
  uint32_t size = 0;
  if (!receive_all(fd, &size, sizeof size))
    fail(fmt::format("rank {}: rank 0 at {}:{} ended the meeting; see its message", rank, place.host,
                     place.port));
  size = ntohl(size);
  if (size > kMaxMessage)
    fail(fmt::format("rank {}: a message of {} bytes; allowed: {}", rank, size, kMaxMessage));
  std::vector<char> message(size);
  if (!receive_all(fd, message.data(), size))
    fail(fmt::format("rank {}: the message of rank 0 broke off", rank));
  return message;
}

/// The message by a file: written aside, then renamed, so that a file that is there is whole.
std::vector<char> meet_by_file(const Seat& seat, const std::string& path,
                               const std::function<std::vector<char>()>& make, Clock::time_point end,
                               Milliseconds limit) {
  if (seat.rank == 0) {
    if (std::filesystem::exists(path))
      fail(fmt::format("PLUMB_MEETING_FILE '{}' exists; allowed: a path that is new for each job", path));
    const std::vector<char> message = make();
    const std::string part = path + ".part";
    std::ofstream out(part, std::ios::binary);
    out.write(message.data(), static_cast<std::streamsize>(message.size()));
    out.close();
    std::error_code error;
    if (out) std::filesystem::rename(part, path, error);
    if (!out || error) fail(fmt::format("PLUMB_MEETING_FILE '{}' cannot be written", path));
    return message;
  }
  while (Clock::now() < end) {
    if (std::ifstream in(path, std::ios::binary); in)
      return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::this_thread::sleep_for(kRetry);
  }
  fail(fmt::format("rank {} of {}: no file '{}' of rank 0 within {} ms", seat.rank, seat.ranks, path,
                   limit.count()));
}

}  // namespace

/// The connections after the meeting: rank 0 has one to each rank, the others one to rank 0 (at index 0).
class Rendezvous::Connections {
 public:
  Connections(const Seat& seat, std::vector<Descriptor> peers)
      : seat_(seat), peers_(std::move(peers)), wake_(eventfd(0, EFD_CLOEXEC)) {
    if (wake_.get() < 0) fail(fmt::format("event descriptor: {}", std::strerror(errno)));
  }
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;
  ~Connections() {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
      thread_.join();
    }
    if (std::uncaught_exceptions() > exceptions_) return;  // this rank fails: no orderly end
    for (const Descriptor& peer : peers_)
      if (peer.get() >= 0) send_note(peer.get(), kLeave, seat_.rank);
  }
  void watch(std::function<void(const Seat&, Rank)> on_death) {
    PLUMB_CHECK(!thread_.joinable(), "rank {} watches already", seat_.rank);
    thread_ = std::thread([this, on_death = std::move(on_death)] {
      if (const Rank dead = wait_for_death(); dead != kNone) on_death(seat_, dead);
    });
  }

 private:
  /// The first rank that dies, kNone when this rank leaves or all others have left.
  Rank wait_for_death() {
    while (true) {
      std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
      std::vector<size_t> who = {0};
      for (size_t i = 0; i < peers_.size(); ++i)
        if (peers_[i].get() >= 0) {
          waiting.push_back({.fd = peers_[i].get(), .events = POLLIN, .revents = 0});
          who.push_back(i);
        }
      if (waiting.size() == 1) return kNone;
      if (poll(waiting.data(), waiting.size(), -1) < 0) continue;
      if (waiting[0].revents != 0) return kNone;
      for (size_t i = 1; i < waiting.size(); ++i)
        if (waiting[i].revents != 0)
          if (const Rank dead = read_note(who[i]); dead != kNone) return dead;
    }
  }
  Rank read_note(size_t peer) {
    Note note;
    const bool is_alive = receive_all(peers_[peer].get(), note, sizeof note);
    if (is_alive && ntohl(note[0]) == kDead) return static_cast<Rank>(ntohl(note[1]));
    peers_[peer] = Descriptor();
    if (is_alive) return kNone;
    for (const Descriptor& other : peers_)
      if (seat_.rank == 0 && other.get() >= 0) send_note(other.get(), kDead, static_cast<Rank>(peer));
    return static_cast<Rank>(peer);
  }

  Seat seat_;
  std::vector<Descriptor> peers_;
  Descriptor wake_;
  int exceptions_ = std::uncaught_exceptions();
  std::thread thread_;
};

Rendezvous::Rendezvous(const Seat& seat, const MeetingPlace& place,
                       const std::function<std::vector<char>()>& make, std::chrono::milliseconds limit)
    : seat_(seat) {
  const auto end = Clock::now() + limit;
  if (!place.file.empty()) {
    message_ = meet_by_file(seat, place.file, make, end, limit);
    return;
  }
  std::vector<Descriptor> peers;
  if (seat.rank == 0) {
    peers = accept_all(seat, place, end, limit);
    message_ = make();
    PLUMB_CHECK(message_.size() <= kMaxMessage, "a message of {} bytes", message_.size());
    const uint32_t size = htonl(static_cast<uint32_t>(message_.size()));
    for (size_t r = 1; r < peers.size(); ++r)
      if (!send_all(peers[r].get(), &size, sizeof size) ||
          !send_all(peers[r].get(), message_.data(), message_.size()))
        fail(fmt::format("rank {} left the meeting", r));
  } else {
    peers.push_back(connect_to(place, seat.rank, end, limit));
    const uint32_t hello[3] = {htonl(kMagic), htonl(static_cast<uint32_t>(seat.ranks)),
                               htonl(static_cast<uint32_t>(seat.rank))};
    if (!send_all(peers[0].get(), hello, sizeof hello)) fail("rank 0 left the meeting");
    message_ = receive_message(peers[0].get(), place, seat.rank);
  }
  connections_ = std::make_unique<Connections>(seat, std::move(peers));
}

Rendezvous::~Rendezvous() = default;

void Rendezvous::watch(const std::function<void(const Seat&, Rank)>& on_death) {
  if (connections_) connections_->watch(on_death);
}

void end_process(const Seat& seat, Rank dead) {
  std::fprintf(stderr, "rank %d of %d: rank %d died; this rank ends too\n", seat.rank, seat.ranks, dead);
  std::fflush(stderr);
  _exit(static_cast<int>(ErrorKind::environment));
}

}  // namespace plumb::hw

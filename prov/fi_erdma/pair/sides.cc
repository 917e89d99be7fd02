#include "fi_erdma/pair/sides.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>

#include "fi_erdma/pair/meeting.h"

namespace fi_erdma::pair {
namespace {

constexpr uint32_t kLongestReport = 1 << 16;

int run_side(Side side, int socket, const Options& options, const Body& body) {
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  limit_sending(socket, options.limit_s);
  Channel channel(socket, options.limit_s);
  return body(side, channel);
}

constexpr int kDied = 128;  ///< plus the signal: exit status of a child that a signal killed

/// The worse of two exit statuses. If one side was not tried, the other one fails as well, so the
/// result is "not tried" unless a side died.
int worse(int a, int b) {
  const int worst = std::max(a, b);
  if (worst > kFailed) return worst;
  return a == kNotTried || b == kNotTried ? int(kNotTried) : worst;
}

/// Waits for the end of a child.
int status_of(pid_t child, std::string& death) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return kFailed;
  if (WIFSIGNALED(status)) death = std::string("a side died: ") + ::strsignal(WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : kDied;
}

int run_both(const Options& options, const Body& body) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  int children[2];
  for (int i : {0, 1}) {
    children[i] = spawn([&, i] {
      ::close(ends[1 - i]);  // otherwise the other side would not notice its end
      return run_side(i == 0 ? Side::server : Side::client, ends[i], options, body);
    });
  }
  ::close(ends[0]);
  ::close(ends[1]);
  std::string death;
  const int server = status_of(children[0], death), client = status_of(children[1], death);
  const int worst = worse(server, client);
  if (worst == kDied) fail("%s", death.c_str());
  return worst;
}

}  // namespace

double now_s() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) / 1e9;
}

void Channel::send(const std::string& message) {
  const auto length = uint32_t(message.size());
  const std::string framed = bytes_of(length) + message;
  for (size_t sent = 0; sent < framed.size();) {
    const ssize_t count =
        ::send(x_socket.get(), framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) fail("the other side reads nothing");
    if (count <= 0) fail("the other side is gone");
    sent += size_t(count);
  }
}

bool Channel::ready() const {
  pollfd readable{x_socket.get(), POLLIN, 0};
  return ::poll(&readable, 1, 0) > 0;
}

bool Channel::gone() const noexcept {
  pollfd closed{x_socket.get(), POLLRDHUP, 0};
  return ::poll(&closed, 1, 0) > 0;
}

void Channel::take(std::span<char> bytes, const Drive& drive) {
  const double start = now_s();
  for (size_t taken = 0; taken < bytes.size();) {
    if (drive) drive();
    pollfd readable{x_socket.get(), POLLIN, 0};
    if (::poll(&readable, 1, drive ? 0 : 1000) > 0) {
      const ssize_t count = ::recv(x_socket.get(), bytes.data() + taken, bytes.size() - taken, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("the other side is gone");
      taken += size_t(count);
    } else if (drive) {
      ::sched_yield();
    }
    // A stranger may send a byte now and then.
    if (taken < bytes.size() && now_s() - start > x_limit_s)
      fail("the other side said %s for %.0f s", taken ? "half of something" : "nothing", x_limit_s);
  }
}

std::string Channel::receive(const Drive& drive) {
  uint32_t length = 0;
  take({reinterpret_cast<char*>(&length), sizeof length}, drive);
  if (length > kLongestReport) fail("what connected is not the other side of this test");
  std::string message(length, '\0');
  take(message, drive);
  return message;
}

std::string Channel::swap(const std::string& message, const Drive& drive) {
  send(message);
  return receive(drive);
}

int spawn(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork: %s", std::strerror(errno));
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);
  int status = kFailed;
  try {
    status = body();
  } catch (const std::exception& error) {
    fail("%s", error.what());
  }
  if (std::fflush(stdout) || std::ferror(stdout)) {
    std::fprintf(stderr, "fi_erdma[%d]: not everything could be written to the standard output\n",
                 int(::getpid()));
    status = kUnwritten;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

int run_alone(const std::function<int()>& body, std::string* death) {
  std::string words;
  const int status = status_of(spawn(body), words);
  if (status != kDied) return status;
  std::fprintf(stderr, "fi_erdma[%d]: %s\n", int(::getpid()), words.c_str());
  if (death) *death = words;
  return kFailed;
}

int run_sides(const std::string& task, const Options& options, const Body& body) {
  if (!options.serve && options.peer.empty()) return run_both(options, body);
  return run_side(options.serve ? Side::server : Side::client, meet(task, options), options, body);
}

}  // namespace fi_erdma::pair

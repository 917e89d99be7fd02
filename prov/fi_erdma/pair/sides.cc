#include "fi_erdma/pair/sides.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>

namespace fi_erdma::pair {
namespace {

constexpr uint32_t kLongest = 1 << 16;

addrinfo* resolve(const char* host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = host ? AF_UNSPEC : AF_INET6;  // without a host: both, by an unspecified IPv6
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  int rc = ::getaddrinfo(host, port.c_str(), &hints, &found);
  if (rc != 0 && !host) {
    hints.ai_family = AF_INET;
    rc = ::getaddrinfo(host, port.c_str(), &hints, &found);
  }
  if (rc != 0) fail("%s port %s: %s", host ? host : "any", port.c_str(), ::gai_strerror(rc));
  return found;
}

/// A listening socket; IPv4 alone where the kernel has no IPv6.
int listen_on(const Options& options) {
  const char* host = options.source.empty() ? nullptr : options.source.c_str();
  addrinfo* at = resolve(host, options.port);
  int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = reinterpret_cast<sockaddr_in*>(at->ai_addr)->sin_port;
  const bool old = socket < 0 && errno == EAFNOSUPPORT;
  if (old) socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const sockaddr* address = old ? reinterpret_cast<sockaddr*>(&any) : at->ai_addr;
  if (socket < 0 || ::bind(socket, address, old ? sizeof any : at->ai_addrlen) != 0 ||
      ::listen(socket, 1) != 0) {
    fail("listen on TCP port %s: %s", options.port.c_str(), std::strerror(errno));
  }
  ::freeaddrinfo(at);
  return socket;
}

int accept_one(const Options& options) {
  const int listener = listen_on(options);
  if (options.announce)
    std::fprintf(stderr, "waiting for the other side on TCP port %s\n", options.port.c_str());
  pollfd calls{listener, POLLIN, 0};
  const double start = now_s();
  while (::poll(&calls, 1, 1000) <= 0)
    if (now_s() - start > options.limit_s)
      not_supported("nobody came within %g s", options.limit_s);
  const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) fail("accept: %s", std::strerror(errno));
  ::close(listener);
  return socket;
}

/// How long connect() and each send() may block.
void limit_sending(int socket, double seconds) {
  seconds = std::max(seconds, 0.001);  // 0 would be no limit
  timeval limit{};
  limit.tv_sec = time_t(seconds);
  limit.tv_usec = suseconds_t((seconds - double(limit.tv_sec)) * 1e6);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// -1 and errno.
int connect_within(double seconds, const addrinfo& at) {
  const int socket = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  limit_sending(socket, seconds);
  if (::connect(socket, at.ai_addr, at.ai_addrlen) == 0) return socket;
  const int error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  ::close(socket);
  errno = error;
  return -1;
}

/// The server may be about to start: tries until the limit. Of several addresses none takes the
/// time of those behind it.
int connect_to(const Options& options) {
  addrinfo* at = resolve(options.peer.c_str(), options.port);
  const double end = now_s() + options.limit_s;
  for (;;) {
    int error = 0, left = 0;
    for (const addrinfo* each = at; each; each = each->ai_next) ++left;
    for (const addrinfo* each = at; each; each = each->ai_next) {
      const int socket = connect_within((end - now_s()) / left--, *each);
      if (socket >= 0) {
        ::freeaddrinfo(at);
        return socket;
      }
      error = errno;
    }
    if (now_s() > end) {
      fail("connect to %s port %s: %s", options.peer.c_str(), options.port.c_str(),
           std::strerror(error));
    }
    ::usleep(20000);
  }
}

/// Whoever connected may be a stranger.
std::string printable(std::string text) {
  constexpr size_t kShown = 800;
  if (text.size() > kShown) text.replace(kShown, text.npos, "...");
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '.');
  return text;
}

/// What either does must fit what the other one does.
void agree(const std::string& task, Channel& channel) {
  const std::string own = "fi_erdma " FI_ERDMA_VERSION " " + task;
  const std::string other = channel.swap(own);
  if (other != own)
    fail("the sides were asked different things: the other one '%s', this one '%s'",
         printable(other).c_str(), printable(own).c_str());
}

int run_side(const std::string& task, Side side, int socket, const Options& options,
             const Body& body) {
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  limit_sending(socket, options.limit_s);
  Channel channel(socket, options.limit_s);
  agree(task, channel);
  return body(side, channel);
}

constexpr int kDied = 128;  ///< of a child

/// Where one side lacks something the other one fails for want of it, but does not die of it.
int worse(int a, int b) {
  const int worst = std::max(a, b);
  if (worst > kFailed) return worst;
  return a == kNotTried || b == kNotTried ? int(kNotTried) : worst;
}

/// Waits for the end of a child.
int status_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return kFailed;
  if (WIFSIGNALED(status)) std::fprintf(stderr, "a side died: %s\n", ::strsignal(WTERMSIG(status)));
  return WIFEXITED(status) ? WEXITSTATUS(status) : kDied;
}

int without_death(int status) {
  return status == kDied ? int(kFailed) : status;
}

int run_both(const std::string& task, const Options& options, const Body& body) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  int children[2];
  for (int i : {0, 1}) {
    children[i] = spawn([&, i] {
      ::close(ends[1 - i]);  // else its end would not be seen
      return run_side(task, i == 0 ? Side::server : Side::client, ends[i], options, body);
    });
  }
  ::close(ends[0]);
  ::close(ends[1]);
  const int server = status_of(children[0]), client = status_of(children[1]);
  return without_death(worse(server, client));
}

}  // namespace

double now_s() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) / 1e9;
}

Channel::~Channel() {
  ::close(x_socket);
}

void Channel::send(const std::string& message) {
  const auto length = uint32_t(message.size());
  const std::string framed = bytes_of(length) + message;
  for (size_t sent = 0; sent < framed.size();) {
    const ssize_t count =
        ::send(x_socket, framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) fail("the other side reads nothing");
    if (count <= 0) fail("the other side is gone");
    sent += size_t(count);
  }
}

bool Channel::ready() const {
  pollfd readable{x_socket, POLLIN, 0};
  return ::poll(&readable, 1, 0) > 0;
}

bool Channel::gone() const noexcept {
  pollfd closed{x_socket, POLLRDHUP, 0};
  return ::poll(&closed, 1, 0) > 0;
}

void Channel::take(std::span<char> bytes, const Drive& drive) {
  const double start = now_s();
  for (size_t taken = 0; taken < bytes.size();) {
    if (drive) drive();
    pollfd readable{x_socket, POLLIN, 0};
    if (::poll(&readable, 1, drive ? 0 : 1000) > 0) {
      const ssize_t count = ::recv(x_socket, bytes.data() + taken, bytes.size() - taken, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("the other side is gone");
      taken += size_t(count);
    } else if (drive) {
      ::sched_yield();
    }
    // A stranger may say a byte now and then.
    if (taken < bytes.size() && now_s() - start > x_limit_s)
      fail("the other side said %s for %.0f s", taken ? "half of something" : "nothing", x_limit_s);
  }
}

std::string Channel::receive(const Drive& drive) {
  uint32_t length = 0;
  take({reinterpret_cast<char*>(&length), sizeof length}, drive);
  if (length > kLongest) fail("what connected is not the other side of this test");
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

int run_alone(const std::function<int()>& body) {
  return without_death(status_of(spawn(body)));
}

int run_sides(const std::string& task, const Options& options, const Body& body) {
  if (options.serve) return run_side(task, Side::server, accept_one(options), options, body);
  if (!options.peer.empty())
    return run_side(task, Side::client, connect_to(options), options, body);
  return run_both(task, options, body);
}

}  // namespace fi_erdma::pair

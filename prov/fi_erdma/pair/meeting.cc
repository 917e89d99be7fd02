#include "fi_erdma/pair/meeting.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "fi_erdma/descriptor.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {
namespace {

constexpr char kName[] = "fi_erdma ";   ///< the greeting of each side begins with it
constexpr uint32_t kLongest = 1 << 15;  ///< longest greeting, bytes
constexpr double kGreetingSeconds = 5;  ///< how long a new connection has to send its greeting
constexpr double kPace = 0.1;           ///< seconds between two connections of strangers
constexpr int kToldStrangers = 8;
constexpr int kBacklog = 8;

Meeting g_meeting = Meeting::none;

// --- TCP
// -------------------------------------------------------------------------------------------

addrinfo* resolve(const char* host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = host ? AF_UNSPEC : AF_INET6;  // without a host: IPv6, which accepts IPv4 too
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

/// A listening socket; for IPv4 only if the kernel has no IPv6.
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
      ::listen(socket, kBacklog) != 0) {
    fail("listen on TCP port %s: %s", options.port.c_str(), std::strerror(errno));
  }
  ::freeaddrinfo(at);
  return socket;
}

/// Accepts a connection and sets `who` to its address. Returns -1 if none came in time.
int accept_until(int listener, double end, std::string& who) {
  pollfd calls{listener, POLLIN, 0};
  sockaddr_storage from{};
  socklen_t length = sizeof from;
  for (;;) {
    const double left = end - now_s();
    if (left <= 0) return -1;
    if (::poll(&calls, 1, int(std::min(left, 1.0) * 1000) + 1) <= 0) continue;
    const int socket =
        ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
    if (socket < 0 && errno == ECONNABORTED) continue;
    if (socket < 0) fail("accept: %s", std::strerror(errno));
    char text[NI_MAXHOST] = "?";
    (void)::getnameinfo(reinterpret_cast<sockaddr*>(&from), length, text, sizeof text, nullptr, 0,
                        NI_NUMERICHOST);
    who = text;
    if (const std::string mapped = "::ffff:"; who.starts_with(mapped)) who.erase(0, mapped.size());
    return socket;
  }
}

/// Returns -1 and sets errno on failure.
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

/// Tries until the time limit, since the server may not have started yet. Each of several addresses
/// gets its share of the time.
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
      if (error != ECONNREFUSED) g_meeting = Meeting::silent;
      fail("connect to %s port %s: %s", options.peer.c_str(), options.port.c_str(),
           std::strerror(error));
    }
    ::usleep(20000);
  }
}

// --- words
// -----------------------------------------------------------------------------------------

/// The greeting from the other end of a connection, or the reason why there is none.
struct Heard {
  Meeting what;  ///< met: a greeting came
  std::string text;
};

/// Empty if these bytes came, otherwise what came instead.
Heard take(int socket, double seconds, double end, char* bytes, size_t size, bool begun) {
  for (size_t taken = 0; taken < size;) {
    pollfd readable{socket, POLLIN, 0};
    const double left = end - now_s();
    if (left <= 0) {
      char text[80];
      std::snprintf(text, sizeof text, "the other side said %s for %.3g s",
                    begun || taken ? "half of something" : "nothing", seconds);
      return {Meeting::silent, text};
    }
    if (::poll(&readable, 1, int(std::min(left, 1.0) * 1000) + 1) <= 0) continue;
    const ssize_t count = ::recv(socket, bytes + taken, size - taken, MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return {Meeting::stranger, "the other side is gone"};
    taken += size_t(count);
  }
  return {Meeting::met, {}};
}

Heard hear(int socket, double seconds) {
  const double end = now_s() + seconds;
  uint32_t length = 0;
  Heard heard = take(socket, seconds, end, reinterpret_cast<char*>(&length), sizeof length, false);
  if (heard.what != Meeting::met) return heard;
  if (length > kLongest)
    return {Meeting::stranger, "what connected is not the other side of this test"};
  std::string text(length, '\0');
  heard = take(socket, seconds, end, text.data(), text.size(), true);
  if (heard.what == Meeting::met) heard.text = text;
  return heard;
}

/// A greeting is short enough for the socket's buffer, so that sending it never blocks.
Heard swap_words(int socket, const std::string& own, double seconds) {
  const auto length = uint32_t(own.size());
  const std::string framed = bytes_of(length) + own;
  const ssize_t sent = ::send(socket, framed.data(), framed.size(), MSG_NOSIGNAL);
  if (sent != ssize_t(framed.size())) return {Meeting::stranger, "the other side is gone"};
  return hear(socket, seconds);
}

/// The program at the other end may be a stranger.
std::string printable(std::string text) {
  constexpr size_t kShown = 800;
  if (text.size() > kShown) text.replace(kShown, text.npos, "...");
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '.');
  return text;
}

/// Compares the tasks of both sides.
Heard agree(int socket, const std::string& own, double seconds) {
  Heard heard = swap_words(socket, own, seconds);
  if (heard.what != Meeting::met || heard.text == own) return heard;
  const bool known = heard.text.starts_with(kName);
  return {known ? Meeting::different : Meeting::stranger,
          (known ? "the sides were asked different things: the other one '"
                 : "what answers is no fi_erdma: it said '") +
              printable(heard.text) + "', this one '" + printable(own) + "'"};
}

// --- sides
// -----------------------------------------------------------------------------------------

/// Connections of programs that were not the other side. Each uses a socket for a while, and
/// kLongest bytes.
class Strangers {
 public:
  /// Waits until the next connection may be accepted.
  void turn_away(double since, const std::string& who, const std::string& why) {
    if (++x_count <= kToldStrangers)
      std::fprintf(stderr, "fi_erdma[%d]: %s came, and is not the other side: %s%s\n",
                   int(::getpid()), who.c_str(), why.c_str(),
                   x_count == kToldStrangers ? " (no more of them are told)" : "");
    const double left = since + kPace - now_s();
    if (left > 0) (void)::poll(nullptr, 0, int(left * 1000) + 1);
  }
  std::string text() const {
    return x_count ? ", but for " + std::to_string(x_count) + " who are not the other side" : "";
  }

 private:
  unsigned x_count = 0;
};

int accept_peer(const std::string& own, const Options& options) {
  const Descriptor listener(listen_on(options));
  if (options.announce)
    std::fprintf(stderr, "waiting for the other side on TCP port %s\n", options.port.c_str());
  const double end = now_s() + options.limit_s;
  Strangers strangers;
  for (std::string who;;) {
    const int socket = accept_until(listener.get(), end, who);
    if (socket < 0)
      not_supported("nobody came within %g s%s", options.limit_s, strangers.text().c_str());
    const double since = now_s();
    const double seconds = std::min(options.limit_s, kGreetingSeconds);
    limit_sending(socket, seconds);
    const Heard heard = agree(socket, own, seconds);
    if (heard.what == Meeting::met) return socket;
    if (heard.what == Meeting::different) {
      g_meeting = Meeting::different;
      fail("%s", heard.text.c_str());
    }
    ::close(socket);
    strangers.turn_away(since, who, heard.text);
  }
}

int visit_peer(const std::string& own, const Options& options) {
  const int socket = connect_to(options);
  limit_sending(socket, options.limit_s);
  const Heard heard = agree(socket, own, options.limit_s);
  g_meeting = heard.what;
  if (heard.what != Meeting::met) fail("%s", heard.text.c_str());
  return socket;
}

}  // namespace

Meeting meeting() noexcept {
  return g_meeting;
}

void limit_sending(int socket, double seconds) {
  seconds = std::max(seconds, 0.001);  // 0 would mean no limit
  timeval limit{};
  limit.tv_sec = time_t(seconds);
  limit.tv_usec = suseconds_t((seconds - double(limit.tv_sec)) * 1e6);
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

int meet(const std::string& task, const Options& options) {
  g_meeting = Meeting::nobody;
  const std::string own = kName + std::string(FI_ERDMA_VERSION " ") + task;
  const int socket = options.serve ? accept_peer(own, options) : visit_peer(own, options);
  g_meeting = Meeting::met;
  return socket;
}

}  // namespace fi_erdma::pair

// probe relay ADDRESS PORT, probe relay "" PORT: passes lines between this process's standard input
// and output and those of the other machine, so that the two scripts can exchange messages. The
// first line that it prints is "connected OWN-ADDRESS PEER-ADDRESS".
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rig.h"

namespace erdma::hardware {
namespace {

int wait_for_one(uint16_t port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  const int yes = 1;
  (void)::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof(any)) || ::listen(listener, 1))
    cannot("TCP port %u: %s", port, std::strerror(errno));
  const int connected = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (connected < 0) fail("accept: %s", std::strerror(errno));
  ::close(listener);
  return connected;
}

/// The other machine's script may start later, so this has no time limit. Its caller has one.
int go_to(const char* host, const char* port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = ::getaddrinfo(host, port, &hints, &found))
    cannot("%s: %s", host, ::gai_strerror(rc));
  for (;;) {
    const int to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!::connect(to, found->ai_addr, found->ai_addrlen)) return to;
    ::close(to);
    ::usleep(200'000);  // there is no event for a new listener
  }
}

void introduce(int to) {
  sockaddr_in own{}, peer{};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  (void)::getsockname(to, reinterpret_cast<sockaddr*>(&own), &own_length);
  (void)::getpeername(to, reinterpret_cast<sockaddr*>(&peer), &peer_length);
  char a[INET_ADDRSTRLEN], b[INET_ADDRSTRLEN];
  std::printf("connected %s %s\n", ::inet_ntop(AF_INET, &own.sin_addr, a, sizeof(a)),
              ::inet_ntop(AF_INET, &peer.sin_addr, b, sizeof(b)));
  std::fflush(stdout);
}

/// Passes bytes on. Returns false at the end of the connection.
bool pass_on(int from, int to) {
  char bytes[4096];
  const ssize_t got = ::read(from, bytes, sizeof(bytes));
  for (ssize_t done = 0; done < got;) {
    const ssize_t sent = ::write(to, bytes + done, size_t(got - done));
    if (sent < 0) return false;
    done += sent;
  }
  return got > 0;
}

}  // namespace

int relay(int argc, char** argv) {
  if (argc != 2) cannot("relay: an address and a port");
  const int other =
      argv[0][0] ? go_to(argv[0], argv[1]) : wait_for_one(uint16_t(std::atoi(argv[1])));
  const int yes = 1;
  (void)::setsockopt(other, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  (void)::setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  introduce(other);
  pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {other, POLLIN, 0}};
  for (;;) {
    if (::poll(ready, 2, -1) < 0) return 1;
    if (ready[1].revents && !pass_on(other, STDOUT_FILENO)) return 0;
    if (ready[0].revents && !pass_on(STDIN_FILENO, other)) return 0;
  }
}

}  // namespace erdma::hardware

#include "transport/shm/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <rdma/fi_errno.h>

#include "transport/shm/unix_socket.h"
#include "util/error_text.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

constexpr uint64_t kHelloTimeout = 5'000 * util::kMillisecond;
/// How long the process may lack descriptors or memory before the listener tries again.
constexpr uint64_t kLongPause = 100 * util::kMillisecond;
constexpr size_t kMaxPendingHellos = 64;
/// How long a connection may be silent while others wait for its place. Honest peers send their
/// hello at once, and connect again if they were too slow.
constexpr uint64_t kCrowdedPatience = 20 * util::kMillisecond;
/// So many connections in succession that lead to nothing are followed by a pause, so that whoever
/// makes them takes only a part of the time of a core: the polling thread may need it.
constexpr unsigned kMaxStrangers = 64;
constexpr uint64_t kShortPause = 2 * util::kMillisecond;
constexpr int kAcceptsAtOnce = 64;  ///< then other connections have their turn
constexpr uint16_t kFirstPort = 32768;
constexpr uint16_t kPorts = 60999 - 32768 + 1;

}  // namespace

int Listener::bind(util::SocketAddress& name) {
  const bool pick = !name.port();
  const auto first = uint16_t(x_connections.nonce % kPorts);
  for (uint32_t i = 0; i < kPorts; ++i) {
    if (pick) name.set_port(uint16_t(kFirstPort + (first + i) % kPorts));
    const int rc = take(name);
    if (rc == 0) return listen();
    if (rc != -FI_EADDRINUSE || !pick) {
      ERDMA_WARN(EP_CTRL, "cannot listen as %s: %s\n", name.to_string().c_str(),
                 util::ErrorText(-rc).c_str());
      return rc;
    }
  }
  return -FI_EADDRINUSE;
}

/// Peers look for `name` in both scopes, so no other endpoint may have it in either.
int Listener::take(const util::SocketAddress& name) {
  const NameScope scope = x_connections.config.options.scope;
  auto listener = listen_as(name, scope);
  if (!listener) return listener.error();
  if (scope == NameScope::host) {
    auto reserved = reserve(name);
    if (!reserved) return reserved.error();
    x_reserved = std::move(*reserved);
  }
  x_socket = std::move(*listener);
  return 0;
}

// The shutdown turns peers away even where a forked child still holds the socket.
void Listener::close() noexcept {
  if (!x_socket) return;
  x_thread.unwatch(x_socket.get());
  ::shutdown(x_socket.get(), SHUT_RDWR);
  x_socket.reset();
  x_reserved.reset();
  x_again = 0;
}

void Listener::abandon() noexcept {
  x_socket.reset();
  x_reserved.reset();
}

void Listener::pause(uint64_t nanoseconds) noexcept {
  x_thread.unwatch(x_socket.get());
  x_again = x_connections.config.clock->now() + nanoseconds;
}

void Listener::resume(uint64_t now) noexcept {
  if (!x_again || x_again > now) return;
  x_again = listen() ? now + kLongPause : 0;
}

void Listener::accept() {
  for (int i = 0; i < kAcceptsAtOnce && x_socket; ++i) {
    if (!has_room() || x_connections.strangers >= kMaxStrangers) {
      x_connections.strangers = 0;
      return pause(kShortPause);
    }
    util::Fd socket(accept4(x_socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      x_exhaustion_logged = false;
      admit(std::move(socket));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      if (!x_exhaustion_logged)
        ERDMA_NOTICE(descriptors, EP_CTRL, "cannot accept peers: %s%s",
                     util::ErrorText(errno).c_str(), util::remedy_of_lack(errno));
      x_exhaustion_logged = true;
      return pause(kLongPause);
    }
  }
}

bool Listener::has_room() {
  if (x_connections.pending_hellos() < kMaxPendingHellos) return true;
  const uint64_t now = x_connections.config.clock->now();
  for (const auto& connection : x_connections.silent_since(now - kCrowdedPatience))
    x_connections.drop(*connection);
  return x_connections.pending_hellos() < kMaxPendingHellos;
}

void Listener::admit(util::Fd socket) {
  const uint64_t now = x_connections.config.clock->now();
  const Credentials peer = peer_credentials(socket.get());
  if (peer.uid != geteuid()) {
    ++x_connections.strangers;
    ERDMA_WARN(EP_CTRL, "refused a connection of process %d, user %u: not this user (%u)\n",
               int(peer.pid), peer.uid, geteuid());
    return;
  }
  auto connection = util::make_ref<Connection>();
  connection->socket = std::move(socket);
  connection->attempt->started = now;
  connection->deadline = now + kHelloTimeout;
  // The peer of a connection that nobody would read connects again.
  if (x_connections.watch(x_connections.add(connection))) x_connections.drop(*connection);
}

}  // namespace erdma::transport::shm

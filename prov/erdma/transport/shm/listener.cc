#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <rdma/fi_errno.h>

#include "transport/shm/bootstrap.h"
#include "util/error_text.h"
#include "util/log.h"

/// Bootstrap's listening socket: the name, and who may come in.
namespace erdma::transport::shm {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kHelloTimeout = 5'000 * kMillisecond;
constexpr size_t kMaxPendingHellos = 64;
constexpr int kAcceptsAtOnce = 64;  ///< then other connections have their turn
constexpr uint16_t kFirstPort = 32768;
constexpr uint16_t kPorts = 60999 - 32768 + 1;

}  // namespace

int Bootstrap::bind_name() {
  const bool pick = !x_config.name.port();
  const auto first = uint16_t(x_nonce % kPorts);
  for (uint32_t i = 0; i < kPorts; ++i) {
    if (pick) x_config.name.set_port(uint16_t(kFirstPort + (first + i) % kPorts));
    auto listener = listen_as(x_config.name, x_config.options.scope);
    if (listener) {
      x_listener = std::move(*listener);
      return 0;
    }
    if (listener.error() != -FI_EADDRINUSE || !pick) {
      ERDMA_WARN(EP_CTRL, "cannot listen as %s: %s\n", x_config.name.to_string().c_str(),
                 util::ErrorText(-listener.error()).c_str());
      return listener.error();
    }
  }
  return -FI_EADDRINUSE;
}

// The shutdown turns peers away even where a forked child still holds the socket.
void Bootstrap::close_listener() noexcept {
  if (!x_listener) return;
  unwatch(x_listener.get());
  ::shutdown(x_listener.get(), SHUT_RDWR);
  x_listener.reset();
  x_listen_again = 0;
}

void Bootstrap::pause_listener(uint64_t nanoseconds) {
  unwatch(x_listener.get());
  x_listen_again = x_config.clock->now() + nanoseconds;
}

void Bootstrap::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce && x_listener; ++i) {
    if (x_pending_hellos >= kMaxPendingHellos) return pause_listener(2 * kMillisecond);
    util::Fd socket(accept4(x_listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      x_exhaustion_logged = false;
      accept_one(std::move(socket));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      if (!x_exhaustion_logged)
        ERDMA_NOTICE(descriptors, EP_CTRL, "cannot accept peers: %s%s\n",
                     util::ErrorText(errno).c_str(),
                     errno == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "");
      x_exhaustion_logged = true;
      return pause_listener(100 * kMillisecond);
    }
  }
}

void Bootstrap::accept_one(util::Fd socket) {
  const Credentials peer = peer_credentials(socket.get());
  if (peer.uid != geteuid()) {
    unsigned suppressed = 0;
    if (x_strangers.allow(x_config.clock->now(), suppressed))
      ERDMA_WARN(
          EP_CTRL,
          "refused a connection of process %d, user %u: not this user (%u); %u more before\n",
          int(peer.pid), peer.uid, geteuid(), suppressed);
    return;
  }
  auto connection = std::make_shared<Connection>();
  connection->socket = std::move(socket);
  connection->deadline = x_config.clock->now() + kHelloTimeout;
  ++x_pending_hellos;
  add(connection);
  watch(connection->socket.get(), event_of(kSocket, connection->id));
}

}  // namespace erdma::transport::shm

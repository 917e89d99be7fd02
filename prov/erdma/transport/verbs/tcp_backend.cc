#include "transport/verbs/tcp_backend.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kBacklog = 1024;
constexpr uint64_t kListener = 0;  ///< no id
constexpr uint64_t kPause = 100'000'000;

/// A socket of the family of `address`, bound to it. -errno.
int bound_socket(const util::SocketAddress& address, bool late_port) noexcept {
  util::Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return -errno;
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (late_port)  // the port is chosen by connect(), which may use one for many peers
    ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  else
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), address.data(), socklen_t(address.size()))) return -errno;
  return fd.release();
}

util::SocketAddress address_of(int fd, int (*get)(int, sockaddr*, socklen_t*)) noexcept {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (get(fd, reinterpret_cast<sockaddr*>(&storage), &length)) return {};
  return util::SocketAddress::from_sockaddr(&storage, length);
}

int unreachable(int error) noexcept {
  const bool route = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
                     error == EHOSTDOWN || error == EACCES || error == EPERM;
  return route ? -FI_EHOSTUNREACH : -error;
}

}  // namespace

TcpBackend::TcpBackend(const util::SocketAddress& name, uint64_t peer_timeout_ns,
                       QueuePairs& queue_pairs, const util::Clock& clock) noexcept
    : x_own(name),
      x_peer_timeout(peer_timeout_ns),
      x_queue_pairs(queue_pairs),
      x_clock(clock),
      x_epoll(epoll_create1(EPOLL_CLOEXEC)) {}

int TcpBackend::listen(util::SocketAddress& name) noexcept {
  if (!x_epoll) return -FI_EMFILE;
  if (const int rc = bind_listener(name)) {
    ERDMA_NOTICE(device, EP_CTRL, "cannot listen at %s: %s\n", name.to_string().c_str(),
                 fi_strerror(-rc));
    return rc;
  }
  name.set_port(address_of(x_listener.get(), getsockname).port());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  return epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, x_listener.get(), &event) ? -errno : 0;
}

int TcpBackend::bind_listener(const util::SocketAddress& name) noexcept {
  const int fd = bound_socket(name, false);
  if (fd < 0) return fd;
  x_listener.reset(fd);
  return ::listen(fd, kBacklog) ? -errno : 0;
}

void TcpBackend::stop_listening() noexcept {
  x_listener.reset();
  x_listen_again = 0;
  while (Socket* socket = x_half_open.first()) close(socket->id, false);
}

void TcpBackend::abandon() noexcept {
  x_listener.reset();
  x_epoll.reset();
}

TcpBackend::Socket* TcpBackend::find(uint64_t id) noexcept {
  const auto found = x_sockets.find(id);
  return found == x_sockets.end() ? nullptr : &found->second;
}

bool TcpBackend::watch(Socket& socket, uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = socket.id;
  return !epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, socket.fd.get(), &event) ||
         (errno == EEXIST && !epoll_ctl(x_epoll.get(), EPOLL_CTL_MOD, socket.fd.get(), &event));
}

void TcpBackend::dispatch(BackendEvents& events) {
  epoll_event ready[64];
  const int count = epoll_wait(x_epoll.get(), ready, int(std::size(ready)), 0);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kListener) {
      accept_all(events);
    } else if (Socket* socket = find(ready[i].data.u64)) {
      if (socket->state == State::connecting)
        on_writable(*socket, events);
      else
        on_readable(*socket, events);
    }
  }
}

void TcpBackend::accept_all(BackendEvents& events) {
  for (int i = 0; i < 64; ++i) {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    util::Fd fd(::accept4(x_listener.get(), reinterpret_cast<sockaddr*>(&storage), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      const int error = errno;
      if (error == ECONNABORTED || error == EINTR || error == EPROTO) continue;
      if (error != EAGAIN) pause_listener(error);
      return;
    }
    accept_one(std::move(fd), util::SocketAddress::from_sockaddr(&storage, length), events);
  }
}

/// Waiting connections keep the listener readable: without descriptors for them it would spin.
void TcpBackend::pause_listener(int error) noexcept {
  unsigned suppressed = 0;
  const uint64_t now = x_clock.now();
  if (x_exhaustion.allow(now, suppressed))
    ERDMA_NOTICE(descriptors, EP_CTRL,
                 "cannot accept a connection: %s; each peer needs a descriptor (ulimit -n)\n",
                 fi_strerror(error));
  epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, x_listener.get(), nullptr);
  x_listen_again = now + kPause;
}

void TcpBackend::accept_one(util::Fd fd, const util::SocketAddress& from, BackendEvents& events) {
  if (x_half_open.size() >= kMaxHalfOpen)
    drop_stranger(*x_half_open.first(), "said nothing while many others connected", false, events);
  keep_alive(fd.get());
  const uint64_t id = next_connection_id();
  Socket& socket = x_sockets[id];
  socket.id = id;
  socket.fd = std::move(fd);
  socket.from = from;
  x_half_open.set(socket, x_clock.now() + kHelloTime);
  if (!watch(socket, EPOLLIN)) close(id, false);
}

void TcpBackend::drop_stranger(Socket& socket, const char* what, bool harmless,
                               BackendEvents& events) {
  const util::SocketAddress from = socket.from;
  close(socket.id, false);
  events.on_stranger(from, what, harmless);
}

uint64_t TcpBackend::next_deadline() const noexcept {
  return std::min(x_half_open.next(), x_listen_again ? x_listen_again : UINT64_MAX);
}

void TcpBackend::expire(BackendEvents& events) {
  const uint64_t now = x_clock.now();
  while (Socket* socket = x_half_open.due(now))
    drop_stranger(*socket, "connected and said nothing", false, events);
  if (!x_listen_again || x_listen_again > now) return;
  x_listen_again = 0;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  if (x_listener && epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, x_listener.get(), &event))
    x_listen_again = now + kPause;
}

/// A host that vanishes is noticed by the kernel, in peer_timeout at most.
void TcpBackend::keep_alive(int fd) const noexcept {
  const int seconds = int(std::clamp<uint64_t>(x_peer_timeout / 1'000'000'000, 2, 3600));
  const int on = 1, idle = std::max(1, seconds / 2), interval = std::max(1, seconds / 6), count = 3;
  const unsigned limit = unsigned(seconds) * 1000;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit));
}

int TcpBackend::connect(uint64_t id, const util::SocketAddress& peer) noexcept try {
  util::SocketAddress own = x_own;
  own.set_port(0);
  util::Fd fd(bound_socket(own, true));
  if (fd.get() < 0) {
    const int error = -fd.release();
    ERDMA_NOTICE(descriptors, EP_CTRL, "cannot make a socket to %s: %s%s\n",
                 peer.to_string().c_str(), fi_strerror(error),
                 error == EMFILE ? "; each peer needs one (ulimit -n)" : "");
    return -error;
  }
  if (::connect(fd.get(), peer.data(), socklen_t(peer.size())) && errno != EINPROGRESS)
    return unreachable(errno);
  Socket& socket = x_sockets[id];
  socket.id = id;
  socket.fd = std::move(fd);
  socket.state = State::connecting;
  if (watch(socket, EPOLLOUT)) return 0;
  const int error = errno;
  x_sockets.erase(id);
  return -error;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

void TcpBackend::on_writable(Socket& socket, BackendEvents& events) {
  const uint64_t id = socket.id;
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length)) error = errno;
  // A port without listener, picked as our own: TCP connects a socket to itself.
  if (!error &&
      address_of(socket.fd.get(), getsockname) == address_of(socket.fd.get(), getpeername))
    error = ECONNREFUSED;
  if (!error) {
    keep_alive(socket.fd.get());
    socket.state = State::reached;
    watch(socket, EPOLLIN);
    return events.on_reached(id);
  }
  if (error != ECONNREFUSED) return end(socket, unreachable(error), events);
  socket.state = State::ended;
  events.on_refused(id, {});
}

}  // namespace erdma::transport::verbs

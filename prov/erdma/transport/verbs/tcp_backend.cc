#include "transport/verbs/tcp_backend.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kListener = 0;  ///< not an id

int status_of(int error) noexcept {
  const bool route = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
                     error == EHOSTDOWN || error == EACCES || error == EPERM;
  return route ? -FI_EHOSTUNREACH : -error;
}

void tell_no_socket(const util::SocketAddress& own, const util::SocketAddress& peer,
                    int error) noexcept {
  if (error == EADDRNOTAVAIL)
    ERDMA_NOTICE(
        port, EP_CTRL,
        "cannot connect from %s to %s: %s; give this address back to the network interface",
        own.to_string().c_str(), peer.to_string().c_str(), fi_strerror(error));
  else
    ERDMA_NOTICE(descriptors, EP_CTRL, "cannot make a socket to %s: %s%s", peer.to_string().c_str(),
                 fi_strerror(error), error == EMFILE ? "; each peer needs one (ulimit -n)" : "");
}

}  // namespace

TcpBackend::TcpBackend(const util::SocketAddress& name, uint64_t peer_timeout_ns,
                       QueuePairs& queue_pairs, const util::Clock& clock) noexcept
    : ConnectionBackend(false),
      x_own(name),
      x_peer_timeout(peer_timeout_ns),
      x_queue_pairs(queue_pairs),
      x_clock(clock),
      x_epoll(epoll_create1(EPOLL_CLOEXEC)) {}

int TcpBackend::listen(util::SocketAddress& name) noexcept {
  if (!x_epoll) return -FI_EMFILE;
  const int rc = x_listener.open(x_epoll.get(), name);
  if (rc)
    ERDMA_NOTICE(device, EP_CTRL, "cannot listen at %s: %s%s", name.to_string().c_str(),
                 fi_strerror(-rc), remedy_of_listening(-rc));
  return rc;
}

void TcpBackend::stop_listening() noexcept {
  x_listener.close();
  while (Socket* socket = x_half_open.first()) close(socket->id, false);
}

void TcpBackend::abandon() noexcept {
  x_listener.close();
  x_epoll.reset();
}

TcpBackend::Socket* TcpBackend::find(uint64_t id) noexcept {
  const auto found = x_sockets.find(id);
  return found == x_sockets.end() ? nullptr : &found->second;
}

bool TcpBackend::watch(const Socket& socket, uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = socket.id;
  return !epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, socket.tcp.fd(), &event) ||
         (errno == EEXIST && !epoll_ctl(x_epoll.get(), EPOLL_CTL_MOD, socket.tcp.fd(), &event));
}

/// The socket stays open until close(), but is no longer watched.
void TcpBackend::leave_alone(Socket& socket) noexcept {
  epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, socket.tcp.fd(), nullptr);
  socket.state = State::ended;
}

void TcpBackend::dispatch(BackendEvents& events) {
  epoll_event ready[64];
  const int count = epoll_wait(x_epoll.get(), ready, int(std::size(ready)), 0);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kListener) {
      util::SocketAddress from;
      for (int n = 0; n < 64; ++n) {
        util::Fd fd = x_listener.accept(from, x_clock.now());
        if (!fd) break;
        accept_one(std::move(fd), from, events);
      }
    } else if (Socket* socket = find(ready[i].data.u64)) {
      if (socket->state == State::connecting)
        on_writable(*socket, events);
      else
        on_readable(*socket, events);
    }
  }
}

void TcpBackend::accept_one(util::Fd fd, const util::SocketAddress& from, BackendEvents& events) {
  if (x_half_open.size() >= kMaxHalfOpen)
    drop_stranger(*x_half_open.first(), "said nothing while many others connected", false, events);
  const uint64_t id = next_connection_id();
  Socket& socket = x_sockets[id];
  socket.id = id;
  socket.tcp.open(std::move(fd));
  socket.tcp.keep_alive(x_peer_timeout);
  socket.from = from;
  // On failure the peer learns of the end, and retries.
  if (!x_half_open.add(socket) || !watch(socket, EPOLLIN)) return void(close(id, false));
  x_half_open.set(socket, x_clock.now() + kHelloTime);
}

void TcpBackend::drop_stranger(Socket& socket, const char* what, bool harmless,
                               BackendEvents& events) {
  const util::SocketAddress from = socket.from;
  close(socket.id, false);
  events.on_stranger(from, what, harmless);
}

uint64_t TcpBackend::next_deadline() const noexcept {
  return std::min(x_half_open.next(), x_listener.paused_until());
}

void TcpBackend::expire(BackendEvents& events) {
  const uint64_t now = x_clock.now();
  while (Socket* socket = x_half_open.due(now))
    drop_stranger(*socket, "connected and said nothing", false, events);
  x_listener.resume(now);
}

int TcpBackend::connect(uint64_t id, const util::SocketAddress& peer) noexcept try {
  util::SocketAddress own = x_own;
  own.set_port(0);
  util::Fd fd(bound_socket(own, true));
  if (fd.get() < 0) {
    const int error = -fd.release();
    tell_no_socket(x_own, peer, error);
    return -error;
  }
  if (::connect(fd.get(), peer.data(), socklen_t(peer.size())) && errno != EINPROGRESS)
    return status_of(errno);
  Socket& socket = x_sockets[id];
  socket.id = id;
  socket.tcp.open(std::move(fd));
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
  const int fd = socket.tcp.fd();
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)) error = errno;
  // If the port has no listener and is chosen for this end as well, TCP connects the socket to
  // itself.
  using util::SocketAddress;
  if (!error && SocketAddress::of(fd, getsockname) == SocketAddress::of(fd, getpeername))
    error = ECONNREFUSED;
  if (!error) {
    socket.tcp.keep_alive(x_peer_timeout);
    socket.state = State::reached;
    watch(socket, EPOLLIN);
    return events.on_reached(id);
  }
  if (error != ECONNREFUSED) return end(socket, status_of(error), events);
  socket.state = State::ended;
  events.on_refused(id, {});
}

void TcpBackend::on_readable(Socket& socket, BackendEvents& events) {
  if (socket.state == State::ended) return;
  int ended = 0;
  if (socket.tcp.receive(ended)) return on_message(socket, events);
  if (!ended) return;
  if (socket.state == State::half_open)
    return drop_stranger(socket, "connected and hung up", socket.tcp.heard_nothing(), events);
  end(socket, ended, events);
}

void TcpBackend::on_message(Socket& socket, BackendEvents& events) {
  const uint64_t id = socket.id;
  const HelloSocket::Message message = socket.tcp.take();
  socket.peer = message.path();
  switch (socket.state) {
    case State::half_open:
      x_half_open.remove(socket);
      socket.state = State::asked;
      return events.on_request(id, socket.from, message.hello(), message.path());
    case State::requested:
      if (message.is_frame()) return events.on_accepted(id, message.hello(), message.path());
      leave_alone(socket);
      return events.on_refused(id, message.hello());
    case State::accepted:
      if (message.kind() != HelloKind::confirm) return end(socket, -FI_ECONNRESET, events);
      socket.state = State::up;
      return events.on_established(id);
    default: {
      const bool bye = socket.state == State::up && message.kind() == HelloKind::bye;
      return end(socket, bye ? -FI_ESHUTDOWN : -FI_ECONNRESET, events);
    }
  }
}

void TcpBackend::end(Socket& socket, int status, BackendEvents& events) {
  leave_alone(socket);
  events.on_closed(socket.id, status);
}

ibv_qp* TcpBackend::create_queue_pair(uint64_t id, ibv_qp_init_attr& attr, Path& own) noexcept {
  Socket* socket = find(id);
  if (!socket) return nullptr;
  socket->queue_pair = x_queue_pairs.create(id, attr);
  if (socket->queue_pair) own = socket->own = x_queue_pairs.describe(*socket->queue_pair);
  return socket->queue_pair;
}

int TcpBackend::join(Socket& socket) noexcept {
  ibv_qp* queue_pair = std::exchange(socket.queue_pair, nullptr);
  return queue_pair ? x_queue_pairs.join(*queue_pair, socket.own, socket.peer) : -FI_EINVAL;
}

int TcpBackend::greet(uint64_t id, const HelloBytes& hello) noexcept {
  Socket* socket = find(id);
  if (!socket) return -FI_ECONNRESET;
  const bool active = socket->state == State::reached;
  if (!active)
    if (const int rc = join(*socket)) return rc;
  socket->state = active ? State::requested : State::accepted;
  return socket->tcp.send(hello, socket->own);
}

int TcpBackend::confirm(uint64_t id) noexcept {
  Socket* socket = find(id);
  if (!socket) return -FI_ECONNRESET;
  if (const int rc = join(*socket)) return rc;
  socket->state = State::up;
  return socket->tcp.send(encode_prefix(HelloKind::confirm));
}

void TcpBackend::refuse(uint64_t id, const HelloPrefix& refusal) noexcept {
  if (Socket* socket = find(id)) (void)socket->tcp.send(refusal);
  close(id, false);
}

bool TcpBackend::close(uint64_t id, bool orderly) noexcept {
  Socket* socket = find(id);
  if (!socket) return false;
  if (orderly && socket->state == State::up) (void)socket->tcp.send(encode_prefix(HelloKind::bye));
  x_half_open.remove(*socket);
  x_sockets.erase(id);
  return false;
}

}  // namespace erdma::transport::verbs

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "transport/verbs/tcp_backend.h"

/// What travels on a socket: a hello, a welcome or a refusal, a confirm, and at the end a bye.
namespace erdma::transport::verbs {
namespace {

constexpr size_t kKindAt = offsetof(HelloPrefix, kind);

/// Bytes of the message that begins like this, as far as it can be told.
size_t frame_bytes(std::span<const std::byte> begin, size_t longest) noexcept {
  if (begin.size() <= kKindAt) return sizeof(HelloPrefix);
  const auto kind = HelloKind(uint8_t(begin[kKindAt]) & 0x7f);
  return kind == HelloKind::hello || kind == HelloKind::welcome ? longest : sizeof(HelloPrefix);
}

}  // namespace

/// True: `wanted` bytes are there. Else `ended` is 0 (more may come) or why none will.
bool TcpBackend::read_some(Socket& socket, size_t wanted, int& ended) noexcept {
  ended = 0;
  while (socket.have < wanted) {
    const ssize_t bytes = ::recv(socket.fd.get(), socket.frame.data() + socket.have,
                                 wanted - socket.have, MSG_DONTWAIT);
    if (bytes > 0) {
      socket.have = uint8_t(socket.have + bytes);
      continue;
    }
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) return false;
    ended = bytes < 0 && errno == ETIMEDOUT ? -FI_ETIMEDOUT : -FI_ECONNRESET;
    return false;
  }
  return true;
}

void TcpBackend::on_readable(Socket& socket, BackendEvents& events) {
  if (socket.state == State::ended) return;
  int ended = 0;
  const auto bytes = [&] { return std::span(socket.frame).first(socket.have); };
  bool complete = read_some(socket, sizeof(HelloPrefix), ended);
  // Another version may have other lengths: what begins so is not waited for.
  const bool odd = check_prefix(bytes()) != Refusal::none;
  if (complete && !odd) {
    const size_t wanted = frame_bytes(bytes(), sizeof(Frame));
    complete = read_some(socket, wanted, ended);
  }
  if (complete || odd) return on_frame(socket, events);
  if (ended) on_eof(socket, ended, events);
}

void TcpBackend::on_eof(Socket& socket, int status, BackendEvents& events) {
  if (socket.state == State::half_open)
    return drop_stranger(socket, "connected and hung up", !socket.have, events);
  end(socket, status, events);
}

void TcpBackend::on_frame(Socket& socket, BackendEvents& events) {
  const uint64_t id = socket.id;
  HelloPrefix prefix{};
  std::memcpy(&prefix, socket.frame.data(), std::min<size_t>(socket.have, sizeof(prefix)));
  switch (socket.state) {
    case State::half_open:
      return on_hello(socket, events);
    case State::requested:
      return on_answer(socket, events);
    case State::accepted:
      if (prefix.kind != uint8_t(HelloKind::confirm)) return end(socket, -FI_ECONNRESET, events);
      socket.state = State::up;
      socket.have = 0;
      return events.on_established(id);
    default: {
      const bool bye = socket.state == State::up && prefix.kind == uint8_t(HelloKind::bye);
      return end(socket, bye ? -FI_ESHUTDOWN : -FI_ECONNRESET, events);
    }
  }
}

void TcpBackend::on_hello(Socket& socket, BackendEvents& events) {
  const Socket& copy = socket;
  const auto frame = copy.frame;
  const size_t have = copy.have;
  x_half_open.clear(socket);
  socket.state = State::asked;
  socket.have = 0;
  socket.peer = {};
  if (have == sizeof(Frame))
    std::memcpy(socket.peer.data(), frame.data() + offsetof(Frame, path), sizeof(Path));
  const Path peer = socket.peer;
  events.on_request(socket.id, socket.from,
                    std::span(frame).first(std::min(have, sizeof(HelloBytes))), peer);
}

void TcpBackend::on_answer(Socket& socket, BackendEvents& events) {
  const auto frame = socket.frame;
  const size_t have = socket.have;
  socket.have = 0;
  if (have != sizeof(Frame)) {
    const uint64_t id = socket.id;
    epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, socket.fd.get(), nullptr);
    socket.state = State::ended;
    return events.on_refused(id, std::span(frame).first(have));
  }
  std::memcpy(socket.peer.data(), frame.data() + offsetof(Frame, path), sizeof(Path));
  const Path peer = socket.peer;
  events.on_accepted(socket.id, std::span(frame).first(sizeof(HelloBytes)), peer);
}

/// The socket stays until close(), and says nothing more.
void TcpBackend::end(Socket& socket, int status, BackendEvents& events) {
  epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, socket.fd.get(), nullptr);
  socket.state = State::ended;
  events.on_closed(socket.id, status);
}

int TcpBackend::send(Socket& socket, const void* bytes, size_t length) noexcept {
  // Few bytes into an empty buffer: if they do not fit, something is very wrong.
  const ssize_t sent = ::send(socket.fd.get(), bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == ssize_t(length) ? 0 : -FI_ECONNRESET;
}

int TcpBackend::send_frame(Socket& socket, const HelloBytes& hello) noexcept {
  const Frame frame{hello, socket.own};
  return send(socket, &frame, sizeof(frame));
}

ibv_qp* TcpBackend::create_queue_pair(uint64_t id, ibv_qp_init_attr& attr) noexcept {
  Socket* socket = find(id);
  if (!socket) return nullptr;
  socket->queue_pair = x_queue_pairs.create(id, attr);
  if (socket->queue_pair) socket->own = x_queue_pairs.describe(*socket->queue_pair);
  return socket->queue_pair;
}

Path TcpBackend::path(uint64_t id) const noexcept {
  const auto found = x_sockets.find(id);
  return found == x_sockets.end() ? Path{} : found->second.own;
}

int TcpBackend::join(Socket& socket) noexcept {
  ibv_qp* queue_pair = std::exchange(socket.queue_pair, nullptr);
  return queue_pair ? x_queue_pairs.join(*queue_pair, socket.own, socket.peer) : -FI_EINVAL;
}

int TcpBackend::request(uint64_t id, const HelloBytes& hello) noexcept {
  Socket* socket = find(id);
  if (!socket) return -FI_ECONNRESET;
  socket->state = State::requested;
  return send_frame(*socket, hello);
}

int TcpBackend::accept(uint64_t id, const HelloBytes& welcome) noexcept {
  Socket* socket = find(id);
  if (!socket) return -FI_ECONNRESET;
  if (const int rc = join(*socket)) return rc;
  socket->state = State::accepted;
  return send_frame(*socket, welcome);
}

int TcpBackend::confirm(uint64_t id) noexcept {
  Socket* socket = find(id);
  if (!socket) return -FI_ECONNRESET;
  if (const int rc = join(*socket)) return rc;
  socket->state = State::up;
  const HelloPrefix confirm = encode_prefix(HelloKind::confirm);
  return send(*socket, &confirm, sizeof(confirm));
}

void TcpBackend::refuse(uint64_t id, const HelloPrefix& refusal) noexcept {
  if (Socket* socket = find(id)) (void)send(*socket, &refusal, sizeof(refusal));
  close(id, false);
}

void TcpBackend::close(uint64_t id, bool orderly) noexcept {
  Socket* socket = find(id);
  if (!socket) return;
  if (orderly && socket->state == State::up) {
    const HelloPrefix bye = encode_prefix(HelloKind::bye);
    (void)send(*socket, &bye, sizeof(bye));
  }
  x_half_open.clear(*socket);
  x_sockets.erase(id);
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/hello_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include <rdma/fi_errno.h>

namespace erdma::transport::verbs {
namespace {

constexpr size_t kKindAt = offsetof(HelloPrefix, kind);

void set(int fd, int level, int option, int value) noexcept {
  ::setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

int bound_socket(const util::SocketAddress& address, bool late_port) noexcept {
  util::Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return -errno;
  set(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (late_port)
    set(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  else
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.data(), socklen_t(address.size()))) return -errno;
  return fd.release();
}

HelloKind HelloSocket::Message::kind() const noexcept {
  return HelloKind(length > kKindAt ? uint8_t(bytes[kKindAt]) : 0);
}

Path HelloSocket::Message::path() const noexcept {
  Path path{};
  if (is_frame()) std::memcpy(path.data(), bytes.data() + offsetof(Frame, path), sizeof(path));
  return path;
}

void HelloSocket::keep_alive(uint64_t peer_timeout_ns) noexcept {
  const int seconds = int(std::clamp<uint64_t>(peer_timeout_ns / 1'000'000'000, 2, 3600));
  set(x_fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set(x_fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set(x_fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(x_fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(x_fd.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(x_fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

bool HelloSocket::receive(int& ended) noexcept {
  const bool begun = read(sizeof(HelloPrefix), ended);
  // Another version may have other lengths, so a message that begins differently is complete at
  // once.
  if (check_prefix(std::span(x_read.bytes).first(x_read.length)) != Refusal::none) return true;
  if (!begun) return false;
  const auto kind = HelloKind(uint8_t(x_read.bytes[kKindAt]) & 0x7f);
  return read(
      kind == HelloKind::hello || kind == HelloKind::welcome ? sizeof(Frame) : sizeof(HelloPrefix),
      ended);
}

bool HelloSocket::read(size_t wanted, int& ended) noexcept {
  ended = 0;
  while (x_read.length < wanted) {
    const ssize_t bytes =
        ::recv(fd(), x_read.bytes.data() + x_read.length, wanted - x_read.length, MSG_DONTWAIT);
    if (bytes > 0) {
      x_read.length += size_t(bytes);
      continue;
    }
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) return false;
    ended = bytes < 0 && errno == ETIMEDOUT ? -FI_ETIMEDOUT : -FI_ECONNRESET;
    return false;
  }
  return true;
}

HelloSocket::Message HelloSocket::take() noexcept {
  return std::exchange(x_read, {});
}

int HelloSocket::send(const HelloBytes& hello, const Path& path) const noexcept {
  const Frame frame{hello, path};
  return write(&frame, sizeof(frame));
}

int HelloSocket::send(const HelloPrefix& message) const noexcept {
  return write(&message, sizeof(message));
}

int HelloSocket::write(const void* bytes, size_t length) const noexcept {
  // Few bytes go into an empty buffer: if they do not fit, the connection is unusable.
  const ssize_t sent = ::send(fd(), bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == ssize_t(length) ? 0 : -FI_ECONNRESET;
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/tcp_listener.h"

#include <sys/epoll.h>

#include <cerrno>

#include <rdma/fi_errno.h>

#include "transport/verbs/hello_socket.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kTcpBacklog = 1024;
constexpr uint64_t kPause = 100'000'000;

/// accept(2) returns what has happened to the new connection meanwhile. The next one may be well.
bool of_one_connection(int error) noexcept {
  switch (error) {
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ENONET:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case EPROTO:
      return true;
    default:
      return error == EINTR;
  }
}

}  // namespace

int TcpListener::open(int epoll, util::SocketAddress& name) noexcept {
  const int fd = bound_socket(name, false);
  if (fd < 0) return fd;
  x_fd.reset(fd);
  x_epoll = epoll;
  if (::listen(fd, kTcpBacklog)) return -errno;
  name.set_port(util::SocketAddress::of(fd, getsockname).port());
  return watch(EPOLL_CTL_ADD);
}

void TcpListener::close() noexcept {
  x_fd.reset();
  x_again = 0;
}

int TcpListener::watch(int operation) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return epoll_ctl(x_epoll, operation, x_fd.get(), &event) ? -errno : 0;
}

util::Fd TcpListener::accept(util::SocketAddress& from, uint64_t now) noexcept {
  for (int tries = 0; tries < 64; ++tries) {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    util::Fd fd(::accept4(x_fd.get(), reinterpret_cast<sockaddr*>(&storage), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      from = util::SocketAddress::from_sockaddr(&storage, length);
      return fd;
    }
    if (of_one_connection(errno)) continue;
    if (errno != EAGAIN) pause(errno, now);
    break;
  }
  return {};
}

void TcpListener::pause(int error, uint64_t now) noexcept {
  ERDMA_NOTICE(descriptors, EP_CTRL, "cannot accept a connection: %s%s", fi_strerror(error),
               error == EMFILE ? "; each peer needs a descriptor (ulimit -n)" : "");
  (void)watch(EPOLL_CTL_DEL);
  x_again = now + kPause;
}

void TcpListener::resume(uint64_t now) noexcept {
  if (!x_again || x_again > now) return;
  x_again = x_fd && watch(EPOLL_CTL_ADD) ? now + kPause : 0;
}

}  // namespace erdma::transport::verbs

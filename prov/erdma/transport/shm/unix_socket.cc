#include "transport/shm/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <rdma/fi_errno.h>

#include "util/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace erdma::transport::shm {
namespace {

constexpr int kBacklog = 1024;

struct AbstractName {
  sockaddr_un address{};
  socklen_t bytes = 0;

  AbstractName(const std::string& host, uint16_t port) {
    const std::string name = "erdma/" + host + ":" + std::to_string(port);
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&address); }
};

util::Fd make_socket() noexcept {
  return util::Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

util::Result<util::Fd> bind_as(const std::string& host, uint16_t port) {
  const AbstractName unix_name(host, port);
  util::Fd socket = make_socket();
  if (!socket) return -errno;
  if (bind(socket.get(), unix_name.data(), unix_name.bytes)) return -errno;
  return socket;
}

/// Takes every descriptor out of the message; those beyond kMaxPassedFds are closed.
void take_fds(msghdr& message, Received& received) noexcept {
  size_t taken = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int raw;
      std::memcpy(&raw, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      util::Fd fd(raw);
      if (taken < kMaxPassedFds) received.fds[taken++] = std::move(fd);
    }
  }
}

}  // namespace

util::Result<util::Fd> listen_as(const util::SocketAddress& name, NameScope scope) {
  auto socket = bind_as(scope == NameScope::host ? "*" : name.host_string(), name.port());
  if (socket && listen(socket->get(), kBacklog)) return -errno;
  return socket;
}

util::Result<util::Fd> reserve(const util::SocketAddress& name) {
  return bind_as(name.host_string(), name.port());
}

util::Result<util::Fd> connect_as_peer(const util::SocketAddress& name) {
  int error = -FI_ECONNREFUSED;
  for (const std::string& host : {name.host_string(), std::string("*")}) {
    const AbstractName unix_name(host, name.port());
    util::Fd socket = make_socket();
    if (!socket) return -errno;
    if (!connect(socket.get(), unix_name.data(), unix_name.bytes)) return socket;
    error = -errno;
    if (error != -ECONNREFUSED) break;
  }
  return error;
}

Received receive(int socket, void* buffer, size_t room) noexcept {
  Received received;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(8 * sizeof(int))];
  iovec iov{buffer, room};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  bool reset_seen = false;
  do {
    received.bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received.bytes >= 0) break;
    received.bytes = -errno;
    // After a peer closed with unread messages, this error precedes what the peer sent last.
    if (received.bytes == -ECONNRESET && reset_seen) return received;
    reset_seen = reset_seen || received.bytes == -ECONNRESET;
  } while (received.bytes == -EINTR || received.bytes == -ECONNRESET);
  if (received.bytes < 0) return received;
  take_fds(message, received);
  received.truncated = message.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
  received.fds_lost = (message.msg_flags & MSG_CTRUNC) && !received.fds[kMaxPassedFds - 1];
  return received;
}

int send_message(int socket, const void* bytes, size_t length, const int* fds,
                 size_t fd_count) noexcept {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  iovec iov{const_cast<void*>(bytes), length};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (fd_count) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  ssize_t rc;
  do {
    rc = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (rc < 0 && errno == EINTR);
  return rc < 0 ? -errno : 0;
}

// The kernel compares the descriptors that all processes of a user have on their way with the limit
// of the process that sends one more.
bool lacks_room(int status) noexcept {
  if (status == -ETOOMANYREFS)
    ERDMA_NOTICE(descriptors, EP_CTRL,
                 "processes of this user pass too many descriptors at once; waiting; raise "
                 "RLIMIT_NOFILE (ulimit -n)");
  else if (status == -ENOMEM || status == -ENOBUFS)
    ERDMA_WARN(EP_CTRL, "no memory to pass a descriptor to a peer; waiting\n");
  else
    return false;
  return true;
}

Credentials peer_credentials(int socket) noexcept {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes)) return {};
  return {credentials.pid, credentials.uid};
}

// Before 6.5 the kernel identifies the peer only by its pid, which another process may have once
// the peer is dead. The peer's socket is then closed, unless one of its children holds it.
util::Result<util::Fd> peer_pidfd(int socket, pid_t pid) noexcept {
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (!getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes)) return util::Fd(fd);
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return util::Fd();
  if (errno != ENOPROTOOPT && errno != EOPNOTSUPP) return -ESRCH;
  if (pid <= 0) return util::Fd();
  util::Fd opened(int(syscall(SYS_pidfd_open, pid, 0)));
  if (!opened) return errno == ESRCH ? util::Result<util::Fd>(-ESRCH) : util::Fd();
  pollfd closed{socket, POLLRDHUP, 0};
  if (::poll(&closed, 1, 0) == 1 && (closed.revents & (POLLRDHUP | POLLHUP))) return -ESRCH;
  return opened;
}

uint64_t boot_id_hash() noexcept {
  char text[64] = {};
  const util::Fd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd || read(fd.get(), text, sizeof(text) - 1) <= 0) return 0;
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char* c = text; *c; ++c) hash = (hash ^ uint8_t(*c)) * 1099511628211u;
  return hash;
}

}  // namespace erdma::transport::shm

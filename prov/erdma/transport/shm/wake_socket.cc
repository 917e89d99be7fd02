#include "transport/shm/wake_socket.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <iterator>

#include "util/random_word.h"

namespace erdma::transport::shm {
namespace {

constexpr int kAttempts = 16;  // at an unused name
constexpr unsigned kDrainedAtOnce = 8;

struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;

  explicit Name(uint64_t number) noexcept {
    address.sun_family = AF_UNIX;
    const int length = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                     "erdma/wake/%016lx", static_cast<unsigned long>(number));
    bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1) + socklen_t(length);
  }
  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

util::Fd datagram_socket() noexcept {
  return util::Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// The kernel drops every datagram that does not begin with the secret, without waking the process.
/// BPF loads words in network order.
int accept_only(int socket, uint64_t secret) noexcept {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(&secret);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter{std::size(program), program};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) ? -errno : 0;
}

constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;

/// Whether the kernel had no memory for a datagram.
bool is_without_memory(int error) noexcept {
  return error == ENOBUFS || error == ENOMEM;
}

}  // namespace

util::Result<WakeSocket> WakeSocket::open() noexcept {
  WakeSocket bell;
  bell.x_socket = datagram_socket();
  if (!bell.x_socket) return -errno;
  bell.x_address.secret = util::random_word();
  // Without filters, strangers can cause useless wake-ups but nothing worse.
  (void)accept_only(bell.fd(), bell.x_address.secret);
  int error = EADDRINUSE;
  for (int i = 0; i < kAttempts && error == EADDRINUSE; ++i) {
    bell.x_address.name = util::random_word();
    const Name name(bell.x_address.name);
    error = bind(bell.fd(), name.data(), name.bytes) ? errno : 0;
  }
  if (error) return -error;
  return bell;
}

/// As Mailbox::post(): the message behind the bell must not be lost, and nobody rings twice for it.
void WakeSocket::ring() const noexcept {
  const Name name(x_address.name);
  while (sendto(fd(), &x_address.secret, sizeof(x_address.secret), kFlags, name.data(),
                name.bytes) < 0 &&
         is_without_memory(errno))
    usleep(1000);
}

void WakeSocket::drain() const noexcept {
  // Each has room for a byte: qemu-user takes no datagram for which there is none, and says that it
  // did, so the loop would not end.
  char byte;
  iovec room{&byte, sizeof(byte)};
  mmsghdr messages[kDrainedAtOnce] = {};
  for (mmsghdr& message : messages) message.msg_hdr.msg_iov = &room, message.msg_hdr.msg_iovlen = 1;
  while (recvmmsg(fd(), messages, kDrainedAtOnce, MSG_DONTWAIT, nullptr) == int(kDrainedAtOnce))
    continue;
}

util::Result<Waker> Waker::to(const WakeAddress& address) noexcept {
  Waker waker;
  waker.x_socket = datagram_socket();
  if (!waker.x_socket) return -errno;
  const Name name(address.name);
  if (connect(waker.x_socket.get(), name.data(), name.bytes)) return -errno;
  waker.x_secret = address.secret;
  return waker;
}

bool Waker::ring() const noexcept {
  const bool rung = send(x_socket.get(), &x_secret, sizeof(x_secret), kFlags) >= 0;
  x_due = !rung && is_without_memory(errno);
  return !x_due;
}

}  // namespace erdma::transport::shm

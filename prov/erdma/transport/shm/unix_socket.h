#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/shm/options.h"
#include "util/fd.h"
#include "util/result.h"
#include "util/socket_address.h"

/// AF_UNIX SOCK_SEQPACKET sockets with abstract names, and passing descriptors through them.
namespace erdma::transport::shm {

inline constexpr size_t kMaxPassedFds = 2;

/// A socket that listens as the endpoint `name`. -FI_EADDRINUSE, ...
util::Result<util::Fd> listen_as(const util::SocketAddress& name, NameScope scope);
/// A socket that keeps others from listening as `name` in NameScope::address, and that refuses
/// connections. -FI_EADDRINUSE, ...
util::Result<util::Fd> reserve(const util::SocketAddress& name);
/// Connects to the endpoint `name`: under this very IP, or else under all IPs of the host.
/// -FI_ECONNREFUSED = no socket listens; -FI_EAGAIN = the listener's queue is full.
util::Result<util::Fd> connect_as_peer(const util::SocketAddress& name);

/// One message received.
struct Received {
  ssize_t bytes = 0;       ///< 0 = end of stream; negative errno (-EAGAIN = nothing there)
  bool truncated = false;  ///< longer than the buffer, or descriptors were lost
  bool fds_lost = false;   ///< this process had no room for its descriptors
  std::array<util::Fd, kMaxPassedFds> fds;
};
Received receive(int socket, void* buffer, size_t room) noexcept;
/// Never blocks. 0 or negative errno.
int send_message(int socket, const void* message, size_t bytes, const int* fds = nullptr,
                 size_t fd_count = 0) noexcept;
/// True if send_message() failed for want of what the kernel may have later: memory, or room for
/// descriptors on their way. Logs the limit and its remedy.
bool lacks_room(int status) noexcept;

struct Credentials {
  pid_t pid = 0;  ///< as seen here; 0 = not in a pid namespace visible here
  uid_t uid = uid_t(-1);
};
Credentials peer_credentials(int socket) noexcept;
/// Readable once the peer process has exited; -1 = not available. -ESRCH: it has exited.
util::Result<util::Fd> peer_pidfd(int socket, pid_t pid) noexcept;

uint64_t boot_id_hash() noexcept;

}  // namespace erdma::transport::shm

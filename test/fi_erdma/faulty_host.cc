// Preloaded into fi_erdma: a kernel with one fault, which FAULTY_HOST names.
//   cma      a byte of what CMA moves from or to another process is wrong
//   passing  no descriptor arrives that another process passed
//   stale    CMA within a process moves the old bytes of memory that was replaced by other memory
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kLong = size_t(1) << 20;
constexpr ssize_t kShortest = 64 * 1024;  ///< of a transfer of which a byte is wrong

/// The memory that was replaced last.
const char* g_at = nullptr;
char* g_kept = nullptr;

bool has(std::string_view fault) {
  const char* const name = std::getenv("FAULTY_HOST");
  return name && name == fault;
}

/// Replaces the bytes that were moved from memory that was replaced. Both are of this process.
void make_stale(const iovec* to, unsigned long tos, const iovec* from, unsigned long froms) {
  for (unsigned long i = 0; g_at && i < std::min(tos, froms); ++i) {
    const char* const begin = static_cast<const char*>(from[i].iov_base);
    if (begin < g_at || begin >= g_at + kLong) continue;
    const size_t room = size_t(g_at + kLong - begin);
    std::memcpy(to[i].iov_base, g_kept + (begin - g_at),
                std::min({to[i].iov_len, from[i].iov_len, room}));
  }
}

}  // namespace

EXPORT void* mmap(void* at, size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept {
  if ((flags & MAP_FIXED) && (flags & MAP_ANONYMOUS) && bytes == kLong && has("stale") &&
      (g_kept = static_cast<char*>(std::malloc(bytes)))) {
    std::memcpy(g_kept, at, bytes);
    g_at = static_cast<const char*>(at);
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

EXPORT ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                const iovec* remote, unsigned long remotes,
                                unsigned long flags) noexcept {
  const ssize_t moved = syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
  if (moved >= kShortest && pid != getpid() && has("cma"))
    static_cast<char*>(local[0].iov_base)[17] ^= 1;
  if (pid == getpid()) make_stale(local, locals, remote, remotes);
  return moved;
}

EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long locals,
                                 const iovec* remote, unsigned long remotes,
                                 unsigned long flags) noexcept {
  const ssize_t moved = syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
  if (moved >= kShortest && pid != getpid() && has("cma")) {
    char wrong = char(static_cast<const char*>(local[0].iov_base)[17] ^ 1);
    const iovec one{&wrong, 1}, there{static_cast<char*>(remote[0].iov_base) + 17, 1};
    (void)syscall(SYS_process_vm_writev, pid, &one, 1, &there, 1, 0);
  }
  if (pid == getpid()) make_stale(remote, remotes, local, locals);
  return moved;
}

EXPORT ssize_t recvmsg(int socket, msghdr* message, int flags) {
  const ssize_t got = syscall(SYS_recvmsg, socket, message, flags);
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (got < 0 || !CMSG_FIRSTHDR(message) || !has("passing") ||
      getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.pid == getpid())
    return got;
  // As where a security module refuses them to the receiver. The descriptors stay open.
  message->msg_controllen = 0;
  message->msg_flags |= MSG_CTRUNC;
  return got;
}

#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "transport/verbs/hello.h"
#include "util/fd.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

/// A TCP socket, not blocking, of the family of `address` and bound to it. -errno. `late_port`:
/// connect() chooses the port, and may use one port for many peers.
int bound_socket(const util::SocketAddress& address, bool late_port) noexcept;
/// What getsockname() or getpeername() says.
util::SocketAddress address_of(int fd, int (*get)(int, sockaddr*, socklen_t*)) noexcept;

/// A connection of TCP that carries what a handshake says: a hello, a welcome or a refusal, a
/// confirm, and at the end a bye.
class HelloSocket {
 public:
  /// A hello or a welcome.
  struct Frame {
    HelloBytes hello;
    Path path;
  };
  static_assert(sizeof(Frame) == 112);
  /// One message: a frame, or at least as many bytes as show what it is instead.
  struct Message {
    std::array<std::byte, sizeof(Frame)> bytes;
    size_t length;

    bool is_frame() const noexcept { return length == sizeof(Frame); }
    HelloKind kind() const noexcept;
    std::span<const std::byte> hello() const noexcept {
      return std::span(bytes).first(std::min(length, sizeof(HelloBytes)));
    }
    Path path() const noexcept;  ///< nothing, unless it is a frame
  };

  void open(util::Fd fd) noexcept { x_fd = std::move(fd); }
  /// Once connected: the kernel notices a host that vanishes, in `peer_timeout_ns` at most.
  void keep_alive(uint64_t peer_timeout_ns) noexcept;
  int fd() const noexcept { return x_fd.get(); }

  /// Reads what there is. True: a message is complete, to be taken by take(). Else `ended` is 0
  /// (more may come) or says why none will.
  bool receive(int& ended) noexcept;
  Message take() noexcept;
  bool heard_nothing() const noexcept { return x_read.length == 0; }
  /// -FI_ECONNRESET: it did not leave.
  int send(const HelloBytes& hello, const Path& path) const noexcept;
  int send(const HelloPrefix& message) const noexcept;

 private:
  bool read(size_t wanted, int& ended) noexcept;
  int write(const void* bytes, size_t length) const noexcept;

  util::Fd x_fd;
  Message x_read{};  ///< so far
};

}  // namespace erdma::transport::verbs

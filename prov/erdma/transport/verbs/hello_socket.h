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

/// A non-blocking TCP socket of the family of `address` and bound to it, or -errno. `late_port`:
/// connect() chooses the port, and may use one port for many peers.
int bound_socket(const util::SocketAddress& address, bool late_port) noexcept;

/// A TCP connection that carries the messages of a handshake: a hello, a welcome or a refusal, a
/// confirm, and at the end a bye.
class HelloSocket {
 public:
  /// A hello or a welcome.
  struct Frame {
    HelloBytes hello;
    Path path;
  };
  static_assert(sizeof(Frame) == 112);
  /// One message: a frame, or as many bytes as show that it is something else.
  struct Message {
    std::array<std::byte, sizeof(Frame)> bytes;
    size_t length;

    bool is_frame() const noexcept { return length == sizeof(Frame); }
    HelloKind kind() const noexcept;
    std::span<const std::byte> hello() const noexcept {
      return std::span(bytes).first(std::min(length, sizeof(HelloBytes)));
    }
    Path path() const noexcept;  ///< zeros unless it is a frame
  };

  void open(util::Fd fd) noexcept { x_fd = std::move(fd); }
  /// Call once connected: makes the kernel notice, within `peer_timeout_ns`, that a host has
  /// vanished.
  void keep_alive(uint64_t peer_timeout_ns) noexcept;
  int fd() const noexcept { return x_fd.get(); }

  /// Reads what has arrived. True: a message is complete, for take(). False: `ended` is 0 (more may
  /// come) or tells why none will.
  bool receive(int& ended) noexcept;
  Message take() noexcept;
  bool heard_nothing() const noexcept { return x_read.length == 0; }
  /// -FI_ECONNRESET: the message was not sent.
  int send(const HelloBytes& hello, const Path& path) const noexcept;
  int send(const HelloPrefix& message) const noexcept;

 private:
  bool read(size_t wanted, int& ended) noexcept;
  int write(const void* bytes, size_t length) const noexcept;

  util::Fd x_fd;
  Message x_read{};  ///< received so far
};

}  // namespace erdma::transport::verbs

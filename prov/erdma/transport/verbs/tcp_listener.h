#pragma once

#include <cstdint>

#include "util/fd.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

/// A listening socket in an epoll set. It pauses while the process has no descriptors for
/// connections: waiting connections would keep it readable, and its thread would spin.
class TcpListener {
 public:
  /// Reports readiness in `epoll` as event 0. Fills in a port of 0. 0 or -errno.
  int open(int epoll, util::SocketAddress& name) noexcept;
  void close() noexcept;
  /// The next connection; empty: none is waiting, or there is no descriptor for it.
  util::Fd accept(util::SocketAddress& from, uint64_t now) noexcept;
  /// When the pause ends; UINT64_MAX: there is none.
  uint64_t paused_until() const noexcept { return x_again ? x_again : UINT64_MAX; }
  void resume(uint64_t now) noexcept;

 private:
  void pause(int error, uint64_t now) noexcept;
  int watch(int operation) noexcept;

  int x_epoll = -1;
  util::Fd x_fd;
  uint64_t x_again = 0;  ///< 0 = listening
};

}  // namespace erdma::transport::verbs

#pragma once

#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

/// How a process that sleeps is woken: a datagram socket of its own, which peers send to.
///
/// No descriptor is shared for it. What one process hands to another is one open file with one set
/// of flags: a peer that made an eventfd blocking, and full, would stop everybody who wakes it; one
/// that emptied it would keep everybody asleep. MSG_DONTWAIT is of a call, and a socket that only
/// its owner has can neither be read nor shut down by others.
namespace erdma::transport::shm {

/// Tells a peer how to wake this endpoint; travels in the greeting.
struct WakeAddress {
  uint64_t name = 0;    ///< random; makes the socket's abstract name
  uint64_t secret = 0;  ///< a datagram of other content is dropped: names can be seen by every user
};

/// Of the endpoint that sleeps. fd() is readable once somebody rang, until drain().
class WakeSocket {
 public:
  WakeSocket() noexcept = default;
  static util::Result<WakeSocket> open() noexcept;

  int fd() const noexcept { return x_socket.get(); }
  const WakeAddress& address() const noexcept { return x_address; }
  /// By another thread of this process. Never blocks.
  void ring() const noexcept;
  void drain() const noexcept;
  void reset() noexcept { x_socket.reset(); }

 private:
  util::Fd x_socket;
  WakeAddress x_address;
};

/// Of one who wakes. Each peer has a socket of its own, so that datagrams that one peer does not
/// read take no buffer from another's.
class Waker {
 public:
  Waker() noexcept = default;
  /// -FI_ECONNREFUSED: there is no such doorbell. -FI_EMFILE, ...
  static util::Result<Waker> to(const WakeAddress& address) noexcept;

  /// Never blocks. What finds no room finds a doorbell that rings already.
  void ring() const noexcept;

 private:
  util::Fd x_socket;
  uint64_t x_secret = 0;
};

}  // namespace erdma::transport::shm

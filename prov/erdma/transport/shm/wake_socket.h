#pragma once

#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

/// Waking a process that sleeps: it owns a datagram socket, to which its peers send.
///
/// No descriptor is shared for this. A descriptor passed to another process refers to the same open
/// file with the same flags: a peer that made an eventfd blocking, and full, would block every
/// process that wakes its owner; a peer that emptied it would keep the owner asleep. MSG_DONTWAIT
/// belongs to one call, and a socket that only its owner holds can neither be read nor shut down by
/// others.
namespace erdma::transport::shm {

/// Tells a peer how to wake this endpoint; sent in the greeting.
struct WakeAddress {
  uint64_t name = 0;    ///< random; makes the socket's abstract name
  uint64_t secret = 0;  ///< a datagram with another content is dropped: every user can see the name
};

/// The side that sleeps. fd() is readable from the first ring until drain().
class WakeSocket {
 public:
  WakeSocket() noexcept = default;
  static util::Result<WakeSocket> open() noexcept;

  int fd() const noexcept { return x_socket.get(); }
  const WakeAddress& address() const noexcept { return x_address; }
  /// For the connection thread of this endpoint. Waits while the kernel has no memory for a
  /// datagram.
  void ring() const noexcept;
  void drain() const noexcept;
  void reset() noexcept { x_socket.reset(); }

 private:
  util::Fd x_socket;
  WakeAddress x_address;
};

/// The side that wakes. Each peer has a socket of its own, so that unread datagrams of one peer
/// take no buffer space from another.
class Waker {
 public:
  Waker() noexcept = default;
  /// -FI_ECONNREFUSED: there is no such socket. -FI_EMFILE, ...
  static util::Result<Waker> to(const WakeAddress& address) noexcept;

  /// Never blocks. If the queue is full, the receiver has a wake-up pending already. False: the
  /// kernel had no memory for it, so ring_again() must follow.
  bool ring() const noexcept;
  /// Rings if the last ring() returned false. Returns what ring() returns.
  bool ring_again() const noexcept { return !x_due || ring(); }

 private:
  util::Fd x_socket;
  mutable bool x_due = false;
  uint64_t x_secret = 0;
};

}  // namespace erdma::transport::shm

#pragma once

#include <utility>

#include "protocol/arguments.h"
#include "protocol/controls.h"
#include "protocol/spare_buffers.h"

namespace erdma::protocol {

/// The unexpected messages of one engine. Their memory has a budget for each peer. A peer that
/// exceeds it is told to send headers only (rts), until there is room again.
class UnexpectedMessages {
 public:
  UnexpectedMessages(const EngineConfig& config, Controls& controls) noexcept
      : x_budget(config.unexpected_bytes), x_controls(controls) {}

  /// Returns how many bytes an unexpected message of this length is charged at most.
  static size_t most_cost(size_t length) noexcept;
  /// Queues a message, `length` bytes of which are here. Null: the peer keeps too much memory here
  /// already, and its link fails. Throws std::bad_alloc, and then nothing has happened.
  Unexpected* store(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                    const std::byte* payload, size_t length, Matcher& queues);
  /// Returns whether release() was called since the last take_released().
  bool released() const noexcept { return x_released; }
  bool take_released() noexcept { return std::exchange(x_released, false); }
  /// Releases a message that has left the matcher.
  void release(Unexpected& message) noexcept;

 private:
  Unexpected& make(const std::byte* payload, size_t length, size_t room);
  void send_budget(Peer& peer) noexcept;
  const char* excess(const Peer& peer) const noexcept;
  void throttle(Peer& peer, transport::Link& link) noexcept;
  void tell(Peer& peer) noexcept;

  const size_t x_budget;
  Controls& x_controls;
  SpareBuffers x_buffers;
  util::Pool<Unexpected> x_messages;
  bool x_released = false;
};

}  // namespace erdma::protocol

#pragma once

#include "protocol/arguments.h"
#include "protocol/controls.h"

namespace erdma::protocol {

/// The unexpected messages of one engine, and the budget of memory for each peer's. Beyond it the
/// peer is told to send headers only, until there is room again.
class UnexpectedMessages {
 public:
  UnexpectedMessages(const EngineConfig& config, Controls& controls) noexcept
      : x_budget(config.unexpected_bytes), x_controls(controls) {}

  /// Queues it. Throws std::bad_alloc: nothing has happened.
  Unexpected& store(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                    const std::byte* payload, size_t length, Matcher& queues);
  /// The message is off the matcher.
  void release(Unexpected& message) noexcept;
  /// The same, of one that nobody receives.
  void discard(Unexpected& message) noexcept;

 private:
  Unexpected& make(const std::byte* payload, size_t length);
  void send_budget(Peer& peer) noexcept;
  void throttle(Peer& peer, transport::Link& link) noexcept;

  const size_t x_budget;
  Controls& x_controls;
  util::Pool<Unexpected> x_messages;
};

}  // namespace erdma::protocol

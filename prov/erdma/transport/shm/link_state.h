#pragma once

#include <cstdint>

namespace erdma::transport::shm {

/// The life of a link.
///
///            send()               the peer's welcome
///     idle ---------> connecting ------------------> up
///      ^                   |                          |
///      |                   +------------+-------------+   also from idle: the peer alone sends
///      |                                |
///      |               break_link()     |    end()
///      |            +-------------------+-----------------+
///      |            v                                     v
///      |          broken ------------ advance() -----> ending
///      |                                                  |
///      +------ on_link_down() ------- advance() ----------+
///
///   shutdown() leads from everywhere to closed, without a word to the protocol.
///
/// LinkEnds makes the transitions below the line; nothing else ends a link.
enum class LinkState : uint8_t {
  idle,        ///< not connected in this direction; the peer may be, in its own
  connecting,  ///< the connector is going to report the outcome
  up,          ///< packets can be sent
  broken,      ///< arriving entries are no longer delivered; the link ends with the next poll
  /// The peer may still be inside a write into local memory: no operation completes before it is
  /// out.
  ending,
  closed,  ///< the endpoint is closed
};

/// Why nothing more is delivered.
enum class LinkFault : uint8_t { none, invalid_entry, broken_rules };

/// The state, and what a link on its way down must remember.
struct LinkPhase {
  LinkState state = LinkState::idle;
  LinkFault fault = LinkFault::none;
  int status = 0;         ///< broken, ending: the status to report
  uint64_t deadline = 0;  ///< ending: when this side stops waiting for the peer
};

}  // namespace erdma::transport::shm

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
/// LinkEnds drives what is below the line; nothing else ends a link.
enum class LinkState : uint8_t {
  idle,        ///< not connected: the peer may be, in its own direction
  connecting,  ///< the connector is about to say how it went
  up,          ///< packets can be sent
  broken,      ///< nothing that arrives is delivered any more; ends with the next poll
  ending,      ///< the peer may still be inside a write into local memory: nothing completes before
  closed,      ///< the endpoint is closed
};

/// The state, and what a link on its way down has to remember.
struct LinkPhase {
  LinkState state = LinkState::idle;
  int status = 0;             ///< broken, ending: to report
  const char* why = nullptr;  ///< it broke, so nothing more is delivered: static text
  uint64_t deadline = 0;      ///< ending: the peer is not waited for longer
};

}  // namespace erdma::transport::shm

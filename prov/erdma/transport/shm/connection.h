#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "transport/shm/cma.h"
#include "transport/shm/cold_rings.h"
#include "transport/shm/wake_socket.h"
#include "transport/shm/wire.h"
#include "util/fd.h"
#include "util/ref.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

class ShmLink;
struct Connection;

/// A remote endpoint that was alive when it sent its greeting. Both channels between two endpoints
/// share it, so each peer costs one pidfd and one socket to wake it.
struct PeerProcess : util::Counted {
  // Members up to `expedited` never change, except for what the polling thread notes in `waker`.
  util::SocketAddress name;  ///< the name that the peer claims
  uint64_t nonce = 0;
  uint64_t id = 0;
  Waker waker;  ///< wakes this process
  PeerLife& life() const noexcept { return cma.process->life; }
  bool expedited = false;  ///< barrier_on_all(registered) reaches it
  // Background thread only, except for cma.process, which never changes:
  bool proven = false;  ///< the kernel confirmed that it listens under its name
  bool admission_answered = false;
  uint8_t proofs_asked = 0;  ///< without those that were lost with their connection
  uint32_t mark = 0;         ///< the value that the proof must report
  uint32_t connections = 0;  ///< how many lead to it
  bool closing = false;      ///< it said that its endpoint closes
  CmaPeer cma;
  /// The connections over which this side awaits an answer about CMA; 0 = none.
  uint64_t admission_over = 0;
  uint64_t proof_over = 0;
};

/// A request of the polling thread. The background thread does not dereference `link`.
struct ConnectRequest {
  ShmLink* link = nullptr;
  uint32_t attempt = 0;
  util::SocketAddress address;
  bool retry_refused = false;  ///< the peer may still be starting
};

enum class ConnectionState : uint8_t {
  connecting,        ///< outbound: the peer does not listen yet; next try at `deadline`
  awaiting_welcome,  ///< outbound
  awaiting_hello,    ///< inbound
  up,
  hung_up,  ///< the socket closed: until `deadline` this side waits for the pidfd to say why
  // Inbound, in quarantine (quarantine.cc):
  lost,     ///< the polling thread was told that the channel is over and has not closed it yet
  leaving,  ///< closed here; its sender may still write into the ring that it was given
};

/// What a connection needs only until it is established.
struct ConnectionAttempt {
  ConnectRequest request;  ///< outbound
  uint64_t started = 0;
  uint64_t backoff = 0;
  Welcome welcome;  ///< outbound: the answer, valid once `chunk` is set
  util::Fd chunk;   ///< the memory that came with the answer
};

/// The control socket of one channel. The background thread receives from it; either thread sends.
struct Connection : util::Counted {
  /// Inbound: the ring given to the peer.
  ColdPlace place() const noexcept { return {chunk, ring}; }
  ColdControl& control() const noexcept { return chunk->controls[ring]; }
  util::Fd socket;
  uint32_t ring = 0;                ///< inbound: the index in `chunk`
  std::atomic<uint32_t> unread{0};  ///< its control messages that are in the mailbox
  /// This side closed it: the end of its socket says nothing about the peer.
  std::atomic<bool> closed{false};
  bool outbound = false;
  // Background thread only, up to the next blank line:
  ConnectionState state = ConnectionState::awaiting_hello;
  bool requested = false;    ///< outbound: a link has asked for it
  bool sender_done = false;  ///< inbound: the sender no longer writes into its ring
  /// Inbound and up, but the kernel did not pass the ring. The next try is at `deadline`; the
  /// negotiation about CMA waits for it.
  bool welcome_due = false;
  /// Outbound and up: since when this process has no descriptor for the message that comes next, or
  /// cannot map `unmapped`. It tries again at `deadline`; 0 = it lacks nothing.
  uint64_t lacks_since = 0;
  util::Fd unmapped;  ///< outbound and up: the memory of large messages, until it can be mapped
  bool name_proven = false;  ///< inbound: the greeting process listens under the name it gave
  /// The peer asked for admission here, but the application has not addressed it yet.
  bool admission_due = false;
  uint64_t id = 0;
  uint64_t deadline = 0;  ///< 0 = none
  /// Null once the connection is established. An outbound one keeps it if its process listens under
  /// the requested name, but greets with another: the address of the peer is in the request.
  std::unique_ptr<ConnectionAttempt> attempt = std::make_unique<ConnectionAttempt>();

  util::Ref<PeerProcess> process;  ///< set once greeted
  ColdChunk* chunk = nullptr;      ///< inbound: has the ring given to the peer
  ShmLink* link = nullptr;         ///< polling thread only
};

}  // namespace erdma::transport::shm

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/shm/cma.h"
#include "transport/shm/cold_rings.h"
#include "transport/shm/wake_socket.h"
#include "transport/shm/wire.h"
#include "util/fd.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

class ShmLink;
struct Connection;

/// A remote endpoint, alive when it greeted. Both channels between two endpoints share it, so each
/// peer costs one pidfd and one socket to wake it. Members above the line never change.
struct PeerProcess {
  util::SocketAddress name;  ///< as it calls itself
  uint64_t nonce = 0;
  uint64_t id = 0;
  bool expedited = false;  ///< a barrier_on_all(registered) reaches it
  Waker waker;             ///< wakes it
  std::shared_ptr<PeerLife> life;
  // Background thread only:
  bool proven = false;  ///< by the kernel: it listens under its name
  CmaPeer cma;          ///< with the same life
  bool admission_asked = false;
  bool admission_answered = false;
  bool admission_owed = false;  ///< it asked, and the application has not addressed it
  uint8_t proofs_asked = 0;
  bool proof_pending = false;
  uint32_t mark = 0;  ///< what proof has to say
  std::vector<Connection*> connections;
};

/// What the polling thread asks for. `link` is not looked at by the background thread.
struct ConnectRequest {
  ShmLink* link = nullptr;
  uint32_t attempt = 0;
  util::SocketAddress address;
  bool patient = false;  ///< the peer may still be starting
};

enum class ConnectionState : uint8_t {
  connecting,        ///< outbound: nobody listens yet; next try at `deadline`
  awaiting_welcome,  ///< outbound
  awaiting_hello,    ///< inbound
  up,
  hung_up,  ///< the socket closed: until `deadline` we wait for the pidfd to say why
  // Inbound, in quarantine (quarantine.cc):
  lost,     ///< the polling thread was told that it is over, and has not closed it yet
  leaving,  ///< closed here; its sender may still write into the ring that it was given
};

/// The control socket of one channel. Received from by the background thread; either thread sends.
struct Connection : std::enable_shared_from_this<Connection> {
  util::Fd socket;
  bool outbound = false;
  std::shared_ptr<PeerProcess> process;  ///< set once greeted
  ColdPlace place;                       ///< inbound: the ring given out
  std::atomic<uint32_t> unread{0};       ///< of its control messages, in the mailbox
  std::atomic<bool> closed{false};       ///< here: that its socket ends says nothing of the peer
  // Background thread only:
  ConnectionState state = ConnectionState::awaiting_hello;
  uint64_t id = 0;
  uint64_t deadline = 0;  ///< 0 = none
  uint64_t started = 0;
  uint64_t backoff = 0;
  bool sender_done = false;  ///< inbound: it writes into its ring no more
  ConnectRequest request;
  Welcome welcome;           ///< outbound: the answer, once `chunk` is there
  util::Fd chunk;            ///< that it came with
  bool name_proven = false;  ///< inbound: who greeted listens under the name it gave
  // Polling thread only:
  ShmLink* link = nullptr;
};

}  // namespace erdma::transport::shm

#pragma once

#include <unordered_set>

#include "transport/shm/connections.h"

namespace erdma::transport::shm {

/// What two processes negotiate about CMA after the hello: which may trace which under Yama, and
/// the proof of a peer that may only be written to. Connector's thread only. See
/// docs/architecture.md, "Permission for CMA".
class CmaNegotiation {
 public:
  explicit CmaNegotiation(Connections& connections) noexcept : x_connections(connections) {}

  /// Fills in what is known so far.
  static void describe(Mail& mail) noexcept;
  /// Asks the peer to admit this process as its tracer where Yama requires that. Must not run
  /// before this side has sent its Welcome, because a peer expects that first.
  void begin(Connection& connection) noexcept;
  void on_admit(Connection& connection);
  void on_admit_answer(Connection& connection, int status);
  void on_prove(Connection& connection, uint32_t word) noexcept;
  void on_proof(Connection& connection, uint32_t found);
  /// No answer comes over this connection any more. What was asked over it is asked again: now, or
  /// over the next connection to the process.
  void on_over(const Connection& connection) noexcept;
  /// The application itself addressed this peer.
  void on_trust(const util::SocketAddress& peer);

 private:
  bool may_trace(const PeerProcess& process) const noexcept;
  void answer_admission(Connection& connection) noexcept;
  void ask_proof(Connection& connection) noexcept;
  void post_verdicts(const PeerProcess& process);

  Connections& x_connections;
  bool x_due_logged = false;
  std::unordered_set<util::SocketAddress, util::SocketAddressHash> x_addressed;  ///< trusted
};

}  // namespace erdma::transport::shm

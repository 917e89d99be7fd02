#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/verbs/attempt_table.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/hello.h"
#include "transport/verbs/job_key.h"

namespace erdma::transport::verbs {

/// What this endpoint says when connections are made, and how it judges what others say: whether a
/// hello belongs to this job, is for this endpoint and is not a replay; and whether a request takes
/// precedence over existing attempts.
class HelloChecker {
 public:
  using Bytes = std::span<const std::byte>;
  /// By the time of judge(), `config` has the name that was bound.
  HelloChecker(const ConnectorConfig& config, uint64_t nonce);

  /// This side's hello or welcome for the attempt, which records its content. `context`: see
  /// encode().
  HelloBytes greeting(HelloKind kind, Attempt& attempt, const Path& path, Bytes context) noexcept;
  /// The name that both ends give the connection once it is up.
  uint64_t session_of(const Attempt& attempt) const noexcept;
  /// Decodes a hello, with the name in this host's notation; logs what is wrong with it.
  Refusal judge(const util::SocketAddress& from, Bytes bytes, const Path& path, Hello& hello);
  /// Decodes the welcome of the peer to which this side sent its hello; logs what is wrong with it.
  Refusal judge_welcome(const Attempt& attempt, Bytes bytes, const Path& path, Hello& hello) const;
  /// Decides whether the request may replace what the peer has here. The requests of one host
  /// together may not take every place.
  Refusal admit(const AttemptTable& table, const Peer& peer, const Hello& hello) const noexcept;
  /// The answer to a request that is refused.
  HelloPrefix refusal(Refusal reason) const noexcept;
  HelloPrefix challenge(const Peer& peer, const Hello& hello) const noexcept;
  /// Takes note of a refusal by the peer, or by whatever listens there. True: the peer may accept
  /// the next request.
  bool apply_refusal(Peer& peer, Bytes refusal) const;
  bool is_self(const Peer& peer) const noexcept { return peer.name == x_config.name; }
  /// See BackendEvents::on_stranger().
  void log(const util::SocketAddress& from, const char* what, bool harmless) const;

 private:
  uint64_t ended_by(const Peer& peer, const Hello& hello) const noexcept;
  uint16_t question(const util::SocketAddress& peer, uint64_t session) const noexcept;
  std::string text_of(Refusal reason, Bytes bytes) const;
  uint8_t own_version() const noexcept { return x_config.options.protocol_version; }

  const ConnectorConfig& x_config;
  const uint64_t x_nonce;
  const JobKey x_key;
  const JobKey x_secret;  ///< known to this endpoint alone: for challenges
  uint32_t x_serial = 0;  ///< of this side's latest hello or welcome
};

}  // namespace erdma::transport::verbs

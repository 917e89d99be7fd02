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

/// What this endpoint says when connections are made, and what it makes of what others say: whether
/// a hello is of this job, for this endpoint, and not repeated by somebody who recorded it; and
/// whether a request goes before the attempts that there are.
class Gatekeeper {
 public:
  using Bytes = std::span<const std::byte>;
  /// `config` has the name that was bound by the time of judge().
  Gatekeeper(const ConnectorConfig& config, uint64_t nonce);

  /// Our hello or welcome for this attempt, which keeps what it says. `context`: as encode().
  HelloBytes greeting(HelloKind kind, Attempt& attempt, const Path& path, Bytes context) noexcept;
  /// What both ends call the connection once it is up.
  uint64_t session_of(const Attempt& attempt) const noexcept;
  /// Decodes a hello, with the name as this host writes it; what is wrong with it is logged.
  Refusal judge(const util::SocketAddress& from, Bytes bytes, const Path& path, Hello& hello);
  /// Decodes the welcome of the peer that our hello went to; what is wrong with it is logged.
  Refusal judge_welcome(const Attempt& attempt, Bytes bytes, const Path& path, Hello& hello) const;
  /// Whether the request may take the place of what the peer has here. All requests of one host
  /// together may not have every place.
  Refusal admit(const AttemptTable& table, const Peer& peer, const Hello& hello) const noexcept;
  /// What is said to a request that is refused.
  HelloPrefix refusal(Refusal reason) const noexcept;
  HelloPrefix challenge(const Peer& peer, const Hello& hello) const noexcept;
  /// Takes note of the refusal of a peer, or of whatever listens there. True: it may take the next
  /// request.
  bool heed(Peer& peer, Bytes refusal) const;
  bool is_self(const Peer& peer) const noexcept { return peer.name == x_config.name; }
  /// As BackendEvents::on_stranger().
  void log(const util::SocketAddress& from, const char* what, bool harmless) const;

 private:
  uint64_t ended_by(const Peer& peer, const Hello& hello) const noexcept;
  uint16_t question(const util::SocketAddress& peer, uint64_t session) const noexcept;
  std::string text_of(Refusal reason, Bytes bytes) const;
  uint8_t own_version() const noexcept { return x_config.options.protocol_version; }

  const ConnectorConfig& x_config;
  const uint64_t x_nonce;
  const JobKey x_key;
  const JobKey x_secret;  ///< nobody else's: for challenges
  uint32_t x_serial = 0;  ///< of our latest hello or welcome
};

}  // namespace erdma::transport::verbs

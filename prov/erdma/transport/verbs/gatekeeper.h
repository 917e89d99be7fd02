#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/verbs/connector.h"
#include "transport/verbs/hello.h"
#include "transport/verbs/job_key.h"

namespace erdma::transport::verbs {

/// Says whether a hello is one of this job's, for this endpoint, and not repeated by somebody who
/// recorded it. Knows nothing of connections.
class Gatekeeper {
 public:
  using Bytes = std::span<const std::byte>;
  /// `config` has the name that was bound by the time of judge().
  Gatekeeper(const ConnectorConfig& config, uint64_t nonce) noexcept;

  const JobKey& key() const noexcept { return x_key; }
  /// Decodes a hello; what is wrong with it is logged.
  Refusal judge(const util::SocketAddress& from, Bytes bytes, const Path& path, Hello& hello);
  /// Whoever has recorded the hellos of a peer can repeat them, but has none that answers this: it
  /// is another one for each connection.
  uint16_t challenge(const util::SocketAddress& peer, uint64_t session) const noexcept;
  /// As BackendEvents::on_stranger().
  void log(const util::SocketAddress& from, const char* what, bool harmless);

 private:
  const ConnectorConfig& x_config;
  const uint64_t x_nonce;
  const JobKey x_key;
  const JobKey x_secret;  ///< nobody else's: for challenges
};

}  // namespace erdma::transport::verbs

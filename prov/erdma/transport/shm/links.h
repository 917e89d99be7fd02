#pragma once

#include <vector>

#include "transport/shm/link.h"
#include "transport/shm/mail.h"
#include "transport/transport.h"
#include "util/by_address.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

/// All links of one endpoint, and the connector's mail, by which their channels come and go.
/// Polling thread only.
class Links {
 public:
  explicit Links(LinkContext& context) noexcept : x_context(context) {}

  ShmLink& find_or_make(const util::SocketAddress& address);  ///< may throw
  /// Returns how many messages had an effect.
  int read(ConnectorMailbox& mailbox, Sink& sink) noexcept;
  /// Handles mail that had to wait for the end of a link, and later mail about the same channel.
  int read_later(Sink& sink) noexcept;
  /// Wakes the peers for whose wake-up the kernel had no memory; LinkContext::lack.
  void ring_again() noexcept;
  bool waiting() const noexcept { return !x_later.empty(); }
  /// True if a connected peer has shown the same core (core_sign.h).
  bool peer_shows(uint64_t sign) const noexcept;
  /// Closes all links for good. Later connections are refused.
  void close() noexcept;
  /// In a forked child: closes descriptors.
  void abandon() noexcept;

 private:
  enum class Outcome : uint8_t { no_effect, effect, waits };
  /// May throw std::bad_alloc; the caller then calls it again.
  Outcome open(Mail& mail, size_t waiting, Sink& sink);
  /// True if one of the first `waiting` entries of x_later must precede this mail: it is about the
  /// same channel, or it brings an earlier channel of the same peer. The messages of that one
  /// precede those of a later one, and a channel that the background thread made in return is
  /// useful once the link has it.
  bool follows_another(const Mail& mail, size_t waiting) const noexcept;
  /// The name of the peer to which the channel leads.
  util::SocketAddress link_name(const Connection& connection) const noexcept;
  bool on_in_up(Mail& mail, Sink& sink);  ///< false: it has to wait
  void on_out_up(Mail& mail, Sink& sink);

  LinkContext& x_context;
  util::ByAddress<ShmLink> x_links;
  std::vector<Mail> x_later;  ///< about channels whose link is still ending
  bool x_closed = false;
};

}  // namespace erdma::transport::shm

#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/shm/link.h"
#include "transport/shm/mail.h"
#include "transport/transport.h"
#include "util/socket_address.h"

namespace erdma::transport::shm {

/// All links of one endpoint, and the connector's mail that makes their channels come and go.
/// Polling thread only.
class Links {
 public:
  explicit Links(LinkContext& context) noexcept : x_context(context) {}

  ShmLink& find_or_make(const util::SocketAddress& address);  ///< may throw
  /// Returns how many had any effect.
  int read(ConnectorMailbox& mailbox, Sink& sink) noexcept;
  /// What had to wait for the end of a link, with all that came after it about the same channel.
  int read_later(Sink& sink) noexcept;
  bool waiting() const noexcept { return !x_later.empty(); }
  /// For good; what connects from now on is turned away.
  void close() noexcept;
  /// In a forked child: closes descriptors.
  void abandon() noexcept;

 private:
  enum class Outcome : uint8_t { no_effect, effect, waits };
  /// Throws std::bad_alloc, and is called again then.
  Outcome open(Mail& mail, size_t waiting, Sink& sink);
  /// One of the first `waiting` of x_later comes before it: it is about the same channel, or brings
  /// an earlier channel of the same peer, whose messages come before those of a later one.
  bool follows_another(const Mail& mail, size_t waiting) const noexcept;
  /// Of the peer whose channel it is.
  util::SocketAddress link_name(const Connection& connection) const noexcept;
  bool on_in_up(Mail& mail, Sink& sink);  ///< false: it has to wait
  void on_out_up(Mail& mail, Sink& sink);

  LinkContext& x_context;
  std::unordered_map<util::SocketAddress, std::unique_ptr<ShmLink>, util::SocketAddressHash>
      x_links;
  std::vector<Mail> x_later;  ///< of channels whose link is still ending
  bool x_closed = false;
};

}  // namespace erdma::transport::shm

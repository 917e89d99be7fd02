#pragma once

#include <cstddef>

#include "transport/verbs/packet_sender.h"
#include "transport/verbs/resources.h"
#include "transport/verbs/transfers.h"

namespace erdma::transport::verbs {

/// Transfers of memory that cannot be registered: its owner copies the bytes to or from packets
/// that the other side asks for. See docs/wire-protocol.md, "Bounced memory".
class PacketTransfers {
 public:
  PacketTransfers(Resources& shared, PacketSender& sender, Transfers& transfers,
                  ConnectionHost& host) noexcept
      : x_shared(shared),
        x_counters(&shared.counters),
        x_sender(sender),
        x_transfers(transfers),
        x_host(host) {}
  /// Memory that is shared over `link` belongs to this peer; no other does.
  void start(const VerbsLink* link, Counters& counters) noexcept {
    x_link = link;
    x_counters = &counters;
  }

  /// For a transfer of this side: asks the owner to send, or sends the next part of a put(). False:
  /// no room.
  bool post(Transfer& transfer) noexcept {
    return transfer.is_read ? request(transfer) : push(transfer);
  }
  /// Sends one packet of each stream in turn, while there is plenty of room. True: there is more.
  bool move_streams() noexcept;
  void send_answers() noexcept;
  void on_packet(Kind kind, const std::byte* body, size_t length, Sink& sink) noexcept;
  /// The connection is over.
  void drop() noexcept;
  bool empty() const noexcept { return x_streams.empty() && x_answers.empty(); }

 private:
  bool has_places() const noexcept {
    return x_sender.queue().room() > PacketSender::kPlacesForStreams;
  }
  bool request(Transfer& transfer) noexcept;
  bool push(Transfer& transfer) noexcept;
  void count_copied(size_t bytes) noexcept;
  void answer(util::PoolHandle requester, int status) noexcept;
  void on_pull(const BouncedBody& body) noexcept;
  void on_data(const BouncedBody& body, const std::byte* bytes, size_t length, Sink& sink) noexcept;
  void on_push(const BouncedBody& body, const std::byte* bytes, size_t length) noexcept;
  void on_answer(const BouncedBody& body, Sink& sink) noexcept;
  Transfer* find(const BouncedBody& body) noexcept;

  Resources& x_shared;
  Counters* x_counters;  ///< those of x_shared until the peer is known
  PacketSender& x_sender;
  Transfers& x_transfers;
  ConnectionHost& x_host;
  const VerbsLink* x_link = nullptr;
  util::IntrusiveList<Stream> x_streams;
  util::IntrusiveList<Answer> x_answers;
  unsigned x_answers_queued = 0;
};

}  // namespace erdma::transport::verbs

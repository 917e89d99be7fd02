#pragma once

#include "hmem/copy.h"
#include "protocol/arguments.h"
#include "protocol/deliveries.h"
#include "protocol/fragments.h"
#include "protocol/inbound.h"
#include "protocol/shared_receives.h"
#include "protocol/unexpected_messages.h"

namespace erdma::protocol {

/// Receives the messages of one engine, into receives that are posted to the engine or to the
/// receive context that it shares with other engines.
class Receives {
 public:
  Receives(const EngineConfig& config, Peers& peers, Controls& controls, CompletionSink& received,
           SharedReceives* shared) noexcept;

  /// `source` is null for any source. False: out of memory.
  bool post(const ReceiveArgs& args, const Peer* source) noexcept;
  /// Posts a receive that completes at `sink`. Not for multi-receive.
  bool post(const ReceiveArgs& args, const Peer* source, CompletionSink& sink) noexcept;
  /// The queues of this engine; empty with a shared context.
  ReceiveQueues& own() noexcept { return x_own; }
  const ReceiveQueues& own() const noexcept { return x_own; }
  /// The queues in use: own(), or those of the shared context.
  ReceiveQueues& queues() noexcept { return *x_queues; }
  Deliveries& deliveries() noexcept { return x_deliveries; }

  /// Handles a whole message in one packet. Returns true if it was for a posted receive. Throws as
  /// Sink::on_packet() does.
  bool on_eager(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                const std::byte* payload, size_t length);
  /// Handles the announcement of a message whose bytes move after the match. Throws likewise.
  void on_rts(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
              const std::byte* payload, size_t length);

  /// Handles the first fragment of an eager message. Throws likewise.
  void on_first_fragment(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                         const std::byte* payload, size_t length);
  Fragments& fragments() noexcept { return x_fragments; }

  // For ReceiveQueues, about messages that came to this engine.
  /// Gives an unexpected message to a receive. Returns true if the receive still exists and can
  /// take another message.
  bool accept(Receive& receive, Unexpected& message) noexcept;
  /// The application discards an unexpected message. `found` reports that once the sender knows.
  void discard(Unexpected& message, const Completion& found) noexcept {
    x_deliveries.discard(message, found);
    x_unexpected.release(message);
  }
  CompletionSink& sink() noexcept { return x_received; }

  /// Returns whether a posted receive names this peer, or any source if null. Scans the queues, as
  /// this is called rarely.
  bool waits_for(const Peer* peer) noexcept {
    return x_queues->has_posted_from(peer ? peer->source : nullptr);
  }
  /// Returns whether no receive is posted.
  bool all_served() const noexcept {
    return x_queues->tagged.posted_count() + x_queues->untagged.posted_count() == 0;
  }
  UnexpectedMessages& unexpected() noexcept { return x_unexpected; }
  /// Fails the receives that need a link that is down. `sending`: this endpoint sends to the peer
  /// over it. Returns true if any operation failed.
  bool fail(Peer& peer, const transport::Link* link, int status, bool sending) noexcept;
  // See Engine.
  void leave_shared(Engine& engine) noexcept;
  void cancel_deliveries(CompletionSink& sink) noexcept;

 private:
  Matcher& matcher(bool tagged) noexcept { return x_queues->matcher(tagged); }
  void on_unexpected(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                     const std::byte* payload, size_t length);
  void place_whole(ReceiveQueues& from, Receive& receive, const wire::MessageHeader& header,
                   uint64_t source, const std::byte* payload, size_t length) noexcept;
  void place_special(Receive& receive, Peer& peer, transport::Link& link,
                     const wire::MessageHeader& header, const std::byte* payload) noexcept;
  void place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                   const std::byte* payload) noexcept;
  int place(const Receive& receive, const Buffers& target, const std::byte* payload,
            size_t length) noexcept;

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is host memory
  const bool x_loss_fails_all;          ///< EngineConfig
  Peers& x_peers;
  Controls& x_controls;
  CompletionSink& x_received;
  ReceiveQueues x_own;
  SharedReceives* x_shared;  ///< null: receives are posted here
  ReceiveQueues* x_queues;   ///< x_own, or the shared ones
  UnexpectedMessages x_unexpected;
  Deliveries x_deliveries;
  Fragments x_fragments;
};

// --- the fast path of a message, inlined into the entry points and Engine::on_packet() ----------

inline bool Receives::post(const ReceiveArgs& args, const Peer* source) noexcept {
  Receive* receive = x_own.make(args);
  if (!receive) [[unlikely]]
    return false;
  receive->source = source;
  x_own.post(*receive, args.tagged);
  return true;
}

/// Returns whether Receives::place_whole() suffices for a message of this length.
[[gnu::always_inline]] inline bool is_plain(const Receive& receive, const Peer& peer,
                                            const wire::MessageHeader& header,
                                            size_t length) noexcept {
  const bool plain = !receive.special && !(header.flags & wire::kWantFin) && peer.unsent.none();
  return plain && receive.buffers.count == 1 && length <= receive.buffers.length;
}

/// place_eager() for a receive of `from` with one buffer that is large enough for the message.
[[gnu::always_inline]] inline void Receives::place_whole(ReceiveQueues& from, Receive& receive,
                                                         const wire::MessageHeader& header,
                                                         uint64_t source, const std::byte* payload,
                                                         size_t length) noexcept {
  hmem::copy_short(receive.buffers.iov[0].iov_base, payload, length);
  x_received.succeed(receive.report) = {
      receive.context, receive.completion_flags | data_flag(header),
      length,          nullptr,
      header.data,     header.tag,
      source};
  from.receives.release(receive);
}

[[gnu::always_inline]] inline bool Receives::on_eager(Peer& peer, transport::Link& link,
                                                      const wire::MessageHeader& header,
                                                      const std::byte* payload, size_t length) {
  if (header.length != length) [[unlikely]]
    return inbound::protocol_violation(link, "an eager message whose length is not its packet's"),
           false;
  PostedEntry* entry = x_own.matcher(header.flags & wire::kTagged).arrive(peer, header.tag);
  if (!entry) [[unlikely]]
    return on_unexpected(peer, link, header, payload, length), false;
  auto& receive = static_cast<Receive&>(*entry);
  if (is_plain(receive, peer, header, length)) [[likely]]
    place_whole(x_own, receive, header, peer.fi_addr, payload, length);
  else
    place_special(receive, peer, link, header, payload);
  return true;
}

}  // namespace erdma::protocol

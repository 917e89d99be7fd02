#pragma once

#include "protocol/controls.h"
#include "protocol/sends.h"

namespace erdma::protocol {

/// Sends messages. A short message is eager: one packet carries it, and it is complete when the
/// link has taken the packet, unless the sender asked for a fin. A longer message is eager too, in
/// several packets (fragments), if the link prefers that. Any other message is a rendezvous, also
/// one that would fit into a packet if the link prefers that: an rts announces it, and its bytes
/// move after the match. If the link prefers reads, the receiver reads the memory that the sender
/// has shared, and sends a fin. Otherwise the receiver shares its memory (cts), and the sender
/// writes to it and sends done.
class Messages final : public Initiator {
 public:
  Messages(Sends& all, Controls& controls, CompletionSink& sent) noexcept
      : Initiator(all), x_controls(controls), x_sent(sent) {}

  /// Returns whether one packet of any link can carry the message.
  static bool is_short(const SendArgs& args) noexcept {
    return args.length <= transport::kAlwaysEager;
  }
  /// True: a message of that length goes in one packet, without asking the link.
  static bool fits(size_t length, const transport::Link& link) noexcept {
    if (length <= transport::kAlwaysEager) return true;
    const transport::LinkLimits limits = link.limits();
    return length <= std::min(limits.eager, limits.asks_above);
  }
  /// True: so many eager bytes have left since the last poll that further messages wait for a poll,
  /// which may bring a budget packet. The caller makes progress.
  bool must_poll() const noexcept { return x_unpolled >= kMostUnpolled; }
  /// True: the next poll must not leave packets in their rings (Sink::take_served()), because a
  /// budget packet may be among them.
  bool must_poll_all() const noexcept { return x_unpolled >= kMostUnpolled / 8; }
  /// At most so many messages that are not counted otherwise have left since the last poll.
  void count_short(unsigned messages) noexcept { x_unpolled += messages * kShortCost; }
  /// Call it after a poll of all transports that left nothing.
  void polled() noexcept { x_unpolled = 0; }
  /// Returns whether one packet, sent now, is all that the message needs.
  static bool goes_direct(const SendArgs& args, const Peer& peer) noexcept {
    return peer.direct && !args.until_delivered && !args.fence && fits(args.length, *peer.link);
  }
  /// Returns whether that is so if the link prefers packets, which it must be asked.
  static bool may_go_direct(const SendArgs& args, const Peer& peer) noexcept {
    return peer.direct && !args.until_delivered && !args.fence &&
           args.length <= peer.link->limits().eager;
  }
  static bool prefers_packets(size_t length, Peer& peer) noexcept {
    const bool expected = length <= LongMessages::kLong || peer.long_messages.expected();
    return peer.link->prefers_packets(length, expected);
  }
  /// Sends such a message. False: nothing happened.
  bool send_direct(const SendArgs& args, Peer& peer) noexcept;
  /// Sends or queues any message. False: out of memory. `sink` is null for the sink of messages.
  /// `rendezvous`: the link was asked, and prefers one.
  bool send(const SendArgs& args, Peer& peer, CompletionSink* sink, bool rendezvous) noexcept;

  /// Handles a cts: the receiver has shared memory to write to.
  void on_cts(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              const std::byte* payload, size_t length) noexcept;
  /// Handles a budget packet (wire::Budget).
  static void on_budget(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                        size_t length) noexcept;

 private:
  int launch(Send& send) noexcept override;
  void on_device_fin(Send& send, int status) noexcept override;
  void on_moved(Send& send, int status) noexcept override;
  void forget(Send&) noexcept override {}
  int send_eager(Send& send) noexcept;
  int send_fragments(Send& send) noexcept;
  void conclude(Send& send) noexcept;
  int send_rts(Send& send) noexcept;
  int write(Send& send) noexcept;

  static void count_long(const Send& send, bool in_fragments) noexcept;
  void charge(size_t length) noexcept;

  /// A quarter of what a receiver tolerates from a peer that cannot know of the budget yet
  /// (UnexpectedMessages): a budget packet may lie behind others that a first poll leaves.
  static constexpr size_t kMostUnpolled = size_t{2} << 20;
  static constexpr size_t kShortCost = 512;  ///< bytes that a short message costs at most
  static_assert(sizeof(Unexpected) + transport::kAlwaysEager <= kShortCost);

  Controls& x_controls;
  CompletionSink& x_sent;
  /// What the eager messages since polled() may cost receivers; bytes. Short messages of
  /// send_direct() are not included: their number is limited (Engine::post_send()).
  size_t x_unpolled = 0;
};

inline bool Messages::send_direct(const SendArgs& args, Peer& peer) noexcept {
  const transport::Header header =
      wire::encode({wire::Op::eager, args.wire_flags(), 0, 0, args.tag, args.data, args.length});
  const auto hint = args.more ? transport::SendHint::more : transport::SendHint::none;
  if (peer.link->send(header, args.iov, args.count, args.length, hint) != 0) [[unlikely]]
    return false;
  if (!is_short(args)) charge(args.length);
  x_sent.succeed(args.report) = {args.context, args.completion_flags(), 0, nullptr, 0, 0,
                                 UINT64_MAX};
  return true;
}

}  // namespace erdma::protocol

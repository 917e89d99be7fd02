#pragma once

#include "protocol/controls.h"
#include "protocol/sends.h"

namespace erdma::protocol {

/// Sends messages. Short ones are eager: the whole message in one packet, done when the link has
/// taken it unless a fin was asked for. Others are a rendezvous: the header travels first, the
/// bytes after the match. Where the link prefers reading, the receiver reads the memory shared
/// here and sends a fin; else it shares its own (cts), we write to it and say done.
class Messages final : public Initiator {
 public:
  Messages(Sends& all, Controls& controls, CompletionSink& sent) noexcept
      : Initiator(all), x_controls(controls), x_sent(sent) {}

  /// Any link takes it in one packet.
  static bool is_short(const SendArgs& args) noexcept {
    return args.length <= transport::kAlwaysEager;
  }
  /// Whether a message needs nothing but one packet, now.
  static bool goes_direct(const SendArgs& args, const Peer& peer) noexcept {
    return peer.direct && !args.until_delivered && !args.fence &&
           (is_short(args) || args.length <= peer.link->limits().eager);
  }
  /// Sends it as that. False: nothing happened.
  bool send_direct(const SendArgs& args, Peer& peer) noexcept;
  /// Any other way. False: out of memory. `sink`: null for that of messages.
  bool send(const SendArgs& args, Peer& peer, CompletionSink* sink) noexcept;

  /// A packet: the receiver has granted memory to write to.
  void on_cts(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              const std::byte* payload, size_t length) noexcept;
  /// A packet: the receiver's memory for unexpected messages is used up, or free again.
  static void on_budget(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                        size_t length) noexcept;

 private:
  int launch(Send& send) noexcept override;
  void on_device_fin(Send& send, int status) noexcept override;
  void on_moved(Send& send, int status) noexcept override;
  void forget(Send&) noexcept override {}
  int send_eager(Send& send) noexcept;
  int send_rts(Send& send) noexcept;
  int write(Send& send) noexcept;

  Controls& x_controls;
  CompletionSink& x_sent;
};

inline bool Messages::send_direct(const SendArgs& args, Peer& peer) noexcept {
  const transport::Header header =
      wire::encode({wire::Op::eager, args.wire_flags(), 0, 0, args.tag, args.data, args.length});
  const auto hint = args.more ? transport::SendHint::more : transport::SendHint::none;
  if (peer.link->send(header, args.iov, args.count, args.length, hint) != 0) [[unlikely]]
    return false;
  x_sent.succeed(args.report) = {args.context, args.completion_flags(), 0, nullptr, 0, 0,
                                 UINT64_MAX};
  return true;
}

}  // namespace erdma::protocol

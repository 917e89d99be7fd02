#pragma once

#include <cstdint>

#include "protocol/arguments.h"
#include "protocol/peers.h"

namespace erdma::protocol {

class Sends;

/// Carries out sends of one kind: messages, or one-sided operations.
class Initiator {
 public:
  explicit Initiator(Sends& all) noexcept : sends(all) {}

  /// Sends the packets for which the link has room. -FI_EAGAIN: the rest is sent later.
  virtual int launch(Send& send) noexcept = 0;
  /// The peer has sent the fin. Called only by endpoints that know device memory.
  virtual void on_device_fin(Send& send, int status) noexcept = 0;
  /// A put(), get() or flush() of the send has ended.
  virtual void on_moved(Send& send, int status) noexcept = 0;
  /// The send ends: releases the resources of its kind. Called for one-sided operations only.
  virtual void forget(Send& send) noexcept = 0;

  Sends& sends;

 protected:
  ~Initiator() = default;
};

/// All sends of an engine, messages and one-sided operations alike. Both have fences, the limit of
/// operations in flight and the loss of a peer in common.
class Sends {
 public:
  Sends(const EngineConfig& config, Peers& peers) noexcept : x_config(config), x_peers(peers) {}

  uint32_t in_use() const noexcept { return x_sends.in_use(); }
  /// Null: out of memory.
  Send* make(const SendArgs& args, Peer& peer, Initiator& initiator, CompletionSink& sink) noexcept;
  /// Launches or queues the send. Every error from here on is reported by its completion.
  void begin(Send& send) noexcept;
  /// The link has taken all packets of the send, which now waits for the peer.
  static void fly(Send& send) noexcept {
    send.state = Send::State::in_flight;
    send.peer->in_flight.push_back(send);
  }
  /// The link moves the bytes of the send, which now waits for on_moved().
  static void move(Send& send) noexcept {
    send.state = Send::State::writing;
    send.peer->in_flight.push_back(send);
  }
  /// Queues the send again, before all others.
  void queue_first(Send& send) noexcept;
  /// The link has taken an injected send: has_injected() no longer counts it.
  void clear_inject_pending(Send& send) noexcept;
  /// Completes a send. Every send that was begun ends here.
  void finish(Send& send, int status) noexcept;
  /// Releases a send without a completion: one that was made and not begun.
  void drop(Send& send) noexcept;

  /// The name of the send on the wire.
  util::PoolHandle id(Send& send) noexcept { return x_sends.handle(send); }
  uint64_t token(Send& send) noexcept { return make_token(TokenOf::send, id(send)); }
  /// Returns the send with this name. Null: it is over.
  Send* find(util::PoolHandle id) noexcept { return x_sends.find(id); }

  /// Handles a fin: the peer is done with a send.
  void on_fin(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              size_t length) noexcept;
  void on_moved(util::PoolHandle handle, int status) noexcept;

  /// Cancels a send with this context of which no packet was sent. False: there is none.
  bool cancel(const void* context) noexcept;
  /// Fails the sends to a peer whose link is down.
  void fail(Peer& peer, int status) noexcept;
  /// Revokes the memory that sends have shared with the peer, before the endpoint closes.
  void revoke_memory(Peer& peer) noexcept;
  /// True while a link has not taken an injected send.
  bool has_injected() const noexcept { return x_injected > 0; }
  /// As Engine::has_packets().
  bool has_packets() noexcept;
  /// Logs the loss of an injected operation, which may have no completion that reports it.
  static void lose_injected(Peer& peer, int status) noexcept;

 private:
  static bool keep_copy(Send& send, const SendArgs& args) noexcept;
  static bool shares(const Send& send) noexcept;
  void fail(Send& send, int status) noexcept;
  static void report_lost(Peer& peer, int status) noexcept;

  const EngineConfig& x_config;
  Peers& x_peers;
  util::Pool<Send> x_sends;
  size_t x_injected = 0;  ///< sends that are `inject_pending`
};

}  // namespace erdma::protocol

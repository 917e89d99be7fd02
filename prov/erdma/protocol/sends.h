#pragma once

#include <cstdint>

#include "protocol/arguments.h"
#include "protocol/peers.h"

namespace erdma::protocol {

class Sends;

/// Carries out sends of one kind: messages, or RMA operations.
class Initiator {
 public:
  explicit Initiator(Sends& all) noexcept : sends(all) {}

  /// Sends what the link has room for. -FI_EAGAIN: the rest is sent later.
  virtual int launch(Send& send) noexcept = 0;
  /// The peer is done with the send; this endpoint knows device memory.
  virtual void on_device_fin(Send& send, int status) noexcept = 0;
  /// The link has moved the bytes, or not.
  virtual void on_moved(Send& send, int status) noexcept = 0;
  /// The send ends: gives back what only this kind has. Called for RMA operations only.
  virtual void forget(Send& send) noexcept = 0;

  Sends& sends;

 protected:
  ~Initiator() = default;
};

/// All sends of an engine, messages and RMA operations alike: a fence, the limit of operations in
/// flight and the end of a peer mean the same to both.
class Sends {
 public:
  Sends(const EngineConfig& config, Peers& peers) noexcept : x_config(config), x_peers(peers) {}

  uint32_t in_use() const noexcept { return x_sends.in_use(); }
  /// Null: out of memory.
  Send* make(const SendArgs& args, Peer& peer, Initiator& initiator, CompletionSink& sink) noexcept;
  /// Launches or queues it; from here on the completion tells how it went.
  void begin(Send& send) noexcept;
  /// The link has taken all its packets: it waits for the peer.
  static void fly(Send& send) noexcept {
    send.state = Send::State::in_flight;
    send.peer->in_flight.push_back(send);
  }
  /// The link moves its bytes: it waits for on_moved().
  static void move(Send& send) noexcept {
    send.state = Send::State::writing;
    send.peer->in_flight.push_back(send);
  }
  /// It waits for room once more, before all others.
  void queue_first(Send& send) noexcept;
  /// What was injected has left: the caller is owed nothing more.
  void clear_owed(Send& send) noexcept;
  /// The one place where a send ends.
  void finish(Send& send, int status) noexcept;
  /// Gives back a send that was made and not begun.
  void drop(Send& send) noexcept;

  /// Its name on the wire.
  util::PoolHandle id(Send& send) noexcept { return x_sends.handle(send); }
  uint64_t token(Send& send) noexcept { return make_token(TokenOf::send, id(send)); }
  /// Null: the send with this name is over.
  Send* find(util::PoolHandle id) noexcept { return x_sends.find(id); }

  /// A packet: the peer is done with a send.
  void on_fin(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
              size_t length) noexcept;
  void on_moved(util::PoolHandle handle, int status) noexcept;

  /// Withdraws the oldest that is not yet on the wire.
  bool cancel(const void* context) noexcept;
  /// The peer's link is down.
  void fail(Peer& peer, int status) noexcept;
  /// No peer reads the caller's memory any more.
  void revoke_memory(Peer& peer) noexcept;
  /// True while links have not taken all that was injected.
  bool has_injected() const noexcept { return x_injected > 0; }
  /// As Engine::has_packets().
  bool has_packets() noexcept;
  /// The caller may never learn of it.
  static void lose_injected(Peer& peer, int status) noexcept;

 private:
  static bool keep_copy(Send& send, const SendArgs& args) noexcept;
  static void revoke_memory(Send& send) noexcept;
  void fail(Send& send, int status) noexcept;
  static void report_lost(Peer& peer, int status) noexcept;

  const EngineConfig& x_config;
  Peers& x_peers;
  util::Pool<Send> x_sends;
  size_t x_injected = 0;  ///< sends that are `owed`
};

}  // namespace erdma::protocol

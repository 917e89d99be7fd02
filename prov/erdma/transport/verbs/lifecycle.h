#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/heartbeat.h"
#include "transport/verbs/packet_sender.h"
#include "transport/verbs/session.h"

namespace erdma::transport::verbs {

/// One end of a connection. Where there are more peers than connections, one end asks the other to
/// give the connection up (to retire). Once the other has agreed, both know everything that was
/// sent. What they say about it when they connect anew is in Session.
///
///   making --> up --> retire_due --> retire_sent --retire_ok--> closing, in agreement
///              ^          |              |
///              +----------+--------------+  retire_no, a request of the peer's that goes before,
///              |                            or no answer in time: retire_back
///              up --> accept_due --> accept_sent --it ends--> closing, in agreement
///              ^          |              |                     |
///              +----------+--------------+---------------------+  retire_back, before draining
///              up --> bye_sent --it ends--> closing
///   any --broken--> closing; if it was `retire_sent`, a retire_ok that is found on the way still
///   counts
///   closing --> draining --> destroyed
enum class Phase : uint8_t {
  making,  ///< not yet mailed: completions are kept
  up,
  retire_due,   ///< retire waits for room
  retire_sent,  ///< retire is sent
  accept_due,   ///< retire_ok waits for room
  accept_sent,  ///< retire_ok is sent
  bye_sent,     ///< bye is sent
  closing,      ///< broken or given up: only completions are taken
  draining,     ///< likewise, and the queue pair is in error
};

/// How a connection ended. What waits for the peer keeps waiting only if both ends agreed.
enum class Agreement : uint8_t {
  none,
  doubtful,  ///< the peer may have another view
  certain,
};

class LifecycleHost : public ConnectionHost {
 public:
  virtual void phase_changed(Phase before) noexcept = 0;
  /// No part of a transfer is in progress in either direction.
  virtual bool quiet() noexcept = 0;
  /// The peer agreed to give the connection up, and everything that either side sent has arrived;
  /// or the peer wants to keep the connection.
  virtual void on_answer(bool agreed) noexcept = 0;
  /// The connection is ending with this side's consent, and the peer continues to use it. False: it
  /// ends nevertheless.
  virtual bool reopen() noexcept = 0;

 protected:
  ~LifecycleHost() = default;
};

/// The phase of one connection, and its agreement with the peer to give the connection up. Each
/// request has a number, so that one that was taken back cannot be mistaken for the next.
class Lifecycle {
 public:
  Lifecycle(PacketSender& sender, HeartbeatReads& heartbeat, LifecycleHost& host) noexcept
      : x_sender(sender), x_heartbeat(heartbeat), x_host(host) {}

  Phase phase() const noexcept { return x_phase; }
  bool retiring() const noexcept {
    return x_phase == Phase::retire_due || x_phase == Phase::retire_sent;
  }
  bool agrees() const noexcept {
    return x_phase == Phase::accept_due || x_phase == Phase::accept_sent;
  }
  bool ending() const noexcept { return x_phase >= Phase::closing; }
  Agreement agreement() const noexcept { return x_agreement; }

  /// Packets may flow. `session`: that of the link; `name`: what both ends call this connection;
  /// `goes_first`: this side's request stands if both ends ask.
  void go_up(Session& session, uint64_t name, bool goes_first) noexcept;
  /// True if this side may ask the peer now. `heard`: the number of packets received from the peer.
  bool may_retire(uint64_t heard) noexcept;
  /// Asks the peer to give the connection up.
  void retire() noexcept;
  /// The link continues with this connection. False: not now, or the peer already acts on the
  /// request.
  [[nodiscard]] bool take_back() noexcept;
  /// The peer did not answer: it is not asked again until more packets have arrived from it.
  void unanswered(uint64_t heard) noexcept { x_unanswered_at = heard; }
  /// Takes back what can still be taken back, because a bye follows.
  void stay() noexcept;
  /// Everything that this side sent has arrived: a READ behind it was answered.
  bool fenced() noexcept;
  /// This side agreed, and the peer does not end the connection. True: the peer has everything that
  /// this side sent, so this side may end it.
  bool proven() noexcept;
  /// The connection is broken or given up. `muted`: any agreement between both sides is void.
  void close(bool muted) noexcept;
  void void_agreement() noexcept { x_agreement = Agreement::none; }
  void drain() noexcept { advance(Phase::draining); }

  /// Sends the packet of `which`.
  int send(Due which) noexcept;
  void on_packet(Kind kind, const std::byte* body, size_t length) noexcept;

 private:
  void advance(Phase to) noexcept;
  void go_on() noexcept;
  int emit_request(Kind kind, uint32_t request) noexcept;
  void on_retire(uint32_t request) noexcept;
  void on_retire_back(uint32_t request) noexcept;
  void on_answer(uint32_t request, bool agreed) noexcept;

  PacketSender& x_sender;
  HeartbeatReads& x_heartbeat;
  LifecycleHost& x_host;
  Session* x_session = nullptr;
  uint64_t x_name = 0;
  bool x_goes_first = false;
  Phase x_phase = Phase::making;
  bool x_retire_was_sent = false;  ///< ending: the phase before
  bool x_fenced = false;           ///< a READ follows our last packet
  Agreement x_agreement = Agreement::none;
  uint32_t x_request = 0;        ///< number of this side's next or current request to retire
  uint32_t x_peers_request = 0;  ///< the one that this side agrees to
  uint32_t x_last_packet = 0;    ///< number of retire_ok in the send queue
  uint64_t x_unanswered_at = UINT64_MAX;  ///< packets received when a request was taken back
};

}  // namespace erdma::transport::verbs

#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/heartbeat.h"
#include "transport/verbs/packet_sender.h"
#include "transport/verbs/session.h"

namespace erdma::transport::verbs {

/// One end of a connection. Where there are more peers than connections, one end asks to give it up
/// (to retire), and the other agrees; both then know all that the other sent. What they say of it
/// when they connect anew is in Session.
///
///   making --> up --> asking --> asked --retire_ok--> closing, in agreement
///              ^         |         |
///              +---------+---------+  retire_no, a request of the peer's that goes before, or no
///              |                      answer in time: retire_back
///              up --> agreeing --> agreed --it ends--> closing, in agreement
///              ^         |           |                  |
///              +---------+-----------+------------------+  retire_back, before draining
///              up --> parting --it ends--> closing
///   any --broken--> closing; if it was `asked`, a retire_ok that is found on the way still
///   counts
///   closing --> draining --> destroyed
enum class Phase : uint8_t {
  making,  ///< not yet mailed: completions are kept
  up,
  asking,    ///< retire waits for room
  asked,     ///< retire is sent
  agreeing,  ///< retire_ok waits for room
  agreed,    ///< retire_ok is sent
  parting,   ///< bye is sent
  closing,   ///< broken or given up: only completions are taken
  draining,  ///< likewise, and the queue pair is in error
};

/// How a connection ended: what waits for the peer goes on waiting only if both ends agreed.
enum class Agreement : uint8_t {
  none,
  doubtful,  ///< the peer may see it otherwise
  certain,
};

class LifecycleHost : public ConnectionHost {
 public:
  virtual void phase_changed(Phase before) noexcept = 0;
  /// Nothing of a transfer is under way in either direction.
  virtual bool quiet() noexcept = 0;
  /// The peer agreed to give the connection up, and everything that either side sent has arrived;
  /// or it wants to keep the connection.
  virtual void on_answer(bool agreed) noexcept = 0;
  /// The connection is ending by our consent, and the peer uses it on. False: it ends all the same.
  virtual bool reopen() noexcept = 0;

 protected:
  ~LifecycleHost() = default;
};

/// The phase of one connection, and its agreement with the peer to give the connection up. Each
/// request has a number, so that one that was taken back can't be taken for the next.
class Lifecycle {
 public:
  Lifecycle(PacketSender& sender, HeartbeatReads& heartbeat, LifecycleHost& host) noexcept
      : x_sender(sender), x_heartbeat(heartbeat), x_host(host) {}

  Phase phase() const noexcept { return x_phase; }
  bool retiring() const noexcept { return x_phase == Phase::asking || x_phase == Phase::asked; }
  bool agrees() const noexcept { return x_phase == Phase::agreeing || x_phase == Phase::agreed; }
  bool ending() const noexcept { return x_phase >= Phase::closing; }
  Agreement agreement() const noexcept { return x_agreement; }

  /// Packets may flow. `session`: of the link; `name`: what both ends call this connection;
  /// `goes_first`: where both ends ask, ours stands.
  void go_up(Session& session, uint64_t name, bool goes_first) noexcept;
  /// There is room to agree with the peer. `heard`: packets that came from it.
  bool may_retire(uint64_t heard) noexcept;
  /// Asks the peer to give the connection up.
  void retire() noexcept;
  /// The link goes on with this connection. False: not now, or the peer goes by the request
  /// already.
  [[nodiscard]] bool take_back() noexcept;
  /// The peer did not answer: it is not asked again until more was heard of it.
  void unanswered(uint64_t heard) noexcept { x_unanswered_at = heard; }
  /// What can still be taken back is: a bye follows.
  void stay() noexcept;
  /// Everything that we sent has arrived: a READ behind it was answered.
  bool fenced() noexcept;
  /// We agreed, and the peer does not end it. True: it has all that we sent, so that we may.
  bool proven() noexcept;
  /// It is broken, or given up. `muted`: whatever both sides agreed on is void.
  void close(bool muted) noexcept;
  void void_agreement() noexcept { x_agreement = Agreement::none; }
  void drain() noexcept { advance(Phase::draining); }

  /// What `which` says is sent.
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
  bool x_was_asked = false;  ///< ending: the phase before
  bool x_fenced = false;     ///< a READ follows our last packet
  Agreement x_agreement = Agreement::none;
  uint32_t x_request = 0;                 ///< number of our next or current request to retire
  uint32_t x_peers_request = 0;           ///< that we agree to
  uint32_t x_last_packet = 0;             ///< of the send queue: retire_ok
  uint64_t x_unanswered_at = UINT64_MAX;  ///< packets that had come when a request was taken back
};

}  // namespace erdma::transport::verbs

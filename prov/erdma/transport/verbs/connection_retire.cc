#include <cstring>

#include "transport/verbs/connection.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"

/// Giving a connection up for another, in agreement with the peer: Connection::Phase has the
/// diagram. Each request has a number, so that one that was taken back can't be taken for the next.
namespace erdma::transport::verbs {
namespace {

constexpr const char* kSenseless = "the peer sent a control packet that makes no sense";
/// One for the request, one for a credit packet, one to take the request back, and the last.
constexpr uint32_t kCreditsToRetire = 4;

/// Any order will do that both sides see alike.
bool smaller(const util::SocketAddress& a, const util::SocketAddress& b) noexcept {
  return a.size() != b.size() ? a.size() < b.size() : std::memcmp(a.data(), b.data(), a.size()) < 0;
}

}  // namespace

void Connection::enter(Phase phase) noexcept {
  const bool was_retiring = retiring();
  x_phase = phase;
  x_core.count_retiring(int(retiring()) - int(was_retiring));
  if (retiring() || agrees()) phase_since = x_core.begin_grace();
}

/// The connection goes on after all.
void Connection::go_on() noexcept {
  enter(Phase::up);
  fenced = false;
  x_may_send = true;
  x_link->may_send(*this);
}

bool Connection::quiet() noexcept {
  return x_moving.empty() && x_waiting.empty() && x_streams.empty() && x_answers.empty() &&
         x_shorts == 0;
}

bool Connection::may_retire() noexcept {
  const bool answers = x_unanswered_at != x_receives.taken();
  return x_phase == Phase::up && x_may_send && !x_due && answers && quiet() &&
         x_credits.available() >= kCreditsToRetire && !x_link->to_self();
}

void Connection::retire() noexcept {
  enter(Phase::asking);
  x_link->may_not_send(*this);
  due(kDueRetire);
}

/// At once or not at all: until the peer is told, it may end the connection by its consent.
bool Connection::take_back() noexcept {
  if (x_phase == Phase::asked) {
    if (!x_credits.may_send() || x_send.room() == 0 || !x_link->session.withdraw()) return false;
    if (emit_request(Kind::retire_back, x_request)) {
      x_link->session.offer(session);
      return false;
    }
    ++x_request;
  }
  x_due = uint8_t(x_due & ~kDueRetire);
  go_on();
  return true;
}

void Connection::stay() noexcept {
  if (retiring()) (void)take_back();
  if (x_phase != Phase::agreeing) return;
  x_due = uint8_t(x_due & ~kDueRetireOk);
  go_on();
}

bool Connection::proven() noexcept {
  if (x_phase != Phase::agreed || x_send.is_outstanding(x_last_packet)) return false;
  if (fenced) return !x_heartbeat_pending;
  if (x_heartbeat_pending) return false;
  post_heartbeat();
  fenced = x_heartbeat_pending;
  return false;
}

void Connection::give_up() noexcept {
  x_was_asked = x_phase == Phase::asked;
  if (x_phase == Phase::agreed && !x_muted) {
    in_agreement = true;
    in_doubt = x_send.is_outstanding(x_last_packet);
  }
  enter(Phase::closing);
}

void Connection::on_retirement(Kind kind, const std::byte* body, size_t length) noexcept {
  RetireBody named;
  if (length < sizeof(named)) return broken(-FI_ECONNRESET, kSenseless);
  std::memcpy(&named, body, sizeof(named));
  if (kind == Kind::retire) return on_retire(named.request);
  if (kind == Kind::retire_back) return on_retire_back(named.request);
  on_answer_to_retire(named.request, kind == Kind::retire_ok);
}

/// The peer would give this connection up. Where both ask, the smaller name's request stands.
void Connection::on_retire(uint32_t request) noexcept {
  // If it can't be said now that ours does not stand, neither does: who asked does not wait long.
  if (x_phase == Phase::asked && smaller(x_core.name(), x_link->address())) return;
  if (retiring() && !take_back()) return;
  if (agrees()) return broken(-FI_ECONNRESET, kSenseless);
  if (x_phase != Phase::up) return;
  x_peers_request = request;
  if (!quiet()) return due(kDueRetireNo);
  enter(Phase::agreeing);
  x_may_send = false;
  x_link->may_not_send(*this);
  due(kDueRetireOk);
}

/// The peer did not wait for our answer, which it will not look at.
void Connection::on_retire_back(uint32_t request) noexcept {
  if (request != x_peers_request) return;
  in_agreement = in_agreement && x_was_asked;  // closing: it is not the peer's view
  if (!agrees()) return;
  x_due = uint8_t(x_due & ~kDueRetireOk);
  x_link->session.end();
  go_on();
}

void Connection::on_answer_to_retire(uint32_t request, bool agreed) noexcept {
  const bool waiting = x_phase == Phase::asked || (x_phase == Phase::closing && x_was_asked);
  if (request != x_request || !waiting) {
    const bool taken_back = int32_t(request - x_request) < 0;
    return taken_back ? void() : broken(-FI_ECONNRESET, kSenseless);
  }
  if (agreed) return x_core.retired(*this);
  if (x_phase == Phase::closing) return;
  ++x_request;
  x_link->session.end();
  go_on();
  used = x_core.polls();
  x_core.look_again();
}

/// What follows the last packet of this side, which was just sent.
void Connection::sent_last(Due which) noexcept {
  x_last_packet = x_send.latest();
  enter(which == kDueRetire     ? Phase::asked
        : which == kDueRetireOk ? Phase::agreed
                                : Phase::parting);
  x_may_send = false;
  x_link->may_not_send(*this);
}

}  // namespace erdma::transport::verbs

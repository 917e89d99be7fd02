#include "transport/verbs/lifecycle.h"

#include <cstring>
#include <utility>

namespace erdma::transport::verbs {
namespace {

/// One credit each for the request, a credit packet, taking the request back, and the last packet.
constexpr uint32_t kCreditsToRetire = 4;

}  // namespace

void Lifecycle::advance(Phase to) noexcept {
  const Phase before = std::exchange(x_phase, to);
  x_host.phase_changed(before);
}

void Lifecycle::go_up(Session& session, uint64_t name, bool goes_first) noexcept {
  x_session = &session;
  x_name = name;
  x_goes_first = goes_first;
  advance(Phase::up);
}

/// The connection stays up after all.
void Lifecycle::go_on() noexcept {
  x_fenced = false;
  advance(Phase::up);
}

bool Lifecycle::may_retire(uint64_t heard) noexcept {
  return x_phase == Phase::up && !x_sender.due().any() && x_unanswered_at != heard &&
         x_sender.credits().available() >= kCreditsToRetire && x_host.quiet();
}

void Lifecycle::retire() noexcept {
  advance(Phase::retire_due);
  x_sender.due().add(kDueRetire);
}

/// Succeeds at once or not at all: until the peer is told, it may end the connection by this side's
/// consent.
bool Lifecycle::take_back() noexcept {
  if (x_phase == Phase::retire_sent) {
    if (!x_sender.credits().may_send() || x_sender.queue().room() == 0 || !x_session->cancel())
      return false;
    if (emit_request(Kind::retire_back, x_request)) {
      x_session->propose(x_name);
      return false;
    }
    ++x_request;
  }
  x_sender.due().remove(kDueRetire);
  go_on();
  return true;
}

void Lifecycle::stay() noexcept {
  if (retiring()) (void)take_back();
  if (x_phase != Phase::accept_due) return;
  x_sender.due().remove(kDueRetireOk);
  go_on();
}

bool Lifecycle::fenced() noexcept {
  if (x_fenced) return !x_heartbeat.pending();
  if (x_heartbeat.pending()) return false;
  x_heartbeat.post();
  x_fenced = x_heartbeat.pending();
  return false;
}

bool Lifecycle::proven() noexcept {
  return x_phase == Phase::accept_sent && !x_sender.queue().is_outstanding(x_last_packet) &&
         fenced();
}

void Lifecycle::close(bool muted) noexcept {
  x_retire_was_sent = x_phase == Phase::retire_sent;
  if (x_phase == Phase::accept_sent && !muted)
    x_agreement =
        x_sender.queue().is_outstanding(x_last_packet) ? Agreement::doubtful : Agreement::certain;
  advance(Phase::closing);
}

int Lifecycle::emit_request(Kind kind, uint32_t request) noexcept {
  const RetireBody body{request};
  return x_sender.emit(kind, &body, sizeof(body));
}

int Lifecycle::send(Due which) noexcept {
  if (which == kDueRetireNo) return emit_request(Kind::retire_no, x_peers_request);
  // The claim must precede the packet on which the peer may act.
  if (which == kDueRetire || which == kDueRetireOk) x_session->propose(x_name);
  const int rc = which == kDueRetire     ? emit_request(Kind::retire, x_request)
                 : which == kDueRetireOk ? emit_request(Kind::retire_ok, x_peers_request)
                                         : x_sender.emit(Kind::bye, nullptr, 0);
  if (rc) return rc;
  // Nothing follows this side's last packet.
  x_last_packet = x_sender.queue().latest();
  advance(which == kDueRetire     ? Phase::retire_sent
          : which == kDueRetireOk ? Phase::accept_sent
                                  : Phase::bye_sent);
  return 0;
}

void Lifecycle::on_packet(Kind kind, const std::byte* body, size_t length) noexcept {
  RetireBody named;
  if (length < sizeof(named)) return x_host.broken(-FI_ECONNRESET, kInvalidControlPacket);
  std::memcpy(&named, body, sizeof(named));
  if (kind == Kind::retire) return on_retire(named.request);
  if (kind == Kind::retire_back) return on_retire_back(named.request);
  on_answer(named.request, kind == Kind::retire_ok);
}

/// The peer asks to give this connection up. If both sides ask, the request of the smaller name
/// stands.
void Lifecycle::on_retire(uint32_t request) noexcept {
  // If this side cannot take its request back now, neither request stands; the asking side does not
  // wait for long.
  if (x_phase == Phase::retire_sent && x_goes_first) return;
  if (retiring() && !take_back()) return;
  if (agrees()) return x_host.broken(-FI_ECONNRESET, kInvalidControlPacket);
  if (x_phase != Phase::up) return;
  x_peers_request = request;
  if (!x_host.quiet()) return x_sender.due().add(kDueRetireNo);
  advance(Phase::accept_due);
  x_sender.due().add(kDueRetireOk);
}

/// The peer did not wait for this side's answer, and will ignore it.
void Lifecycle::on_retire_back(uint32_t request) noexcept {
  if (request != x_peers_request) return;
  // This side ended the connection by its consent, which the peer has taken back.
  const bool by_consent = ending() && x_agreement != Agreement::none && !x_retire_was_sent;
  if (by_consent) void_agreement();
  if (by_consent ? !x_host.reopen() : !agrees()) return;
  x_sender.due().remove(kDueRetireOk);
  x_session->end();
  go_on();
}

void Lifecycle::on_answer(uint32_t request, bool agreed) noexcept {
  const bool waiting = x_phase == Phase::retire_sent || (ending() && x_retire_was_sent);
  if (request != x_request || !waiting) {
    const bool taken_back = int32_t(request - x_request) < 0;
    return taken_back ? void() : x_host.broken(-FI_ECONNRESET, kInvalidControlPacket);
  }
  if (agreed) {
    x_agreement = Agreement::certain;
    return x_host.on_answer(true);
  }
  if (ending()) return;
  ++x_request;
  x_session->end();
  go_on();
  x_host.on_answer(false);
}

}  // namespace erdma::transport::verbs

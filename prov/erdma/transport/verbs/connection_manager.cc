#include "transport/verbs/connection_manager.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "transport/verbs/session.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kFirstBackoff = 2'000'000;
constexpr uint64_t kLongestBackoff = 250'000'000;

const char* why(int status) noexcept {
  return fi_strerror(-status);
}

}  // namespace

uint64_t next_connection_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

ConnectionManager::ConnectionManager(const ConnectorConfig& config, uint64_t nonce,
                                     ConnectionBackend& backend) noexcept
    : x_config(config), x_nonce(nonce), x_backend(backend), x_gatekeeper(config, nonce) {}

void ConnectionManager::connect(const util::SocketAddress& name, uint64_t token, bool patient) {
  Peer& peer = x_table.peer_of(name);
  // It came up while the order was on its way: that mail is the answer.
  const auto is_up = [](const Attempt* attempt) {
    return attempt && attempt->stage == Attempt::Stage::up;
  };
  if (is_up(peer.active) || (!self(peer) && is_up(peer.passive))) return;
  const bool going_on = peer.wanted;
  peer.wanted = true;
  peer.patient = patient;
  peer.token = token;
  peer.give_up = x_config.clock->now() + x_config.options.connect_timeout_ns;
  peer.backoff = kFirstBackoff;
  if (going_on && (peer.active || peer.deadline)) return;
  if (name.family() != x_config.name.family()) {
    ERDMA_WARN(EP_CTRL, "%s can't be reached from %s: another address family\n",
               name.to_string().c_str(), x_config.name.to_string().c_str());
    return give_up(peer, -FI_EHOSTUNREACH);
  }
  // The peer's own attempt may do; if it fails, passive_failed() goes on.
  if (!peer.passive || self(peer)) start(peer);
}

void ConnectionManager::start(Peer& peer) {
  Attempt& attempt = x_table.add(next_connection_id(), peer, true);
  x_table.time_out(attempt, peer.give_up);
  if (const int rc = x_backend.connect(attempt.id, peer.name)) attempt_failed(attempt, rc);
}

void ConnectionManager::on_reached(uint64_t id) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::reaching);
  if (!attempt) return;
  // Asked first: what is destroyed meanwhile is a reason to try again, too.
  const bool others = x_config.factory->connections() > 0;
  if (const int rc = make_connection(*attempt)) {
    const bool crowded = rc == -FI_ENOMEM && others;
    attempt_failed(*attempt, rc, crowded);
    if (crowded) ask_for_room();
    return;
  }
  attempt->stage = Attempt::Stage::requested;
  const NameBytes asked = name_bytes(attempt->peer->name);
  const HelloBytes hello =
      encode(own_hello(HelloKind::hello, *attempt), x_gatekeeper.key(), x_backend.path(id), asked);
  attempt->hello_mac = hello.mac;
  if (const int rc = x_backend.request(id, hello)) attempt_failed(*attempt, rc);
}

int ConnectionManager::make_connection(Attempt& attempt) {
  ibv_qp_init_attr attr{};
  attempt.connection = x_config.factory->prepare(attr);
  if (!attempt.connection) return -FI_ENOMEM;
  attempt.send_queue = attr.send_cq;
  attempt.receive_queue = attr.recv_cq;
  ibv_qp* queue_pair = x_backend.create_queue_pair(attempt.id, attr);
  if (!queue_pair) return -FI_ENOMEM;
  return x_config.factory->adopt(*attempt.connection, queue_pair);
}

void ConnectionManager::ask_for_room() noexcept {
  Mail mail;
  mail.type = Mail::Type::crowded;
  x_config.mail->post(std::move(mail));
}

Hello ConnectionManager::own_hello(HelloKind kind, Attempt& attempt) noexcept {
  Hello hello;
  hello.kind = kind;
  hello.serial = attempt.serial = ++x_serial;
  x_config.factory->fill_terms(*attempt.connection, attempt.peer->name, hello.terms);
  attempt.resumes = hello.terms.resumes;
  hello.answer = std::exchange(attempt.peer->answer, 0);
  hello.terms.name = x_config.name;
  hello.terms.nonce = x_nonce;
  hello.terms.protocol_version = x_config.options.protocol_version;
  return hello;
}

std::string ConnectionManager::text_of(Refusal reason, Bytes bytes) const {
  return reason == Refusal::version ? version_text(bytes, own_version()) : refusal_text(reason);
}

void ConnectionManager::on_accepted(uint64_t id, Bytes welcome, const Path& path) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::requested);
  if (!attempt) return;
  Hello hello;
  Refusal wrong = decode(welcome, HelloKind::welcome, x_gatekeeper.key(), path,
                         std::as_bytes(std::span(attempt->hello_mac)), hello);
  if (wrong == Refusal::none && name_bytes(hello.terms.name) != name_bytes(attempt->peer->name))
    wrong = Refusal::key;
  if (wrong == Refusal::none && hello.terms.protocol_version != own_version())
    wrong = Refusal::version;
  if (wrong != Refusal::none) {
    ERDMA_WARN(EP_CTRL, "%s does not answer with a welcome: %s\n",
               attempt->peer->name.to_string().c_str(), text_of(wrong, welcome).c_str());
    return attempt_failed(*attempt, -FI_ECONNREFUSED, false);
  }
  attempt->terms = hello.terms;
  attempt->terms.name = attempt->peer->name;
  attempt->peer_serial = hello.serial;
  if (const int rc = x_backend.confirm(id)) return attempt_failed(*attempt, rc);
  go_up(*attempt);
}

void ConnectionManager::on_refused(uint64_t id, Bytes bytes) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::requested);
  if (!attempt) attempt = x_table.find(id, Attempt::Stage::reaching);
  if (!attempt) return;
  const std::string name = attempt->peer->name.to_string();
  if (bytes.empty()) return attempt_failed(*attempt, -FI_ECONNREFUSED);
  switch (const Refusal reason = decode_refusal(bytes)) {
    case Refusal::replay:
      attempt->peer->answer = decode_challenge(bytes);
      return attempt_failed(*attempt, -FI_ECONNREFUSED, true);
    case Refusal::use_mine:
    case Refusal::stale:
    case Refusal::busy:
      ERDMA_DEBUG(EP_CTRL, "%s says: %s\n", name.c_str(), refusal_text(reason));
      return attempt_failed(*attempt, -FI_ECONNREFUSED, true);
    case Refusal::closing:
      return attempt_failed(*attempt, -FI_ECONNREFUSED);
    case Refusal::none:
      ERDMA_NOTICE(peer_lost, EP_CTRL, "the listener at %s is not an endpoint of this provider\n",
                   name.c_str());
      return attempt_failed(*attempt, -FI_ECONNREFUSED, false);
    default:
      ERDMA_NOTICE(peer_lost, EP_CTRL, "%s refuses this endpoint: %s\n", name.c_str(),
                   text_of(reason, bytes).c_str());
      return attempt_failed(*attempt, -FI_ECONNREFUSED, false);
  }
}

void ConnectionManager::attempt_failed(Attempt& attempt, int status) {
  // A reset in mid-handshake says little: the next attempt tells more.
  const bool patient = attempt.peer->patient;
  const bool retry = status == -FI_ECONNRESET || (status == -FI_ECONNREFUSED && patient);
  attempt_failed(attempt, status, retry);
}

void ConnectionManager::attempt_failed(Attempt& attempt, int status, bool retry) {
  Peer& peer = *attempt.peer;
  discard(attempt);
  if (!peer.wanted) return x_table.forget_if_idle(peer);
  if (retry) return try_again(peer, status);
  give_up(peer, status);
}

void ConnectionManager::try_again(Peer& peer, int status) {
  const uint64_t now = x_config.clock->now();
  if (now + peer.backoff >= peer.give_up) return give_up(peer, status);
  x_table.retries.set(peer, now + peer.backoff);
  peer.backoff = std::min(peer.backoff * 2, kLongestBackoff);
}

void ConnectionManager::give_up(Peer& peer, int status) noexcept {
  ERDMA_INFO(EP_CTRL, "cannot connect to %s: %s\n", peer.name.to_string().c_str(), why(status));
  Mail mail;
  mail.type = Mail::Type::failed;
  mail.peer = peer.name;
  mail.attempt = peer.token;
  mail.status = status;
  peer.wanted = false;
  x_table.retries.clear(peer);
  x_table.forget_if_idle(peer);
  x_config.mail->post(std::move(mail));
}

void ConnectionManager::go_up(Attempt& attempt) {
  Peer& peer = *attempt.peer;
  if (const int rc = x_config.factory->agree(*attempt.connection, attempt.terms, attempt.active)) {
    ERDMA_WARN(EP_CTRL, "the connection to %s can't be used: %s\n", peer.name.to_string().c_str(),
               why(rc));
    return attempt.active ? attempt_failed(attempt, rc, false) : passive_failed(attempt);
  }
  attempt.stage = Attempt::Stage::up;
  x_table.clear_time_out(attempt);
  if (attempt.active || !self(peer)) {
    peer.wanted = false;
    x_table.retries.clear(peer);
  }
  announce(attempt);
}

void ConnectionManager::announce(Attempt& attempt) {
  const uint32_t serials[] = {attempt.serial, attempt.peer_serial};
  Mail mail;
  mail.type = Mail::Type::up;
  mail.peer = attempt.peer->name;
  mail.connection_id = attempt.id;
  mail.active = attempt.active;
  mail.terms = attempt.terms;
  mail.resumes = attempt.resumes;
  mail.session = attempt.session = Session::name(serials[!attempt.active], serials[attempt.active],
                                                 x_nonce ^ attempt.terms.nonce);
  mail.connection = std::move(attempt.connection);
  x_config.mail->post(std::move(mail));
}

void ConnectionManager::on_closed(uint64_t id, int status) {
  Attempt* const found = x_table.find(id);
  if (!found) return x_backend.close(id, false);
  Attempt& attempt = *found;
  switch (attempt.stage) {
    case Attempt::Stage::reaching:
    case Attempt::Stage::requested:
      return attempt_failed(attempt, status);
    case Attempt::Stage::accepting:
      return passive_failed(attempt);
    case Attempt::Stage::up: {
      Peer& peer = *attempt.peer;
      lose(attempt, status);
      return x_table.forget_if_idle(peer);
    }
    case Attempt::Stage::lost:
      return;
  }
}

void ConnectionManager::lose(Attempt& attempt, int status) noexcept {
  ERDMA_INFO(EP_CTRL, "the connection to %s is over: %s\n", attempt.peer->name.to_string().c_str(),
             why(status));
  Mail mail;
  mail.type = Mail::Type::lost;
  mail.peer = attempt.peer->name;
  mail.connection_id = attempt.id;
  mail.status = status;
  attempt.stage = Attempt::Stage::lost;
  AttemptTable::detach(attempt);
  x_config.mail->post(std::move(mail));
}

void ConnectionManager::discard(Attempt& attempt) noexcept {
  // First the back end: it may still hold the queue pair in its cm id.
  x_backend.close(attempt.id, false);
  if (attempt.connection) {
    Mail mail;
    mail.type = Mail::Type::dispose;
    mail.connection = std::move(attempt.connection);
    x_config.mail->post(std::move(mail));
  }
  x_table.erase(attempt);
}

void ConnectionManager::close(uint64_t id, bool orderly) noexcept {
  Attempt* const attempt = x_table.find(id);
  if (!attempt) return;
  x_backend.close(id, orderly);
  Peer* peer = attempt->peer;
  x_table.erase(*attempt);
  if (peer) x_table.forget_if_idle(*peer);
}

void ConnectionManager::stop_listening() noexcept {
  x_closing = true;
  x_backend.stop_listening();
}

void ConnectionManager::finish() noexcept {
  while (Attempt* const attempt = x_table.any()) discard(*attempt);
}

void ConnectionManager::expire() {
  const uint64_t now = x_config.clock->now();
  while (Attempt* attempt = x_table.requests.due(now))
    attempt_failed(*attempt, -FI_ETIMEDOUT, false);
  while (Attempt* attempt = x_table.accepting.due(now)) passive_failed(*attempt);
  while (Peer* peer = x_table.retries.due(now)) {
    x_table.retries.clear(*peer);
    if (!peer->active && (!peer->passive || self(*peer))) start(*peer);
  }
}

void ConnectionManager::on_queue_pair_error(uint64_t id, const char* what) {
  const Attempt* const attempt = x_table.find(id);
  if (!attempt || attempt->stage == Attempt::Stage::lost) return;
  ERDMA_WARN(EP_CTRL, "the device reports an error of the queue pair to %s: %s\n",
             attempt->peer->name.to_string().c_str(), what);
  on_closed(id, -FI_ECONNRESET);
}

void ConnectionManager::on_completion_queue_error(const ibv_cq* queue) {
  for (const uint64_t id : x_table.ids([queue](const Attempt& attempt) {
         return attempt.send_queue == queue || attempt.receive_queue == queue;
       }))
    if (x_table.find(id)) on_closed(id, -FI_EIO);
}

void ConnectionManager::on_device_gone() {
  for (const uint64_t id : x_table.ids([](const Attempt&) { return true; }))
    if (x_table.find(id)) on_closed(id, -FI_ENODEV);
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/connection_manager.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "transport/endpoint_thread.h"
#include "transport/verbs/host_mismatch.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kFirstBackoff = 2'000'000;
constexpr uint64_t kLongestBackoff = 250'000'000;
/// After this many connects in a row have found their port taken, the next ones wait longer.
constexpr unsigned kPortTries = 32;
/// After this many resets in a row over this long, the peer no longer listens. A live peer that
/// gets no processor time looks the same once its backlog is full, so the time is as long as an
/// error within 2 s allows.
constexpr unsigned kResets = 3;
constexpr uint64_t kResetTime = 1'500'000'000;
/// Connections that this side accepted and the other side has not confirmed. Above this limit a new
/// one replaces the oldest, because an honest peer confirms within a round trip.
constexpr size_t kMaxAccepting = 256;
constexpr uint64_t kConfirmTime = 10'000'000'000;

/// Connections of one peer that were given up without an answer: the peer has not answered the
/// first of them either. And of all peers, in addition to half of the limit on connections: the
/// other peers need places, too.
constexpr unsigned kHeldOfOne = 2;
constexpr size_t kHeld = 64;

bool is_up(const Attempt* attempt) noexcept {
  return attempt && attempt->stage == Attempt::Stage::up;
}

/// A reset during the handshake says little, and the next attempt tells more. But eRDMA also
/// reports a port without a listener by a reset. Returns the status.
int judge_reset(Peer& peer, uint64_t now) noexcept {
  if (peer.resets++ == 0) peer.first_reset = now;
  const bool nobody = peer.resets >= kResets && now - peer.first_reset >= kResetTime;
  return nobody ? -FI_ECONNREFUSED : -FI_ECONNRESET;
}

bool is_of_port(int status) noexcept {
  return status == -FI_EADDRINUSE || status == -FI_EADDRNOTAVAIL;
}

/// If an address is gone, none of its ports is available; on any other address most ports are.
int judge_port(Peer& peer, int status) noexcept {
  ERDMA_INFO(EP_CTRL, "a connect to %s got a port that is taken: %s\n",
             peer.name.to_string().c_str(), fi_strerror(-status));
  ++peer.busy_ports;
  if (status == -FI_EADDRINUSE)
    peer.no_ports = 0;
  else if (++peer.no_ports > kPortTries)
    return -FI_EHOSTUNREACH;
  return status;
}

/// The attempt ended neither with a taken port nor with a reset.
void ports_are_there(Peer& peer) noexcept {
  peer.busy_ports = peer.no_ports = 0;
}

/// The status where no queue pair, or no resources for one, can be had.
int none_can_be_made(const Device* device) noexcept {
  return device && device->gone() ? -FI_ENODEV : -FI_ENOMEM;
}

void dispose(AttemptTable& table, MailSink& mail, Attempt& attempt, Mail::Type how) noexcept {
  if (attempt.connection) mail.post({.type = how, .connection = std::move(attempt.connection)});
  table.erase(attempt);
}

}  // namespace

ConnectionManager::ConnectionManager(const ConnectorConfig& config, uint64_t nonce,
                                     ConnectionBackend& backend)
    : x_config(config), x_backend(backend), x_hello_checker(config, nonce) {}

void ConnectionManager::connect(const util::SocketAddress& name, uint64_t token,
                                bool retry_refused) {
  Peer& peer = x_table.peer_of(name);
  const bool to_self = x_hello_checker.is_self(peer);
  // A connection came up while the order was on its way; its mail is the answer.
  if (is_up(peer.active) || (!to_self && is_up(peer.passive))) return;
  const bool going_on = peer.wanted;
  peer.wanted = true;
  peer.retry_refused = retry_refused;
  peer.token = token;
  peer.give_up = x_config.clock->now() + x_config.options.connect_timeout_ns;
  peer.backoff = kFirstBackoff;
  peer.resets = 0;
  ports_are_there(peer);
  if (going_on && (peer.active || peer.deadline)) return;
  if (name.family() != x_config.name.family()) {
    ERDMA_WARN(EP_CTRL, "%s can't be reached from %s: another address family\n",
               name.to_string().c_str(), x_config.name.to_string().c_str());
    return give_up(peer, -FI_EHOSTUNREACH);
  }
  // The peer's own attempt may succeed; if it fails, passive_failed() continues.
  if (!peer.passive || to_self) start(peer);
}

void ConnectionManager::start(Peer& peer) {
  if (peer.held >= kHeldOfOne || x_held >= kHeld + x_config.options.max_connections / 2)
    return try_again(peer, -FI_ETIMEDOUT);
  Attempt* const attempt = x_table.add(next_connection_id(), peer, true);
  if (!attempt) return give_up(peer, -FI_ENOMEM);
  x_table.time_out(*attempt, peer.give_up);
  if (const int rc = x_backend.connect(attempt->id, peer.name)) attempt_failed(*attempt, rc);
}

void ConnectionManager::on_reached(uint64_t id) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::reaching);
  if (!attempt) return;
  // Asked first, because connections that end meanwhile are a reason to retry, too.
  const bool others = x_config.factory->connections() > 0;
  Path path{};
  if (const int rc = make_connection(*attempt, path)) {
    const bool crowded = rc == -FI_ENOMEM && others;
    attempt_failed(*attempt, rc, crowded);
    if (crowded) x_config.mail->post({.type = Mail::Type::crowded});
    return;
  }
  attempt->stage = Attempt::Stage::requested;
  const HelloBytes hello =
      x_hello_checker.greeting(HelloKind::hello, *attempt, path, name_bytes(attempt->peer->name));
  attempt->hello_mac = hello.mac;
  if (const int rc = x_backend.greet(id, hello)) attempt_failed(*attempt, rc);
}

int ConnectionManager::make_connection(Attempt& attempt, Path& path) {
  ibv_qp_init_attr attr{};
  attempt.connection = x_config.factory->prepare(attr);
  if (!attempt.connection) return none_can_be_made(x_config.device);
  attempt.queue = attr.send_cq;
  ibv_qp* queue_pair = x_backend.create_queue_pair(attempt.id, attr, path);
  if (!queue_pair) return none_can_be_made(x_config.device);
  return x_config.factory->adopt(*attempt.connection, queue_pair);
}

void ConnectionManager::on_accepted(uint64_t id, Bytes welcome, const Path& path) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::requested);
  if (!attempt) return;
  Hello hello;
  if (x_hello_checker.judge_welcome(*attempt, welcome, path, hello) != Refusal::none)
    return attempt_failed(*attempt, -FI_ECONNREFUSED, false);
  attempt->terms = hello.terms;
  attempt->peer_serial = hello.serial;
  if (const int rc = x_backend.confirm(id)) return attempt_failed(*attempt, rc);
  go_up(*attempt);
}

void ConnectionManager::on_refused(uint64_t id, Bytes bytes) {
  Attempt* attempt = x_table.find(id, Attempt::Stage::requested);
  if (!attempt) attempt = x_table.find(id, Attempt::Stage::reaching);
  if (!attempt) return;
  attempt->peer->resets = 0;
  attempt->peer->spoke |= !bytes.empty();
  ports_are_there(*attempt->peer);
  // There is no listener: the peer may be starting.
  const bool retry = bytes.empty() ? attempt->peer->retry_refused
                                   : x_hello_checker.apply_refusal(*attempt->peer, bytes);
  attempt_failed(*attempt, -FI_ECONNREFUSED, retry);
}

void ConnectionManager::attempt_failed(Attempt& attempt, int status) {
  Peer& peer = *attempt.peer;
  // The network of the peer, or that of this host, may be made later or come back. Where
  // judge_port() finds no route, the address of this host is gone.
  const bool unrouted = status == -FI_EHOSTUNREACH;
  if (is_of_port(status)) {
    status = judge_port(peer, status);
  } else {
    ports_are_there(peer);
    if (status != -FI_ECONNRESET)
      peer.resets = 0;
    else if (x_backend.resets_tell_nobody)
      status = judge_reset(peer, x_config.clock->now());
  }
  // The next attempt uses another port.
  const bool again =
      unrouted || status == -FI_ECONNRESET || is_of_port(status) || util::is_lack(status);
  // A peer that is starting may not answer within the kernel's limit, which may be the shorter one.
  const bool absent = status == -FI_ECONNREFUSED || status == -FI_ETIMEDOUT;
  attempt_failed(attempt, status, again || (absent && peer.retry_refused));
}

void ConnectionManager::attempt_failed(Attempt& attempt, int status, bool retry) {
  Peer& peer = *attempt.peer;
  discard(attempt);
  if (!peer.wanted) return x_table.forget_if_idle(peer);
  if (retry) return try_again(peer, status);
  give_up(peer, status);
}

void ConnectionManager::try_again(Peer& peer, int status) noexcept {
  const uint64_t now = x_config.clock->now();
  if (now + peer.backoff >= peer.give_up)
    return give_up(peer, peer.resets >= kResets ? -FI_ECONNREFUSED : status);
  x_table.retries.set(peer, now + peer.backoff);
  if (is_of_port(status) && peer.busy_ports <= kPortTries) return;
  peer.backoff = std::min(peer.backoff * 2, kLongestBackoff);
}

void ConnectionManager::give_up(Peer& peer, int status) noexcept {
  ERDMA_INFO(EP_CTRL, "cannot connect to %s: %s\n", peer.name.to_string().c_str(),
             fi_strerror(-status));
  if (!x_any_connected && !peer.spoke)
    tell_why_unreached(peer.name, status, x_backend.resets_tell_nobody,
                       x_backend.resets_tell_nobody && port_mapper_runs(x_config.udp_table));
  Mail mail{.type = Mail::Type::failed, .peer = peer.name, .attempt = peer.token, .status = status};
  peer.wanted = false;
  x_table.retries.clear(peer);
  x_table.forget_if_idle(peer);
  x_config.mail->post(std::move(mail));
}

void ConnectionManager::on_request(uint64_t id, const util::SocketAddress& from, Bytes bytes,
                                   const Path& path) {
  const auto answer = [&] {
    Hello hello;
    Refusal reason = x_closing ? Refusal::closing : x_hello_checker.judge(from, bytes, path, hello);
    if (reason != Refusal::none) return x_backend.refuse(id, x_hello_checker.refusal(reason));
    Peer& peer = x_table.peer_of(hello.terms.name);
    reason = x_hello_checker.admit(x_table, peer, hello);
    if (reason == Refusal::none) return accept(id, peer, hello);
    ERDMA_DEBUG(EP_CTRL, "%s is refused: %s\n", peer.name.to_string().c_str(),
                refusal_text(reason));
    if (reason == Refusal::busy) x_config.mail->post({.type = Mail::Type::crowded});
    x_backend.refuse(id, reason == Refusal::replay ? x_hello_checker.challenge(peer, hello)
                                                   : x_hello_checker.refusal(reason));
    x_table.forget_if_idle(peer);
  };
  // A peer that is refused for this reason retries.
  if (!guarded("answering a connection request", answer))
    x_backend.refuse(id, encode_prefix(HelloKind::refusal, Refusal::busy));
}

/// The request is the newest that both sides know. So whatever the peer had here ends, except this
/// endpoint's own end of a connection to itself.
void ConnectionManager::accept(uint64_t id, Peer& peer, const Hello& hello) {
  peer.resets = 0;  // the peer is there
  peer.spoke = true;
  for (Attempt* attempt : {peer.passive, peer.active}) {
    if (!attempt || (attempt->active && x_hello_checker.is_self(peer))) continue;
    is_up(attempt) ? lose(*attempt, -FI_ECONNRESET) : discard(*attempt);
  }
  if (x_table.accepting.size() >= kMaxAccepting) {
    Attempt* const oldest = x_table.accepting.first();
    passive_failed(*oldest->peer, oldest);
  }
  Attempt* const attempt = x_table.add(id, peer, false);
  int rc = -FI_ENOMEM;
  if (attempt) {
    attempt->terms = hello.terms;
    attempt->peer_serial = hello.serial;
    const uint64_t patience = std::min(kConfirmTime, x_config.options.connect_timeout_ns);
    x_table.time_out(*attempt, x_config.clock->now() + patience);
    Path path{};
    rc = make_connection(*attempt, path);
    const Bytes known = std::as_bytes(std::span(hello.mac));
    if (!rc)
      rc = x_backend.greet(id, x_hello_checker.greeting(HelloKind::welcome, *attempt, path, known));
  }
  if (!rc) return;
  x_backend.refuse(id, encode_prefix(HelloKind::refusal, Refusal::busy));
  passive_failed(peer, attempt);
  if (rc == -FI_ENOMEM) x_config.mail->post({.type = Mail::Type::crowded});
}

void ConnectionManager::on_established(uint64_t id) {
  if (Attempt* attempt = x_table.find(id, Attempt::Stage::accepting)) go_up(*attempt);
}

/// `attempt`: what existed of the peer's attempt; null: nothing yet.
void ConnectionManager::passive_failed(Peer& peer, Attempt* attempt) noexcept {
  if (attempt) discard(*attempt);
  // The peer's attempt stood in for that of this side.
  if (peer.wanted && !peer.active && !peer.deadline) return try_again(peer, -FI_ECONNRESET);
  x_table.forget_if_idle(peer);
}

void ConnectionManager::go_up(Attempt& attempt) {
  Peer& peer = *attempt.peer;
  const bool active = attempt.active;
  if (const int rc = x_config.factory->agree(*attempt.connection, attempt.terms, active)) {
    ERDMA_WARN(EP_CTRL, "the connection to %s can't be used: %s\n", peer.name.to_string().c_str(),
               fi_strerror(-rc));
    return active ? attempt_failed(attempt, rc, false) : passive_failed(peer, &attempt);
  }
  attempt.stage = Attempt::Stage::up;
  x_any_connected = true;
  x_table.clear_time_out(attempt);
  if (active || !x_hello_checker.is_self(peer)) {
    peer.wanted = false;
    x_table.retries.clear(peer);
  }
  attempt.session = x_hello_checker.session_of(attempt);
  x_config.mail->post({.type = Mail::Type::up,
                       .peer = peer.name,
                       .connection_id = attempt.id,
                       .active = active,
                       .terms = attempt.terms,
                       .resumes = attempt.resumes,
                       .session = attempt.session,
                       .connection = std::move(attempt.connection)});
}

void ConnectionManager::on_closed(uint64_t id, int status) {
  Attempt* const attempt = x_table.find(id);
  if (!attempt) {
    (void)x_backend.close(id, false);
    return;
  }
  Peer* const peer = attempt->peer;
  switch (attempt->stage) {
    case Attempt::Stage::reaching:
    case Attempt::Stage::requested:
      return attempt_failed(*attempt, status);
    case Attempt::Stage::accepting:
      return passive_failed(*peer, attempt);
    case Attempt::Stage::up:
      lose(*attempt, status);
      return x_table.forget_if_idle(*peer);
    case Attempt::Stage::held: {
      --x_held;
      Peer& holder = *attempt->holder;
      --holder.held;
      dispose(x_table, *x_config.mail, *attempt, Mail::Type::dispose);
      return x_table.forget_if_idle(holder);
    }
    case Attempt::Stage::lost:
      return;
  }
}

void ConnectionManager::lose(Attempt& attempt, int status) noexcept {
  const util::SocketAddress name = attempt.peer->name;
  ERDMA_INFO(EP_CTRL, "the connection to %s is over: %s\n", name.to_string().c_str(),
             fi_strerror(-status));
  attempt.stage = Attempt::Stage::lost;
  AttemptTable::detach(attempt);
  x_config.mail->post(
      {.type = Mail::Type::lost, .peer = name, .connection_id = attempt.id, .status = status});
}

void ConnectionManager::discard(Attempt& attempt) noexcept {
  // Close the back end first: its cm id may still refer to the queue pair.
  const bool held = x_backend.close(attempt.id, false);
  if (!attempt.connection || !held)
    return dispose(x_table, *x_config.mail, attempt, Mail::Type::dispose);
  x_table.clear_time_out(attempt);
  attempt.holder = attempt.peer;
  ++attempt.holder->held;
  AttemptTable::detach(attempt);
  attempt.stage = Attempt::Stage::held;
  ++x_held;
}

void ConnectionManager::close(uint64_t id, bool orderly) noexcept {
  Attempt* const attempt = x_table.find(id);
  if (!attempt) return;
  (void)x_backend.close(id, orderly);
  Peer* peer = attempt->peer;
  x_table.erase(*attempt);
  if (peer) x_table.forget_if_idle(*peer);
}

void ConnectionManager::stop_listening() noexcept {
  x_closing = true;
  x_backend.stop_listening();
}

bool ConnectionManager::finish() noexcept {
  while (Attempt* const attempt = x_table.any_but(Attempt::Stage::held)) discard(*attempt);
  return x_held > 0;
}

ConnectionManager::~ConnectionManager() {
  if (x_held)
    ERDMA_INFO(EP_CTRL, "%zu connects have no answer yet: their queue pairs stay\n", x_held);
  while (Attempt* const attempt = x_table.any())
    dispose(x_table, *x_config.mail, *attempt, Mail::Type::leave_open);
}

void ConnectionManager::expire() {
  const uint64_t now = x_config.clock->now();
  while (Attempt* attempt = x_table.requests.due(now)) {
    // Earlier attempts may have told more than this one, which has no answer yet.
    const bool nobody = attempt->peer->resets >= kResets;
    attempt_failed(*attempt, nobody ? -FI_ECONNREFUSED : -FI_ETIMEDOUT, false);
  }
  while (Attempt* attempt = x_table.accepting.due(now)) passive_failed(*attempt->peer, attempt);
  while (Peer* peer = x_table.retries.due(now)) {
    x_table.retries.clear(*peer);
    if (!peer->active && (!peer->passive || x_hello_checker.is_self(*peer))) start(*peer);
  }
}

/// Allocates nothing of its own, because an event that is lost does not come again.
void ConnectionManager::on_device_event(const DeviceEvent& event) {
  const bool gone = !event.queue_pair && !event.completion_queue;
  const auto struck = [&](const Attempt& attempt) {
    if (!attempt.peer) return false;  // lost or held
    return gone || attempt.id == event.queue_pair ||
           (event.completion_queue && attempt.queue == event.completion_queue);
  };
  if (event.completion_queue) x_config.factory->queue_failed(event.completion_queue);
  const int status = gone ? -FI_ENODEV : event.queue_pair ? -FI_ECONNRESET : -FI_EIO;
  x_table.for_each([&](Attempt& attempt) {
    if (!struck(attempt)) return;
    // The next attempt gets another completion queue.
    if (event.completion_queue && attempt.stage == Attempt::Stage::requested)
      return attempt_failed(attempt, status, true);
    if (event.queue_pair)
      ERDMA_WARN(EP_CTRL, "the device reports an error of the queue pair to %s: %s\n",
                 attempt.peer->name.to_string().c_str(), event.what);
    on_closed(attempt.id, status);
  });
}

}  // namespace erdma::transport::verbs

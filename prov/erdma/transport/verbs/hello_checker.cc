#include "transport/verbs/hello_checker.h"

#include <utility>

#include "transport/verbs/host_mismatch.h"
#include "transport/verbs/session.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// In addition to the limit on connections: half of the places that an endpoint has.
constexpr size_t kPlacesOfOneHost = 128;

/// True if the request was made before the latest known hello or welcome of its sender.
bool stale(const Attempt& attempt, const Hello& hello) noexcept {
  const bool known = attempt.terms.nonce == hello.terms.nonce &&
                     (!attempt.active || attempt.stage == Attempt::Stage::up);
  return known && int32_t(hello.serial - attempt.peer_serial) <= 0;
}

}  // namespace

HelloChecker::HelloChecker(const ConnectorConfig& config, uint64_t nonce)
    : x_config(config),
      x_nonce(nonce),
      x_key(config.options.job_key),
      x_secret(random_key_text()) {}

HelloBytes HelloChecker::greeting(HelloKind kind, Attempt& attempt, const Path& path,
                                  Bytes context) noexcept {
  Hello hello;
  hello.kind = kind;
  hello.serial = attempt.serial = ++x_serial;
  x_config.factory->fill_terms(attempt.peer->name, hello.terms);
  attempt.resumes = hello.terms.resumes;
  hello.answer = std::exchange(attempt.peer->answer, 0);
  hello.terms.name = x_config.name;
  hello.terms.nonce = x_nonce;
  hello.terms.protocol_version = own_version();
  return encode(hello, x_key, path, context);
}

uint64_t HelloChecker::session_of(const Attempt& attempt) const noexcept {
  const uint32_t serials[] = {attempt.serial, attempt.peer_serial};
  return Session::name(serials[!attempt.active], serials[attempt.active],
                       x_nonce ^ attempt.terms.nonce);
}

Refusal HelloChecker::judge(const util::SocketAddress& from, Bytes bytes, const Path& path,
                            Hello& hello) {
  const NameBytes own = name_bytes(x_config.name);
  Refusal wrong = decode(bytes, HelloKind::hello, x_key, path, own, hello);
  if (wrong == Refusal::none && hello.terms.protocol_version != own_version())
    wrong = Refusal::version;
  std::string what = wrong == Refusal::version ? "speaks " + version_text(bytes, own_version())
                     : wrong == Refusal::key
                         ? "has another job key (FI_ERDMA_JOB_KEY), or takes this endpoint for "
                           "another"
                         : "did not send a hello";
  if (wrong == Refusal::none) {
    if (from.set() && !same_ip(from, hello.terms.name)) {
      what = "names an address that it does not come from";
      wrong = Refusal::garbage;
    } else if (name_bytes(hello.terms.name) == own && hello.terms.nonce != x_nonce) {
      what = "says that it is this endpoint";
      wrong = Refusal::garbage;
    }
  }
  if (wrong != Refusal::none) log(from, what.c_str(), false);
  if (begins_as_iwarp(bytes)) tell_of_iwarp(from);
  hello.terms.name = hello.terms.name.with_scope_of(x_config.name);
  return wrong;
}

Refusal HelloChecker::judge_welcome(const Attempt& attempt, Bytes bytes, const Path& path,
                                    Hello& hello) const {
  const util::SocketAddress& name = attempt.peer->name;
  Refusal wrong = decode(bytes, HelloKind::welcome, x_key, path,
                         std::as_bytes(std::span(attempt.hello_mac)), hello);
  if (wrong == Refusal::none && name_bytes(hello.terms.name) != name_bytes(name))
    wrong = Refusal::key;
  if (wrong == Refusal::none && hello.terms.protocol_version != own_version())
    wrong = Refusal::version;
  if (wrong != Refusal::none)
    ERDMA_WARN(EP_CTRL, "%s does not answer with a welcome: %s\n", name.to_string().c_str(),
               text_of(wrong, bytes).c_str());
  hello.terms.name = name;
  return wrong;
}

Refusal HelloChecker::admit(const AttemptTable& table, const Peer& peer,
                            const Hello& hello) const noexcept {
  for (const Attempt* attempt : {peer.passive, peer.active}) {
    if (!attempt || (attempt->active && is_self(peer))) continue;
    if (stale(*attempt, hello)) return Refusal::stale;
    if (attempt->stage == Attempt::Stage::requested &&
        name_bytes(x_config.name) < name_bytes(hello.terms.name))
      return Refusal::use_mine;
  }
  const uint64_t ended = ended_by(peer, hello);
  if (ended && hello.answer != question(peer.name, ended)) return Refusal::replay;
  // A host can have any number of names.
  const size_t most = x_config.options.max_connections + kPlacesOfOneHost;
  const bool crowded = !peer.passive && !is_self(peer) && table.accepted_from(peer.name) >= most;
  return crowded ? Refusal::busy : Refusal::none;
}

/// What accepting the request would end: a live connection, or one that was given up and is to be
/// continued. 0 = nothing.
uint64_t HelloChecker::ended_by(const Peer& peer, const Hello& hello) const noexcept {
  const uint64_t continues = x_config.factory->continues(peer.name);
  if (is_self(peer) || (continues && hello.terms.resumes == continues)) return 0;
  for (const Attempt* attempt : {peer.passive, peer.active})
    if (attempt && attempt->stage == Attempt::Stage::up) return attempt->session;
  return continues;
}

/// The answer differs for each connection, so an attacker that replays recorded hellos of a peer
/// cannot give it.
uint16_t HelloChecker::question(const util::SocketAddress& peer, uint64_t session) const noexcept {
  const Mac mac = x_secret.sign(name_bytes(peer), {}, std::as_bytes(std::span(&session, 1)));
  return uint16_t((mac[0] | mac[1] << 8) | 1);
}

HelloPrefix HelloChecker::challenge(const Peer& peer, const Hello& hello) const noexcept {
  HelloPrefix prefix = encode_prefix(HelloKind::challenge);
  prefix.argument = question(peer.name, ended_by(peer, hello));
  return prefix;
}

HelloPrefix HelloChecker::refusal(Refusal reason) const noexcept {
  return encode_prefix(HelloKind::refusal, reason, own_version());
}

bool HelloChecker::apply_refusal(Peer& peer, Bytes refusal) const {
  const auto name = peer.name.to_string();
  switch (const Refusal reason = decode_refusal(refusal)) {
    case Refusal::replay:
      peer.answer = decode_challenge(refusal);
      return true;
    case Refusal::use_mine:
    case Refusal::stale:
    case Refusal::busy:
      ERDMA_DEBUG(EP_CTRL, "%s says: %s\n", name.c_str(), refusal_text(reason));
      return true;
    case Refusal::closing:
      return peer.retry_refused;
    case Refusal::none:
      ERDMA_NOTICE(peer_lost, EP_CTRL, "the listener at %s is not an endpoint of this provider",
                   name.c_str());
      return false;
    default:
      ERDMA_NOTICE(peer_lost, EP_CTRL, "%s refuses this endpoint: %s", name.c_str(),
                   text_of(reason, refusal).c_str());
      return false;
  }
}

std::string HelloChecker::text_of(Refusal reason, Bytes bytes) const {
  return reason == Refusal::version ? version_text(bytes, own_version()) : refusal_text(reason);
}

void HelloChecker::log(const util::SocketAddress& from, const char* what, bool harmless) const {
  const std::string who = from.set() ? std::string(from.to_string()) : "an unknown address";
  const char* format = "connection from %s refused by %s: it %s\n";
  if (harmless)
    ERDMA_INFO(EP_CTRL, format, who.c_str(), x_config.name.to_string().c_str(), what);
  else
    ERDMA_WARN(EP_CTRL, format, who.c_str(), x_config.name.to_string().c_str(), what);
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/gatekeeper.h"

#include <sodium.h>

#include <span>
#include <string>

#include "transport/verbs/attempt_table.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

std::string random_text() {
  std::string text(32, 0);
  randombytes_buf(text.data(), text.size());
  return text;
}

}  // namespace

Gatekeeper::Gatekeeper(const ConnectorConfig& config, uint64_t nonce) noexcept
    : x_config(config), x_nonce(nonce), x_key(config.options.job_key), x_secret(random_text()) {}

uint16_t Gatekeeper::challenge(const util::SocketAddress& peer, uint64_t session) const noexcept {
  const Mac mac = x_secret.sign(name_bytes(peer), {}, std::as_bytes(std::span(&session, 1)));
  return uint16_t((mac[0] | mac[1] << 8) | 1);
}

Refusal Gatekeeper::judge(const util::SocketAddress& from, Bytes bytes, const Path& path,
                          Hello& hello) {
  const NameBytes own = name_bytes(x_config.name);
  const uint8_t own_version = x_config.options.protocol_version;
  Refusal wrong = decode(bytes, HelloKind::hello, x_key, path, own, hello);
  if (wrong == Refusal::none && hello.terms.protocol_version != own_version)
    wrong = Refusal::version;
  std::string what = wrong == Refusal::version ? "speaks " + version_text(bytes, own_version)
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
  return wrong;
}

void Gatekeeper::log(const util::SocketAddress& from, const char* what, bool harmless) {
  const std::string who = from.set() ? std::string(from.to_string()) : "an unknown address";
  const char* format = "connection from %s refused by %s: it %s\n";
  if (harmless)
    ERDMA_INFO(EP_CTRL, format, who.c_str(), x_config.name.to_string().c_str(), what);
  else
    ERDMA_WARN(EP_CTRL, format, who.c_str(), x_config.name.to_string().c_str(), what);
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/job_key.h"

#include <sodium.h>

namespace erdma::transport::verbs {
namespace {

void add(crypto_generichash_state& state, JobKey::Bytes bytes) noexcept {
  // Including the length, so that bytes cannot move from one part to the next unnoticed.
  const uint64_t length = bytes.size();
  crypto_generichash_update(&state, reinterpret_cast<const uint8_t*>(&length), sizeof(length));
  crypto_generichash_update(&state, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

std::string random_key_text() {
  std::string text(32, 0);
  randombytes_buf(text.data(), text.size());
  return text;
}

JobKey::JobKey(const std::string& text) noexcept {
  static_assert(sizeof(x_key) == crypto_generichash_KEYBYTES);
  crypto_generichash(x_key.data(), x_key.size(), reinterpret_cast<const uint8_t*>(text.data()),
                     text.size(), nullptr, 0);
}

JobKey::~JobKey() {
  sodium_memzero(x_key.data(), x_key.size());
}

Mac JobKey::sign(Bytes message, Bytes path, Bytes context) const noexcept {
  crypto_generichash_state state;
  Mac mac;
  crypto_generichash_init(&state, x_key.data(), x_key.size(), mac.size());
  add(state, message);
  add(state, path);
  add(state, context);
  crypto_generichash_final(&state, mac.data(), mac.size());
  return mac;
}

bool JobKey::verify(const Mac& mac, Bytes message, Bytes path, Bytes context) const noexcept {
  const Mac wanted = sign(message, path, context);
  return !sodium_memcmp(wanted.data(), mac.data(), mac.size());
}

}  // namespace erdma::transport::verbs

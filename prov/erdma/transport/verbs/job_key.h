#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace erdma::transport::verbs {

using Mac = std::array<uint8_t, 16>;

/// The text of a key that nobody else knows. Call sodium_init() before.
std::string random_key_text();

/// The secret that the endpoints of one job share. It keeps strangers and other jobs out. It
/// neither hides the traffic nor protects it from an attacker that can change packets on the way.
/// Immutable, thread-safe.
class JobKey {
 public:
  /// `text` has any length. Empty: the MAC is a checksum that anyone can compute.
  explicit JobKey(const std::string& text) noexcept;
  JobKey(const JobKey&) = delete;
  JobKey& operator=(const JobKey&) = delete;
  ~JobKey();

  using Bytes = std::span<const std::byte>;
  /// The MAC of `message`, and of data that both sides know and need not send.
  Mac sign(Bytes message, Bytes path, Bytes context) const noexcept;
  /// Compares in constant time.
  bool verify(const Mac& mac, Bytes message, Bytes path, Bytes context) const noexcept;

 private:
  std::array<uint8_t, 32> x_key;
};

}  // namespace erdma::transport::verbs

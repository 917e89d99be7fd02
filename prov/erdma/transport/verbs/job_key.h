#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace erdma::transport::verbs {

using Mac = std::array<uint8_t, 16>;

/// The secret that the endpoints of one job share: keeps strangers and other jobs out. It does not
/// hide what travels, nor does it protect from someone who can change packets on the way.
/// Immutable, thread-safe.
class JobKey {
 public:
  /// Of any length. Empty: the MAC is a checksum that everybody can make.
  explicit JobKey(const std::string& text) noexcept;
  JobKey(const JobKey&) = delete;
  JobKey& operator=(const JobKey&) = delete;
  ~JobKey();

  using Bytes = std::span<const std::byte>;
  /// Of `message`, and of what both sides know and need not send.
  Mac sign(Bytes message, Bytes path, Bytes context) const noexcept;
  /// In constant time.
  bool verify(const Mac& mac, Bytes message, Bytes path, Bytes context) const noexcept;

 private:
  std::array<uint8_t, 32> x_key;
};

}  // namespace erdma::transport::verbs

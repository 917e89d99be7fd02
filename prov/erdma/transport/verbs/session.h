#pragma once

#include <atomic>
#include <cstdint>

namespace erdma::transport::verbs {

/// The word by which one end of a link says, when the link is connected anew, which connection,
/// given up in agreement, the new one is to continue. Both ends exchange their words in the
/// handshake. Operations that wait for the peer go on waiting only if both words are equal and not
/// 0.
///
///   0 --propose(), before `retire` or `retire_ok` leaves--> claim
///   claim --cancel(), the connection stays in use--> 0
///   claim --commit(), in a hello or welcome--> committed: can't be cancelled, as the peer may rely
///   on it
///   claim, committed --end(), the waiting operations failed--> 0
///
/// The connector's thread calls commit(); the polling thread calls everything else.
class Session {
 public:
  /// The name of a connection at both ends. Never 0, and never a name of an earlier process.
  static uint64_t name(uint32_t hello_serial, uint32_t welcome_serial, uint64_t nonces) noexcept {
    const uint64_t mixed = nonces ^ (uint64_t(hello_serial) << 32 | welcome_serial);
    return mixed & ~kCommitted ? mixed & ~kCommitted : 2;
  }

  uint64_t claim() const noexcept { return x_word.load() & ~kCommitted; }
  void propose(uint64_t name) noexcept { x_word.store(name); }
  /// False: the claim is committed.
  [[nodiscard]] bool cancel() noexcept {
    uint64_t expected = claim();
    return x_word.compare_exchange_strong(expected, 0);
  }
  void end() noexcept { x_word.store(0); }
  uint64_t commit() noexcept {
    uint64_t word = x_word.load();
    while (word && !x_word.compare_exchange_weak(word, word | kCommitted)) {
    }
    return word & ~kCommitted;
  }

 private:
  static constexpr uint64_t kCommitted = 1;
  std::atomic<uint64_t> x_word = 0;
};

}  // namespace erdma::transport::verbs

#pragma once

#include <atomic>
#include <cstdint>

namespace erdma::fabric {

/// What a thread does after reads that found nothing.
enum class Rest : uint8_t {
  none,
  yield_untimed,
  yield,  ///< and learn how long it takes
  sleep,
};

/// Counts consecutive reads of a queue that found nothing, and says at a limit that the thread must
/// rest, because another thread may need its core: with more threads than cores, even the one that
/// it waits for. Any thread may call it; the caller of should_rest() holds a lock.
///
/// - Usually a rest is a yield. The limit adapts: a thread that is alone on its core yields every
///   ten microseconds or so. A thread that shares it yields after as many reads as a packet takes
///   to arrive.
/// - If a thread that computes has the core, each yield lasts for its whole time slice, and what
///   arrives meanwhile waits for milliseconds. Then a rest is a sleep, which the next packet ends.
///   Now and then one yield finds out whether that is still so.
/// - If peers run on the same core, a yield may be long because they do their part of the work.
///   Then a rest remains a yield: a wake-up costs more, and may come while a peer still needs the
///   core.
class IdleReads {
 public:
  using Now = uint64_t (*)() noexcept;
  explicit IdleReads(Now now = monotonic_ns) noexcept : x_now(now) {}

  /// True: the caller must rest once it has released the lock, as choose() says.
  bool should_rest(bool found) noexcept {
    x_count = found ? 0 : x_count + 1;
    if (x_count < x_limit.load(std::memory_order_relaxed)) return false;
    x_count = 0;
    return true;
  }
  /// To be called with the lock before a rest. True: choose() is to be asked, and peers shall learn
  /// of this core. Most rests of a thread that never had to wait for long for its core need
  /// neither: both cost some 5 % of a yield.
  bool looks() noexcept { return depends_on_peers() || x_rests++ % kLookEvery == 0; }
  /// The choice depends on whether a peer runs on this core.
  bool depends_on_peers() const noexcept {
    return x_long_yields.load(std::memory_order_relaxed) != 0;
  }
  Rest choose(bool peer_here) noexcept;

  void yield(Rest how = Rest::yield) noexcept;
  /// To be called after a sleep. `woken`: it ended before kNapMs had passed.
  void slept(bool woken) noexcept;

  static constexpr unsigned kLookEvery = 8;
  static constexpr unsigned kMostReads = 256;
  static constexpr unsigned kLeastReads = 16;
  /// About as long as it takes to sleep and to be woken.
  static constexpr unsigned kReadsBeforeSleep = 1024;
  /// The longest sleep. The application may have other work in its loop, and a yield to a thread
  /// that computes takes as long.
  static constexpr int kNapMs = 4;
  static constexpr uint64_t kLongYield = 1'000'000;  ///< ns
  static constexpr unsigned kLongYields = 2;         ///< in succession, until threads sleep
  static constexpr uint64_t kFirstTrust = 50'000'000, kLastTrust = 400'000'000;  ///< ns
  static constexpr unsigned kVainSleeps = 8;

 private:
  static uint64_t monotonic_ns() noexcept;

  const Now x_now;
  unsigned x_count = 0;
  unsigned x_rests = 0;
  // Hints; any thread writes them without the lock.
  std::atomic<unsigned> x_limit{kMostReads};
  std::atomic<unsigned> x_long_yields{0};  ///< in succession, at most kLongYields
  std::atomic<unsigned> x_vain_sleeps{0};
  std::atomic<uint64_t> x_sleep_until{0};  ///< 0 = threads yield
  std::atomic<uint64_t> x_trust{kFirstTrust};
};

}  // namespace erdma::fabric

#include "fabric/idle_reads.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "util/clock.h"

namespace erdma::fabric {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

/// True if the kernel took the core from the calling thread since its last call of this function.
bool lost_the_core() noexcept {
  static thread_local long t_switches;
  rusage used;
  if (getrusage(RUSAGE_THREAD, &used) != 0) return false;
  return std::exchange(t_switches, used.ru_nivcsw) != used.ru_nivcsw;
}

}  // namespace

uint64_t IdleReads::monotonic_ns() noexcept {
  return util::SystemClock().now();
}

Rest IdleReads::choose(bool peer_here) noexcept {
  if (peer_here) {
    x_long_yields.store(0, kRelaxed);
    x_trust.store(kFirstTrust, kRelaxed);
    x_limit.store(std::min(x_limit.load(kRelaxed), kMostReads), kRelaxed);
  }
  if (x_long_yields.load(kRelaxed) < kLongYields) {
    x_sleep_until.store(0, kRelaxed);
    return Rest::yield;
  }
  if (x_sleep_until.load(kRelaxed) == 0) {
    const uint64_t trust = x_trust.load(kRelaxed);
    x_trust.store(std::min(2 * trust, kLastTrust), kRelaxed);
    x_vain_sleeps.store(0, kRelaxed);
    x_limit.store(kReadsBeforeSleep, kRelaxed);
    x_sleep_until.store(x_now() + trust, kRelaxed);
  }
  return Rest::sleep;
}

void IdleReads::yield(Rest how) noexcept {
  const bool timed = how != Rest::yield_untimed;
  const uint64_t begin = timed ? x_now() : 0;
  sched_yield();
  const bool was_long = timed && x_now() - begin >= kLongYield;
  const unsigned limit = std::min(x_limit.load(kRelaxed), kMostReads);
  x_limit.store(
      lost_the_core() ? std::max(limit / 4, kLeastReads) : std::min(limit * 2, kMostReads),
      kRelaxed);
  if (!timed) return;
  x_long_yields.store(was_long ? std::min(x_long_yields.load(kRelaxed) + 1, kLongYields) : 0,
                      kRelaxed);
  if (!was_long) x_trust.store(kFirstTrust, kRelaxed);
}

void IdleReads::slept(bool woken) noexcept {
  const unsigned vain = woken ? 0 : x_vain_sleeps.load(kRelaxed) + 1;
  x_vain_sleeps.store(vain, kRelaxed);
  if (vain < kVainSleeps && x_now() < x_sleep_until.load(kRelaxed)) return;
  x_limit.store(kMostReads, kRelaxed);
  x_long_yields.store(kLongYields - 1, kRelaxed);
}

}  // namespace erdma::fabric

#include "transport/shm/core_sharing.h"

#include <utility>

namespace erdma::transport::shm {

CoreSharing::Usage CoreSharing::of_this_thread() noexcept {
  rusage usage{};
  if (::getrusage(RUSAGE_THREAD, &usage) != 0) return {};
  const auto microseconds = [](const timeval& time) {
    return uint64_t(time.tv_sec) * 1'000'000 + uint64_t(time.tv_usec);
  };
  return {::pthread_self(), uint64_t(usage.ru_nivcsw), uint64_t(usage.ru_nvcsw),
          microseconds(usage.ru_utime) + microseconds(usage.ru_stime)};
}

/// A thread that goes to sleep also runs for less time; that says nothing about its core.
void CoreSharing::judge(uint64_t now_ns) noexcept {
  const Usage now = x_look();
  const Usage last = std::exchange(x_last, now);
  const uint64_t looked = std::exchange(x_looked, now_ns);
  if (looked == 0 || !::pthread_equal(now.thread, last.thread)) return;
  const uint64_t passed = (now_ns - looked) / 1000, ran = now.ran - last.ran;
  const uint64_t forced = now.forced - last.forced, willing = now.willing - last.willing;
  if (forced >= kForced && forced > willing && ran < passed / 4 * 3)
    x_shared = true;
  else if (forced < kForced || ran > passed / 8 * 7)
    x_shared = false;
}

}  // namespace erdma::transport::shm

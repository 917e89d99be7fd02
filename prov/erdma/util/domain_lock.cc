#include "util/domain_lock.h"

#include <sched.h>

#include <algorithm>
#include <ctime>

namespace erdma::util {
namespace {

/// After so many data calls through the mutex the gate is opened: then, closing it again costs at
/// most as much as they did.
constexpr unsigned kDetours = 64;

/// Waits for a data call, which takes a microsecond, or a few milliseconds if it copies much. It
/// tells nobody when it ends, since that would cost each of them a fence. The thread yields first,
/// because the other may need this core, and then sleeps, because a yield never reaches a thread of
/// lower real-time priority.
class Patience {
 public:
  void wait() noexcept {
    if (++x_rounds <= kYields) return void(sched_yield());
    const timespec pause{0, long(std::min(x_rounds, kLongest) * 1000)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
  }

 private:
  static constexpr unsigned kYields = 64, kLongest = 1000;
  unsigned x_rounds = 0;
};

}  // namespace

DataLock::DataLock(LockKind kind) noexcept
    : x_bias(kind != LockKind::mutex),
      x_by_mutex(kind == LockKind::mutex),
      x_kind(kind),
      x_opens(kind == LockKind::biased && ThreadBarrier::available()) {
  if (kind == LockKind::biased && !x_opens) (void)x_bias.close();  // no other thread is here yet
}

void DataLock::lock_mutex() noexcept {
  if (x_kind == LockKind::mutex) return x_mutex.lock();
  x_bias.leave();
  x_mutex.lock();
  x_by_mutex = true;
  if (!x_opens || ++x_detours < kDetours) return;
  x_detours = 0;
  x_bias.open();
}

void DataLock::unlock_mutex() noexcept {
  if (x_kind == LockKind::biased) x_by_mutex = false;
  x_mutex.unlock();
}

void DomainLock::lock_out() noexcept {
  x_data.x_mutex.lock();
  // A forked child has one thread. Another thread of the parent may have been inside at the fork.
  if (x_data.x_kind == LockKind::mutex || !x_data.owned()) return;
  if (!x_data.x_bias.close()) x_data.x_opens = false;
  for (Patience patience; x_data.x_bias.occupied();) patience.wait();
}

}  // namespace erdma::util

#include "util/domain_lock.h"

namespace erdma::util {
namespace {

/// After so many data calls through the mutex the gate is opened: then, closing it again costs at
/// most as much as they did.
constexpr unsigned kDetours = 64;

}  // namespace

DataLock::DataLock(LockKind kind) noexcept
    : x_kind(kind),
      x_opens(kind == LockKind::biased && ThreadBarrier::available()),
      x_by_mutex(kind == LockKind::mutex),
      x_bias(kind == LockKind::none || x_opens) {}

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
  // A data call takes a microsecond, or a few milliseconds if it copies much. To tell when it ends
  // would cost each of them a fence.
  for (PollingWait wait; x_data.x_bias.occupied();) wait.once_more();
}

}  // namespace erdma::util

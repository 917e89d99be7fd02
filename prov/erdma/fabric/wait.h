#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>

#include "fabric/progress.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/lock.h"
#include "util/result.h"

namespace erdma::fabric {

class Fabric;

/// The state of an object on which a thread wants to sleep.
enum class Readiness : uint8_t {
  news,   ///< there is something to read, or a signal
  armed,  ///< there is nothing, and the descriptor becomes readable when there is
  busy,   ///< there is nothing to read yet, but work to do: look again
};

/// The time at which a blocking call gives up. `timeout_ms` as in fi_cq_sread(3): negative = never.
class Deadline {
 public:
  explicit Deadline(int timeout_ms) noexcept
      : x_end(timeout_ms < 0
                  ? UINT64_MAX
                  : util::SystemClock().now() + uint64_t(timeout_ms) * util::kMillisecond) {}

  /// Milliseconds until then, rounded up; 0 = it has passed, -1 = never.
  int left() const noexcept {
    if (x_end == UINT64_MAX) return -1;
    const uint64_t now = util::SystemClock().now();
    return now >= x_end ? 0 : int((x_end - now + util::kMillisecond - 1) / util::kMillisecond);
  }

 private:
  uint64_t x_end;
};

/// How WaitObject::wait() ended. over: the deadline passed. interrupted: a signal handler of the
/// application was called.
enum class Slept : uint8_t { woken, over, interrupted };

/// The threads in one kind of call, and how many of them were told something that they have not
/// noticed yet. Threads sleep on a wait object, and while one of them was told to look and has not
/// looked, the wake-up must not be cleared, so no other thread can go to sleep. The caller holds a
/// lock.
class Sleepers {
 public:
  using Ticket = uint64_t;

  size_t count() const noexcept { return x_count; }
  bool all_looked() const noexcept { return x_told == 0; }
  /// `told`: as if tell() were called at once for this thread alone.
  Ticket enter(bool told = false) noexcept {
    ++x_count;
    x_told += told;
    return x_tellings - told;
  }
  /// True: the thread was told.
  bool told(Ticket ticket) const noexcept { return ticket != x_tellings; }
  void leave(Ticket ticket) noexcept {
    --x_count;
    if (told(ticket)) --x_told;
  }
  /// Tells all threads. False: there is none.
  bool tell() noexcept {
    if (x_count == 0) return false;
    ++x_tellings;
    x_told = x_count;
    return true;
  }

 private:
  size_t x_count = 0;
  size_t x_told = 0;
  uint64_t x_tellings = 0;
};

/// The object that threads sleep on: two epoll sets of the sources' descriptors, each with its own
/// eventfd. One is fd(), for threads of the application that watch it (fi_trywait, then poll or
/// epoll). The other is for threads in a blocking call. So neither group consumes a wake-up of the
/// other. Thread-safe, except that callers must not run add() and remove() concurrently. In a
/// forked child, which shares the sets with its parent, the calls change nothing.
class WaitObject {
 public:
  /// Of one blocking call of a thread, for signal().
  using Ticket = Sleepers::Ticket;

  /// A negative fi_errno, after one log line: the kernel refuses descriptors.
  static util::Result<std::unique_ptr<WaitObject>> create();
  /// The same without the line, for a caller that can do without.
  static util::Result<std::unique_ptr<WaitObject>> try_to_create();

  int fd() const noexcept { return x_watchers.epoll.get(); }
  int add(int fd) noexcept;
  void remove(int fd) noexcept;

  /// Makes fd() readable until clear_watchers().
  void wake_watchers() noexcept;
  /// False: there was a stored signal, which the call has consumed; fd() stays readable.
  bool clear_watchers() noexcept;
  /// Lets every wait() return until clear_sleepers().
  void wake_sleepers() noexcept;
  /// False: a signalled thread has not noticed the signal yet.
  bool clear_sleepers() noexcept;
  /// Sleeps until a wake-up, or until a source's descriptor is readable.
  Slept wait(const Deadline& deadline) noexcept;
  /// The same as one of `sleepers`, while the lock that protects them is released.
  template <typename Lock>
  Slept wait_as(Sleepers& sleepers, Lock& lock, const Deadline& deadline) noexcept {
    const Sleepers::Ticket ticket = sleepers.enter();
    lock.unlock();
    const Slept how = wait(deadline);
    lock.lock();
    sleepers.leave(ticket);
    return how;
  }

  /// fi_cq_signal(3): signals every thread between enter() and leave(). If there is none, the
  /// signal is stored for the next call of enter(), take_signal() or clear_watchers().
  void signal() noexcept;
  Ticket enter() noexcept;
  bool signalled(Ticket ticket) const noexcept;
  void leave(Ticket ticket) noexcept;
  bool take_signal() noexcept;

  /// False in a forked child.
  bool owned() const noexcept { return x_mutex.owned(); }

 private:
  struct Half {
    int open() noexcept;
    int add(int fd) noexcept;
    void ring() noexcept;
    void clear() noexcept;

    util::Fd epoll, event;
    bool rung = false;  ///< `event` is readable
  };

  WaitObject() noexcept = default;

  Half x_watchers, x_sleepers;
  mutable util::OwnedMutex x_mutex;
  Sleepers x_callers;     ///< threads between enter() and leave(); signal() tells them
  bool x_stored = false;  ///< a signal that found no thread
};

/// How a call of Waitable::nap() ended. work: it did not sleep, because there is something to do.
enum class Nap : uint8_t { impossible, work, woken, over };

/// The endpoints behind one CQ or counter, and the ways to sleep until one of them has work. The
/// caller holds the domain lock.
/// Invariant: while a thread sleeps here, each source is armed, or a thread of the provider drives
/// it, or the thread's half of the wait object is readable. The wake-up of a thread that was told
/// to look stays until the thread has looked (Sleepers); that of threads which watch the descriptor
/// stays until the next watch().
class Waitable {
 public:
  /// `wait` is null for FI_WAIT_NONE. `driven`: the provider's own thread makes all progress.
  Waitable(std::unique_ptr<WaitObject> wait, bool driven) noexcept
      : x_driven(driven), x_offered(wait), x_wait(std::move(wait)) {}

  /// The one that the application asked for; null for FI_WAIT_NONE.
  WaitObject* wait_object() noexcept { return x_offered ? x_wait.get() : nullptr; }

  /// Throws std::bad_alloc. Does nothing if the source is attached already.
  void attach(ProgressSource& source);
  void detach(ProgressSource& source) noexcept;
  /// The sources' descriptors may have changed (fi_enable).
  void sources_changed() noexcept;
  bool busy() const noexcept { return !x_sources.empty(); }

  void progress() noexcept {
    if (x_watched) [[unlikely]]
      age_watch();
    for (const Attachment& attachment : x_sources) attachment.source->progress();
  }

  /// To be called when something happened that a sleeping thread may wait for.
  void notify() noexcept {
    if (x_alert) [[unlikely]]
      wake();
  }
  bool alert() const noexcept { return x_alert; }
  /// True if a thread may sleep in reliance on the sources being armed. A source that is no longer
  /// armed after progress() must arm itself again, or call wake().
  bool sleeping() const noexcept { return x_sleepers.count() != 0 || x_watched; }
  /// Wakes sleeping threads, which then look for work.
  void wake() noexcept;
  /// Threads in sleep(), which use this object once they have the lock again.
  size_t blocked() const noexcept { return x_sleepers.count() + x_yielding; }

  /// Releases the lock and sleeps; returns at once if there is work, or no wait object. Spurious
  /// wake-ups are possible. The caller has just made progress that found nothing.
  template <typename Lock>
  Slept sleep(Lock& lock, const Deadline& deadline) noexcept {
    if (arm_to_sleep()) return x_wait->wait_as(x_sleepers, lock, deadline);
    yield(lock);
    return Slept::woken;
  }
  /// The same for a call that need not block, also with FI_WAIT_NONE. It returns at once if there
  /// is work.
  template <typename Lock>
  Nap nap(Lock& lock, const Deadline& deadline) noexcept {
    if (!make_own_wait() || x_blind || !x_wait->owned()) return Nap::impossible;
    if (!arm_to_sleep()) return Nap::work;
    return x_wait->wait_as(x_sleepers, lock, deadline) == Slept::over ? Nap::over : Nap::woken;
  }
  /// Shows the sources' peers on which core this thread is about to rest. With `ask` it returns
  /// whether one of them has shown the same core, or may be there unknown.
  bool shows_core(bool ask) noexcept;
  /// fi_trywait(3): prepares for a thread of the application that is about to sleep on the
  /// descriptor. False: there is work, so it must not sleep.
  bool watch() noexcept;

 private:
  struct Attachment {
    static constexpr int kMaxFds = 4;
    ProgressSource* source;
    int fd_count;
    std::array<int, kMaxFds> fds;
  };

  /// After so many calls of progress() without another watch(), the application is assumed to poll.
  static constexpr unsigned kWatchLife = 64;

  /// Gives other threads a chance to take the lock.
  template <typename Lock>
  void yield(Lock& lock) noexcept {
    ++x_yielding;
    lock.unlock();
    sched_yield();
    lock.lock();
    --x_yielding;
  }
  bool make_own_wait() noexcept;
  bool arm() noexcept;
  bool arm_to_sleep() noexcept;
  void age_watch() noexcept;
  bool refresh(Attachment& attachment) noexcept;
  void forget(Attachment& attachment) noexcept;

  bool x_alert = false;    ///< threads may sleep, so notify() must wake them
  bool x_watched = false;  ///< the application may sleep on the descriptor
  const bool x_driven;
  const bool x_offered;       ///< the application may use x_wait
  bool x_refused = false;     ///< the kernel refused descriptors for an own x_wait
  bool x_blind = false;       ///< a source's descriptor could not be added: no thread may sleep
  unsigned x_watch_left = 0;  ///< calls of progress() until the watch ends
  size_t x_yielding = 0;      ///< threads in yield()
  Sleepers x_sleepers;        ///< threads in sleep(), except those in yield()
  std::vector<Attachment> x_sources;
  std::unique_ptr<WaitObject> x_wait;
};

/// The value of a member of enumeration type that the application set. It may not be an enumerator.
template <typename E>
int enum_value(const E& member) noexcept {
  static_assert(sizeof(E) == sizeof(int));
  int value;
  std::memcpy(&value, &member, sizeof(value));
  return value;
}

/// Makes the wait object that fi_cq_attr::wait_obj or fi_cntr_attr::wait_obj asks for; null for
/// FI_WAIT_NONE. For FI_WAIT_SET, the wait set watches the descriptor of the object.
util::Result<std::unique_ptr<WaitObject>> make_wait_object(int object);

/// FI_GETWAIT and FI_GETWAITOBJ of a CQ or counter opened with `object`.
int control_wait_object(WaitObject* wait, fi_wait_obj object, int command, void* argument) noexcept;

/// fi_trywait(3).
int try_wait(fid** fids, int count) noexcept;
inline int try_wait(fid_fabric*, fid** fids, int count) noexcept {
  return try_wait(fids, count);
}

}  // namespace erdma::fabric

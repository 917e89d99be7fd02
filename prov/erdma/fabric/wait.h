#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>

#include "fabric/progress.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/lock.h"
#include "util/process_epoch.h"
#include "util/result.h"

namespace erdma::fabric {

class Fabric;

/// What whoever wants to sleep finds.
enum class Readiness : uint8_t {
  news,   ///< something to read, or a signal
  armed,  ///< nothing, and the descriptor becomes readable when there is
  busy,   ///< nothing yet, but work: look again
};

/// When a blocking call gives up; `timeout_ms` as in fi_cq_sread(3), negative = never.
class Deadline {
 public:
  explicit Deadline(int timeout_ms) noexcept
      : x_end(timeout_ms < 0 ? UINT64_MAX
                             : util::SystemClock().now() + uint64_t(timeout_ms) * kMillisecond) {}

  /// Milliseconds left, rounded up; 0 = over, -1 = never.
  int left() const noexcept {
    if (x_end == UINT64_MAX) return -1;
    const uint64_t now = util::SystemClock().now();
    return now >= x_end ? 0 : int((x_end - now + kMillisecond - 1) / kMillisecond);
  }

 private:
  static constexpr uint64_t kMillisecond = 1'000'000;
  uint64_t x_end;
};

/// On what threads sleep: two epoll sets of the sources' descriptors, each with an eventfd of its
/// own. One is the application's, fd(), for who watches it (fi_trywait, then poll or epoll); the
/// other is for threads inside a blocking call. So neither kind takes a wake-up from the other.
/// Thread-safe, except that add() and remove() exclude each other. A forked child shares the sets
/// with its parent: what it calls here changes nothing.
class WaitObject {
 public:
  /// A thread's stay in a blocking call, for signal().
  using Ticket = uint64_t;

  static util::Result<std::unique_ptr<WaitObject>> create();

  int fd() const noexcept { return x_watchers.epoll.get(); }
  int add(int fd) noexcept;
  void remove(int fd) noexcept;

  /// Makes fd() readable until clear_watchers().
  void wake_watchers() noexcept;
  /// False: it took a signal instead.
  bool clear_watchers() noexcept;
  /// Lets every wait() return until clear_sleepers().
  void wake_sleepers() noexcept;
  /// False: a signalled thread has not noticed yet.
  bool clear_sleepers() noexcept;
  /// Sleeps until woken, a source's descriptor is readable, or the deadline is over: false.
  bool wait(const Deadline& deadline) noexcept;

  /// fi_cq_signal(3): every thread between enter() and leave() is signalled, or if there is none,
  /// the next one to enter(), or to ask take_signal() or clear_watchers().
  void signal() noexcept;
  Ticket enter() noexcept;
  bool signalled(Ticket ticket) const noexcept;
  void leave(Ticket ticket) noexcept;
  bool take_signal() noexcept;

  /// False in a forked child.
  bool owned() const noexcept { return x_epoch == util::process_epoch(); }

 private:
  struct Half {
    int open() noexcept;
    int add(int fd) noexcept;
    void ring() noexcept;
    void clear() noexcept;

    util::Fd epoll, event;
    bool rung = false;  ///< `event` is readable
  };

  WaitObject() noexcept : x_epoch(util::process_epoch()) {}

  Half x_watchers, x_sleepers;
  const uint32_t x_epoch;
  mutable std::mutex x_mutex;
  uint64_t x_generation = 0;  ///< signals so far
  unsigned x_inside = 0;      ///< threads between enter() and leave()
  unsigned x_owed = 0;        ///< those of them that were signalled
  bool x_stored = false;      ///< a signal that met no thread
};

/// Reads in a row that found nothing. After so many the thread yields its core: with more threads
/// than cores, whoever shares the core may be the one that is waited for. How many depends on
/// whether the last yields let somebody run: alone on its core a thread yields every ten
/// microseconds or so, among others as soon as the next packet could have come.
class IdleReads {
 public:
  static constexpr unsigned kMostReads = 256;
  static constexpr unsigned kLeastReads = 16;
  /// True: yield(), once the lock is given up.
  bool should_yield(bool found) noexcept {
    x_count = found ? 0 : x_count + 1;
    if (x_count < x_limit.load(std::memory_order_relaxed)) return false;
    x_count = 0;
    return true;
  }
  void yield() noexcept;

 private:
  unsigned x_count = 0;
  std::atomic<unsigned> x_limit{kMostReads};  ///< a hint: written by any thread, without the lock
};

/// Who sleeps on one wait object, and who of them was told to look and has not yet: as long as
/// there is one, the wake-up must stay and nobody else can sleep. The caller holds a lock.
class Sleepers {
 public:
  using Ticket = uint64_t;

  size_t count() const noexcept { return x_count; }
  bool all_looked() const noexcept { return x_told == 0; }
  Ticket enter() noexcept {
    ++x_count;
    return x_tellings;
  }
  /// True: it was told.
  bool leave(Ticket ticket) noexcept {
    --x_count;
    if (ticket == x_tellings) return false;
    --x_told;
    return true;
  }
  /// False: there is nobody to wake.
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

/// The endpoints behind one CQ or counter, and how to sleep until one of them has work. The caller
/// holds the domain lock.
/// Invariant: while a thread sleeps here, each source is armed, or is being driven by a thread of
/// the provider, or its half of the wait object is readable. Who was told stays told until it has
/// looked (Sleepers; of who watches the descriptor, until the next watch()).
class Waitable {
 public:
  /// `wait` is null for FI_WAIT_NONE. `driven`: the provider's own thread makes all progress.
  Waitable(std::unique_ptr<WaitObject> wait, bool driven) noexcept
      : x_driven(driven), x_wait(std::move(wait)) {}

  WaitObject* wait_object() noexcept { return x_wait.get(); }

  /// Throws std::bad_alloc. Attaching twice is once.
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

  /// Something happened that a sleeper waits for.
  void notify() noexcept {
    if (x_alert) [[unlikely]]
      wake();
  }
  bool alert() const noexcept { return x_alert; }
  /// Whether anyone may sleep in reliance on the sources being armed. A source that a progress()
  /// left unarmed meanwhile arms itself again, or calls wake().
  bool sleeping() const noexcept { return x_sleepers.count() != 0 || x_watched; }
  /// Sends sleepers back to look for themselves.
  void wake() noexcept;
  /// Threads in sleep(), which use this object once they have the lock again.
  size_t blocked() const noexcept { return x_sleepers.count() + x_yielding; }

  /// Sleeps, unlocked; returns at once if there is work, or no wait object. May return for no
  /// reason. The caller has just seen progress() bring nothing.
  template <typename Lock>
  void sleep(Lock& lock, const Deadline& deadline) noexcept {
    if (!arm_to_sleep()) return yield(lock);
    const Sleepers::Ticket ticket = x_sleepers.enter();
    lock.unlock();
    x_wait->wait(deadline);
    lock.lock();
    x_sleepers.leave(ticket);
  }
  /// The application is about to sleep on the descriptor: false if there is work.
  bool watch() noexcept;

 private:
  struct Attachment {
    static constexpr int kMaxFds = 4;
    ProgressSource* source;
    int fd_count;
    std::array<int, kMaxFds> fds;
  };

  /// So many calls of progress() after watch() without another mean that the application polls.
  static constexpr unsigned kWatchLife = 64;

  /// Whoever waits for the lock gets it.
  template <typename Lock>
  void yield(Lock& lock) noexcept {
    ++x_yielding;
    lock.unlock();
    sched_yield();
    lock.lock();
    --x_yielding;
  }
  bool arm() noexcept;
  bool arm_to_sleep() noexcept;
  void age_watch() noexcept;
  bool refresh(Attachment& attachment) noexcept;
  void forget(Attachment& attachment) noexcept;

  bool x_alert = false;    ///< sleepers wait for notify()
  bool x_watched = false;  ///< the application may sleep on the descriptor
  const bool x_driven;
  bool x_blind = false;       ///< a source's descriptor could not be added: nobody may sleep
  unsigned x_watch_left = 0;  ///< of kWatchLife
  size_t x_yielding = 0;      ///< threads in yield()
  Sleepers x_sleepers;        ///< threads in sleep() but for those
  std::vector<Attachment> x_sources;
  std::unique_ptr<WaitObject> x_wait;
};

/// What the application put into a member of enumeration type, which may be no value of that type.
template <typename E>
int enum_value(const E& member) noexcept {
  static_assert(sizeof(E) == sizeof(int));
  int value;
  std::memcpy(&value, &member, sizeof(value));
  return value;
}

/// Makes what `object` of an fi_cq_attr or fi_cntr_attr asks for; null for FI_WAIT_NONE. For
/// FI_WAIT_SET it is what the set is told by.
util::Result<std::unique_ptr<WaitObject>> make_wait_object(int object);

/// FI_GETWAIT and FI_GETWAITOBJ of a CQ or counter opened with `object`.
int control_wait_object(WaitObject* wait, fi_wait_obj object, int command, void* argument) noexcept;

/// fi_trywait(3).
int try_wait(fid** fids, int count) noexcept;
inline int try_wait(fid_fabric*, fid** fids, int count) noexcept {
  return try_wait(fids, count);
}

}  // namespace erdma::fabric

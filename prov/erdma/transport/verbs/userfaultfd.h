#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/verbs/memory_range.h"
#include "util/event_fd.h"
#include "util/fd.h"
#include "util/intrusive_list.h"
#include "util/process_epoch.h"
#include "util/result.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// What happened to watched memory since the last look, in order.
struct MemoryChanges {
  struct Change {
    MemoryRange range;
    /// True: still mapped and watched, but its pages are about to be replaced; the call that
    /// replaces them may still be running. False: gone, or no longer watched.
    bool remains = false;
  };
  static constexpr size_t kMax = 64;
  size_t count = 0;
  /// There were more changes: any memory may have changed, and nothing is watched.
  bool all = false;
  Change changes[kMax];

  void clear() noexcept { count = 0, all = false; }
  void note(const MemoryRange& range, bool remains) noexcept {
    if (count < kMax)
      changes[count++] = {range, remains};
    else
      all = true;
  }
};

class MonitorTrial;

/// The userfaultfd of this process, and the thread that reads its events. The kernel lets only one
/// userfaultfd watch a mapping, so the monitors of all domains share this one, and each is told of
/// every change of what it watches, and of some others.
///
/// A call that changes watched memory waits until its event was read. The thread takes no lock that
/// is held while memory is allocated or freed, and does neither itself: it would wait for itself.
/// The calls of the kernel that begin and end watching are made with its lock: they only need the
/// lock of the address space, which the kernel does not hold while a change waits.
class Userfaultfd : public std::enable_shared_from_this<Userfaultfd> {
 public:
  /// Who is told of changes. All but `wake` belongs to the Userfaultfd.
  struct Listener : util::ListHook<Listener> {
    explicit Listener(const util::EventFd& rung) noexcept : wake(rung) {}
    const util::EventFd& wake;       ///< rings after each change that it is told of
    AddressFilter watched;           ///< it is told of no other changes
    std::atomic<bool> told = false;  ///< `pending` is not empty
    MemoryChanges pending;
  };

  /// Returns that of this process, with `listener`; opens it for the first one. Errors as
  /// MemoryMonitor::create().
  static util::Result<std::shared_ptr<Userfaultfd>> join(Listener& listener, const char*& why);
  /// Ends what join() began. The last one closes the userfaultfd.
  static void leave(std::shared_ptr<Userfaultfd>& joined, Listener& listener) noexcept;
  ~Userfaultfd();
  Userfaultfd(const Userfaultfd&) = delete;
  Userfaultfd& operator=(const Userfaultfd&) = delete;

  bool counts_changes() const noexcept { return x_counts; }
  [[nodiscard]] int watch(const MemoryRange& range, Listener& by) noexcept;
  /// The others are told of a change, because the kernel does not count who watches.
  void unwatch(const MemoryRange& range, const Listener& by) noexcept;
  [[nodiscard]] bool look(Listener& listener, MemoryChanges& changes) noexcept;

 private:
  Userfaultfd() noexcept = default;
  static util::Result<std::shared_ptr<Userfaultfd>> create(const char*& why);
  static constexpr size_t kEventsAtOnce = 8;
  int open(const char*& why) noexcept;
  bool behaves() noexcept;
  bool try_changes(MonitorTrial& trial, Listener& listener) noexcept;
  void read_forever() noexcept;
  enum class State : uint8_t { stable, changing, lost };
  State state() noexcept;
  size_t read_events(size_t most = kEventsAtOnce) noexcept;
  void tell(const MemoryRange& range, bool remains, const Listener* but = nullptr) noexcept;
  void wake_told(const Listener* but = nullptr) noexcept;

  util::Fd x_fd;  ///< closed in a forked child, where it would keep the parent's events alive
  util::EventFd x_stop;
  bool x_counts = true;
  /// Held from reading events until all listeners are told, and while a range begins or ceases to
  /// be watched. Taken last.
  std::mutex x_mutex;
  util::IntrusiveList<Listener> x_listeners;
  /// True from before events are read until all listeners are told. The changing thread may go on
  /// in between.
  std::atomic<bool> x_reading = false;
  util::Thread x_reader;
  const uint32_t x_epoch = util::process_epoch();
};

}  // namespace erdma::transport::verbs

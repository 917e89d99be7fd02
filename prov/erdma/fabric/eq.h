#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>

#include "fabric/fid_ops.h"
#include "fabric/wait_set.h"
#include "util/fd.h"
#include "util/lock.h"
#include "util/result.h"

namespace erdma::fabric {

class Fabric;

/// One event queue. Thread-safe by its own mutex, which is the innermost lock: callers may hold a
/// domain lock. Invariant: the wait descriptor is readable exactly while there is something to
/// read.
class EventQueue final : public FidObject<EventQueue, fid_eq> {
 public:
  /// The number of unread events of the provider that the queue holds; one more overruns it.
  static constexpr size_t kProviderEvents = size_t{1} << 20;

  /// The caller has checked `attr`. `wait` is empty for FI_WAIT_NONE.
  EventQueue(const fi_eq_attr& attr, util::Fd wait, uint32_t api_version, Children* siblings,
             void* context);

  /// Adds an event of the provider. If there is no room, the queue is overrun.
  void post(uint32_t event, const fi_eq_entry& entry) noexcept;
  void post_error(const fi_eq_err_entry& error) noexcept;

  /// Called by objects that the queue is bound to (AV, endpoint, poll set). fi_close returns
  /// -FI_EBUSY while there are any.
  void bound() noexcept { x_bound.fetch_add(1, std::memory_order_relaxed); }
  void unbound() noexcept { x_bound.fetch_sub(1, std::memory_order_relaxed); }

  /// For fi_trywait(3): 0 if the caller may block on the descriptor, -FI_EAGAIN if there is
  /// something to read, or -FI_EOPBADSTATE in a forked child.
  int try_wait() noexcept;
  int join(fid_wait* set) { return x_membership.join(set, &fid, x_wait.get()); }

  // The calls of fi_eq(3).
  ssize_t read(uint32_t* event, void* buffer, size_t length, uint64_t flags) noexcept;
  ssize_t read_error(fi_eq_err_entry* error, uint64_t flags) noexcept;
  ssize_t write(uint32_t event, const void* buffer, size_t length, uint64_t flags) noexcept;
  ssize_t read_blocking(uint32_t* event, void* buffer, size_t length, int timeout_ms,
                        uint64_t flags) noexcept;
  /// True if a thread of this process is in a blocking call: then the queue can't be closed.
  bool sleeping() noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;

 private:
  struct Event {
    uint32_t type;
    bool failed;  ///< bytes are a fi_eq_err_entry
    std::vector<std::byte> bytes;
  };

  void post_bytes(uint32_t event, bool failed, const void* bytes, size_t length) noexcept;
  void push(Event event);
  void pop() noexcept;
  ssize_t read_locked(uint32_t* event, void* buffer, size_t length, uint64_t flags) noexcept;
  bool readable() const noexcept { return !x_events.empty() || x_overrun; }
  void signal() noexcept;

  const uint32_t x_api_version;
  util::OwnedMutex x_mutex;
  std::deque<Event> x_events;
  bool x_overrun = false;
  const bool x_writable;  ///< opened with FI_WRITE
  const size_t x_size;    ///< number of unread events at which fi_eq_write returns -FI_EAGAIN
  const fi_wait_obj x_wait_object;
  util::Fd x_wait;
  bool x_signaled = false;
  unsigned x_blocked = 0;  ///< threads in read_blocking()
  std::atomic<int> x_bound{0};
  WaitSetMember x_membership;
};

/// For open_event_queue() and tests. Tests pass null for `siblings`.
util::Result<EventQueue*> make_event_queue(const fi_eq_attr* attr, uint32_t api_version,
                                           Children* siblings, void* context);

/// fi_eq_open(3).
int open_event_queue(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context) noexcept;

}  // namespace erdma::fabric

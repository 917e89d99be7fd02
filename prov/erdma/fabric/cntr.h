#pragma once

#include <cstdint>
#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "fabric/pollable.h"
#include "util/intrusive_list.h"
#include "util/result.h"

namespace erdma::fabric {

class DeferredWork;
class DeferredWorkQueue;

/// One completion counter. The calls of fi_cntr(3) take the domain lock; endpoints already hold it.
/// Invariant: the counter outlives the endpoints attached to it; fi_close returns -FI_EBUSY while
/// there are any.
class Counter final : public FidObject<Counter, fid_cntr>, public Pollable {
 public:
  /// The caller has checked `attr`. `wait` is null for FI_WAIT_NONE.
  Counter(const QueueParent& parent, const fi_cntr_attr& attr, std::unique_ptr<WaitObject> wait,
          void* context);

  // Endpoints call these while they hold the domain lock.
  void add_success(uint64_t value) noexcept {
    x_now.successes += value;
    changed();
  }
  void add_failure() noexcept {
    ++x_now.failures;
    changed();
  }
  void set_successes(uint64_t value) noexcept {
    x_now.successes = value;
    changed();
  }

  // For poll sets, which hold the domain lock.
  /// Makes progress. True if the counter has changed since the last poll() with `told`, other than
  /// by the application's own calls (fi_cntr_set(3) and its relatives). `told`: the application is
  /// told the result.
  bool poll(bool told) noexcept;

  // For the work queue, which holds the domain lock.
  uint64_t successes() const noexcept { return x_now.successes; }
  /// Successes and failures; UINT64_MAX if the sum overflows.
  uint64_t events() const noexcept {
    const uint64_t sum = x_now.successes + x_now.failures;
    return sum < x_now.successes ? UINT64_MAX : sum;
  }
  util::IntrusiveList<DeferredWork>& waiting() noexcept { return x_waiting; }
  /// Each work calls use() when it begins to refer to this counter, and release() when it is over.
  /// Meanwhile the counter can't be closed.
  void use() noexcept { ++x_works; }
  void release() noexcept { --x_works; }
  /// Every endpoint is attached, so that a thread that waits for the counter drives them all, until
  /// the counter calls DeferredWorkQueue::unwatch_counter().
  void watched_by(DeferredWorkQueue& queue) noexcept { x_queue = &queue; }
  bool watched() const noexcept { return x_queue != nullptr; }

  // The calls of fi_cntr(3).
  uint64_t read() noexcept;
  uint64_t read_error() noexcept;
  int add(uint64_t value) noexcept;
  int add_error(uint64_t value) noexcept;
  int set(uint64_t value) noexcept;
  int set_error(uint64_t value) noexcept;
  int wait(uint64_t threshold, int timeout_ms) noexcept;
  int close() noexcept;
  /// For a wait set, and fi_trywait(3). Each change is news once. Reads consume no news: a thread
  /// that read the old value must not sleep because another thread has read the new one.
  Readiness prepare_wait() noexcept;

 private:
  void changed() noexcept {
    x_news = true;
    if (x_queue) [[unlikely]]
      tell_queue();
    notify();
  }
  void tell_queue() noexcept;
  template <typename Change>
  int change(Change&& apply) noexcept;

  struct Values {
    uint64_t successes = 0;
    uint64_t failures = 0;
    bool operator==(const Values&) const noexcept = default;
  };

  Values x_now;
  DeferredWorkQueue* x_queue = nullptr;  ///< null before the first work, and after fi_close tried
  uint64_t x_read = 0;                   ///< successes at the last fi_cntr_read(3)
  bool x_news = false;                   ///< a change since the last prepare_wait()
  Values x_polled;                       ///< values at the last fi_poll(3)
  util::IntrusiveList<DeferredWork> x_waiting;  ///< by threshold, then age
  unsigned x_works = 0;
};

/// Makes a counter; for open_cntr() and tests.
util::Result<Counter*> make_cntr(const QueueParent& parent, const fi_cntr_attr* attr,
                                 void* context);

/// fi_cntr_open(3).
int open_cntr(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept;

}  // namespace erdma::fabric

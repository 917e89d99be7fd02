#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "fabric/cq.h"
#include "fabric/wait.h"
#include "fabric/wait_set.h"
#include "util/intrusive_list.h"
#include "util/lock.h"
#include "util/result.h"

namespace erdma::fabric {

class Domain;
class Work;
class WorkQueue;

/// One counter of completions. The calls of fi_cntr(3) take the domain lock; endpoints hold it
/// already. Invariant: outlives the endpoints attached to it; close is -FI_EBUSY until then.
class Counter final : public fid_cntr {
 public:
  static Counter& from(fid_cntr* cntr) noexcept { return static_cast<Counter&>(*cntr); }
  static Counter& from(fid_t fid) noexcept { return from(reinterpret_cast<fid_cntr*>(fid)); }

  /// `attr` was checked; `wait` is null for FI_WAIT_NONE.
  Counter(QueueParent parent, const fi_cntr_attr& attr, std::unique_ptr<WaitObject> wait,
          void* context);

  // For endpoints, under the domain lock.
  void add_success(uint64_t value) noexcept {
    x_successes += value;
    changed();
  }
  void add_failure() noexcept {
    ++x_failures;
    changed();
  }
  void set_successes(uint64_t value) noexcept {
    x_successes = value;
    changed();
  }
  /// Whether this is the lock it takes, so that both are of one domain.
  bool takes(const util::OptionalLock& lock) const noexcept { return &lock == &x_lock; }
  void attach(ProgressSource& source) { x_waitable.attach(source); }
  void detach(ProgressSource& source) noexcept { x_waitable.detach(source); }
  void sources_changed() noexcept { x_waitable.sources_changed(); }
  bool sleeping() const noexcept { return x_waitable.sleeping(); }
  void wake() noexcept { x_waitable.wake(); }

  // For poll sets, likewise. A member can't be closed.
  void bound() noexcept { ++x_bound; }
  void unbound() noexcept { --x_bound; }
  /// Makes progress. Whether it changed, other than by fi_cntr_set(3) and its like, since a poll
  /// that was `told`.
  bool poll(bool told) noexcept;

  // For the work queue, likewise.
  uint64_t successes() const noexcept { return x_successes; }
  /// With failures; no more than the largest number.
  uint64_t events() const noexcept {
    const uint64_t sum = x_successes + x_failures;
    return sum < x_successes ? UINT64_MAX : sum;
  }
  util::IntrusiveList<Work>& waiting() noexcept { return x_waiting; }
  /// Works count themselves; until they are over, the counter can't be closed.
  void use(WorkQueue& queue) noexcept {
    x_queue = &queue;
    ++x_works;
  }
  void release() noexcept { --x_works; }
  /// The queue has lent it to every endpoint, so that whoever waits for it drives them all.
  bool lent() const noexcept { return x_queue != nullptr; }

  // The calls of fi_cntr(3).
  uint64_t read() noexcept;
  uint64_t read_error() noexcept;
  int add(uint64_t value) noexcept;
  int add_error(uint64_t value) noexcept;
  int set(uint64_t value) noexcept;
  int set_error(uint64_t value) noexcept;
  int wait(uint64_t threshold, int timeout_ms) noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;
  /// For fi_trywait(3).
  int try_wait() noexcept;
  /// For a wait set.
  Readiness prepare_wait() noexcept;
  int join(fid_wait* set) { return x_membership.join(set, &fid, x_waitable.wait_object()->fd()); }

 private:
  void changed() noexcept {
    if (x_queue) [[unlikely]]
      tell_queue();
    x_waitable.notify();
  }
  void tell_queue() noexcept;
  template <typename Change>
  int change(Change&& apply) noexcept;
  int check(uint64_t threshold, uint64_t failures_before) const noexcept;

  util::OptionalLock& x_lock;
  uint64_t x_successes = 0;
  uint64_t x_failures = 0;
  WorkQueue* x_queue = nullptr;  ///< null until something waits for it, or is to be counted
  Waitable x_waitable;
  // What the application knows: as of its last read or fi_trywait.
  uint64_t x_seen_successes = 0;
  uint64_t x_seen_failures = 0;
  // As of the last fi_poll(3).
  uint64_t x_polled_successes = 0;
  uint64_t x_polled_failures = 0;
  IdleReads x_idle_reads;
  util::IntrusiveList<Work> x_waiting;  ///< by threshold, then age
  unsigned x_works = 0;
  unsigned x_bound = 0;  ///< poll sets that it is in
  const fi_wait_obj x_wait_object;
  std::function<void()> x_closed;
  WaitSetMember x_membership;
};

/// A counter that belongs to nothing; for open_cntr() and tests.
util::Result<Counter*> make_cntr(QueueParent parent, const fi_cntr_attr* attr, void* context);

/// fi_cntr_open(3).
int open_cntr(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** cntr, void* context) noexcept;

}  // namespace erdma::fabric

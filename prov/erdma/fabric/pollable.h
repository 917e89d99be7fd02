#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "fabric/fid_ops.h"
#include "fabric/idle_reads.h"
#include "fabric/wait.h"
#include "fabric/wait_set.h"
#include "util/domain_lock.h"
#include "util/no_cancellation.h"
#include "util/result.h"

namespace erdma::fabric {

/// What a CQ or counter needs from its domain.
struct QueueParent {
  util::DomainLock& lock;
  uint32_t api_version;
  bool driven;  ///< FI_PROGRESS_AUTO
  Children* children;
};

/// The common base of completion queues and counters. Endpoints report to it; applications poll it,
/// sleep on it, and put it into poll sets and a wait set. The caller holds the domain lock, which
/// the entry points take.
class Pollable : public Waitable {
 public:
  Pollable(const Pollable&) = delete;
  Pollable& operator=(const Pollable&) = delete;

  /// True if this object takes this lock, which means that it belongs to the lock's domain.
  bool takes(const util::DomainLock& lock) const noexcept { return &lock == &x_lock; }

  // For poll sets, and for regions that a counter is bound to. It can't be closed meanwhile.
  void bound() noexcept { ++x_bound; }
  void unbound() noexcept { --x_bound; }

  /// fi_control(3). The caller need not hold the lock.
  int control(int command, void* argument) noexcept {
    return control_wait_object(wait_object(), x_wait_object, command, argument);
  }

  /// fi_trywait(3).
  template <typename T>
  static int try_wait(T& self) noexcept {
    if (!self.wait_object()) return -FI_EINVAL;
    const Readiness found = self.prepare_wait();
    if (found != Readiness::news && !self.x_lock.owned()) return -FI_EOPBADSTATE;
    return found == Readiness::armed ? 0 : -FI_EAGAIN;
  }

  /// Makes a T with the wait object that its attributes ask for. The caller has checked `attr`.
  template <typename T, typename Attr>
  static util::Result<T*> make(const QueueParent& parent, const Attr& attr, void* context) {
    const int object = enum_value(attr.wait_obj);
    util::Result<std::unique_ptr<WaitObject>> wait = make_wait_object(object);
    if (!wait) return wait.error();
    auto made = std::make_unique<T>(parent, attr, std::move(*wait), context);
    if (object == FI_WAIT_SET)
      if (const int joined =
              made->x_membership.join(attr.wait_set, &made->fid, made->wait_object()->fd()))
        return joined;
    return made.release();
  }

 protected:
  Pollable(const QueueParent& parent, fi_wait_obj object, std::unique_ptr<WaitObject> wait) noexcept
      : Waitable(std::move(wait), parent.driven), x_lock(parent.lock), x_wait_object(object) {}
  ~Pollable() = default;

  bool is_bound() const noexcept { return x_bound != 0; }
  /// True if fi_close must return -FI_EBUSY.
  bool in_use() const noexcept { return x_bound || busy() || (blocked() != 0 && x_lock.owned()); }

  /// Destroys `self`, which is this object, after it has left its wait set, so that no thread of
  /// the set looks at it any more.
  template <typename T>
  static int end(T* self) noexcept {
    self->x_membership.leave();
    delete self;
    return 0;
  }

  /// To be called with the lock after each read: what rest() is to do, once the lock is released.
  Rest next_rest(bool found) noexcept {
    if (!x_idle_reads.should_rest(found)) [[likely]]
      return Rest::none;
    if (!x_idle_reads.looks()) return Rest::yield_untimed;
    return x_idle_reads.choose(shows_core(x_idle_reads.depends_on_peers()));
  }
  /// `has_news`, called with the lock: there is something to read after all, so that the thread
  /// must not sleep.
  template <typename HasNews>
  void rest(Rest how, HasNews&& has_news) noexcept {
    if (how != Rest::sleep || !x_lock.owned()) return x_idle_reads.yield(how);
    const util::NoCancellation until_return;
    std::unique_lock lock(x_lock.data());
    if (has_news()) return;
    const Nap ended = nap(lock, Deadline(IdleReads::kNapMs));
    lock.unlock();
    // Work may be that of another thread, which was told to look and needs this core.
    if (ended == Nap::impossible)
      x_idle_reads.yield();
    else
      x_idle_reads.slept(ended == Nap::woken);
  }

  util::DomainLock& x_lock;
  IdleReads x_idle_reads;

 private:
  const fi_wait_obj x_wait_object;
  unsigned x_bound = 0;  ///< number of poll sets that contain it, and of bindings to regions
  WaitSetMember x_membership;
};

QueueParent parent_in(fid_domain* domain);

/// fi_cq_open(3) and fi_cntr_open(3); `make` is make_cq or make_cntr.
template <typename T, typename Attr, typename Fid>
int open_in(fid_domain* domain, const Attr* attr, Fid** fid, void* context,
            util::Result<T*> (*make)(const QueueParent&, const Attr*, void*)) noexcept {
  return abi_call([&] {
    if (!fid) return -FI_EINVAL;
    util::Result<T*> made = make(parent_in(domain), attr, context);
    if (!made) return made.error();
    *fid = *made;
    return 0;
  });
}

}  // namespace erdma::fabric

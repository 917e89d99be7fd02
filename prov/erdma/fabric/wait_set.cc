#include "fabric/wait_set.h"

#include <sched.h>

#include <rdma/fi_errno.h>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/eq.h"
#include "fabric/fabric.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

Readiness readiness(fid_t object) noexcept {
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return CompletionQueue::from(object).prepare_wait();
    case FI_CLASS_CNTR:
      return Counter::from(object).prepare_wait();
    default:
      return EventQueue::from(object).try_wait() == -FI_EAGAIN ? Readiness::news : Readiness::armed;
  }
}

}  // namespace

int WaitSet::add(fid_t object, int fd) {
  const std::lock_guard guard(x_mutex);
  x_members.push_back(object);
  if (const int added = x_wait->add(fd)) {
    x_members.pop_back();
    return added;
  }
  // Sleeping threads have not armed the new member.
  tell();
  return 0;
}

void WaitSet::tell() noexcept {
  x_wait->wake_watchers();
  if (x_sleepers.tell()) x_wait->wake_sleepers();
}

void WaitSet::remove(fid_t object, int fd) noexcept {
  const std::lock_guard guard(x_mutex);
  x_wait->remove(fd);
  std::erase(x_members, object);
}

/// The readiness of all members together: `news` if one has news, otherwise `busy` if one could not
/// be armed. The caller holds the mutex.
Readiness WaitSet::look() noexcept {
  Readiness all = Readiness::armed;
  for (fid_t member : x_members) {
    const Readiness one = readiness(member);
    if (one == Readiness::busy) all = one;
    if (one != Readiness::news) continue;
    x_callers.tell();
    tell();
    return one;
  }
  return all;
}

int WaitSet::wait(int timeout_ms) noexcept {
  if (!x_mutex.owned()) return -FI_EOPBADSTATE;
  const Deadline deadline(timeout_ms);
  std::unique_lock lock(x_mutex);
  const Sleepers::Ticket ticket = x_callers.enter();
  int result = 0;
  for (;;) {
    const bool over = deadline.left() == 0;
    if (x_callers.told(ticket)) break;
    const Readiness found = look();
    if (found == Readiness::news) break;
    if (over) {
      result = -FI_ETIMEDOUT;
      break;
    }
    sleep(lock, deadline, found);
  }
  x_callers.leave(ticket);
  return result;
}

void WaitSet::sleep(std::unique_lock<util::OwnedMutex>& lock, const Deadline& deadline,
                    Readiness found) noexcept {
  // No member has news. So an earlier wake-up is obsolete once the threads that it woke have
  // looked.
  if (found == Readiness::armed && x_sleepers.all_looked() && x_wait->clear_sleepers()) {
    x_wait->wait_as(x_sleepers, lock, deadline);
    return;
  }
  lock.unlock();
  sched_yield();  // to the thread that does the work
  lock.lock();
}

int WaitSet::try_wait() noexcept {
  if (!x_mutex.owned()) return -FI_EOPBADSTATE;
  const std::lock_guard guard(x_mutex);
  // Cleared before look(), which may make the descriptor readable again.
  (void)x_wait->clear_watchers();
  return look() == Readiness::armed ? 0 : -FI_EAGAIN;
}

int WaitSet::control(int command, void* argument) noexcept {
  return control_wait_object(x_wait.get(), x_wait_object, command, argument);
}

int WaitSet::close() noexcept {
  const auto in_use = [this] {
    return !x_members.empty() || (x_callers.count() && x_mutex.owned());
  };
  if (const std::lock_guard guard(x_mutex); in_use()) return -FI_EBUSY;
  delete this;
  return 0;
}

int WaitSetMember::join(fid_wait* set, fid_t object, int fd) {
  if (!set) {
    ERDMA_INFO(FABRIC, "FI_WAIT_SET without a wait_set\n");
    return -FI_EINVAL;
  }
  if (const int added = WaitSet::from(set).add(object, fd)) return added;
  x_set = &WaitSet::from(set);
  x_object = object;
  x_fd = fd;
  return 0;
}

// --- C entry points -----------------------------------------------------------------------------

namespace {

fi_ops_wait g_wait_ops = {.size = sizeof(fi_ops_wait), .wait = blocking_entry<&WaitSet::wait>};

}  // namespace

WaitSet::WaitSet(Children& siblings, std::unique_ptr<WaitObject> wait, fi_wait_obj object) noexcept
    : FidObject(FI_CLASS_WAIT, nullptr, &siblings), x_wait(std::move(wait)), x_wait_object(object) {
  ops = &g_wait_ops;
}

int open_wait_set(fid_fabric* fid, fi_wait_attr* attr, fid_wait** set) noexcept {
  if (!attr || !set || attr->flags) return -FI_EINVAL;
  return abi_call([&] {
    const int object = enum_value(attr->wait_obj);
    if (object == FI_WAIT_NONE || object == FI_WAIT_SET) return -FI_EINVAL;
    util::Result<std::unique_ptr<WaitObject>> wait = make_wait_object(object);
    if (!wait) return wait.error();
    *set = new WaitSet(Fabric::from(fid).children(), std::move(*wait), attr->wait_obj);
    return 0;
  });
}

}  // namespace erdma::fabric

#include "fabric/wait.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/eq.h"
#include "fabric/wait_set.h"
#include "util/lacks.h"
#include "util/log.h"

namespace erdma::fabric {

// --- the descriptor -----------------------------------------------------------------------------

int WaitObject::Half::open() noexcept {
  epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return -errno;
  event.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return -errno;
  return add(event.get());
}

int WaitObject::Half::add(int fd) noexcept {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = fd;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &wanted) == 0 ? 0 : -errno;
}

void WaitObject::Half::ring() noexcept {
  if (!std::exchange(rung, true)) eventfd_write(event.get(), 1);
}

void WaitObject::Half::clear() noexcept {
  eventfd_t value;
  if (std::exchange(rung, false)) eventfd_read(event.get(), &value);
}

util::Result<std::unique_ptr<WaitObject>> WaitObject::try_to_create() {
  std::unique_ptr<WaitObject> made(new WaitObject);
  for (Half* half : {&made->x_watchers, &made->x_sleepers})
    if (const int opened = half->open()) return opened;
  return made;
}

util::Result<std::unique_ptr<WaitObject>> WaitObject::create() {
  util::Result<std::unique_ptr<WaitObject>> made = try_to_create();
  if (!made) return util::refused_descriptor("a wait object", -made.error());
  return made;
}

int WaitObject::add(int fd) noexcept {
  if (!owned()) return 0;
  if (const int added = x_watchers.add(fd)) return added;
  const int added = x_sleepers.add(fd);
  if (added) remove(fd);
  return added;
}

void WaitObject::remove(int fd) noexcept {
  epoll_event event{};
  if (!owned()) return;
  for (const Half* half : {&x_watchers, &x_sleepers})
    epoll_ctl(half->epoll.get(), EPOLL_CTL_DEL, fd, &event);
}

void WaitObject::wake_watchers() noexcept {
  if (!owned()) return;
  const std::lock_guard guard(x_mutex);
  x_watchers.ring();
}

bool WaitObject::clear_watchers() noexcept {
  if (!owned()) return true;
  const std::lock_guard guard(x_mutex);
  if (std::exchange(x_stored, false)) return false;
  x_watchers.clear();
  return true;
}

void WaitObject::wake_sleepers() noexcept {
  if (!owned()) return;
  const std::lock_guard guard(x_mutex);
  x_sleepers.ring();
}

bool WaitObject::clear_sleepers() noexcept {
  if (!owned()) return true;
  const std::lock_guard guard(x_mutex);
  if (!x_callers.all_looked()) return false;
  x_sleepers.clear();
  return true;
}

Slept WaitObject::wait(const Deadline& deadline) noexcept {
  epoll_event event;
  const int ready = epoll_wait(x_sleepers.epoll.get(), &event, 1, deadline.left());
  if (ready < 0 && errno == EINTR) return Slept::interrupted;
  return ready ? Slept::woken : Slept::over;
}

void WaitObject::signal() noexcept {
  if (!owned()) return;
  const std::lock_guard guard(x_mutex);
  if (x_callers.tell()) return x_sleepers.ring();
  x_stored = true;
  x_watchers.ring();
}

WaitObject::Ticket WaitObject::enter() noexcept {
  const std::lock_guard guard(x_mutex);
  return x_callers.enter(std::exchange(x_stored, false));
}

bool WaitObject::signalled(Ticket ticket) const noexcept {
  const std::lock_guard guard(x_mutex);
  return x_callers.told(ticket);
}

void WaitObject::leave(Ticket ticket) noexcept {
  const std::lock_guard guard(x_mutex);
  x_callers.leave(ticket);
}

bool WaitObject::take_signal() noexcept {
  const std::lock_guard guard(x_mutex);
  return std::exchange(x_stored, false);
}

// --- sources ------------------------------------------------------------------------------------

void Waitable::attach(ProgressSource& source) {
  for (const Attachment& attachment : x_sources)
    if (attachment.source == &source) return;
  x_sources.push_back({&source, 0, {}});
  sources_changed();
}

void Waitable::detach(ProgressSource& source) noexcept {
  const auto found = std::find_if(x_sources.begin(), x_sources.end(),
                                  [&](const Attachment& a) { return a.source == &source; });
  if (found == x_sources.end()) return;
  forget(*found);
  x_sources.erase(found);
  if (x_blind) sources_changed();
}

void Waitable::sources_changed() noexcept {
  if (!x_wait || x_driven) return;
  x_blind = false;
  for (Attachment& attachment : x_sources)
    if (!refresh(attachment)) x_blind = true;
  // Sleeping threads have not armed the new descriptors.
  if (sleeping()) wake();
}

bool Waitable::refresh(Attachment& attachment) noexcept {
  forget(attachment);
  std::array<int, Attachment::kMaxFds> fds;
  const int count = attachment.source->wait_fds(fds.data(), Attachment::kMaxFds);
  if (count > Attachment::kMaxFds) return false;
  for (int i = 0; i < count; ++i) {
    if (fds[size_t(i)] < 0) continue;
    if (const int added = x_wait->add(fds[size_t(i)])) {
      ERDMA_WARN(CQ, "can't wait on descriptor %d: %s; blocking calls will poll\n", fds[size_t(i)],
                 fi_strerror(-added));
      return false;
    }
    attachment.fds[size_t(attachment.fd_count++)] = fds[size_t(i)];
  }
  return true;
}

void Waitable::forget(Attachment& attachment) noexcept {
  for (int i = 0; i < attachment.fd_count; ++i) x_wait->remove(attachment.fds[size_t(i)]);
  attachment.fd_count = 0;
}

// --- sleeping -----------------------------------------------------------------------------------

/// The caller has just made progress, which handled the reason of any earlier wake-up. So each
/// source is disarmed, which resets its descriptor, and armed again: that finds new work, and
/// renews the wake-up for threads that already sleep.
bool Waitable::arm() noexcept {
  if (x_blind || !x_wait) return false;
  x_alert = true;
  if (x_driven) return true;
  return std::all_of(x_sources.begin(), x_sources.end(), [](const Attachment& attachment) {
    attachment.source->disarm();
    return attachment.source->arm();
  });
}

bool Waitable::shows_core(bool ask) noexcept {
  const transport::CoreUse use{sched_getcpu(), util::SystemClock().now()};
  bool peer_here = use.core < 0;
  for (const Attachment& attachment : x_sources)
    if (attachment.source->show_core(use, ask && !peer_here)) peer_here = true;
  return peer_here;
}

bool Waitable::make_own_wait() noexcept try {
  if (x_wait || x_refused) return x_wait != nullptr;
  util::Result<std::unique_ptr<WaitObject>> made = WaitObject::try_to_create();
  x_refused = !made;
  if (!made) return false;
  x_wait = std::move(*made);
  sources_changed();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

bool Waitable::arm_to_sleep() noexcept {
  return x_wait && x_sleepers.all_looked() && x_wait->clear_sleepers() && arm();
}

void Waitable::wake() noexcept {
  x_alert = false;
  if (!x_wait) return;
  if (x_watched) x_wait->wake_watchers();
  if (x_sleepers.tell()) x_wait->wake_sleepers();
}

bool Waitable::watch() noexcept {
  if (x_blind || !x_wait->clear_watchers() || !arm()) return false;
  x_watched = true;
  x_watch_left = kWatchLife;
  return true;
}

/// Ends the watch after kWatchLife calls of progress(), so that peers no longer pay for a wake-up
/// per message. A thread that does sleep on the descriptor wakes, and must call fi_trywait again.
void Waitable::age_watch() noexcept {
  if (--x_watch_left != 0) return;
  x_watched = false;
  x_wait->wake_watchers();
}

// --- entry points -------------------------------------------------------------------------------

util::Result<std::unique_ptr<WaitObject>> make_wait_object(int object) {
  switch (object) {
    case FI_WAIT_NONE:
      return std::unique_ptr<WaitObject>();
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
    case FI_WAIT_YIELD:
    case FI_WAIT_SET:
      return WaitObject::create();
    case FI_WAIT_MUTEX_COND:
    case FI_WAIT_POLLFD:
      ERDMA_INFO(CQ, "wait object %d is not supported\n", object);
      return -FI_ENOSYS;
    default:
      ERDMA_INFO(CQ, "wait object %d is unknown\n", object);
      return -FI_EINVAL;
  }
}

int control_wait_object(WaitObject* wait, fi_wait_obj object, int command,
                        void* argument) noexcept {
  if (command != FI_GETWAIT && command != FI_GETWAITOBJ) return -FI_ENOSYS;
  if (!wait) return -FI_ENODATA;
  if (!argument) return -FI_EINVAL;
  if (command == FI_GETWAIT)
    *static_cast<int*>(argument) = wait->fd();
  else
    *static_cast<fi_wait_obj*>(argument) = object == FI_WAIT_UNSPEC ? FI_WAIT_FD : object;
  return 0;
}

namespace {

int try_wait_one(fid_t object) noexcept {
  if (!object) return -FI_EINVAL;
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return Pollable::try_wait(CompletionQueue::from(object));
    case FI_CLASS_CNTR:
      return Pollable::try_wait(Counter::from(object));
    case FI_CLASS_EQ:
      return EventQueue::from(object).try_wait();
    case FI_CLASS_WAIT:
      return WaitSet::from(object).try_wait();
    default:
      return -FI_EINVAL;
  }
}

}  // namespace

int try_wait(fid** fids, int count) noexcept {
  if (count < 0 || (count > 0 && !fids)) return -FI_EINVAL;
  for (int i = 0; i < count; ++i)
    if (const int rc = try_wait_one(fids[i])) return rc;
  return 0;
}

}  // namespace erdma::fabric

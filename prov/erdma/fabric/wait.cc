#include "fabric/wait.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/eq.h"
#include "fabric/wait_set.h"
#include "util/log.h"

namespace erdma::fabric {

// --- the descriptor -----------------------------------------------------------------------------

util::Result<std::unique_ptr<WaitObject>> WaitObject::create() {
  util::Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return -errno;
  util::Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return -errno;
  const int event_fd = event.get();
  std::unique_ptr<WaitObject> made(new WaitObject(std::move(epoll), std::move(event)));
  if (const int added = made->add(event_fd)) return added;
  return made;
}

int WaitObject::add(int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return !owned() || epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

void WaitObject::remove(int fd) noexcept {
  epoll_event event{};
  if (owned()) epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, fd, &event);
}

void WaitObject::wake() noexcept {
  if (owned()) eventfd_write(x_event.get(), 1);
}

void WaitObject::clear() noexcept {
  if (!owned()) return;
  const std::lock_guard guard(x_mutex);
  if (x_owed != 0) return;
  eventfd_t value;
  eventfd_read(x_event.get(), &value);
}

void WaitObject::wait(const Deadline& deadline) noexcept {
  // A signal handler ends the wait early, which the caller takes for a wake-up without a reason.
  epoll_event event;
  epoll_wait(x_epoll.get(), &event, 1, deadline.left());
}

void WaitObject::signal() noexcept {
  const std::lock_guard guard(x_mutex);
  ++x_generation;
  x_owed = x_inside;
  if (x_inside == 0) x_stored = true;
  wake();
}

WaitObject::Ticket WaitObject::enter() noexcept {
  const std::lock_guard guard(x_mutex);
  ++x_inside;
  if (!x_stored) return x_generation;
  x_stored = false;
  ++x_owed;
  return x_generation - 1;
}

bool WaitObject::signalled(Ticket ticket) const noexcept {
  const std::lock_guard guard(x_mutex);
  return ticket != x_generation;
}

void WaitObject::leave(Ticket ticket) noexcept {
  const std::lock_guard guard(x_mutex);
  --x_inside;
  if (ticket != x_generation) --x_owed;
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
  // Whoever sleeps did not arm what is new.
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

bool Waitable::arm() noexcept {
  if (x_blind || !x_wait) return false;
  x_wait->clear();
  x_alert = true;
  if (x_driven) return true;
  return std::all_of(x_sources.begin(), x_sources.end(),
                     [](const Attachment& attachment) { return attachment.source->arm(); });
}

void Waitable::wake() noexcept {
  x_alert = false;
  if (x_wait) x_wait->wake();
}

bool Waitable::watch() noexcept {
  if (x_wait->take_signal() || !arm()) return false;
  x_watched = true;
  x_watch_left = kWatchLife;
  return true;
}

/// Lets the sources stop costing their peers a wake-up per message; a thread that does sleep on the
/// descriptor is sent through fi_trywait again.
void Waitable::tire_watch() noexcept {
  if (--x_watch_left != 0) return;
  x_watched = false;
  wake();
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
      return CompletionQueue::from(object).try_wait();
    case FI_CLASS_CNTR:
      return Counter::from(object).try_wait();
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

#include "transport/verbs/userfaultfd.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include <rdma/fi_errno.h>

#include "transport/verbs/memory_monitor_trial.h"
#include "util/lock.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

constexpr uint64_t kFeatures = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                               UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP;

/// Faults are never served, so faults of the kernel need not be either; unprivileged processes may
/// have such a userfaultfd since 5.11. On older kernels a sysctl decides. The device serves
/// sandboxes that hide the system call.
int open_userfaultfd() noexcept {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  int fd = int(::syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY));
  if (fd < 0 && errno == EINVAL) fd = int(::syscall(SYS_userfaultfd, kFlags));
  if (fd >= 0) return fd;
  const int error = errno;
  const util::Fd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device) fd = ::ioctl(device.get(), _IO(0xAA, 0x00), kFlags | UFFD_USER_MODE_ONLY);
  return fd >= 0 ? fd : -error;
}

util::EpochLock g_lock;            ///< of what follows, and held while it is opened or closed
Userfaultfd* g_current = nullptr;  ///< may belong to the parent of this process

}  // namespace

util::Result<std::shared_ptr<Userfaultfd>> Userfaultfd::join(Listener& listener, const char*& why) {
  util::register_fork_handler();
  const std::lock_guard one_at_a_time(g_lock);
  std::shared_ptr<Userfaultfd> joined;
  if (g_current && g_current->x_epoch == util::process_epoch() &&
      g_current->state() != State::lost) {
    joined = g_current->shared_from_this();
  } else {
    auto opened = create(why);
    if (!opened) return opened.error();
    joined = std::move(*opened);
    g_current = joined.get();
  }
  const std::lock_guard guard(joined->x_mutex);
  joined->x_listeners.push_back(listener);
  return joined;
}

void Userfaultfd::leave(std::shared_ptr<Userfaultfd>& joined, Listener& listener) noexcept {
  if (!joined) return;
  const std::lock_guard one_at_a_time(g_lock);
  if (joined->x_epoch == util::process_epoch()) {
    const std::lock_guard guard(joined->x_mutex);
    joined->x_listeners.erase(listener);
  }
  joined.reset();
}

util::Result<std::shared_ptr<Userfaultfd>> Userfaultfd::create(const char*& why) {
  std::shared_ptr<Userfaultfd> created(new Userfaultfd);
  if (const int rc = created->open(why)) return rc;
  if (!created->behaves()) {
    why = "userfaultfd of this kernel does not tell of unmapped memory in time";
    return -FI_EOPNOTSUPP;
  }
  if (const int rc = created->x_reader.start<&Userfaultfd::read_forever>("erdma-memory", *created))
    return -rc;
  return created;
}

int Userfaultfd::open(const char*& why) noexcept {
  const int fd = open_userfaultfd();
  if (fd < 0) {
    why = fd == -EPERM    ? "userfaultfd is not permitted: allow it in the sandbox (seccomp), or "
                            "on kernels before 5.11 set vm.unprivileged_userfaultfd=1"
          : fd == -ENOSYS ? "this kernel has no userfaultfd"
                          : "userfaultfd is not available";
    return -FI_EOPNOTSUPP;
  }
  x_fd.reset(fd);
  uffdio_api api{UFFD_API, kFeatures, 0};
  if (::ioctl(fd, UFFDIO_API, &api)) {
    why = "userfaultfd of this kernel lacks events or write protection (x86-64: 5.7, arm64: 6.10)";
    return -FI_EOPNOTSUPP;
  }
  return x_stop ? 0 : -FI_EMFILE;
}

/// Tries once what everything else relies on: the kernel reports a change in progress from before
/// the memory is gone until its event is read. Of two changes it also finds out whether the end of
/// one hides the other, so that x_counts does not depend on what a kernel calls itself.
bool Userfaultfd::behaves() noexcept {
  MonitorTrial trial;
  Listener listener(x_stop);
  x_listeners.push_back(listener);
  const bool good = trial.mapped() && try_changes(trial, listener);
  if (!good) x_fd.reset();  // releases threads that wait, and lets this one unmap
  x_listeners.erase(listener);
  return good;
}

bool Userfaultfd::try_changes(MonitorTrial& trial, Listener& listener) noexcept {
  auto& [first, second] = trial.pages;
  if (watch(first.range(), listener) || watch(second.range(), listener) || state() != State::stable)
    return false;
  if (!MonitorTrial::start(first)) return false;
  const auto announced = [&] { return first.done || state() != State::stable; };
  if (!MonitorTrial::wait(announced) || first.done) return false;
  if (!MonitorTrial::start(second)) return false;
  // Its change was announced before its page was replaced.
  if (!MonitorTrial::wait([&] { return second.replaced(); }) || trial.one_done()) return false;
  if (!MonitorTrial::wait([&] { return read_events(1) > 0; })) return false;
  if (!MonitorTrial::wait([&] { return trial.one_done(); })) return false;
  x_counts = state() == State::changing;
  const auto rest = [&] { return read_events(1), trial.all_done(); };
  if (!MonitorTrial::wait(rest)) return false;
  const auto told = [&](const MonitorTrial::Page& page) {
    for (size_t i = 0; i < listener.pending.count; ++i)
      if (listener.pending.changes[i].range.start == page.range().start) return true;
    return false;
  };
  return told(first) && told(second) && state() == State::stable;
}

/// The caller holds g_lock.
Userfaultfd::~Userfaultfd() {
  if (g_current == this) g_current = nullptr;
  // the thread and the descriptor belong to the parent
  if (x_epoch != util::process_epoch()) return;
  if (!x_reader.running()) return;
  x_stop.ring();
  x_reader.join();
}

int Userfaultfd::watch(const MemoryRange& range, Listener& by) noexcept {
  // Else another listener's unwatch() could end this and not tell, as the filter lacked the range.
  const std::lock_guard guard(x_mutex);
  by.watched.add(range);  // first, as a change may follow at once
  uffdio_register request{};
  request.range = {range.start, range.bytes()};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (!::ioctl(x_fd.get(), UFFDIO_REGISTER, &request)) return 0;
  if (errno == EBUSY) return -FI_EBUSY;
  return errno == EINVAL ? -FI_EOPNOTSUPP : -FI_ENOMEM;
}

void Userfaultfd::unwatch(const MemoryRange& range, const Listener& by) noexcept {
  const std::lock_guard guard(x_mutex);  // who hears of it may watch the range again
  tell(range, false, &by);
  uffdio_range request{range.start, range.bytes()};
  (void)::ioctl(x_fd.get(), UFFDIO_UNREGISTER, &request);
  wake_told(&by);
}

/// While a change is in progress, that is, from before it happens until its event is read and the
/// caller continues, every request that changes memory is refused with EAGAIN. This request changes
/// nothing.
Userfaultfd::State Userfaultfd::state() noexcept {
  uffdio_writeprotect nothing{};
  (void)::ioctl(x_fd.get(), UFFDIO_WRITEPROTECT, &nothing);
  if (errno == EINVAL) [[likely]]
    return State::stable;
  return errno == EAGAIN ? State::changing : State::lost;
}

/// The caller holds x_mutex, or no other thread exists.
void Userfaultfd::tell(const MemoryRange& range, bool remains, const Listener* but) noexcept {
  for (Listener* each = x_listeners.front(); each; each = x_listeners.next(*each)) {
    if (each == but || !each->watched.may_overlap(range)) continue;
    each->pending.note(range, remains);
    each->told.store(true, std::memory_order_relaxed);
  }
}

void Userfaultfd::wake_told(const Listener* but) noexcept {
  for (Listener* each = x_listeners.front(); each; each = x_listeners.next(*each))
    if (each != but && each->told.load(std::memory_order_relaxed)) each->wake.ring();
}

/// Returns the number of events, at most `most`. The caller holds x_mutex, or no other thread
/// exists.
size_t Userfaultfd::read_events(size_t most) noexcept {
  x_reading.store(true, std::memory_order_seq_cst);
  uffd_msg messages[kEventsAtOnce];
  const ssize_t got = ::read(x_fd.get(), messages, most * sizeof(messages[0]));
  const size_t count = got > 0 ? size_t(got) / sizeof(messages[0]) : 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& arg = messages[i].arg;
    switch (messages[i].event) {
      case UFFD_EVENT_UNMAP:
      case UFFD_EVENT_REMOVE:
        tell({arg.remove.start, arg.remove.end}, messages[i].event == UFFD_EVENT_REMOVE);
        break;
      case UFFD_EVENT_REMAP:
        tell({arg.remap.from, arg.remap.from + arg.remap.len}, false);
        tell({arg.remap.to, arg.remap.to + arg.remap.len}, false);
        break;
      default:
        break;
    }
    // On these kernels the end of one change also clears the flag of another that is in progress.
    if (!x_counts) tell(kAllAddresses, true);
  }
  x_reading.store(false, std::memory_order_release);
  return count;
}

void Userfaultfd::read_forever() noexcept {
  pollfd fds[2] = {{x_fd.get(), POLLIN, 0}, {x_stop.fd(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents) return;
    const bool closed = !(fds[0].revents & POLLIN);  // by other code
    if (closed) fds[0].fd = -1;
    std::lock_guard guard(x_mutex);
    if (closed)
      tell(kAllAddresses, false);  // look() will report more
    else
      read_events();
    wake_told();
  }
}

bool Userfaultfd::look(Listener& listener, MemoryChanges& changes) noexcept {
  changes.clear();
  // Before the event of a change can be read, x_reading is set. The call that made the change
  // returns later, and a look that follows it finds x_reading, or else what it was told.
  if (state() == State::stable && !x_reading.load(std::memory_order_acquire) &&
      !listener.told.load(std::memory_order_acquire)) [[likely]]
    return true;
  constexpr unsigned kTries = 100;
  for (unsigned i = 1;; ++i) {
    {
      std::lock_guard guard(x_mutex);
      const State now = state();
      if (now == State::changing && read_events() > 0) wake_told(&listener);
      if (now == State::lost) listener.pending.all = true;
      if (now != State::changing || i == kTries) {
        changes = listener.pending;
        listener.pending.clear();
        listener.told.store(false, std::memory_order_relaxed);
        return now == State::stable;
      }
    }
    sched_yield();  // the thread that changes memory only needs to run
  }
}

}  // namespace erdma::transport::verbs

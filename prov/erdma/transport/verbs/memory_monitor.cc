#include "transport/verbs/memory_monitor.h"

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

}  // namespace

util::Result<std::unique_ptr<MemoryMonitor>> MemoryMonitor::create(const util::EventFd& wake,
                                                                   const char*& why) {
  util::register_fork_handler();
  std::unique_ptr<MemoryMonitor> monitor(new MemoryMonitor(wake));
  monitor->x_epoch = util::process_epoch();
  if (const int rc = monitor->open(why)) return rc;
  if (!monitor->behaves()) {
    why = "userfaultfd of this kernel does not tell of unmapped memory in time";
    return -FI_EOPNOTSUPP;
  }
  if (const int rc =
          monitor->x_reader.start<&MemoryMonitor::read_forever>("erdma-memory", *monitor))
    return -rc;
  return monitor;
}

int MemoryMonitor::open(const char*& why) noexcept {
  const int fd = open_userfaultfd();
  if (fd < 0) {
    why = fd == -EPERM    ? "userfaultfd is not permitted: allow it in the sandbox (seccomp), or "
                            "on kernels before 5.11 set vm.unprivileged_userfaultfd=1"
          : fd == -ENOSYS ? "this kernel has no userfaultfd"
                          : "userfaultfd is not available";
    return -FI_EOPNOTSUPP;
  }
  x_uffd.reset(fd);
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
bool MemoryMonitor::behaves() noexcept {
  MonitorTrial trial;
  const bool good = trial.mapped() && try_changes(trial);
  if (!good) x_uffd.reset();  // releases threads that wait, and lets this one unmap
  x_pending.count = 0;
  return good;
}

bool MemoryMonitor::try_changes(MonitorTrial& trial) noexcept {
  auto& [first, second] = trial.pages;
  if (watch(first.range()) || watch(second.range()) || state() != State::stable) return false;
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
    for (size_t i = 0; i < x_pending.count; ++i)
      if (x_pending.changes[i].range.start == page.range().start) return true;
    return false;
  };
  return told(first) && told(second) && state() == State::stable;
}

MemoryMonitor::~MemoryMonitor() {
  // the thread and the descriptor belong to the parent
  if (x_epoch != util::process_epoch()) return;
  if (!x_reader.running()) return;
  x_stop.ring();
  x_reader.join();
}

int MemoryMonitor::watch(const MemoryRange& range) noexcept {
  uffdio_register request{};
  request.range = {range.start, range.bytes()};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (!::ioctl(x_uffd.get(), UFFDIO_REGISTER, &request)) return 0;
  if (errno == EBUSY) return -FI_EBUSY;
  return errno == EINVAL ? -FI_EOPNOTSUPP : -FI_ENOMEM;
}

void MemoryMonitor::unwatch(const MemoryRange& range) noexcept {
  uffdio_range request{range.start, range.bytes()};
  (void)::ioctl(x_uffd.get(), UFFDIO_UNREGISTER, &request);
}

/// While a change is in progress, that is, from before it happens until its event is read and the
/// caller continues, every request that changes memory is refused with EAGAIN. This request changes
/// nothing.
MemoryMonitor::State MemoryMonitor::state() noexcept {
  uffdio_writeprotect nothing{};
  (void)::ioctl(x_uffd.get(), UFFDIO_WRITEPROTECT, &nothing);
  if (errno == EINVAL) [[likely]]
    return State::stable;
  return errno == EAGAIN ? State::changing : State::lost;
}

void MemoryMonitor::note(const MemoryRange& range, bool remains) noexcept {
  if (x_pending.count < MemoryChanges::kMax)
    x_pending.changes[x_pending.count++] = {range, remains};
  else
    x_pending.all = true;
}

/// Returns the number of events, at most `most`. The caller holds x_mutex, or no other thread
/// exists.
size_t MemoryMonitor::read_events(size_t most) noexcept {
  uffd_msg messages[kEventsAtOnce];
  const ssize_t got = ::read(x_uffd.get(), messages, most * sizeof(messages[0]));
  const size_t count = got > 0 ? size_t(got) / sizeof(messages[0]) : 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& arg = messages[i].arg;
    switch (messages[i].event) {
      case UFFD_EVENT_UNMAP:
      case UFFD_EVENT_REMOVE:
        note({arg.remove.start, arg.remove.end}, messages[i].event == UFFD_EVENT_REMOVE);
        break;
      case UFFD_EVENT_REMAP:
        note({arg.remap.from, arg.remap.from + arg.remap.len}, false);
        note({arg.remap.to, arg.remap.to + arg.remap.len}, false);
        break;
      default:
        break;
    }
    // On these kernels the end of one change also clears the flag of another that is in progress.
    if (!x_counts) note(kAllAddresses, true);
  }
  return count;
}

void MemoryMonitor::read_forever() noexcept {
  pollfd fds[2] = {{x_uffd.get(), POLLIN, 0}, {x_stop.fd(), POLLIN, 0}};
  for (;;) {
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents) return;
    if (!(fds[0].revents & POLLIN)) {  // closed by other code: look() will report it
      fds[0].fd = -1;
      x_wake.ring();
      continue;
    }
    {
      std::lock_guard guard(x_mutex);
      read_events();
    }
    x_wake.ring();
  }
}

bool MemoryMonitor::look(MemoryChanges& changes) noexcept {
  constexpr unsigned kTries = 100;
  for (unsigned i = 1;; ++i) {
    {
      std::lock_guard guard(x_mutex);
      const State now = state();
      if (now == State::changing) read_events();
      if (now == State::lost) x_pending.all = true;
      if (now != State::changing || i == kTries) {
        take(changes);
        return now == State::stable;
      }
    }
    sched_yield();  // the thread that changes memory only needs to run
  }
}

void MemoryMonitor::take(MemoryChanges& changes) noexcept {
  changes.count = 0;
  changes.all = false;
  if (x_pending.count == 0 && !x_pending.all) [[likely]]
    return;
  changes = x_pending;
  x_pending.count = 0;
  x_pending.all = false;
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/memory_monitor.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include <rdma/fi_errno.h>

#include "util/clock.h"
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

bool MemoryMonitor::counts_changes() noexcept {
  utsname name{};
  unsigned major = 0, minor = 0;
  return !::uname(&name) && std::sscanf(name.release, "%u.%u", &major, &minor) == 2 &&
         (major > 5 || (major == 5 && minor >= 15));
}

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
  x_counts = counts_changes();
  return x_stop ? 0 : -FI_EMFILE;
}

/// Tries once what everything else relies on: the kernel reports a change in progress from before
/// the memory is gone until its event is read.
bool MemoryMonitor::behaves() noexcept {
  struct Trial {
    size_t bytes = size_t(::sysconf(_SC_PAGESIZE));
    void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::atomic<bool> unmapped = false;
  } trial;
  if (trial.page == MAP_FAILED) return false;
  constexpr auto unmap = [](void* argument) -> void* {
    auto& mine = *static_cast<Trial*>(argument);
    ::munmap(mine.page, mine.bytes);
    mine.unmapped = true;
    return nullptr;
  };
  const auto start = reinterpret_cast<uintptr_t>(trial.page);
  pthread_t other{};
  if (watch({start, start + trial.bytes}) || state() != State::stable ||
      pthread_create(&other, nullptr, unmap, &trial)) {
    x_uffd.reset();  // otherwise this thread would wait for itself
    unmap(&trial);
    return false;
  }
  while (!trial.unmapped && state() == State::stable) sched_yield();
  const bool held = !trial.unmapped;
  const util::SystemClock clock;
  const uint64_t deadline = clock.now() + 2'000'000'000;
  for (; !trial.unmapped && clock.now() < deadline; sched_yield()) read_events();
  if (!trial.unmapped) x_uffd.reset();  // releases the waiting thread
  pthread_join(other, nullptr);
  const bool told = x_pending.count > 0 && x_pending.changes[0].range.start == start;
  x_pending.count = 0;
  return held && told && state() == State::stable;
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

/// The caller holds x_mutex, or no other thread exists.
void MemoryMonitor::read_events() noexcept {
  uffd_msg messages[8];
  const ssize_t got = ::read(x_uffd.get(), messages, sizeof(messages));
  for (size_t i = 0; got > 0 && i < size_t(got) / sizeof(messages[0]); ++i) {
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

#include "softerdma/peer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "softerdma/report.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace softerdma {
namespace {

/// While it exists, this thread accesses memory as the adapter, which is none of the program's
/// threads: they synchronise with it through queues that lie in memory mapped twice, and
/// ThreadSanitizer does not see that. Nor does it see a thread that uses a buffer too early.
class AsAdapter {
 public:
#ifdef __SANITIZE_THREAD__
  AsAdapter() noexcept {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~AsAdapter() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  AsAdapter() noexcept {}
  ~AsAdapter() {}
#endif
  AsAdapter(const AsAdapter&) = delete;
  AsAdapter& operator=(const AsAdapter&) = delete;
};

int close_if_open(int fd) {
  return fd >= 0 ? close(fd) : 0;
}

}  // namespace

RemoteCq::~RemoteCq() {
  close_if_open(event_fd);
}

PeerProcess::~PeerProcess() {
  close_if_open(x_wake);
  close_if_open(pidfd);
  close_if_open(x_memory.load());
}

bool PeerProcess::attach(Fabric& fabric) {
  ProcessEntry& entry = fabric.shared().processes[slot];
  x_self = slot == fabric.slot();
  if (entry.generation.load() != generation || !fabric.alive(slot)) return false;
  x_pid = entry.pid.load();
  x_foreign_pids = entry.pid_namespace.load() != fabric.self().pid_namespace.load();
  if (!x_self && !x_foreign_pids) {
    pidfd = static_cast<int>(syscall(SYS_pidfd_open, x_pid, 0));
    // Another process may have the pid by now, but not the lock.
    if (pidfd >= 0 && !fabric.alive(slot)) return false;
  }
  std::string folder = fabric.process_folder(slot);
  x_mrs = Mapping::open(folder + "/mr");
  // The pipe is opened for reading, too. Otherwise a write after its owner's death would raise
  // SIGPIPE.
  x_wake = open((folder + "/wake").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  return x_mrs && x_wake >= 0 && entry.generation.load() == generation;
}

std::shared_ptr<RemoteCq> PeerProcess::cq(Fabric& fabric, uint32_t number) {
  std::lock_guard guard(x_mutex);
  std::weak_ptr<RemoteCq>& known = x_cqs[number];
  if (std::shared_ptr<RemoteCq> cq = known.lock()) return cq;
  auto cq = std::make_shared<RemoteCq>();
  std::string folder = fabric.process_folder(slot);
  cq->map = Mapping::open(folder + "/c" + std::to_string(number));
  cq->owner = fabric.slot();
  if (!cq->map) {
    x_cqs.erase(number);
    return nullptr;
  }
  if (uint32_t channel = cq->shared().channel; channel != 0) {
    cq->event_fd =
        open((folder + "/e" + std::to_string(channel)).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  known = cq;
  return cq;
}

const MrEntry* PeerProcess::find(uint32_t key, uint64_t address, uint64_t length, uint32_t access,
                                 uint32_t pd) noexcept {
  size_t index = key >> 8;
  if (key == 0 || (index + 1) * sizeof(MrEntry) > x_mrs.size()) return nullptr;
  const MrEntry* entry = x_mrs.as<MrEntry>() + index;
  if (entry->key.load(std::memory_order_acquire) != key) return nullptr;
  if ((entry->access & access) != access || entry->pd != pd) return nullptr;
  if (address < entry->iova || length > entry->length ||
      address - entry->iova > entry->length - length) {
    return nullptr;
  }
  return entry;
}

int PeerProcess::write(const iovec* local, size_t count, uint64_t remote, size_t length) noexcept {
  return transfer(true, local, count, remote, length);
}

int PeerProcess::place(const void* local, uint64_t remote, size_t length) noexcept {
  iovec here{const_cast<void*>(local), length};
  if (!x_self) return write(&here, 1, remote, length);
  iovec there{reinterpret_cast<void*>(remote), length};  // NOLINT(performance-no-int-to-ptr)
  return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == static_cast<ssize_t>(length)
             ? 0
             : EFAULT;
}

PostedShared* PeerProcess::posted(Fabric& fabric, uint32_t adapter) {
  if (adapter >= kDevicesPerProcess) return nullptr;
  std::lock_guard guard(x_mutex);
  Mapping& map = x_posted[adapter];
  if (!map) map = Mapping::open(fabric.process_folder(slot) + "/posted" + std::to_string(adapter));
  return map.as<PostedShared>();
}

int PeerProcess::read(void* local, uint64_t remote, size_t length) noexcept {
  iovec piece{local, length};
  return transfer(false, &piece, 1, remote, length);
}

int PeerProcess::transfer(bool to_peer, const iovec* local, size_t count, uint64_t remote,
                          size_t length) noexcept {
  if (x_self) {
    const AsAdapter as_adapter;
    for (size_t i = 0; i < count; ++i) {
      auto* there = reinterpret_cast<void*>(remote);  // NOLINT(performance-no-int-to-ptr)
      std::memmove(to_peer ? there : local[i].iov_base, to_peer ? local[i].iov_base : there,
                   local[i].iov_len);
      remote += local[i].iov_len;
    }
    return 0;
  }
  iovec pieces[8];
  std::copy_n(local, count, pieces);
  iovec* piece = pieces;
  while (length > 0) {
    if (x_refused.load(std::memory_order_relaxed) || x_foreign_pids) {
      return through_file(to_peer, piece, count, remote);
    }
    iovec there{reinterpret_cast<void*>(remote), length};  // NOLINT(performance-no-int-to-ptr)
    ssize_t moved = to_peer ? process_vm_writev(x_pid, piece, count, &there, 1, 0)
                            : process_vm_readv(x_pid, piece, count, &there, 1, 0);
    if (moved <= 0) {
      int error = moved < 0 ? errno : EFAULT;
      if (error == EFAULT || error == ESRCH) return error;
      x_refused.store(true, std::memory_order_relaxed);
      continue;
    }
    auto rest = static_cast<size_t>(moved);
    length -= rest;
    remote += rest;
    for (; count > 0 && rest >= piece->iov_len; --count) rest -= (piece++)->iov_len;
    if (count > 0) {
      piece->iov_base = static_cast<char*>(piece->iov_base) + rest;
      piece->iov_len -= rest;
    }
  }
  return 0;
}

/// Used if the kernel refuses process_vm_readv() and process_vm_writev().
int PeerProcess::through_file(bool to_peer, const iovec* local, size_t count,
                              uint64_t remote) noexcept {
  int fd = x_memory.load();
  if (fd < 0) {
    char path[40];
    std::snprintf(path, sizeof path, "/proc/%d/mem", x_pid);
    fd = x_foreign_pids ? -1 : open(path, O_RDWR | O_CLOEXEC);
    int expected = -1;
    if (fd < 0) {
      int error = x_foreign_pids ? EPERM : errno;
      note("neither process_vm_writev nor %s reaches process %d: %s", path, x_pid,
           std::strerror(error));
      return error == ENOENT ? ESRCH : error;
    }
    if (!x_memory.compare_exchange_strong(expected, fd)) {
      close(fd);
      fd = expected;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    auto* base = static_cast<char*>(local[i].iov_base);
    for (size_t done = 0; done < local[i].iov_len;) {
      size_t rest = local[i].iov_len - done;
      ssize_t moved = to_peer ? pwrite(fd, base + done, rest, static_cast<off_t>(remote))
                              : pread(fd, base + done, rest, static_cast<off_t>(remote));
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return moved == 0 ? ESRCH : errno == EIO ? EFAULT : errno;
      done += static_cast<size_t>(moved);
      remote += static_cast<uint64_t>(moved);
    }
  }
  return 0;
}

void PeerProcess::send(const Message& message) {
  std::lock_guard guard(x_mutex);
  if (dead.load()) return;
  if (!x_queued.empty() || ::write(x_wake, &message, sizeof message) < 0) {
    x_queued.push_back(message);
  }
}

bool PeerProcess::flush() {
  std::lock_guard guard(x_mutex);
  while (!x_queued.empty()) {
    if (dead.load()) {
      x_queued.clear();
    } else if (::write(x_wake, &x_queued.front(), sizeof(Message)) < 0) {
      if (errno == EAGAIN || errno == EINTR) return false;
      x_queued.clear();
    } else {
      x_queued.pop_front();
    }
  }
  return true;
}

}  // namespace softerdma

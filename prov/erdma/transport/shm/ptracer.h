#pragma once

#include <sys/types.h>

#include <cstdint>

#include "transport/shm/cma.h"
#include "transport/shm/options.h"
#include "util/lock.h"

namespace erdma::transport::shm {

/// What /proc tells about this host's processes. `root` (static text) is another directory in
/// tests.
class ProcFs {
 public:
  explicit ProcFs(const char* root = "/proc") noexcept : x_root(root) {}

  pid_t parent(pid_t pid) const noexcept;  ///< 0: none that is visible here, or an unknown pid
  int ptrace_scope() const noexcept;       ///< Yama's scope; -1 without Yama
  int seccomp() const noexcept;            ///< of this process: 0, 1, 2; -1 = unknown
  bool can_ptrace_any() const noexcept;    ///< CAP_SYS_PTRACE is effective
  uint64_t own_namespace(const char* kind) const noexcept;  ///< inode; 0 = unknown

 private:
  const char* x_root;
};

/// The processes that this one, as a target, admits under Yama scope 1. The kernel keeps one entry
/// per process, so the entry must cover every process admitted before. Thread-safe. Invariant: the
/// entry names this process or one of its ancestors, never the host's init.
class Admission {
 public:
  explicit Admission(const ProcFs& proc) noexcept : x_proc(proc) {}

  int admit(CmaCalls& calls, PtracerPolicy policy, pid_t self, pid_t requester) noexcept;

 private:
  /// 0 if no common ancestor may be named.
  pid_t common_ancestor(pid_t self, pid_t requester) const noexcept;
  bool descends_from(pid_t pid, pid_t ancestor) const noexcept;

  const ProcFs x_proc;
  util::EpochLock x_lock;
  pid_t x_self = 0;   ///< the process to which x_named belongs: a forked child has no entry
  pid_t x_named = 0;  ///< 0 = none yet
};

}  // namespace erdma::transport::shm

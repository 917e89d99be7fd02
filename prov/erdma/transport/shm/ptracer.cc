#include "transport/shm/ptracer.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <rdma/fi_errno.h>

#include "util/fd.h"

namespace erdma::transport::shm {
namespace {

constexpr uint64_t kInitialPidNamespace = 0xEFFFFFFC;  // the kernel's PROC_PID_INIT_INO
constexpr int kLongestChain = 4096;                    // bounds the loop while /proc changes
constexpr unsigned kCapSysPtrace = 19;

/// Reads root/name, from `offset` on, as a C string. False if it cannot be read.
bool read_text(const char* root, const char* name, char* text, size_t size,
               size_t offset = 0) noexcept {
  char path[512];
  if (std::snprintf(path, sizeof path, "%s/%s", root, name) >= int(sizeof path)) return false;
  const util::Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  const ssize_t length = ::pread(file.get(), text, size - 1, off_t(offset));
  if (length < 0) return false;
  text[length] = '\0';
  return true;
}

/// The text behind "field:" of root/self/status, read into `text`; null if absent. The file has any
/// length, as it lists the groups of the process. So it is read in parts that overlap.
const char* status_field(const char* root, const char* field, char* text, size_t size) noexcept {
  constexpr size_t kLongest = 64;  // field and value
  for (size_t at = 0; read_text(root, "self/status", text, size, at); at += size - 1 - kLongest) {
    const char* const found = std::strstr(text, field);
    const size_t length = std::strlen(text);
    const bool last = length < size - 1;
    if (found && (last || size_t(found - text) + kLongest <= length))
      return found + std::strlen(field);
    if (last) break;
  }
  return nullptr;
}

}  // namespace

pid_t ProcFs::parent(pid_t pid) const noexcept {
  char name[32];
  char text[512];
  std::snprintf(name, sizeof name, "%d/stat", int(pid));
  if (!read_text(x_root, name, text, sizeof text)) return 0;
  // "pid (comm) state ppid ...": comm may itself contain spaces and parentheses.
  const char* comm_end = std::strrchr(text, ')');
  int parent = 0;
  if (!comm_end || std::sscanf(comm_end + 1, " %*c %d", &parent) != 1) return 0;
  return parent > 0 ? pid_t(parent) : 0;
}

int ProcFs::ptrace_scope() const noexcept {
  char text[32];
  if (!read_text(x_root, "sys/kernel/yama/ptrace_scope", text, sizeof text)) return -1;
  return std::atoi(text);
}

int ProcFs::seccomp() const noexcept {
  char text[4096];
  const char* value = status_field(x_root, "\nSeccomp:", text, sizeof text);
  return value ? std::atoi(value) : -1;
}

bool ProcFs::can_ptrace_any() const noexcept {
  char text[4096];
  const char* value = status_field(x_root, "\nCapEff:", text, sizeof text);
  return value && (std::strtoull(value, nullptr, 16) >> kCapSysPtrace & 1) != 0;
}

uint64_t ProcFs::own_namespace(const char* kind) const noexcept {
  char path[512];
  char link[64];
  if (std::snprintf(path, sizeof path, "%s/self/ns/%s", x_root, kind) >= int(sizeof path)) return 0;
  const ssize_t length = ::readlink(path, link, sizeof link - 1);
  if (length < 0) return 0;
  link[length] = '\0';
  const char* inode = std::strchr(link, '[');  // "pid:[4026531836]"
  return inode ? std::strtoull(inode + 1, nullptr, 10) : 0;
}

bool Admission::descends_from(pid_t pid, pid_t ancestor) const noexcept {
  for (int i = 0; pid > 0 && i < kLongestChain; ++i, pid = x_proc.parent(pid))
    if (pid == ancestor) return true;
  return false;
}

pid_t Admission::common_ancestor(pid_t self, pid_t requester) const noexcept {
  // The process named before stays covered: the search starts there, unless it has died.
  pid_t candidate = x_named > 0 && descends_from(self, x_named) ? x_named : self;
  for (int i = 0; candidate > 0 && !descends_from(requester, candidate); ++i)
    candidate = i < kLongestChain ? x_proc.parent(candidate) : 0;
  if (candidate != 1) return candidate;
  // In a container pid 1 is the launcher of these ranks. On the host it is every process's
  // ancestor.
  const uint64_t pid_namespace = x_proc.own_namespace("pid");
  return pid_namespace != 0 && pid_namespace != kInitialPidNamespace ? 1 : 0;
}

int Admission::admit(CmaCalls& calls, PtracerPolicy policy, pid_t self, pid_t requester) noexcept {
  if (policy == PtracerPolicy::none || requester <= 0) return -FI_EPERM;
  if (policy == PtracerPolicy::any) return calls.set_ptracer(PR_SET_PTRACER_ANY);
  const std::lock_guard guard(x_lock);
  if (x_self != self) x_named = 0;
  x_self = self;
  const pid_t ancestor = common_ancestor(self, requester);
  if (ancestor <= 0) return -FI_EPERM;
  // Repeated even if the ancestor is unchanged: other code may have replaced the entry.
  const int status = calls.set_ptracer(static_cast<unsigned long>(ancestor));
  if (status == 0) x_named = ancestor;
  return status;
}

int admit(CmaCalls& calls, PtracerPolicy policy, pid_t requester) noexcept {
  static Admission admission{ProcFs()};
  return admission.admit(calls, policy, ::getpid(), requester);
}

}  // namespace erdma::transport::shm

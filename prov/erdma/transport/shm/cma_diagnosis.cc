#include "transport/shm/cma_diagnosis.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace erdma::transport::shm {
namespace {

/// What users are told about a cause.
struct Texts {
  const char* reason;
  const char* remedy;
};
constexpr Texts kTexts[] = {
    // in the order of RefusalCause
    {"by Yama (ptrace_scope 2)",
     "sysctl kernel.yama.ptrace_scope=1 (or 0), or give the processes CAP_SYS_PTRACE"},
    {"by Yama (ptrace_scope 3)", "set kernel.yama.ptrace_scope to 1 or 0 in sysctl.d and reboot"},
    {"by Yama (ptrace_scope 1)",
     "FI_ERDMA_PTRACER=ancestor with a common launcher, FI_ERDMA_PTRACER=any, or sysctl "
     "kernel.yama.ptrace_scope=0 (in a container also allow the call in its seccomp profile)"},
    {"as the peer is in a pid namespace that can't be seen from here",
     "run both processes in one pid namespace (docker --pid=host or --pid=container:NAME)"},
    {"as the peer is in another pid namespace",
     "the peer may be exiting, or its first thread has ended; else run both processes in one pid "
     "namespace"},
    {"as the peer has another uid or gid", "run both processes with the same uid and gid"},
    {"as the peer is in another user namespace", "run both processes in one user namespace"},
    {"as the peer is not dumpable",
     "make the peer's binary readable to its user and not setuid, or PR_SET_DUMPABLE=1"},
    {"by a seccomp filter, as containers have",
     "allow process_vm_readv and process_vm_writev in the container's seccomp profile, or add "
     "CAP_SYS_PTRACE (docker --cap-add=SYS_PTRACE)"},
    {"as it lacks the call", "use a kernel with CONFIG_CROSS_MEMORY_ATTACH"},
    {"for this memory", "none: the kernel could not reach this memory"},
    {"as the peer has other capabilities, or by an LSM",
     "start both processes with the same capabilities (or allow the call in the LSM policy)"},
};
static_assert(std::size(kTexts) == size_t(RefusalCause::capabilities) + 1);

const char* sameness(uint64_t here, uint64_t there) noexcept {
  if (here == 0 || there == 0) return "unknown";
  return here == there ? "same" : "different";
}

RefusalCause cause_without_errno(const CmaPeer& peer, int scope) noexcept {
  if (peer.pid <= 0) return RefusalCause::invisible_pid;
  if (scope >= 3) return RefusalCause::scope_nobody;
  if (scope == 2) return RefusalCause::scope_admin_only;
  return RefusalCause::wrong_process;
}

RefusalCause cause_of_eperm(const CmaIdentity& here, const CmaIdentity& there) noexcept {
  if (here.uid != there.uid || here.gid != there.gid) return RefusalCause::other_user;
  if (here.user_namespace != there.user_namespace) return RefusalCause::other_user_namespace;
  if (there.dumpable != 1) return RefusalCause::not_dumpable;
  if (here.ptrace_scope >= 3) return RefusalCause::scope_nobody;
  if (here.ptrace_scope == 2) return RefusalCause::scope_admin_only;
  if (here.ptrace_scope == 1) return RefusalCause::scope_ancestor_only;
  return here.seccomp == 2 ? RefusalCause::seccomp : RefusalCause::capabilities;
}

}  // namespace

RefusalCause likely_cause(const CmaPeer& peer, const CmaVerdict& verdict,
                          const CmaIdentity& self) noexcept {
  if (verdict.reason != CmaReason::none) return cause_without_errno(peer, self.ptrace_scope);
  switch (verdict.error) {
    case ENOSYS:
      return self.seccomp == 2 ? RefusalCause::seccomp : RefusalCause::no_such_call;
    case ESRCH:
      return RefusalCause::wrong_process;
    case EPERM:
    case EACCES:
      return cause_of_eperm(self, peer.identity());
    default:
      return RefusalCause::memory;
  }
}

bool lasting(RefusalCause cause, const CmaVerdict& verdict) noexcept {
  return cause != RefusalCause::memory && verdict.error != ESRCH;
}

const char* reason(RefusalCause cause) noexcept {
  return kTexts[size_t(cause)].reason;
}

const char* remedy(RefusalCause cause) noexcept {
  return kTexts[size_t(cause)].remedy;
}

std::string diagnosis(const CmaPeer& peer, const char* call, const CmaVerdict& verdict) {
  const CmaIdentity self = own_cma_identity();
  const CmaIdentity& there = peer.identity();
  const char* const reason = text_of(verdict.reason);
  char what[160];
  if (verdict.error != 0) {
    char text[64];
    std::snprintf(what, sizeof what, "%s (errno %d)%s%s",
                  ::strerror_r(verdict.error, text, sizeof text), verdict.error, reason ? ": " : "",
                  reason ? reason : "");
  } else {
    std::snprintf(what, sizeof what, "%s", reason ? reason : "not tried");
  }
  char line[1000];
  std::snprintf(line, sizeof line,
                "%s from process %d on process %d: %s; uid/gid here %u/%u, there %u/%u; user "
                "namespace %s, pid namespace %s; peer dumpable %d; seccomp here %d, there %d; "
                "ptrace_scope %d. Remedy: %s. Continuing by copy through shared memory",
                call, int(::getpid()), int(peer.pid), what, self.uid, self.gid, there.uid,
                there.gid, sameness(self.user_namespace, there.user_namespace),
                sameness(self.pid_namespace, there.pid_namespace), there.dumpable, self.seccomp,
                there.seccomp, self.ptrace_scope, remedy(likely_cause(peer, verdict, self)));
  return line;
}

std::string summary(const CmaPeer& peer, const char* call, const CmaVerdict& verdict) {
  const RefusalCause cause = likely_cause(peer, verdict, own_cma_identity());
  if (!lasting(cause, verdict)) return {};
  char error[48] = "";
  if (verdict.error != 0) {
    char text[40];
    std::snprintf(error, sizeof error, ", %s", ::strerror_r(verdict.error, text, sizeof text));
  }
  char line[600];
  std::snprintf(line, sizeof line,
                "CMA is refused %s (%s%s): large messages within this host are copied twice, which "
                "is slower. Remedy: %s",
                reason(cause), call, error, remedy(cause));
  return line;
}

}  // namespace erdma::transport::shm

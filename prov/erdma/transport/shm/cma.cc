#include "transport/shm/cma.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "transport/shm/ptracer.h"
#include "transport/shm/unix_socket.h"
#include "util/log.h"
#include "util/random_word.h"

namespace erdma::transport::shm {
namespace {

/// The words that peers probe. They have a page of their own that a forked child finds zeroed, so
/// that the child does not pass for its parent.
struct ProbeWords {
  std::atomic<uint64_t> nonce;
  std::atomic<uint64_t> scratch[kScratchWords];  ///< word 0 is for probe_write()
};

/// Without a lock, which a thread of the parent may hold when a process is forked.
uint64_t nonce_in(ProbeWords& words) noexcept {
  uint64_t nonce = words.nonce.load();
  while (nonce == 0)
    if (const uint64_t fresh = util::random_word())
      if (words.nonce.compare_exchange_strong(nonce, fresh)) return fresh;
  return nonce;
}

ProbeWords* map_probe_words() noexcept {
  void* page = ::mmap(nullptr, sizeof(ProbeWords), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  (void)::madvise(page, sizeof(ProbeWords), MADV_WIPEONFORK);
  return static_cast<ProbeWords*>(page);
}

ProbeWords* probe_words() noexcept {
  static ProbeWords* const words = map_probe_words();
  return words;
}

/// Both calls have the same reason, so one line is enough.
void deny_both(CmaPeer& peer, CmaReason reason, bool worth_a_line) noexcept {
  peer.read = {Permission::denied, !worth_a_line, reason, 0};
  peer.write = {Permission::denied, true, reason, 0};
}

/// Why any call would fail and only leave a line in the kernel's log; none if a call may succeed.
CmaReason hopeless(const CmaPeer& peer, const ProcFs& proc) noexcept {
  if (peer.pid <= 0) return CmaReason::invisible_pid;
  const int scope = proc.ptrace_scope();
  if (scope >= 3) return CmaReason::scope_nobody;
  if (scope == 2 && !proc.can_ptrace_any()) return CmaReason::scope_admin_only;
  return CmaReason::none;
}

CmaVerdict refused(int error, CmaReason reason = CmaReason::none) noexcept {
  return {Permission::denied, false, reason, int16_t(error)};
}

CmaVerdict probe_read(CmaCalls& calls, const CmaPeer& peer) noexcept {
  uint64_t nonce = 0;
  const iovec local{&nonce, sizeof nonce};
  const iovec remote{remote_address(peer.identity().nonce_address), sizeof nonce};
  const ssize_t moved = calls.readv(peer.pid, &local, 1, &remote, 1);
  if (moved < 0 && moved != -EFAULT) return refused(int(-moved));
  if (moved == ssize_t(sizeof nonce) && nonce == peer.identity().nonce && nonce != 0)
    return kAllowed;
  return refused(moved < 0 ? int(-moved) : 0, CmaReason::wrong_process);
}

CmaVerdict probe_write(CmaCalls& calls, const CmaPeer& peer) noexcept {
  uint64_t word = peer.identity().nonce;
  const iovec local{&word, sizeof word};
  const iovec remote{remote_address(peer.identity().scratch_address), sizeof word};
  const ssize_t moved = calls.writev(peer.pid, &local, 1, &remote, 1);
  if (moved == ssize_t(sizeof word)) return kAllowed;
  return refused(moved < 0 ? int(-moved) : EFAULT);
}

void report(CmaPeer& peer, CmaVerdict& verdict, const char* call, Counters& counters) noexcept try {
  if (verdict.permission != Permission::denied || verdict.reported) return;
  verdict.reported = true;
  ++counters.cma_refusals;
  if (util::log_takes(FI_LOG_WARN, FI_LOG_EP_DATA)) {
    ERDMA_WARN(EP_DATA, "%s [%s]\n", diagnosis(peer, call, verdict).c_str(),
               util::code_of(util::Cause::cma));
  } else if (util::may_tell(util::Cause::cma)) {
    const std::string line = summary(peer, call, verdict);
    if (!line.empty()) util::tell(util::Cause::cma, "%s", line.c_str());
  }
} catch (const std::bad_alloc&) {
  ERDMA_NOTICE(cma, EP_DATA, "CMA is refused: %s on process %d: %d", call, int(peer.pid),
               verdict.error);
}

}  // namespace

const char* text_of(CmaReason reason) noexcept {
  switch (reason) {
    case CmaReason::none:
      break;
    case CmaReason::switched_off:
      return "switched off by FI_ERDMA_CMA";
    case CmaReason::invisible_pid:
      return "the peer's pid is not visible in this pid namespace";
    case CmaReason::scope_nobody:
      return "ptrace_scope 3 forbids it to everybody until the next boot";
    case CmaReason::scope_admin_only:
      return "ptrace_scope 2 asks for CAP_SYS_PTRACE";
    case CmaReason::wrong_process:
      return "the process of this pid is not the peer: its nonce differs";
    case CmaReason::gone:
      return "the peer is gone";
    case CmaReason::unproven:
      return "the peer could not be proven: reading it failed";
  }
  return nullptr;
}

ssize_t CmaCalls::readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                        size_t remotes) noexcept {
  const ssize_t moved = ::process_vm_readv(pid, local, locals, remote, remotes, 0);
  return moved < 0 ? -errno : moved;
}

ssize_t CmaCalls::writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                         size_t remotes) noexcept {
  const ssize_t moved = ::process_vm_writev(pid, local, locals, remote, remotes, 0);
  return moved < 0 ? -errno : moved;
}

int CmaCalls::set_ptracer(unsigned long pid) noexcept {
  return ::prctl(PR_SET_PTRACER, pid, 0, 0, 0) == 0 ? 0 : -errno;
}

CmaIdentity CmaCalls::identity() {
  return own_cma_identity();
}

pid_t CmaCalls::pid_of(int socket, const util::SocketAddress&) noexcept {
  return peer_credentials(socket).pid;
}

util::Result<util::Fd> CmaCalls::pidfd_of(int socket, pid_t pid) noexcept {
  return peer_pidfd(socket, pid);
}

CmaIdentity own_cma_identity() {
  ProbeWords* const words = probe_words();
  const ProcFs proc;
  CmaIdentity identity{};
  identity.nonce = words ? nonce_in(*words) : 0;
  identity.nonce_address = words ? reinterpret_cast<uintptr_t>(&words->nonce) : 0;
  identity.scratch_address = words ? reinterpret_cast<uintptr_t>(words->scratch) : 0;
  identity.user_namespace = proc.own_namespace("user");
  identity.pid_namespace = proc.own_namespace("pid");
  identity.dumpable = ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
  identity.seccomp = proc.seccomp();
  identity.ptrace_scope = proc.ptrace_scope();
  identity.uid = ::getuid();
  identity.gid = ::getgid();
  return identity;
}

void probe(CmaCalls& calls, bool enabled, CmaPeer& peer) noexcept {
  probe(calls, enabled, peer, ProcFs());
}

void probe(CmaCalls& calls, bool enabled, CmaPeer& peer, const ProcFs& proc) noexcept {
  if (!enabled) return deny_both(peer, CmaReason::switched_off, false);
  if (const CmaReason reason = hopeless(peer, proc); reason != CmaReason::none)
    return deny_both(peer, reason, true);
  peer.read = probe_read(calls, peer);
  if (peer.over()) return deny_both(peer, CmaReason::gone, false);
  if (peer.read.permission == Permission::allowed) {
    peer.write = probe_write(calls, peer);
  } else {
    // Never write to a process that was not proven to be the peer. The line about reading covers
    // this.
    peer.write = {Permission::denied, true, CmaReason::unproven, 0};
  }
}

bool wants_proof(const CmaPeer& peer) noexcept {
  const int error = peer.read.error;
  const bool refused = error == EPERM || error == EACCES || error == ENOSYS;
  return refused && peer.read.reason == CmaReason::none &&
         peer.read.permission == Permission::denied &&
         peer.write.permission == Permission::denied && peer.write.error == 0 &&
         peer.identity().scratch_address != 0;
}

int mark(CmaCalls& calls, const CmaPeer& peer, uint32_t word, uint32_t value) noexcept {
  uint64_t bytes = value;
  const iovec local{&bytes, sizeof bytes};
  const uint64_t address = peer.identity().scratch_address + word * sizeof bytes;
  const iovec remote{remote_address(address), sizeof bytes};
  if (peer.over()) return ESRCH;
  const ssize_t moved = calls.writev(peer.pid, &local, 1, &remote, 1);
  if (moved == ssize_t(sizeof bytes)) return 0;
  return moved < 0 ? int(-moved) : EFAULT;
}

uint32_t marked(uint32_t word) noexcept {
  const ProbeWords* words = probe_words();
  if (!words || word >= kScratchWords) return 0;
  return uint32_t(words->scratch[word].load(std::memory_order_seq_cst));
}

void allow_write(CmaPeer& peer) noexcept {
  peer.write = kAllowed;
}

bool wants_admission(const CmaPeer& peer) noexcept {
  const bool refused = peer.read.error == EPERM || peer.write.error == EPERM;
  return refused && peer.identity().ptrace_scope == 1;
}

void report_refusals(CmaPeer& peer, Counters& counters) noexcept {
  report(peer, peer.read, "process_vm_readv", counters);
  report(peer, peer.write, "process_vm_writev", counters);
}

void deny(CmaPeer& peer, CmaCall call, int error, Counters& counters) noexcept {
  CmaVerdict& verdict = call == CmaCall::read ? peer.read : peer.write;
  if (verdict.permission == Permission::denied) return;
  verdict = refused(error);
  report(peer, verdict, call == CmaCall::read ? "process_vm_readv" : "process_vm_writev", counters);
}

}  // namespace erdma::transport::shm

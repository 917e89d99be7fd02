#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "transport/shm/options.h"
#include "transport/shm/ordering.h"
#include "transport/shm/peer_life.h"
#include "util/ref.h"
#include "util/result.h"
#include "util/socket_address.h"
#include "util/thread_life.h"

/// Cross-memory attach (CMA): process_vm_readv(2), process_vm_writev(2), and the permission to use
/// them.
namespace erdma::transport::shm {

class ProcFs;
struct CmaIdentity;

/// The system calls, replaceable in tests. They return the bytes moved or a negative errno.
class CmaCalls {
 public:
  virtual ~CmaCalls() = default;
  virtual ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                        size_t remotes) noexcept;
  virtual ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                         size_t remotes) noexcept;
  virtual int set_ptracer(unsigned long pid) noexcept;  ///< prctl(PR_SET_PTRACER, pid)
  virtual CmaIdentity identity();                       ///< that of this process
  /// The process at the other end of a socket: its pid as seen here (0 = invisible), and a pidfd of
  /// it (none where the kernel has none; -ESRCH: the process is dead). `name` is the name that the
  /// process claims.
  virtual pid_t pid_of(int socket, const util::SocketAddress& name) noexcept;
  virtual util::Result<util::Fd> pidfd_of(int socket, pid_t pid) noexcept;
};

/// What a process tells its peers in the hello, so that they can probe it and explain a refusal. It
/// travels between processes of one host: fixed layout, host byte order. The receiver trusts none
/// of it.
struct CmaIdentity {
  uint64_t nonce_address;  ///< address of 8 private bytes that hold `nonce`
  uint64_t nonce;
  /// Address of kScratchWords private words that a proven peer may overwrite.
  uint64_t scratch_address;
  uint64_t user_namespace;  ///< inode of /proc/self/ns/user; 0 = unknown
  uint64_t pid_namespace;
  int32_t dumpable;      ///< PR_GET_DUMPABLE
  int32_t seccomp;       ///< the Seccomp: line of /proc/self/status; -1 = unknown
  int32_t ptrace_scope;  ///< Yama's scope as that process sees it; -1 = no Yama
  uint32_t uid, gid;
  uint32_t reserved;
};

/// An address in another process, to be passed to a call on that process; never dereferenced here.
inline void* remote_address(uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): comes by wire
}

enum class CmaCall : uint8_t { read, write };

enum class Permission : uint8_t { untested, allowed, denied };

/// Why a call is refused that was not made, or that tells more than its errno.
enum class CmaReason : uint8_t {
  none,
  switched_off,
  invisible_pid,
  scope_nobody,
  scope_admin_only,
  wrong_process,
  gone,
  unproven,
};
/// Static text; null for none.
const char* text_of(CmaReason reason) noexcept;

/// The outcome for one call in one direction: this process as caller on one peer.
struct CmaVerdict {
  Permission permission = Permission::untested;
  bool reported = false;  ///< the refusal is in the log, or is not worth a line
  CmaReason reason = CmaReason::none;
  int16_t error = 0;  ///< positive errno of the refusal; 0 if none was made
};
inline constexpr CmaVerdict kAllowed{Permission::allowed, false, CmaReason::none, 0};

/// The process whose memory a call by pid accessed, as far as the call itself tells.
enum class Target : uint8_t { peer, unknown, other_process };

inline constexpr uint32_t kScratchWords = 256;

/// The identity of a peer that is not known yet.
inline constexpr CmaIdentity kNoIdentity{};

/// What both threads of an endpoint need of a peer process, over all connections to it.
struct CmaProcess : util::Counted {
  CmaProcess(util::Fd pidfd, const util::Clock& clock, const CmaIdentity& of) noexcept
      : life(std::move(pidfd), clock), identity(of) {}
  PeerLife life;
  CmaIdentity identity;  ///< as the process sent it
};

/// One peer process that this process calls by CMA. Single-threaded once a link has it.
struct CmaPeer {
  pid_t pid = 0;  ///< as seen here, from SO_PEERCRED; 0 = invisible
  CmaVerdict read, write;
  util::Ref<CmaProcess> process;  ///< null: nothing is known of the peer, which is alive
  /// The word in which the peer shows that its process exists; null: it has none.
  const std::atomic<uint32_t>* life = nullptr;

  const CmaIdentity& identity() const noexcept { return process ? process->identity : kNoIdentity; }
  const CmaVerdict& verdict(CmaCall call) const noexcept {
    return call == CmaCall::read ? read : write;
  }
  bool may(CmaCall call) const noexcept { return verdict(call).permission == Permission::allowed; }
  /// True after a call: it reached the peer's memory, because the process still has it. The peer
  /// may have ended or executed another program otherwise, or shows nothing.
  bool exists() const noexcept {
    return life && util::thread_exists(look_after_reading(*life)) && !suspended();
  }
  /// Ask may_be_called() before each call, was_called() after those that succeeded; see PeerLife.
  bool may_be_called() const noexcept { return !process || process->life.may_be_called(); }
  bool was_called(Target target) const noexcept {
    return target == Target::peer ||
           (target == Target::unknown && (!process || process->life.was_called()));
  }
  bool over() const noexcept { return process && process->life.over(); }  ///< any thread
  bool suspended() const noexcept { return process && process->life.suspended(); }
};

/// This process's identity. The nonce and the scratch words are static; valid until exec.
CmaIdentity own_cma_identity();

/// Probes both calls with real bytes: reads the nonce and compares it; writes the scratch word back
/// only after the nonce matched. Makes no call where the scope file already refuses it, or where
/// pid is 0. Sets peer.read and peer.write; logs nothing.
void probe(CmaCalls& calls, bool enabled, CmaPeer& peer) noexcept;
void probe(CmaCalls& calls, bool enabled, CmaPeer& peer, const ProcFs& proc) noexcept;

/// True if the call was refused with EPERM under ptrace_scope 1: another probe would help once the
/// peer has admitted this process as its ptracer.
bool wants_admission(const CmaPeer& peer) noexcept;

/// True if only reading was refused, so that writing can prove the peer: mark() one of its scratch
/// words, which have no other use, ask the peer over its socket what it finds there, and call
/// allow_write() if that is the mark. The caller knows the pid from SO_PEERCRED, and knows from a
/// pidfd that the pid is still that process's.
bool wants_proof(const CmaPeer& peer) noexcept;
/// 0 or positive errno. `word` is at least 1 and below kScratchWords.
int mark(CmaCalls& calls, const CmaPeer& peer, uint32_t word, uint32_t value) noexcept;
/// Target: the value of that scratch word; 0 if there is no such word.
uint32_t marked(uint32_t word) noexcept;
void allow_write(CmaPeer& peer) noexcept;

/// Target: admits `requester` (a pid as seen here) by naming in PR_SET_PTRACER the nearest common
/// ancestor of this process, of `requester` and of every process admitted before. 0 or negative
/// errno; -EPERM if policy forbids it or the only common ancestor is the host's init.
int admit(CmaCalls& calls, PtracerPolicy policy, pid_t requester) noexcept;

/// The line for the log: call, errno, pids, uids, gids, namespaces, dumpable, seccomp,
/// ptrace_scope, what an administrator can do, "continuing by copy".
std::string diagnosis(const CmaPeer& peer, const char* call, const CmaVerdict& verdict);

/// The line for users, who need not know about peers: what refuses the call, what that costs, what
/// can be done. Empty if the refusal says nothing about the host, as when the peer is ending.
std::string summary(const CmaPeer& peer, const char* call, const CmaVerdict& verdict);

/// Warns once about each call that the last probe() found refused; on standard error once per
/// process. Call it when no other probe follows. Silent about what the user switched off.
void report_refusals(CmaPeer& peer, Counters& counters) noexcept;

/// Stops using `call` on this peer for good, because it failed with `error` (positive errno)
/// although the probe had passed. Warns once.
void deny(CmaPeer& peer, CmaCall call, int error, Counters& counters) noexcept;

}  // namespace erdma::transport::shm

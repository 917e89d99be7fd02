#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>

#include "transport/shm/options.h"
#include "transport/shm/peer_life.h"
#include "util/result.h"
#include "util/socket_address.h"

/// Cross-memory attach: process_vm_readv(2), process_vm_writev(2), and who may use them on whom.
namespace erdma::transport::shm {

class ProcFs;
struct CmaIdentity;

/// The system calls, replaceable in tests. Return bytes moved or negative errno.
class CmaCalls {
 public:
  virtual ~CmaCalls() = default;
  virtual ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                        size_t remotes) noexcept;
  virtual ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                         size_t remotes) noexcept;
  virtual int set_ptracer(unsigned long pid) noexcept;  ///< prctl(PR_SET_PTRACER, pid)
  virtual CmaIdentity identity();                       ///< of this process
  /// Who is at the other end of a socket: its pid as seen here (0 = invisible), and a pidfd of it
  /// (none where the kernel has none; -ESRCH: it is dead). `name` is what it calls itself.
  virtual pid_t pid_of(int socket, const util::SocketAddress& name) noexcept;
  virtual util::Result<util::Fd> pidfd_of(int socket, pid_t pid) noexcept;
};

/// What a process tells its peers in the hello, so that they can probe it and explain a refusal.
/// Travels between processes of one host: fixed layout, host byte order. Nothing in it is trusted.
struct CmaIdentity {
  uint64_t nonce_address;  ///< of 8 private bytes that hold `nonce`
  uint64_t nonce;
  uint64_t scratch_address;  ///< of kScratchWords private words that a proven peer may overwrite
  uint64_t user_namespace;   ///< inode of /proc/self/ns/user; 0 unknown
  uint64_t pid_namespace;
  int32_t dumpable;      ///< PR_GET_DUMPABLE
  int32_t seccomp;       ///< Seccomp: of /proc/self/status; -1 unknown
  int32_t ptrace_scope;  ///< Yama as seen there; -1 = no Yama
  uint32_t uid, gid;
  uint32_t reserved;
};

/// An address in another process, for a call on that process: nothing here follows it.
inline void* remote_address(uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): comes by wire
}

enum class CmaCall : uint8_t { read, write };

enum class Permission : uint8_t { untested, allowed, denied };

/// Outcome of one direction (this process as caller on one peer) of one call.
struct CmaVerdict {
  Permission permission = Permission::untested;
  int error = 0;  ///< positive errno of the refusal; 0 if none was made
  const char* reason =
      nullptr;            ///< static text when denied without a call (scope, wrong nonce, off)
  bool reported = false;  ///< the refusal is in the log, or is not worth a line
};

/// Whose memory a call by a pid was on, as far as the call itself says.
enum class Whose : uint8_t { peers, unknown, strangers };

inline constexpr uint32_t kScratchWords = 256;

/// This process as caller on one peer process. Single-threaded once handed to a link.
struct CmaPeer {
  pid_t pid = 0;  ///< as seen here, from SO_PEERCRED; 0 = invisible
  CmaIdentity identity{};
  CmaVerdict read, write;
  std::shared_ptr<PeerLife> life = nullptr;  ///< null, for tests: it lives

  const CmaVerdict& verdict(CmaCall call) const noexcept {
    return call == CmaCall::read ? read : write;
  }
  /// To be asked before, and after what succeeded: see PeerLife.
  bool may_be_called() const noexcept { return !life || life->may_be_called(); }
  bool was_called() const noexcept { return !life || life->was_called(); }
  bool was_called(Whose whose) const noexcept {
    return whose == Whose::peers || (whose == Whose::unknown && was_called());
  }
  bool suspended() const noexcept { return life && life->suspended(); }
};

/// This process's identity. The nonce and scratch words are static; valid until exec.
CmaIdentity own_cma_identity();

/// Probes both calls with real bytes: reads the nonce and compares; writes (back) the scratch word
/// only after the nonce matched. Skips the calls where the scope file already says no, or pid is 0.
/// Fills peer.read and peer.write; logs nothing.
void probe(CmaCalls& calls, bool enabled, CmaPeer& peer) noexcept;
void probe(CmaCalls& calls, bool enabled, CmaPeer& peer, const ProcFs& proc) noexcept;

/// True if probing again would help once the peer admitted us as its ptracer: refused with EPERM
/// under ptrace_scope 1.
bool wants_admission(const CmaPeer& peer) noexcept;

/// True if only reading was refused, so that the peer could be proven by writing: mark() one of its
/// scratch words, which nothing else depends on, ask it over its socket what it finds there, and
/// allow_write() if that is the mark. The caller knows the pid from SO_PEERCRED, and by a pidfd
/// that it still is that process's.
bool wants_proof(const CmaPeer& peer) noexcept;
/// 0 or positive errno. `word` is at least 1 and below kScratchWords.
int mark(CmaCalls& calls, const CmaPeer& peer, uint32_t word, uint32_t value) noexcept;
/// At the target: what is in that word; 0 if there is no such word.
uint32_t marked(uint32_t word) noexcept;
void allow_write(CmaPeer& peer) noexcept;

/// At the target: admits `requester` (pid as seen here) by naming, in PR_SET_PTRACER, the nearest
/// common ancestor of this process, `requester` and everybody admitted before. 0 or negative errno;
/// -EPERM if policy forbids it or the only common ancestor is the host's init.
int admit(CmaCalls& calls, PtracerPolicy policy, pid_t requester) noexcept;

/// One line for the log: call, errno, pids, uids, gids, namespaces, dumpable, seccomp,
/// ptrace_scope, what an administrator can do, "continuing by copy".
std::string diagnosis(const CmaPeer& peer, const char* call, const CmaVerdict& verdict);

/// One line for users, who need not know of peers: who refuses, what it costs, what can be done.
/// Empty if it says nothing of the host, as when the peer is ending.
std::string summary(const CmaPeer& peer, const char* call, const CmaVerdict& verdict);

/// Warns once about each call that the last probe() found refused; on standard error once per
/// process. Call it when no other probe will follow. Silent about what the user switched off.
void report_refusals(CmaPeer& peer, Counters& counters) noexcept;

/// Gives up `call` on this peer for good, because it failed with `error` (positive errno) although
/// the probe passed. Warns, once.
void deny(CmaPeer& peer, CmaCall call, int error, Counters& counters) noexcept;

}  // namespace erdma::transport::shm

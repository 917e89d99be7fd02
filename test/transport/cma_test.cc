#include "transport/shm/cma.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "fake/cma_calls.h"
#include "fake/refused_call.h"
#include "libcheck.h"
#include "quiet_fork.h"
#include "transport/shm/cma_diagnosis.h"
#include "transport/shm/ptracer.h"
#include "util/process_epoch.h"

namespace erdma::transport::shm {
namespace {

/// A directory that stands for /proc. The destructor removes it.
class FakeProc {
 public:
  FakeProc() {
    char name[] = "/tmp/erdma_proc_XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    x_root = name;
    write("self/status", "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\n");
  }
  ~FakeProc() { std::filesystem::remove_all(x_root); }

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = x_root + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void scope(int value) { write("sys/kernel/yama/ptrace_scope", std::to_string(value) + "\n"); }
  void process(int pid, int parent, const std::string& comm = "rank") {
    write(std::to_string(pid) + "/stat", std::to_string(pid) + " (" + comm + ") S " +
                                             std::to_string(parent) + " 1 1 0 -1 4194560");
  }
  void pid_namespace(const std::string& inode) {
    std::filesystem::create_directories(x_root + "/self/ns");
    std::filesystem::create_symlink("pid:[" + inode + "]", x_root + "/self/ns/pid");
  }
  ProcFs fs() const { return ProcFs(x_root.c_str()); }

 private:
  std::string x_root;
};

CmaPeer peer_of_self() {
  CmaPeer peer;
  peer.pid = getpid();
  fake::identify(peer);
  return peer;
}

void drop_privileges() {
  if (geteuid() == 0)
    ck_assert(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
  prctl(PR_SET_DUMPABLE, 1);
}

// ---- probing ------------------------------------------------------------------------------------

TEST(probe_allows_both_calls_on_a_peer_with_the_right_nonce) {
  FakeProc proc;
  fake::CmaCalls calls;
  CmaPeer peer = peer_of_self();
  probe(calls, true, peer, proc.fs());
  ck_assert_int_eq(int(peer.read.permission), int(Permission::allowed));
  ck_assert_int_eq(int(peer.write.permission), int(Permission::allowed));
  ck_assert_uint_eq(calls.read.calls, 1);
  ck_assert_uint_eq(calls.write.calls, 1);
  ck_assert(!wants_admission(peer));
}

TEST(probe_never_writes_to_a_process_with_another_nonce) {
  FakeProc proc;
  fake::CmaCalls calls;
  CmaPeer peer = peer_of_self();
  uint64_t foreign = 0x1234567890;
  CmaIdentity& identity = fake::identify(peer);
  identity.nonce_address = identity.scratch_address = reinterpret_cast<uintptr_t>(&foreign);
  probe(calls, true, peer, proc.fs());
  ck_assert_int_eq(int(peer.read.permission), int(Permission::denied));
  ck_assert_int_eq(int(peer.write.permission), int(Permission::denied));
  ck_assert_ptr_nonnull(text_of(peer.read.reason));
  ck_assert_uint_eq(calls.write.calls, 0);
  ck_assert_uint_eq(foreign, 0x1234567890);
}

TEST(probe_takes_a_call_that_moves_nothing_for_another_process) {
  FakeProc proc;
  fake::CmaCalls calls;
  calls.read.first = calls.read.last = 1;
  calls.read.limit = 0;
  CmaPeer peer = peer_of_self();
  probe(calls, true, peer, proc.fs());
  ck_assert_int_eq(int(peer.read.permission), int(Permission::denied));
  ck_assert_ptr_nonnull(text_of(peer.read.reason));
}

struct ScopeCase {
  int scope;
  const char* capabilities;
  pid_t pid;
  unsigned calls;
};
constexpr ScopeCase kScopeCases[] = {
    {0, "0000000000000000", 1, 1}, {1, "0000000000000000", 1, 1}, {2, "0000000000000000", 1, 0},
    {2, "0000000000080000", 1, 1}, {3, "000001ffffffffff", 1, 0}, {0, "000001ffffffffff", 0, 0},
};

TEST(probe_makes_no_call_where_the_answer_is_known, std::size(kScopeCases)) {
  const ScopeCase& c = kScopeCases[_i];
  FakeProc proc;
  proc.scope(c.scope);
  proc.write("self/status", std::string("Name:\tx\nCapEff:\t") + c.capabilities + "\n");
  fake::CmaCalls calls;
  CmaPeer peer = peer_of_self();
  peer.pid = c.pid;
  probe(calls, true, peer, proc.fs());
  ck_assert_uint_eq(calls.read.calls, c.calls);
  ck_assert_int_eq(int(peer.read.permission),
                   int(c.calls ? Permission::allowed : Permission::denied));
  ck_assert_int_eq(text_of(peer.read.reason) != nullptr, c.calls == 0);
}

/// The list of groups precedes these lines. Each of them may lie anywhere.
TEST(status_of_a_process_with_many_groups_is_read_to_the_end) {
  FakeProc proc;
  for (size_t groups = 3900; groups < 8400; groups += groups < 4200 ? 1 : 97) {
    proc.write("self/status", "Name:\tx\nGroups:\t" + std::string(groups, '7') +
                                  "\nCapEff:\t0000000000080000\nNoNewPrivs:\t0\nSeccomp:\t2\n");
    ck_assert(proc.fs().can_ptrace_any());
    ck_assert_int_eq(proc.fs().seccomp(), 2);
  }
  proc.write("self/status", std::string(5000, '7'));
  ck_assert(!proc.fs().can_ptrace_any());
  ck_assert_int_eq(proc.fs().seccomp(), -1);
}

TEST(probe_switched_off_makes_no_call_and_no_line) {
  fake::CmaCalls calls;
  Counters counters;
  CmaPeer peer = peer_of_self();
  probe(calls, false, peer);
  report_refusals(peer, counters);
  ck_assert_int_eq(int(peer.read.permission), int(Permission::denied));
  ck_assert_uint_eq(calls.read.calls, 0);
  ck_assert_uint_eq(counters.cma_refusals, 0);
  ck_assert(test::g_log.empty());
}

TEST(refusal_is_reported_once) {
  FakeProc proc;
  fake::CmaCalls calls;
  calls.read.first = 1;
  calls.read.last = fake::CmaCalls::kForever;
  calls.read.error = EPERM;
  Counters counters;
  CmaPeer peer = peer_of_self();
  fake::identify(peer).ptrace_scope = 1;
  probe(calls, true, peer, proc.fs());
  ck_assert_int_eq(peer.read.error, EPERM);
  ck_assert(wants_admission(peer));
  report_refusals(peer, counters);
  const std::string line = test::only_log_line();
  ck_assert(test::contains(line, "process_vm_readv") && test::contains(line, "Continuing by copy"));
  report_refusals(peer, counters);
  deny(peer, CmaCall::read, EPERM, counters);
  ck_assert_uint_eq(counters.cma_refusals, 1);
  ck_assert(test::g_log.empty());
}

constexpr struct {
  int number, error;
} kSeccompCases[] = {
    {SYS_process_vm_readv, EPERM},
    {SYS_process_vm_readv, ENOSYS},
    {SYS_process_vm_writev, EPERM},
    {SYS_process_vm_writev, ENOSYS},
};

TEST(probe_tells_which_call_seccomp_refuses, std::size(kSeccompCases)) {
  const auto& c = kSeccompCases[_i];
  CmaCalls calls;
  fake::refuse_call(c.number, c.error);
  CmaPeer peer = peer_of_self();
  probe(calls, true, peer);
  const bool reading = c.number == SYS_process_vm_readv;
  ck_assert_int_eq(int(peer.read.permission),
                   int(reading ? Permission::denied : Permission::allowed));
  ck_assert_int_eq(int(peer.write.permission), int(Permission::denied));
  ck_assert_int_eq(reading ? peer.read.error : peer.write.error, c.error);
  const std::string line = diagnosis(peer, "process_vm_x", reading ? peer.read : peer.write);
  ck_assert_ptr_nonnull(std::strstr(line.c_str(), "seccomp profile"));
}

TEST(only_a_refusal_of_reading_asks_for_a_proof_by_writing) {
  constexpr struct {
    int error;
    bool wanted;
  } kCases[] = {{EPERM, true}, {EACCES, true}, {ENOSYS, true}, {ESRCH, false}, {EFAULT, false}};
  for (const auto& c : kCases) {
    erdma::fake::CmaCalls calls;
    calls.read = {1, erdma::fake::CmaCalls::kForever, c.error};
    CmaPeer peer = peer_of_self();
    probe(calls, true, peer);
    ck_assert_uint_eq(calls.write.calls, 0);
    ck_assert_int_eq(wants_proof(peer), c.wanted);
  }
  CmaPeer peer = peer_of_self();
  CmaCalls calls;
  probe(calls, false, peer);
  ck_assert(!wants_proof(peer));  // a peer that switched CMA off has refused nothing
}

TEST(a_mark_is_found_in_its_word_alone) {
  CmaCalls calls;
  const CmaPeer peer = peer_of_self();
  const uint32_t before = marked(8);
  ck_assert_int_eq(mark(calls, peer, 7, 0xABCDEF01), 0);
  ck_assert_uint_eq(marked(7), 0xABCDEF01);
  ck_assert_uint_eq(marked(8), before);
  ck_assert_uint_eq(marked(kScratchWords), 0);
  ck_assert_uint_eq(marked(UINT32_MAX), 0);
}

/// Runs `body` in a forked process and returns its exit status.
template <typename Body>
int in_child(Body body) {
  const pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

struct Pipe {
  Pipe() { ck_assert_int_eq(pipe(ends), 0); }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int which) {
    if (ends[which] >= 0) close(ends[which]);
    ends[which] = -1;
  }
  int ends[2];
};

TEST(probe_does_not_take_a_forked_child_for_its_parent) {
  drop_privileges();
  // The child has the same addresses, and its own nonce at the address of its parent's nonce.
  CmaPeer peer = peer_of_self();
  Pipe ready, over;
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    own_cma_identity();
    if (write(ready.ends[1], &byte, 1) != 1 || read(over.ends[0], &byte, 1) != 1) _exit(1);
    _exit(*reinterpret_cast<uint64_t*>(peer.identity().scratch_address) == 0 ? 0 : 2);
  }
  char byte = 0;
  ck_assert_int_eq(read(ready.ends[0], &byte, 1), 1);
  peer.pid = child;
  CmaCalls calls;
  probe(calls, true, peer);
  ck_assert_int_eq(int(peer.read.permission), int(Permission::denied));
  ck_assert_int_eq(int(peer.write.permission), int(Permission::denied));
  ck_assert_int_eq(peer.read.error, 0);
  ck_assert_int_eq(write(over.ends[1], &byte, 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(probe_fails_on_a_process_that_is_gone) {
  CmaPeer peer = peer_of_self();
  peer.pid = fork();
  if (peer.pid == 0) _exit(0);
  waitpid(peer.pid, nullptr, 0);
  CmaCalls calls;
  probe(calls, true, peer);
  ck_assert_int_eq(peer.read.error, ESRCH);
}

// Other processes may not access a process that is not dumpable, but it may access them. A process
// in a child user namespace may not access its parent, but its parent may access it.
TEST(permission_can_differ_by_direction, 2) {
  const bool by_namespace = _i == 1;
  drop_privileges();
  CmaPeer child_seen;
  CmaIdentity& of_child = fake::identify(child_seen);
  const CmaPeer parent = peer_of_self();
  // Under Yama a child may not read its parent in either case, so the test would show nothing.
  if (parent.identity().ptrace_scope > 0) return;
  Pipe to_parent, to_child;
  const pid_t child = fork();
  if (child == 0) {
    if (by_namespace && unshare(CLONE_NEWUSER) != 0) _exit(77);
    prctl(PR_SET_DUMPABLE, by_namespace ? 1 : 0);
    const CmaIdentity identity = own_cma_identity();
    CmaPeer peer = parent;
    CmaCalls calls;
    probe(calls, true, peer);
    char byte = 0;
    if (write(to_parent.ends[1], &identity, sizeof identity) != sizeof identity ||
        read(to_child.ends[0], &byte, 1) != 1)
      _exit(1);
    _exit((peer.read.permission == Permission::allowed) != by_namespace ? 0 : 2);
  }
  to_parent.close_end(1);
  const ssize_t got = read(to_parent.ends[0], &of_child, sizeof(of_child));
  if (got == 0) {  // the host permits no user namespaces
    int status = 0;
    waitpid(child, &status, 0);
    ck_assert_int_eq(WEXITSTATUS(status), 77);
    return;
  }
  child_seen.pid = child;
  CmaCalls calls;
  probe(calls, true, child_seen);
  ck_assert_int_eq(child_seen.read.error, by_namespace ? 0 : EPERM);
  const std::string line = diagnosis(child_seen, "process_vm_readv", child_seen.read);
  ck_assert_ptr_nonnull(
      std::strstr(line.c_str(), by_namespace ? "user namespace different" : "PR_SET_DUMPABLE"));
  ck_assert_int_eq(write(to_child.ends[1], "x", 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(forked_child_gets_a_nonce_of_its_own) {
  const CmaIdentity before = own_cma_identity();
  ck_assert_uint_ne(before.nonce, 0);
  ck_assert_uint_eq(before.nonce, own_cma_identity().nonce);
  ck_assert_int_eq(in_child([&] {
                     const CmaIdentity mine = own_cma_identity();
                     return mine.nonce != 0 && mine.nonce != before.nonce ? 0 : 1;
                   }),
                   0);
}

// ---- admission
// -----------------------------------------------------------------------------------

TEST(parent_is_found_behind_any_command_name, 5) {
  const char* const names[] = {"rank", "a b", "x) S 99 (y", "))) R 7", ""};
  FakeProc proc;
  proc.process(20, 10, names[_i]);
  ck_assert_int_eq(proc.fs().parent(20), 10);
  ck_assert_int_eq(proc.fs().parent(21), 0);
}

// 1 - 10 launcher - 20 node daemon - 31, 32, 33 ranks; 20 - 40 wrapper - 41 rank; 1 - 50 stranger
struct Job {
  explicit Job(const char* pid_namespace = "4026531836") {
    proc.process(1, 0);
    proc.process(10, 1);
    proc.process(20, 10);
    for (int rank : {31, 32, 33, 40}) proc.process(rank, 20);
    proc.process(41, 40);
    proc.process(45, 10);
    proc.process(50, 1);
    proc.process(311, 31);
    proc.process(60, 0);
    proc.pid_namespace(pid_namespace);
  }
  FakeProc proc;
  fake::CmaCalls calls;
};

struct AncestorCase {
  pid_t requester;
  int status;
  unsigned long named;
};
constexpr AncestorCase kAncestorCases[] =
    {
        {32, 0, 20},        {41, 0, 20},       {45, 0, 10},
        {311, 0, 31},       {20, 0, 20},       {50, -FI_EPERM, 0},
        {60, -FI_EPERM, 0}, {0, -FI_EPERM, 0}, {9999, -FI_EPERM, 0},  // no such process
};

TEST(admission_names_the_nearest_common_ancestor, std::size(kAncestorCases)) {
  const AncestorCase& c = kAncestorCases[_i];
  Job job;
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, c.requester), c.status);
  ck_assert_uint_eq(job.calls.named, c.named);
}

/// /proc can show such a circle if pids are reused while it is read.
TEST(admission_names_no_process_of_a_circle_of_parents) {
  Job job;
  job.proc.process(70, 71);
  job.proc.process(71, 70);
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 70, 50), -FI_EPERM);
  ck_assert_uint_eq(job.calls.namings, 0);
}

TEST(admission_moves_up_only_when_needed_and_never_down) {
  Job job;
  Admission admission(job.proc.fs());
  const struct {
    pid_t requester;
    unsigned long named;
  } steps[] = {{311, 31}, {32, 20}, {33, 20}, {311, 20}, {45, 10}, {32, 10}};
  for (const auto& step : steps) {
    ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, step.requester), 0);
    ck_assert_uint_eq(job.calls.named, step.named);
  }
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, 50), -FI_EPERM);
  ck_assert_uint_eq(job.calls.named, 10);
}

TEST(admission_starts_anew_in_a_forked_child) {
  Job job;
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, 45), 0);
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 41, 32), 0);
  ck_assert_uint_eq(job.calls.named, 20);
}

/// The connection thread of the parent is admitting a peer while the parent forks.
TEST(admission_waits_in_a_forked_child_for_no_thread_of_the_parent) {
  struct Slow final : CmaCalls {
    int set_ptracer(unsigned long) noexcept override {
      inside = true;
      inside.notify_one();
      over.wait(false);
      return 0;
    }
    std::atomic<bool> inside{false}, over{false};
  } slow;
  Job job;
  Admission admission(job.proc.fs());
  util::register_fork_handler();
  std::thread admits([&] { admission.admit(slow, PtracerPolicy::ancestor, 31, 45); });
  slow.inside.wait(false);
  const bool admitted = test::holds_in_child([&] {
    return admission.admit(job.calls, PtracerPolicy::ancestor, 41, 32) == 0 &&
           job.calls.named == 20;
  });
  slow.over = true;
  slow.over.notify_one();
  admits.join();
  ck_assert(admitted);
}

TEST(admission_names_pid_1_only_inside_a_container) {
  Job job("4026532001");
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, 50), 0);
  ck_assert_uint_eq(job.calls.named, 1);
}

TEST(admission_obeys_the_policy) {
  Job job;
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::none, 31, 32), -FI_EPERM);
  ck_assert_uint_eq(job.calls.namings, 0);
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::any, 31, 50), 0);
  ck_assert_uint_eq(job.calls.named, PR_SET_PTRACER_ANY);
}

TEST(admission_hands_on_what_the_kernel_says) {
  Job job;
  job.calls.ptracer_status = -EINVAL;  // a kernel without Yama
  Admission admission(job.proc.fs());
  ck_assert_int_eq(admission.admit(job.calls, PtracerPolicy::ancestor, 31, 32), -EINVAL);
}

// ---- diagnosis
// -----------------------------------------------------------------------------------

struct CauseCase {
  int16_t error;
  CmaReason reason;
  int scope;
  int own_seccomp;
  int dumpable;
  uint32_t peer_uid;
  uint64_t peer_user_namespace;
  RefusalCause expect;
};
const CauseCase kCauseCases[] = {
    {EPERM, CmaReason::none, 1, 0, 1, 5, 9, RefusalCause::scope_ancestor_only},
    {EPERM, CmaReason::none, 2, 0, 1, 5, 9, RefusalCause::scope_admin_only},
    {EPERM, CmaReason::none, 3, 0, 1, 5, 9, RefusalCause::scope_nobody},
    {EPERM, CmaReason::none, 1, 2, 1, 6, 9, RefusalCause::other_user},
    {EPERM, CmaReason::none, 1, 2, 1, 5, 8, RefusalCause::other_user_namespace},
    {EPERM, CmaReason::none, 0, 2, 0, 5, 9, RefusalCause::not_dumpable},
    {EPERM, CmaReason::none, 0, 2, 1, 5, 9, RefusalCause::seccomp},
    {EPERM, CmaReason::none, -1, 0, 1, 5, 9, RefusalCause::capabilities},
    {ENOSYS, CmaReason::none, -1, 2, 1, 5, 9, RefusalCause::seccomp},
    {ENOSYS, CmaReason::none, -1, 0, 1, 5, 9, RefusalCause::no_such_call},
    {ESRCH, CmaReason::none, 1, 2, 1, 5, 9, RefusalCause::wrong_process},
    {EFAULT, CmaReason::none, 1, 2, 1, 5, 9, RefusalCause::memory},
    {0, CmaReason::invisible_pid, 1, 2, 1, 5, 9, RefusalCause::wrong_process},
    {0, CmaReason::scope_admin_only, 2, 2, 1, 5, 9, RefusalCause::scope_admin_only},
};

TEST(cause_follows_from_what_is_known, std::size(kCauseCases)) {
  const CauseCase& c = kCauseCases[_i];
  CmaIdentity self{};
  self.uid = 5;
  self.user_namespace = 9;
  self.ptrace_scope = c.scope;
  self.seccomp = c.own_seccomp;
  CmaPeer peer;
  peer.pid = 100;
  CmaIdentity& identity = fake::identify(peer, self);
  identity.uid = c.peer_uid;
  identity.user_namespace = c.peer_user_namespace;
  identity.dumpable = c.dumpable;
  const CmaVerdict verdict{Permission::denied, false, c.reason, c.error};
  ck_assert_int_eq(int(likely_cause(peer, verdict, self)), int(c.expect));
  peer.pid = 0;
  if (c.reason != CmaReason::none)
    ck_assert_int_eq(int(likely_cause(peer, verdict, self)), int(RefusalCause::invisible_pid));
}

TEST(diagnosis_is_one_line_with_all_there_is_to_know) {
  CmaPeer peer = peer_of_self();
  peer.pid = 4194304;
  CmaIdentity& identity = fake::identify(peer);
  identity.uid = 4294967295;
  identity.pid_namespace += 1;
  const std::string line =
      diagnosis(peer, "process_vm_writev", {Permission::denied, false, CmaReason::none, EPERM});
  for (const char* part :
       {"process_vm_writev", "Operation not permitted", "errno 1", "4194304", "4294967295",
        "pid namespace different", "user namespace same", "seccomp", "ptrace_scope", "dumpable",
        "Remedy: run both processes with the same uid", "Continuing by copy through shared memory"})
    ck_assert_msg(line.find(part) != std::string::npos, "%s lacks %s", line.c_str(), part);
  ck_assert_ptr_nonnull(std::strstr(line.c_str(), std::to_string(getpid()).c_str()));
  ck_assert(line.find('\n') == std::string::npos);
}

TEST(diagnosis_is_short_enough_for_any_cause) {
  CmaPeer peer = peer_of_self();
  peer.pid = 4194304;
  CmaIdentity& identity = fake::identify(peer);
  identity.uid = identity.gid = 4294967295;
  const std::string line =
      diagnosis(peer, "process_vm_writev", {Permission::denied, false, CmaReason::none, EPERM});
  const size_t others = line.size() - std::strlen(remedy(RefusalCause::other_user));
  for (int cause = 0; cause <= int(RefusalCause::capabilities); ++cause) {
    const size_t length = std::strlen(remedy(RefusalCause(cause)));
    ck_assert_uint_gt(length, 0);
    ck_assert_uint_lt(others + length, 600);
    ck_assert_uint_lt(length + std::strlen(reason(RefusalCause(cause))), 320);
  }
}

}  // namespace

}  // namespace erdma::transport::shm

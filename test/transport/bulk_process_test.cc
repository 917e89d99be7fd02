#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <new>
#include <vector>

#include "fake/bulk_channel.h"
#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

/// Memory that the two processes of a test share in addition to the channel.
struct Meeting {
  std::atomic<int> phase;
  RemoteKey remote_key;
  CmaIdentity receiver, sender;
};

/// Makes the kernel refuse some calls to this process from now on.
void refuse_calls(std::initializer_list<int> numbers, int error) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int number : numbers) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, unsigned(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | unsigned(error)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(77);
}

void wait_for(const std::atomic<int>& phase, int at_least) {
  while (phase.load(std::memory_order_acquire) < at_least) sched_yield();
}

struct Refusal {
  bool reads, writes;  ///< refused to the receiver and to the sender
  int error;
};
constexpr Refusal kRefusals[] = {
    {false, false, 0},     {true, false, EPERM},  {false, true, EPERM}, {true, true, EPERM},
    {true, false, ENOSYS}, {false, true, ENOSYS}, {true, true, ENOSYS},
};
constexpr size_t kProcessLengths[] = {1, 16 * kKiB + 1, 64 * kKiB, kMiB + 1, 64 * kMiB};

unsigned char byte_at(size_t i) {
  return static_cast<unsigned char>(i * 31 + (i >> 12));
}

/// Runs the sender's process. If `late`, the process loses its right after the probe, otherwise
/// before it.
[[noreturn]] void be_sender(Meeting& meeting, void* shared, size_t length, const Refusal& refusal,
                            bool late) {
  prctl(PR_SET_DUMPABLE, 1);
  std::vector<unsigned char> data(length);
  for (size_t i = 0; i < length; ++i) data[i] = byte_at(i);
  CmaCalls calls;
  Counters counters;
  util::SystemClock clock;
  CmaPeer peer;
  peer.pid = getppid();
  fake::identify(peer, meeting.receiver);
  meeting.sender = own_cma_identity();
  meeting.phase.store(1, std::memory_order_release);
  const std::initializer_list<int> numbers = {SYS_process_vm_readv, SYS_process_vm_writev};
  if (refusal.writes && !late) refuse_calls(numbers, refusal.error);
  probe(calls, true, peer);
  if (refusal.writes && late) refuse_calls(numbers, refusal.error);
  report_refusals(peer, counters);
  const CoreSharing core;
  BulkOut out(calls, peer, core, counters);
  const iovec iov{data.data(), length};
  if (out.share(&iov, 1, length, meeting.remote_key) != 0) _exit(1);
  out.attach(shared);
  meeting.phase.store(2, std::memory_order_release);
  while (meeting.phase.load(std::memory_order_acquire) < 3)
    if (out.poll() == 0) sched_yield();
  _exit(counters.cma_refusals <= 1 && (late || refusal.writes == (counters.cma_refusals == 1)) ? 0
                                                                                               : 2);
}

void receive(Meeting& meeting, void* shared, size_t length, const Refusal& refusal, bool late,
             pid_t sender) {
  std::vector<unsigned char> data(length, 0);
  CmaCalls calls;
  Counters counters;
  util::SystemClock clock;
  Memory memory;
  Recorder sink;
  wait_for(meeting.phase, 2);
  CmaPeer peer;
  peer.pid = sender;
  fake::identify(peer, meeting.sender);
  const std::initializer_list<int> numbers = {SYS_process_vm_readv, SYS_process_vm_writev};
  if (refusal.reads && !late) refuse_calls(numbers, refusal.error);
  probe(calls, true, peer);
  if (!refusal.reads || late) ck_assert_int_eq(int(peer.read.permission), int(Permission::allowed));
  if (refusal.reads && late) refuse_calls(numbers, refusal.error);
  report_refusals(peer, counters);
  const CoreSharing core;
  BulkIn in(shared, memory, calls, peer, {}, core, counters, clock);
  const iovec iov{data.data(), length};
  ck_assert_int_eq(in.start(meeting.remote_key, &iov, 1, length, 9), 0);
  while (in.active())
    if (in.poll(sink) == 0) sched_yield();
  meeting.phase.store(3, std::memory_order_release);
  assert_done_once(sink, 9, 0);
  size_t wrong = 0;
  for (size_t i = 0; i < length; ++i) wrong += data[i] != byte_at(i);
  ck_assert_uint_eq(wrong, 0);
  if (refusal.reads) ck_assert_int_eq(int(peer.read.permission), int(Permission::denied));
  if (refusal.reads && !late) ck_assert_int_eq(peer.read.error, refusal.error);
  ck_assert_uint_eq(counters.cma_refusals, refusal.reads ? 1 : 0);
  if (refusal.reads && refusal.writes && !late) ck_assert_uint_eq(counters.bounce_in_bytes, length);
}

void run_two_processes(size_t length, const Refusal& refusal, bool late) {
  // The test drops its privileges so that only ownership decides.
  if (geteuid() == 0)
    ck_assert(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
  prctl(PR_SET_DUMPABLE, 1);
  void* map = mmap(nullptr, kBulkBytes + sizeof(Meeting), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(map, MAP_FAILED);
  auto* meeting = new (static_cast<std::byte*>(map) + kBulkBytes) Meeting{};
  meeting->receiver = own_cma_identity();
  const pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) be_sender(*meeting, map, length, refusal, late);
  receive(*meeting, map, length, refusal, late, child);
  int status = 0;
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
  munmap(map, kBulkBytes + sizeof(Meeting));
}

TEST(two_processes_move_every_byte_whatever_seccomp_refuses,
     std::size(kRefusals) * std::size(kProcessLengths)) {
  run_two_processes(kProcessLengths[size_t(_i) / std::size(kRefusals)],
                    kRefusals[size_t(_i) % std::size(kRefusals)], false);
}

TEST(two_processes_move_every_byte_when_refused_after_the_probe, std::size(kRefusals)) {
  run_two_processes(4 * kMiB + 1, kRefusals[_i], true);
}

}  // namespace

}  // namespace erdma::transport::shm

// What the doctor says of CMA where Yama refuses it, with a Yama that these functions play: it
// stands in front of the kernel's, which a host may lack, and which does not hold for root.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/doctor.h"
#include "libcheck.h"

using fi_erdma::Finding;
using fi_erdma::Grade;
using fi_erdma::Report;

namespace {

/// ptrace_scope 1, shared by all processes of a test. A row is whom a process has admitted.
struct Yama {
  std::atomic<unsigned> rows{0};
  struct {
    pid_t process;
    unsigned long admits;
  } admissions[64];
};
Yama* g_yama = nullptr;  ///< null: nothing is refused

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end == text.npos ? 0 : std::atoi(text.c_str() + name_end + 4);
}

bool descends_from(pid_t pid, pid_t ancestor) {
  while (pid > 0 && pid != ancestor) pid = parent_of(pid);
  return pid > 0;
}

bool permits(pid_t target) {
  if (!g_yama || descends_from(target, getpid())) return true;
  for (unsigned i = 0; i < g_yama->rows; ++i) {
    const auto& [process, admits] = g_yama->admissions[i];
    if (process == target &&
        (admits == PR_SET_PTRACER_ANY || descends_from(getpid(), pid_t(admits))))
      return true;
  }
  return false;
}

ssize_t call(long number, pid_t pid, const iovec* local, unsigned long locals, const iovec* remote,
             unsigned long remotes, unsigned long flags) {
  if (permits(pid)) return syscall(number, pid, local, locals, remote, remotes, flags);
  errno = EPERM;
  return -1;
}

}  // namespace

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                    const iovec* remote, unsigned long remotes,
                                    unsigned long flags) noexcept {
  return call(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}
extern "C" ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long locals,
                                     const iovec* remote, unsigned long remotes,
                                     unsigned long flags) noexcept {
  return call(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
}
extern "C" int prctl(int option, ...) noexcept {
  va_list list;
  va_start(list, option);
  unsigned long values[4];
  for (unsigned long& value : values) value = va_arg(list, unsigned long);
  va_end(list);
  if (option != PR_SET_PTRACER || !g_yama)
    return int(syscall(SYS_prctl, option, values[0], values[1], values[2], values[3]));
  g_yama->admissions[g_yama->rows] = {getpid(), values[0]};
  ++g_yama->rows;
  return 0;
}

namespace {

/// The findings, under a Yama of scope 1 or without one.
std::vector<Finding> findings_of_cma(bool yama, const char* policy, const char* cost) {
  if (yama) {
    void* const shared =
        mmap(nullptr, sizeof(Yama), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
    g_yama = new (shared) Yama;
  }
  if (policy) setenv("FI_ERDMA_PTRACER", policy, 1);
  Report report([](const Finding&) {});
  check_cma(report, cost);
  if (g_yama) munmap(std::exchange(g_yama, nullptr), sizeof(Yama));
  return report.findings();
}
/// The only finding.
Finding finding_of_cma(bool yama, const char* policy, const char* cost = "") {
  const auto findings = findings_of_cma(yama, policy, cost);
  ck_assert_uint_eq(findings.size(), 1);
  return findings.front();
}

constexpr char kWithoutLauncher[] =
    "CMA both ways between processes, also without a common launcher";

TEST(cma_between_any_processes_is_found_where_nothing_is_refused) {
  const Finding finding = finding_of_cma(false, nullptr);
  ck_assert_int_eq(int(finding.grade), int(Grade::ok));
  ck_assert_str_eq(finding.text.c_str(), kWithoutLauncher);
}

TEST(cma_between_any_processes_is_found_where_each_admits_any) {
  const Finding finding = finding_of_cma(true, "any");
  ck_assert_str_eq(finding.text.c_str(), kWithoutLauncher);
}

TEST(cma_within_one_launcher_alone_is_told_with_what_refuses_the_others, 2) {
  const Finding finding = finding_of_cma(true, _i ? "ancestor" : nullptr);
  ck_assert_int_eq(int(finding.grade), int(Grade::ok));
  ck_assert_str_eq(finding.text.c_str(),
                   "CMA both ways between processes of one launcher; those of others copy: "
                   "process_vm_readv: Operation not permitted (FI_ERDMA_PTRACER=any admits them)");
}

TEST(cma_from_a_parent_to_its_child_alone_does_not_work) {
  const Finding finding = finding_of_cma(true, "none");
  ck_assert_str_eq(finding.code.c_str(), "W401");
  ck_assert_int_eq(int(finding.grade), int(Grade::slower));
  ck_assert_str_eq(finding.text.c_str(),
                   "CMA works from a parent to its child alone, not between ranks, so long "
                   "messages are copied twice: process_vm_readv: Operation not permitted");
  ck_assert_uint_eq(finding.more.size(), 1);
  ck_assert_str_eq(finding.more[0].c_str(),
                   "FI_ERDMA_PTRACER=none admits no other process: unset it");
}

TEST(what_copying_costs_is_told_with_the_trouble_or_by_itself) {
  const Finding refused = finding_of_cma(true, "none", "copied: 3 GiB/s");
  ck_assert_uint_eq(refused.more.size(), 2);
  ck_assert_str_eq(refused.more[1].c_str(), "copied: 3 GiB/s");
  const auto sound = findings_of_cma(false, nullptr, "copied: 3 of 6 GiB/s");
  ck_assert_uint_eq(sound.size(), 2);
  ck_assert_int_eq(int(sound[1].grade), int(Grade::ok));
  ck_assert_str_eq(sound[1].text.c_str(), "copied: 3 of 6 GiB/s");
}

TEST(cma_that_is_switched_off_is_slower) {
  setenv("FI_ERDMA_CMA", "off", 1);
  const auto findings = findings_of_cma(false, nullptr, "copied: 3 of 6 GiB/s");
  ck_assert_uint_eq(findings.size(), 2);
  ck_assert_str_eq(findings[1].code.c_str(), "W405");
  ck_assert_int_eq(int(findings[1].grade), int(Grade::slower));
  ck_assert_str_eq(
      findings[1].text.c_str(),
      "FI_ERDMA_CMA=off: long messages inside this host are copied twice; copied: 3 of "
      "6 GiB/s");
}

TEST(cma_that_is_refused_and_switched_off_has_the_code_of_the_switch) {
  setenv("FI_ERDMA_CMA", "off", 1);
  const auto findings = findings_of_cma(true, "none", "copied: 3 GiB/s");
  ck_assert_uint_eq(findings.size(), 2);
  ck_assert_int_eq(int(findings[0].grade), int(Grade::ok));
  ck_assert_str_eq(findings[0].text.c_str(),
                   "CMA between processes is refused, and not wanted (FI_ERDMA_CMA=off): "
                   "process_vm_readv: Operation not permitted");
  ck_assert_str_eq(findings[1].code.c_str(), "W405");
}

TEST(cma_is_no_trouble_where_shared_memory_is_switched_off, 2) {
  setenv("FI_ERDMA_SHM", "off", 1);
  if (_i) setenv("FI_ERDMA_CMA", "off", 1);
  const Finding refused = finding_of_cma(true, "none");
  ck_assert_int_eq(int(refused.grade), int(Grade::ok));
  ck_assert_str_eq(refused.text.c_str(),
                   "CMA between processes is refused, and not wanted (FI_ERDMA_SHM=off): "
                   "process_vm_readv: Operation not permitted");
  const Finding permitted = finding_of_cma(false, nullptr);
  ck_assert_str_eq(permitted.text.c_str(), kWithoutLauncher);
}

}  // namespace

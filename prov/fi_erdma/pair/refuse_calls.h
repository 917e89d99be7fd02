/* Has the kernel refuse process_vm_readv(2) and process_vm_writev(2) to this process and all that
 * it starts, as the seccomp profile of a container does. Needs no privilege; can't be undone. For C
 * and C++. */
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define REFUSE_NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define REFUSE_NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "unknown architecture"
#endif

/* A system call number that does not exist, for a call that stays allowed. */
#define REFUSE_NO_CALL 0x7fffffffU

/* calls: contains "readv", "writev" or "userfaultfd" (which tests use), or several. error: the
 * errno that a refused call gets. -1 and errno if the kernel has no seccomp filters. */
static inline int refuse_calls(const char* calls, unsigned error) {
  const unsigned read_call =
      strstr(calls, "readv") ? (unsigned)SYS_process_vm_readv : REFUSE_NO_CALL;
  const unsigned write_call =
      strstr(calls, "writev") ? (unsigned)SYS_process_vm_writev : REFUSE_NO_CALL;
  const unsigned watch_call =
      strstr(calls, "userfaultfd") ? (unsigned)SYS_userfaultfd : REFUSE_NO_CALL;
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REFUSE_NATIVE_ARCH, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, read_call, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, write_call, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, watch_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

/* refuse_cma [--errno EPERM|ENOSYS] [--calls readv,writev] COMMAND...
 *
 * Runs COMMAND where the kernel refuses process_vm_readv(2) and process_vm_writev(2), as the
 * seccomp profile of a container does. Holds for all descendants. Needs no privilege. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "unknown architecture"
#endif

/* A system call number that does not exist, for a call that stays allowed. */
#define NO_CALL 0x7fffffffU

static int refuse(unsigned read_call, unsigned write_call, unsigned error) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, read_call, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, write_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static int usage(void) {
  fputs("usage: refuse_cma [--errno EPERM|ENOSYS] [--calls readv,writev] COMMAND...\n", stderr);
  return 125;
}

int main(int argc, char** argv) {
  unsigned error = EPERM;
  const char* calls = "readv,writev";
  int at = 1;

  for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
    const char* value = argv[at + 1];
    if (strcmp(argv[at], "--calls") == 0) {
      calls = value;
    } else if (strcmp(argv[at], "--errno") == 0 && strcmp(value, "EPERM") == 0) {
      error = EPERM;
    } else if (strcmp(argv[at], "--errno") == 0 && strcmp(value, "ENOSYS") == 0) {
      error = ENOSYS;
    } else {
      return usage();
    }
  }
  if (at >= argc) return usage();

  unsigned read_call = strstr(calls, "readv") ? (unsigned)SYS_process_vm_readv : NO_CALL;
  unsigned write_call = strstr(calls, "writev") ? (unsigned)SYS_process_vm_writev : NO_CALL;
  if (refuse(read_call, write_call, error) != 0) {
    perror("refuse_cma: seccomp");
    return 125;
  }
  execvp(argv[at], argv + at);
  perror(argv[at]);
  return 127;
}

/* refuse_cma [--errno EPERM|ENOSYS] [--calls readv,writev,userfaultfd] COMMAND...
 *
 * Runs COMMAND where the kernel refuses process_vm_readv(2) and process_vm_writev(2), as the
 * seccomp profile of a container does. Holds for all descendants. Needs no privilege. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "../../prov/fi_erdma/pair/refuse_calls.h"

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

  if (refuse_calls(calls, error) != 0) {
    perror("refuse_cma: seccomp");
    return 125;
  }
  execvp(argv[at], argv + at);
  perror(argv[at]);
  return 127;
}

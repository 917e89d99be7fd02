/* A preloaded library that makes the process not dumpable, like setuid programs and programs with
 * secrets. Other processes of the same user then cannot read or write its memory. */
#include <sys/prctl.h>

__attribute__((constructor)) static void hide(void) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

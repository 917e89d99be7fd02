/* Preloaded: makes the process not dumpable, as setuid programs and those that keep secrets are.
 * Other processes of the same user can't then read or write its memory. */
#include <sys/prctl.h>

__attribute__((constructor)) static void hide(void) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

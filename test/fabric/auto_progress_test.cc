#include "fabric/auto_progress.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <iterator>

#include <rdma/fi_errno.h>

#include "libcheck.h"

namespace erdma::fabric {
namespace {

/// As a kernel without memory, or with a limit of what may be watched (max_user_watches).
void refuse_epoll_ctl() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(a_thread_that_nobody_could_wake_is_not_started) {
  util::OptionalLock lock(true);
  refuse_epoll_ctl();
  ck_assert_int_eq(AutoProgress::start(lock).error(), -FI_ENOMEM);
}

}  // namespace

}  // namespace erdma::fabric

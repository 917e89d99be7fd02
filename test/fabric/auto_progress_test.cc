#include "fabric/auto_progress.h"

#include <sys/syscall.h>

#include <cerrno>

#include <rdma/fi_errno.h>

#include "fake/refused_call.h"
#include "libcheck.h"

namespace erdma::fabric {
namespace {

TEST(a_thread_that_nobody_could_wake_is_not_started) {
  util::OptionalLock lock(true);
  // As a kernel without memory, or with a limit of what may be watched (max_user_watches).
  fake::refuse_call(SYS_epoll_ctl, ENOSPC);
  ck_assert_int_eq(AutoProgress::start(lock).error(), -FI_ENOMEM);
}

}  // namespace

}  // namespace erdma::fabric

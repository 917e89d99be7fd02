#include "transport/shm/peer_life.h"

#include <sys/eventfd.h>

#include "fake/set_clock.h"
#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

// eventfd: readable once the "process" has exited, as a pidfd.
TEST(a_process_that_was_alive_is_trusted_for_a_moment_only) {
  fake::SetClock clock;
  const int pidfd = eventfd(0, EFD_CLOEXEC);
  PeerLife life(util::Fd(pidfd), clock);
  ck_assert(life.may_be_called() && life.was_called() && !life.over());
  ck_assert_int_eq(eventfd_write(pidfd, 1), 0);
  ck_assert(life.over());
  clock.time += 99'999;
  ck_assert(life.may_be_called() && life.was_called());
  clock.time += 1;
  ck_assert(!life.was_called() && !life.may_be_called());
  // The answer that it has exited is not the beginning of another moment.
  ck_assert(!life.was_called() && !life.may_be_called());
}

TEST(a_process_that_was_never_asked_about_is_not_trusted) {
  fake::SetClock clock;
  PeerLife life(util::Fd(eventfd(1, EFD_CLOEXEC)), clock);
  ck_assert(!life.may_be_called());
}

TEST(a_process_that_may_run_another_program_is_not_called_at_once) {
  fake::SetClock clock;
  PeerLife life(util::Fd(eventfd(0, EFD_CLOEXEC)), clock);
  ck_assert(life.may_be_called());
  life.suspend();
  ck_assert(!life.may_be_called() && !life.was_called());
}

}  // namespace

}  // namespace erdma::transport::shm

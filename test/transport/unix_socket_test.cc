#include "transport/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "fake/refused_call.h"
#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

/// The kernel does not tell who the peer of a socket is, for this reason.
void refuse_peer_pidfd(int error) {
  constexpr unsigned kPeerPidfd = 77;  // SO_PEERPIDFD, which older headers do not have
  fake::refuse_call(SYS_getsockopt, error, 2, kPeerPidfd);
}

struct Ends {
  Ends() {
    int fds[2] = {-1, -1};
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
  util::Fd ours, theirs;
};

// Before Linux 6.5.
TEST(an_older_kernel_finds_the_peer_by_its_pid) {
  const Ends ends;
  refuse_peer_pidfd(ENOPROTOOPT);
  auto found = peer_pidfd(ends.ours.get(), getpid());
  ck_assert(found && *found);
}

TEST(a_pid_is_not_believed_when_the_peer_has_closed_its_socket) {
  Ends ends;
  refuse_peer_pidfd(ENOPROTOOPT);
  ends.theirs.reset();
  ck_assert_int_eq(peer_pidfd(ends.ours.get(), getpid()).error(), -ESRCH);
}

TEST(a_peer_that_the_kernel_does_not_find_is_dead) {
  const Ends ends;
  refuse_peer_pidfd(EINVAL);
  ck_assert_int_eq(peer_pidfd(ends.ours.get(), getpid()).error(), -ESRCH);
}

constexpr int kNoRoom[] = {EMFILE, ENFILE, ENOMEM};

TEST(a_peer_is_not_dead_because_this_process_has_no_room, std::size(kNoRoom)) {
  const Ends ends;
  refuse_peer_pidfd(kNoRoom[_i]);
  auto found = peer_pidfd(ends.ours.get(), getpid());
  ck_assert(found && !*found);
}

}  // namespace

}  // namespace erdma::transport::shm

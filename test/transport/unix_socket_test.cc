#include "transport/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <thread>
#include <vector>

#include "fake/refused_call.h"
#include "libcheck.h"
#include "transport/shm_pair.h"

namespace erdma::transport::shm {
namespace {

/// Makes the kernel refuse SO_PEERPIDFD with `error`.
void refuse_peer_pidfd(int error) {
  constexpr unsigned kPeerPidfd = 77;  // SO_PEERPIDFD, which older headers lack
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

// Kernels before Linux 6.5 have no SO_PEERPIDFD.
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

/// A write into memory of this side needs a message on its control socket. While the socket is
/// full, the write waits and is not lost.
TEST(a_write_waits_for_room_on_the_control_socket_of_its_target) {
  test::Met pair;
  const std::vector<std::byte> from = test::pattern(100'000, 1);
  std::vector<std::byte> to(from.size());
  const iovec memory{to.data(), to.size()}, local{const_cast<std::byte*>(from.data()), from.size()};
  RemoteKey target;
  Link& owner = pair.b_to_a();
  ck_assert_int_eq(owner.share(&memory, 1, to.size(), Access::remote_write, target), 0);
  ck_assert_int_eq(pair.a_to_b().put({target, 0, from.size()}, &local, 1, 5, false), 0);
  ck_assert_int_eq(pair.a_to_b().send(test::numbered(7), nullptr, 0, 0, SendHint::none), 0);
  const size_t packets = pair.b.sink->packets.size();
  std::thread full([&] {
    fake::refuse_call(SYS_sendmsg, EAGAIN);  // only in this thread
    for (int i = 0; i < 100; ++i) pair.b.poll();
  });
  full.join();
  ck_assert_uint_eq(pair.b.sink->packets.size(),
                    packets);  // the write keeps its place in the order
  ck_assert(pair.poll_until([&] { return !pair.a.sink->dones.empty(); }));
  ck_assert_int_eq(pair.a.sink->dones[0].status, 0);
  ck_assert(to == from);
  ck_assert_uint_eq(pair.b.sink->packets.size(), packets + 1);
  ck_assert_int_eq(owner.revoke(target), 0);
}

TEST(a_read_fails_where_nothing_can_be_sent_to_its_source) {
  test::Met pair;
  const std::vector<std::byte> from = test::pattern(100'000, 1);
  std::vector<std::byte> to(from.size());
  const iovec source{const_cast<std::byte*>(from.data()), from.size()}, local{to.data(), to.size()};
  RemoteKey key;
  Link& owner = pair.a_to_b();
  ck_assert_int_eq(owner.share(&source, 1, from.size(), Access::remote_read, key), 0);
  std::thread broken([&] {
    fake::refuse_call(SYS_sendmsg, EPIPE);  // only in this thread
    ck_assert_int_eq(pair.b_to_a().get({key, 0, from.size()}, &local, 1, 5), -FI_ECONNRESET);
  });
  broken.join();
  ck_assert_int_eq(owner.revoke(key), 0);
}

}  // namespace

}  // namespace erdma::transport::shm

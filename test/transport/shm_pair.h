#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/conformance.h"
#include "transport/shm/shm_transport.h"
#include "util/fd.h"

/// Helpers for shared-memory endpoints of this process and of forked ones.
namespace erdma::test {

inline util::Result<std::unique_ptr<transport::shm::ShmTransport>> open_shm(
    const transport::shm::Options& options = {}, uint16_t port = 0) {
  return transport::shm::ShmTransport::open(options, address_of("127.0.0.1", port));
}

inline const auto g_first_port = uint16_t(1024 + getpid() * 8 % 31'000);
/// A port for listeners of tests; `number` is below 8. The children of this program have the same
/// ports. Other programs that run at the time usually have other ones: two programs have the same
/// ports if their process ids differ by a multiple of 3875, or if they are in different namespaces
/// of process ids and in one network namespace.
inline uint16_t own_port(unsigned number) {
  ck_assert_uint_lt(number, 8);
  return uint16_t(g_first_port + number);
}

inline bool open_side(Side& side, const transport::shm::Options& options = {}, uint16_t port = 0) {
  auto opened = open_shm(options, port);
  if (!opened) return false;
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
  return true;
}

/// Two connected sides of this process.
struct Met : Pair {
  Met() {
    ck_assert(open_side(a) && open_side(b));
    ck_assert_int_eq(send(a_to_b(), 0, nullptr, 0), 0);
    ck_assert_int_eq(send(b_to_a(), 0, nullptr, 0), 0);
    ck_assert(poll_until([&] { return a.sink->packets.size() + b.sink->packets.size() == 2; }));
  }
};

/// A forked process that runs `body(channel)` and exits with what it returns. `channel` is a socket
/// to the parent for ports and signals of readiness.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return;
    x_pid = fork();
    if (x_pid == 0) {
      ::close(ends[0]);
      _exit(body(ends[1]));
    }
    ::close(ends[1]);
    x_channel.reset(ends[0]);
  }
  ~Child() {
    if (x_pid > 0) kill(SIGKILL), wait();
  }
  void kill(int signal) const { ::kill(x_pid, signal); }
  int wait() {
    int status = -1;
    waitpid(x_pid, &status, 0);
    x_pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  pid_t pid() const { return x_pid; }
  int channel() const { return x_channel.get(); }

 private:
  pid_t x_pid = -1;
  util::Fd x_channel;
};

inline void tell(int channel, uint16_t word) {
  (void)!::write(channel, &word, sizeof(word));
}
inline uint16_t hear(int channel) {
  uint16_t word = 0;
  (void)!::read(channel, &word, sizeof(word));
  return word;
}

}  // namespace erdma::test

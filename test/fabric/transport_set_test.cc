#include "fabric/transport_set.h"

#include <rdma/fi_errno.h>

#include "libcheck.h"

namespace erdma::fabric {
namespace {

struct Sleepy final : transport::Transport {
  explicit Sleepy(int fd) : descriptor(fd) {}
  int poll(transport::Sink&) noexcept override { return 0; }
  util::Result<transport::Link*> link_to(const util::SocketAddress&) noexcept override {
    return -FI_EHOSTUNREACH;
  }
  int wait_fd() const noexcept override { return descriptor; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  void shutdown() noexcept override {}
  const int descriptor;
};

/// Descriptor 0 is valid if the application has closed its standard input.
TEST(who_sleeps_waits_for_all_transports_that_have_a_descriptor) {
  TransportSet set;
  for (const int fd : {0, -1, 7}) set.add(std::make_unique<Sleepy>(fd));
  int fds[] = {-2, -2, -2};
  ck_assert_int_eq(set.wait_fds(fds, 3), 2);
  ck_assert(fds[0] == 0 && fds[1] == 7 && fds[2] == -2);
  int first[] = {-2, -2};
  ck_assert_int_eq(set.wait_fds(first, 1), 2);
  ck_assert(first[0] == 0 && first[1] == -2);
}

}  // namespace

}  // namespace erdma::fabric

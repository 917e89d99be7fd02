#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <vector>

#include "fake/captured_log.h"
#include "fake/shared_core.h"
#include "libcheck.h"
#include "transport/shm/link.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm/wire.h"
#include "transport/shm_lacks.h"
#include "transport/shm_pair.h"

/// Tests that a limit of the user or of the process delays what needs more, and that the log names
/// the limit.
namespace erdma::test {
namespace {

using transport::Access;
using transport::RemoteKey;
using transport::SendHint;

/// Descriptors on their way in a socket of their own, as many as the user may have there.
class Clog {
 public:
  /// The limit spares privileged processes and counts what all processes of a user send. So this
  /// process becomes a user that few other programs run as. False: it may not.
  static bool become_limited() {
    const auto user = uid_t(20'000 + getpid() % 40'000);
    if (geteuid() == 0 && setresuid(user, user, user)) return false;
    prctl(PR_SET_DUMPABLE, 1);
    const rlimit low{128, 128};
    return setrlimit(RLIMIT_NOFILE, &low) == 0;
  }
  Clog() {
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    for (size_t i = 0; i < 2; ++i) x_ends[i].reset(ends[i]);
    const int fds[] = {ends[0], ends[0]};
    int rc = 0;
    while (rc == 0) rc = transport::shm::send_message(ends[0], "x", 1, fds, 2);
    ck_assert_int_eq(rc, -ETOOMANYREFS);
  }
  void clear() {
    char byte;
    while (transport::shm::receive(x_ends[1].get(), &byte, 1).bytes > 0) continue;
  }

 private:
  util::Fd x_ends[2];
};

bool may_become_limited() {
  const pid_t child = fork();
  if (child == 0) _exit(Clog::become_limited() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}
TEST_CASE(.name = "clogged", .offered = may_become_limited);

TEST(a_peer_waits_for_its_ring_while_no_descriptor_can_be_passed) {
  ck_assert(Clog::become_limited());
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  Clog clog;
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([&] { return told("(ulimit -n)") || !pair.a.sink->downs.empty(); }));
  clog.clear();
  ck_assert(pair.poll_until([&] {
    return link.send(numbered(1), nullptr, 0, 0, SendHint::none) == 0 ||
           !pair.a.sink->downs.empty();
  }));
  if (!pair.a.sink->downs.empty()) ck_assert_int_eq(pair.a.sink->downs[0].status, 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
  ck_assert(pair.b.sink->downs.empty());
  ck_assert(told("[W403]"));
}

/// A peer that may still be welcomed.
struct Due : LeapClock, Pair {
  Due() {
    auto opened = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), nullptr, this);
    ck_assert(bool(opened) && open_side(a));
    b.name = (*opened)->name();
    b.transport = opened->get();
    b.owned = std::move(*opened);
    ck_assert_int_eq(a_to_b().send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
    ck_assert(poll_until([] { return told("(ulimit -n)"); }));
  }
  /// Fails unless the peer gets a ring once descriptors can be passed. The channel in the other
  /// direction may end late, and end the link once more.
  void expect_ring() {
    clog.clear();
    ck_assert(poll_until([&] {
      time += 1'000'000;  // what is tried again after a pause must come due
      (void)a_to_b().send(numbered(2), nullptr, 0, 0, SendHint::none);
      return !b.sink->packets.empty();
    }));
  }

  Clog clog;
};

TEST(a_peer_is_not_kept_waiting_for_its_ring_for_ever) {
  ck_assert(Clog::become_limited());
  Due pair;
  pair.time += 3600'000'000'000;
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
  pair.expect_ring();
}

TEST(a_peer_that_ends_while_it_waits_for_its_ring_is_forgotten) {
  ck_assert(Clog::become_limited());
  Due pair;
  pair.a.owned.reset();
  ck_assert(open_side(pair.a));
  pair.expect_ring();
}

/// A peer whose link ends while it still has to pass a ring says goodbye first.
TEST(a_goodbye_instead_of_a_welcome_is_no_refusal) {
  const auto name = address_of("127.0.0.1", own_port(0));
  auto listener = transport::shm::listen_as(name, transport::shm::NameScope::host);
  ck_assert(bool(listener));
  Side side;
  ck_assert(open_side(side));
  transport::Link& link = **side.transport->link_to(name);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  for (int i = 0; i < 2; ++i) {
    pollfd arrival{listener->get(), POLLIN, 0};
    while (poll(&arrival, 1, 1) == 0 && side.sink->downs.empty()) side.poll();
    ck_assert(side.sink->downs.empty());
    const util::Fd socket(accept(listener->get(), nullptr, nullptr));
    ck_assert(bool(socket));
    ck_assert_int_eq(
        transport::shm::send_control(socket, transport::shm::ControlType::bye, -FI_ECONNRESET), 0);
  }
}

/// Memory of one side that the other reads, or writes to.
struct Shared : Met {
  explicit Shared(Access access) : source(pattern(100'000, 7)), target(source.size()) {
    auto& memory = access == Access::remote_read ? source : target;
    const iovec iov{memory.data(), memory.size()};
    ck_assert(
        poll_until([&] { return a_to_b().share(&iov, 1, iov.iov_len, access, remote_key) == 0; }));
  }
  ~Shared() { a_to_b().revoke(remote_key); }
  transport::RemoteRange all() const { return {remote_key, 0, source.size()}; }

  std::vector<std::byte> source, target;
  RemoteKey remote_key;
};

TEST(a_read_waits_while_no_descriptor_can_be_passed) {
  ck_assert(Clog::become_limited());
  Shared pair(Access::remote_read);
  Clog clog;
  const iovec to{pair.target.data(), pair.target.size()};
  for (int i = 0; i < 3; ++i) {
    ck_assert_int_eq(pair.b_to_a().get(pair.all(), &to, 1, 7), -FI_EAGAIN);
    ck_assert(!pair.b.transport->arm());  // nothing would wake this side to try again
    pair.b.poll();
  }
  ck_assert(told("(ulimit -n) [W403]"));
  clog.clear();
  ck_assert(
      pair.poll_until([&] { return pair.b_to_a().get(pair.all(), &to, 1, 7) != -FI_EAGAIN; }));
  ck_assert(pair.poll_until([&] { return !pair.b.sink->dones.empty(); }));
  ck_assert_int_eq(pair.b.sink->dones[0].status, 0);
  ck_assert(pair.target == pair.source);
}

TEST(a_write_waits_while_the_target_can_pass_no_descriptor) {
  ck_assert(Clog::become_limited());
  Shared pair(Access::remote_write);
  Clog clog;
  const iovec from{pair.source.data(), pair.source.size()};
  ck_assert_int_eq(pair.b_to_a().put(pair.all(), &from, 1, 7, false), 0);
  ck_assert(pair.poll_until([&] { return told("(ulimit -n)") || !pair.b.sink->dones.empty(); }));
  clog.clear();
  ck_assert(pair.poll_until([&] { return !pair.b.sink->dones.empty(); }));
  ck_assert_int_eq(pair.b.sink->dones[0].status, 0);
  ck_assert(pair.target == pair.source);
  ck_assert(told("[W403]"));
}

constexpr transport::Early kReasons[] = {transport::Early::refused, transport::Early::closing};

/// The receiver has not read it yet.
TEST(memory_that_is_taken_back_early_is_not_delivered, std::size(kReasons)) {
  Shared pair(Access::remote_read);
  const iovec to{pair.target.data(), pair.target.size()};
  const auto get = [&] {
    const size_t dones = pair.b.sink->dones.size();
    const int rc = pair.b_to_a().get(pair.all(), &to, 1, 7);
    if (rc != 0) return rc;
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > dones; }));
    return pair.b.sink->dones.back().status;
  };
  ck_assert_int_ge(get(), 0);
  ck_assert(pair.target == pair.source);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  ck_assert(pair.poll_until([&] { return link.out().bulk()->attached(); }));
  link.revoke_early(pair.remote_key, kReasons[_i]);
  ck_assert_int_eq(get(), -FI_ECANCELED);
}

/// A packet behind longer reads waits no longer than behind transfers.
TEST(what_is_read_at_once_between_two_polls_is_limited) {
  Shared pair(Access::remote_read);
  auto& link = static_cast<transport::shm::ShmLink&>(pair.b_to_a());
  ck_assert(pair.poll_until([&] { return link.in(); }));
  transport::shm::share(link.context().core);
  const bool may = link.direct().peer().read.permission == transport::shm::Permission::allowed;
  const iovec to{pair.target.data(), pair.target.size()};
  for (size_t round = 1; round <= 3; ++round) {
    for (size_t i = 1; i <= 3; ++i)
      ck_assert_int_eq(
          link.get(pair.all(), &to, 1, 7),
          may && i * to.iov_len <= transport::shm::kPollBytes ? int(transport::kDone) : 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() == (may ? 1 : 3) * round; }));
  }
  ck_assert(pair.target == pair.source);
}

/// However messages are chosen to go, the link looks now and then whether it shares its core.
TEST(each_long_rendezvous_counts_as_a_large_message) {
  static unsigned looks = 0;
  using transport::shm::CoreSharing;
  Shared pair(Access::remote_read);
  transport::shm::LinkContext& context =
      static_cast<transport::shm::ShmLink&>(pair.a_to_b()).context();
  context.core = CoreSharing([]() noexcept { return ++looks, CoreSharing::Usage{}; });
  for (const size_t length : {transport::shm::kMaxEager, transport::shm::kMaxEager + 1}) {
    looks = 0;
    for (unsigned i = 0; i < 2 * CoreSharing::kEvery; ++i) {
      const iovec iov{pair.source.data(), length};
      RemoteKey key;
      ck_assert_int_eq(pair.a_to_b().share(&iov, 1, length, transport::Access::refusable_read, key),
                       0);
      pair.a_to_b().revoke(key);
    }
    ck_assert_uint_eq(looks, length > transport::shm::kMaxEager ? 2 : 0);
  }
}

constexpr size_t kForPackets = 128 * 1024;  ///< less than what peers share of a link that is up

/// Leaves this process room for `more` bytes of mappings, also those of its heap.
class LittleSpace {
 public:
  explicit LittleSpace(size_t more) {
    unsigned long pages = 0;
    FILE* const size = fopen("/proc/self/statm", "r");
    if (!size || fscanf(size, "%lu", &pages) != 1) pages = 0;
    if (size) fclose(size);
    getrlimit(RLIMIT_AS, &x_usual);
    const rlimit tight{pages * size_t(getpagesize()) + more, x_usual.rlim_max};
    setrlimit(RLIMIT_AS, &tight);
  }
  ~LittleSpace() { setrlimit(RLIMIT_AS, &x_usual); }

 private:
  rlimit x_usual{};
};

constexpr char kUnmapped[] =
    "that a peer shares: Cannot allocate memory; raise RLIMIT_AS (ulimit -v)";

/// False: the limit is not kept, or mappings of other programs count, too.
bool space_is_limited() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  const pid_t child = fork();
  if (child == 0) {
    const LittleSpace little(0);
    _exit(mmap(nullptr, kForPackets, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
              ? 0
              : 1);
  }
  int status = -1;
  const bool limited = waitpid(child, &status, 0) == child && status == 0;
  if (!limited) std::printf("RLIMIT_AS is not kept here: what needs it is left out\n");
  return limited;
#endif
}
TEST_CASE(.name = "little_space", .offered = space_is_limited);

/// Runs `body(side, link)` in another process, with a link to this one. `serve` is called until the
/// other process ends.
template <typename Body, typename Serve>
void beside(Side& side, Body body, Serve serve) {
  Child child([body](int channel) {
    const uint16_t port = hear(channel);
    Pair own;
    if (!open_side(own.a)) return 1;
    own.b.name = address_of("127.0.0.1", port);
    return body(own);
  });
  ck_assert(open_side(side));
  tell(child.channel(), side.name.port());
  pollfd end{child.channel(), POLLIN, 0};
  while (poll(&end, 1, 0) == 0) serve();
  ck_assert_int_eq(child.wait(), 0);
}

TEST(a_hot_ring_that_cannot_be_mapped_costs_no_link) {
  Side side;
  const auto send_much = [](Pair& own) {
    transport::Link& link = own.a_to_b();
    if (own.send(link, 1, nullptr, 0)) return 2;
    const LittleSpace little(kForPackets);
    while (!told(kUnmapped) && own.a.sink->downs.empty()) {
      (void)link.send(numbered(1), nullptr, 0, 0, SendHint::none);
      own.poll();
    }
    for (int i = 0; i < 1000; ++i)
      if (own.send(link, 1, nullptr, 0)) return 3;
    return own.a.sink->downs.empty() ? 0 : 4;
  };
  beside(side, send_much, [&] { side.poll(); });
  ck_assert_uint_gt(side.sink->packets.size(), 1000);
}

/// Sends until a hot ring is lost for want of something, and then until there is one.
template <typename Lack>
int send_until_hot(Pair& own, Lack lack, const char* complaint) {
  constexpr int kEnough = 100'000;
  transport::Link& link = own.a_to_b();
  const auto send_one = [&] {
    const bool sent = link.send(numbered(1), nullptr, 0, 0, SendHint::none) == 0;
    own.poll();
    return sent;
  };
  if (own.send(link, 1, nullptr, 0)) return 2;
  {
    const auto lacking = lack();
    while (!told(complaint) && own.a.sink->downs.empty()) send_one();
  }
  for (int sent = 0; sent < kEnough && own.a.sink->downs.empty(); sent += send_one())
    if (link.limits().eager > transport::shm::kSlotPayload) return 0;
  return own.a.sink->downs.empty() ? 3 : 4;
}

TEST(a_peer_that_could_not_map_its_hot_ring_gets_another) {
  Side side;
  const auto send = [](Pair& own) {
    return send_until_hot(
        own, [] { return LittleSpace(kForPackets); }, kUnmapped);
  };
  beside(side, send, [&] { side.poll(); });
}

TEST(memory_for_large_transfers_that_cannot_be_mapped_ends_the_link_for_that_reason) {
  Side side;
  const auto offer = [](Pair& own) {
    const auto bytes = pattern(100'000, 7);
    const iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
    RemoteKey remote_key;
    if (!own.poll_until([&] {
          return own.a_to_b().share(&iov, 1, iov.iov_len, Access::remote_read, remote_key) == 0;
        }))
      return 2;
    const LittleSpace little(kForPackets);
    if (own.send(own.a_to_b(), 1, remote_key.bytes, remote_key.size)) return 3;
    while (own.a.sink->downs.empty()) own.poll();
    own.a_to_b().revoke(remote_key);
    return own.a.sink->downs[0].status == -FI_ENOMEM && told(kUnmapped) ? 0 : 4;
  };
  std::vector<std::byte> target(100'000);
  const iovec to{target.data(), target.size()};
  int rc = -FI_EAGAIN;
  beside(side, offer, [&] {
    side.poll();
    if (side.sink->packets.empty() || rc == 0) return;
    const RecordingSink::Packet& packet = side.sink->packets[0];
    RemoteKey remote_key;
    remote_key.size = uint8_t(packet.payload.size());
    std::ranges::copy(packet.payload, remote_key.bytes);
    rc = packet.link->get({remote_key, 0, to.iov_len}, &to, 1, 7);
  });
  ck_assert_int_eq(rc, 0);
}

TEST(a_ring_that_cannot_be_mapped_is_waited_for) {
  Side side;
  const auto connect = [](Pair& own) {
    // The first connection makes the threads' heaps.
    Pair first;
    first.a.transport = own.a.transport;
    first.a.name = own.a.name;
    if (!open_side(first.b) || first.send(first.a_to_b(), 1, nullptr, 0)) return 5;
    transport::Link& link = own.a_to_b();
    {
      const LittleSpace little(0);
      if (link.send(numbered(1), nullptr, 0, 0, SendHint::none) != -FI_EAGAIN) return 2;
      while (!told(kUnmapped) && own.a.sink->downs.empty()) own.poll();
    }
    if (own.send(link, 1, nullptr, 0)) return 4;
    // A hot ring comes through the connection's socket.
    while (link.limits().eager <= transport::shm::kSlotPayload && own.a.sink->downs.empty()) {
      (void)link.send(numbered(1), nullptr, 0, 0, SendHint::none);
      own.poll();
    }
    return own.a.sink->downs.empty() ? 0 : 3;
  };
  beside(side, connect, [&] { side.poll(); });
}

TEST(a_peer_that_dies_before_its_ring_is_mapped_has_not_closed_in_order) {
  Child peer([](int channel) {
    Side side;
    if (!open_side(side)) return 1;
    tell(channel, side.name.port());
    pollfd end{channel, POLLIN, 0};
    while (poll(&end, 1, 0) == 0) side.poll();
    return 0;
  });
  const uint16_t port = hear(peer.channel());
  Met own;  // this connection makes the threads' heaps
  transport::Link& link = **own.a.transport->link_to(address_of("127.0.0.1", port));
  {
    const LittleSpace little(0);
    ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
    while (!told(kUnmapped) && own.a.sink->downs.empty()) own.poll();
    ck_assert(own.a.sink->downs.empty());
    peer.kill(SIGKILL);
    ck_assert_int_eq(peer.wait(), 1000 + SIGKILL);
    for (int i = 0; i < 1000; ++i) own.poll();
  }
  ck_assert(own.poll_until([&] { return !own.a.sink->downs.empty(); }));
  ck_assert_int_eq(own.a.sink->downs[0].status, -FI_ECONNREFUSED);
}

TEST_CASE(.name = "few_descriptors");

TEST(a_peer_that_could_not_receive_its_hot_ring_gets_another) {
  Side side;
  const auto send = [](Pair& own) {
    return send_until_hot(
        own, [] { return NoDescriptors(); }, "too many open files");
  };
  beside(side, send, [&] { side.poll(); });
}

}  // namespace

}  // namespace erdma::test

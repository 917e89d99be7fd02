#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/impostor.h"
#include "transport/shm/connections.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/unix_socket.h"

/// Tests a listener to which more strangers connect than it can serve, and one without memory.
namespace erdma::test {
namespace {

std::atomic<uint64_t> g_flood = 0;    ///< connections of another user that are still to come
std::atomic<int> g_flooded = -1;      ///< the listener that a stranger connects to first
std::atomic<uint64_t> g_accepts = 0;  ///< connections that the kernel or a flood has given
thread_local int g_stranger = -1;     ///< socket of the last stranger
std::atomic<int> g_accept_error = 0;
std::atomic<unsigned> g_accepts_failed = 0;
constexpr int kNone = -1;
std::atomic<int> g_unwatched = kNone;  ///< the sort of descriptors for whose watch memory lacks
std::atomic<unsigned> g_watches_failed = 0;

/// A clock that stands still.
struct StandingClock final : util::Clock {
  uint64_t now() const noexcept override { return 1'000'000'000; }
};

/// The system's clock, `ahead` nanoseconds in the future.
struct EarlyClock final : util::Clock {
  uint64_t now() const noexcept override { return util::SystemClock().now() + ahead; }
  std::atomic<uint64_t> ahead = 0;
};
constexpr uint64_t kHour = 3600 * uint64_t{1'000'000'000};

bool open_with(Side& side, const util::Clock& clock, const transport::shm::Options& options = {}) {
  auto opened =
      transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), nullptr, &clock);
  if (!opened) return false;
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
  return true;
}

unsigned lines_with(const char* text) {
  const std::lock_guard guard(g_log_mutex);
  unsigned lines = 0;
  for (const LogLine& line : g_log) lines += contains(line.text, text);
  return lines;
}
unsigned refusals_logged() {
  return lines_with("refused a connection");
}

/// The flood of strangers never ends, and yet the peer that the endpoint waits for gets connected.
TEST(a_flood_of_strangers_does_not_keep_the_others_from_their_turn) {
  StandingClock clock;
  Pair pair;
  ck_assert(open_with(pair.a, clock) && open_side(pair.b));
  g_flood = UINT64_MAX;
  auto knock = transport::shm::connect_as_peer(pair.a.name);
  ck_assert(bool(knock));
  g_flooded.wait(-1);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
  g_flood = 0;
  pair.a.owned.reset();
  ck_assert_uint_gt(refusals_logged(), 0);
}

/// An endpoint whose connection thread runs only while a test lets it.
struct Stepped {
  Stepped() {
    transport::shm::Options options;
    options.background = false;
    ck_assert(open_with(side, clock, options));
  }
  /// Serves everything that there is to do now.
  void run() {
    for (int idle = 0; idle < 4; ++idle)
      while (transport().step()) idle = 0;
  }
  transport::shm::ShmTransport& transport() {
    return static_cast<transport::shm::ShmTransport&>(*side.transport);
  }
  struct : util::Clock {
    uint64_t now() const noexcept override { return 1'000'000'000 + later; }
    uint64_t later = 0;
  } clock;
  Side side;
};

/// Silent connections take all places for connections without a greeting. A connection whose
/// greeting is there, and that nobody has read yet, is none of them.
TEST(connections_that_send_nothing_do_not_keep_a_peer_waiting) {
  Stepped rig;
  std::vector<util::Fd> silent;
  for (int i = 0; i < 63; ++i)
    silent.push_back(std::move(*transport::shm::connect_as_peer(rig.side.name)));
  Impostor first, second;
  ck_assert(first.listen(own_port(1)) && first.ask(rig.side.name, own_port(1)));
  (void)rig.transport().step();  // accepts all of them
  ck_assert(second.listen(own_port(2)) && second.ask(rig.side.name, own_port(2)));
  (void)rig.transport().step();
  rig.clock.later = 30 * util::kMillisecond;
  rig.run();
  ck_assert(first.take_welcome() && second.take_welcome());
  for (int i = 0; i < 100; ++i)
    silent.push_back(std::move(*transport::shm::connect_as_peer(rig.side.name)));
  Impostor third;
  ck_assert(third.listen(own_port(3)) && third.ask(rig.side.name, own_port(3)));
  for (int i = 0; i < 4; ++i, rig.clock.later += 30 * util::kMillisecond) rig.run();
  ck_assert(third.take_welcome());
}

/// However fast strangers connect, the thread has most of its time for others.
TEST(a_flood_of_strangers_takes_a_part_of_the_time_only, 2) {
  Stepped rig;
  const bool same_user = _i;
  g_flood = same_user ? 0 : 1'000;
  for (uint64_t i = 1; i <= 4; ++i, rig.clock.later += 3 * util::kMillisecond) {
    for (int knocks = 0; knocks < 150; ++knocks) {
      ck_assert(bool(transport::shm::connect_as_peer(rig.side.name)));  // and ends at once
      rig.run();
    }
    ck_assert_uint_le(g_accepts, i * 128);
  }
  ck_assert_uint_ge(g_accepts, 3 * 64);
  g_flood = 0;
}

/// A peer whose messages never end has its turn among others.
TEST(a_flood_of_control_messages_does_not_keep_the_others_from_their_turn) {
  Stepped rig;
  Impostor flood, other;
  ck_assert(flood.listen(own_port(1)) && flood.ask(rig.side.name, own_port(1)));
  rig.run();
  ck_assert(flood.take_welcome());
  const transport::shm::Control question{transport::shm::ControlType::prove, 1};
  for (int i = 0; i < 100; ++i)
    ck_assert_int_eq(transport::shm::send_message(flood.socket.get(), &question, sizeof(question)),
                     0);
  (void)rig.transport().step();
  unsigned answers = 0;
  transport::shm::Control answer;
  while (transport::shm::receive(flood.socket.get(), &answer, sizeof(answer)).bytes > 0) ++answers;
  ck_assert_uint_gt(answers, 0);
  ck_assert_uint_lt(answers, 50);
  rig.run();
  while (transport::shm::receive(flood.socket.get(), &answer, sizeof(answer)).bytes > 0) ++answers;
  ck_assert_uint_ge(answers, 100);
}

TEST(strangers_do_not_fill_the_log) {
  const util::SystemClock clock;
  const uint64_t begun = util::SystemClock().now();
  Pair pair;
  ck_assert(open_with(pair.a, clock) && open_side(pair.b));
  g_flood = 1'000;
  auto knock = transport::shm::connect_as_peer(pair.a.name);
  ck_assert(bool(knock));
  for (uint64_t left = g_flood; left; left = g_flood) g_flood.wait(left);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  // The log takes ten lines at once, and one for each second that begins.
  const uint64_t seconds = (util::SystemClock().now() - begun) / 1'000'000'000;
  ck_assert_uint_le(refusals_logged(), 10 + seconds + 1);
}

TEST(an_endpoint_that_can_not_accept_says_so_once_and_accepts_later) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  g_accept_error = EMFILE;
  auto knock = transport::shm::connect_as_peer(pair.b.name);
  ck_assert(bool(knock));
  ck_assert(pair.poll_until([] { return g_accepts_failed >= 2; }));
  ck_assert_uint_eq(lines_with("cannot accept peers"), 1);
  g_accept_error = 0;
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
}

TEST(a_listener_that_can_not_be_watched_is_an_error) {
  g_unwatched = transport::shm::kListener;
  ck_assert_int_eq(open_shm().error(), -FI_ENOMEM);
  g_unwatched = kNone;
  ck_assert(bool(open_shm()));
}

TEST(an_endpoint_that_can_not_watch_its_listener_again_does_so_later) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  g_unwatched = transport::shm::kListener;
  g_accept_error = EMFILE;
  auto knock = transport::shm::connect_as_peer(pair.b.name);
  ck_assert(bool(knock));
  ck_assert(pair.poll_until([] { return g_watches_failed >= 2; }));
  g_accept_error = 0;
  g_unwatched = kNone;
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
}

TEST(a_peer_whose_socket_can_not_be_watched_is_turned_away_at_once) {
  StandingClock clock;
  Side side;
  ck_assert(open_with(side, clock));
  g_unwatched = transport::shm::kSocket;
  auto knock = transport::shm::connect_as_peer(side.name);
  ck_assert(bool(knock));
  pollfd ended{knock->get(), POLLIN, 0};
  ck_assert_int_eq(poll(&ended, 1, 20'000), 1);
  ck_assert(ended.revents & POLLHUP);
  ck_assert_uint_eq(g_watches_failed, 1);
}

TEST(an_endpoint_that_can_not_watch_its_own_connection_connects_later) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  g_unwatched = transport::shm::kSocket;
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, transport::SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([] { return g_watches_failed >= 2; }));
  g_unwatched = kNone;
  ck_assert_int_eq(pair.send(link, 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
  ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

TEST(an_endpoint_that_can_not_watch_a_process_connects_later) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  g_unwatched = transport::shm::kProcess;
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, transport::SendHint::none), -FI_EAGAIN);
  // One failure of each endpoint, and more as they try again.
  ck_assert(pair.poll_until([] { return g_watches_failed >= 5; }));
  g_unwatched = kNone;
  ck_assert_int_eq(pair.send(link, 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
  ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

/// A peer that the listener refuses. It holds its end open, and no time passes.
TEST(a_refused_peer_is_hung_up_on_at_once) {
  StandingClock clock;
  Side side;
  ck_assert(open_with(side, clock));
  auto knock = transport::shm::connect_as_peer(side.name);
  ck_assert(bool(knock));
  ck_assert_int_eq(transport::shm::send_message(knock->get(), "x", 1), 0);
  pollfd ended{knock->get(), 0, 0};
  ck_assert_int_eq(poll(&ended, 1, 20'000), 1);
  ck_assert(ended.revents & POLLHUP);
  ck_assert_uint_eq(refusals_logged(), 1);
}

/// A connection to an impostor. It ends while the kernel lacks memory to watch its socket.
struct Unwatched {
  Unwatched() {
    ck_assert(open_with(side, clock) && former.greet(side.name, own_port(1)));
    transport::Link& link = **side.transport->link_to(address_of("127.0.0.1", own_port(1)));
    while (!link.optional().sharing->possible()) side.poll();
    g_unwatched = transport::shm::kSocket;
  }
  /// The ring that a peer gets once the endpoint has tried again to watch the socket.
  uint32_t ring_of(Impostor& next, unsigned port) {
    g_unwatched = kNone;
    clock.ahead += kHour;
    ck_assert(next.greet(side.name, own_port(port)));
    return next.ring;
  }
  void await_end() {
    while (side.sink->downs.empty()) side.poll();
    ck_assert_uint_ge(g_watches_failed, 1);
  }

  EarlyClock clock;
  Side side;
  Impostor former;
};

TEST(the_ring_of_a_socket_that_could_not_be_watched_is_given_out_again) {
  Unwatched rig;
  Impostor next, last;
  rig.former.socket.reset();
  rig.await_end();
  // The endpoint watches the socket again when it accepts this connection, and hears of the end
  // before or after the greeting.
  if (rig.ring_of(next, 2) != rig.former.ring)
    ck_assert_uint_eq(rig.ring_of(last, 3), rig.former.ring);
}

TEST(a_socket_that_could_not_be_watched_is_watched_later) {
  Unwatched rig;
  Impostor next, last;
  // An empty message looks like the end of the socket.
  ck_assert_int_eq(send(rig.former.socket.get(), nullptr, 0, 0), 0);
  rig.await_end();
  ck_assert_uint_ne(rig.ring_of(next, 2), rig.former.ring);
  ck_assert_int_eq(shutdown(rig.former.socket.get(), SHUT_RDWR), 0);
  ck_assert_uint_eq(rig.ring_of(last, 3), rig.former.ring);  // greets after the shutdown
}

}  // namespace

}  // namespace erdma::test

/// Behaves as if another user connected without end: during a flood, the queue is never empty.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* bytes, int flags) {
  using erdma::test::g_flood;
  if (const int error = erdma::test::g_accept_error) {
    ++erdma::test::g_accepts_failed;
    errno = error;
    return -1;
  }
  uint64_t left = g_flood;
  int nobody = -1;
  if (left && erdma::test::g_flooded.compare_exchange_strong(nobody, listener))
    erdma::test::g_flooded.notify_all();
  if (erdma::test::g_flooded != listener) left = 0;
  while (left && left != UINT64_MAX && !g_flood.compare_exchange_weak(left, left - 1)) continue;
  if (!left) {
    const long accepted = syscall(SYS_accept4, listener, address, bytes, flags);
    erdma::test::g_accepts += accepted >= 0;
    return int(accepted);
  }
  ++erdma::test::g_accepts;
  g_flood.notify_all();
  return erdma::test::g_stranger = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

extern "C" int getsockopt(int socket, int level, int name, void* value, socklen_t* bytes) noexcept {
  if (socket != erdma::test::g_stranger || name != SO_PEERCRED)
    return int(syscall(SYS_getsockopt, socket, level, name, value, bytes));
  erdma::test::g_stranger = -1;
  *static_cast<ucred*>(value) = {1, geteuid() + 1, 0};
  return 0;
}

/// The sort of a descriptor is in the data that is watched with it.
extern "C" int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  const int unwatched = erdma::test::g_unwatched;
  if (operation == EPOLL_CTL_ADD && unwatched != erdma::test::kNone &&
      int(event->data.u64 & 3) == unwatched) {
    ++erdma::test::g_watches_failed;
    errno = ENOMEM;
    return -1;
  }
  return int(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}

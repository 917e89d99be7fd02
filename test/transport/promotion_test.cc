#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <rdma/providers/fi_log.h>

#include "libcheck.h"
#include "transport/shm/layout.h"
#include "transport/shm/link.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm_pair.h"

/// How a peer that sends a lot comes to its hot ring.
namespace {

std::atomic<unsigned> g_complaints = 0;  ///< lines about a segment that could not be made

}  // namespace

extern "C" int fi_log_enabled(const fi_provider*, fi_log_level, fi_log_subsys) {
  return 1;
}
extern "C" void fi_log(const fi_provider*, fi_log_level, fi_log_subsys, const char*, int,
                       const char* format, ...) {
  g_complaints += std::strstr(format, "memfd_create") != nullptr;
}

namespace erdma::test {
namespace {

using transport::Link;
using transport::SendHint;
using transport::shm::kSlotPayload;

/// Once closed, it stops the first other thread that asks for the time.
class GateClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override {
    if (x_closed.load() && std::this_thread::get_id() != x_owner) {
      x_waiting = true;
      x_waiting.notify_all();
      x_closed.wait(true);
    }
    return util::SystemClock().now();
  }
  void close() { x_closed = true; }
  void await_other() const { x_waiting.wait(false); }
  void open() {
    x_closed = false;
    x_closed.notify_all();
  }

 private:
  const std::thread::id x_owner = std::this_thread::get_id();
  std::atomic<bool> x_closed = false;
  mutable std::atomic<bool> x_waiting = false;
};

bool is_hot(Link& link) {
  return link.limits().eager > kSlotPayload;
}

/// `count` packets from b to a, delivered.
void send_some(Pair& pair, uint64_t count) {
  const size_t before = pair.a.sink->packets.size();
  for (uint64_t i = 0; i < count; ++i) ck_assert_int_eq(pair.send(pair.b_to_a(), i, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == before + count; }));
}

/// Nothing behind it is delivered, so there is nothing to do; but whoever sleeps then is woken.
TEST(a_receiver_sleeps_while_a_packet_is_taken_back, 2) {
  const bool executed = _i;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert(pair.poll_until([&] {
    if (!is_hot(pair.b_to_a())) send_some(pair, 4);
    return is_hot(pair.b_to_a());
  }));
  Link& link = pair.b_to_a();
  const iovec nothing{nullptr, 0};
  uint64_t packet = 0;
  const size_t before = pair.a.sink->packets.size();
  ck_assert_int_eq(link.optional().retractable->send(numbered(77), &nothing, 1, 0, packet), 0);
  ck_assert_int_eq(link.send(numbered(78), &nothing, 1, 0, SendHint::none), 0);
  ck_assert(link.optional().retractable->retract(packet));
  ck_assert(pair.poll_until([&] { return pair.a.transport->arm(); }));
  ck_assert_uint_eq(pair.a.sink->packets.size(), before);
  pollfd woken{pair.a.transport->wait_fd(), POLLIN, 0};
  link.optional().retractable->retracted(packet, executed);
  ck_assert_int_eq(::poll(&woken, 1, 10'000), 1);
  pair.a.transport->disarm();
  ck_assert(
      pair.poll_until([&] { return pair.a.sink->packets.size() == before + (executed ? 1 : 2); }));
  ck_assert_uint_eq(pair.a.sink->packets[before].number(), executed ? 78 : 77);
}

/// The receiver is not there to help with a longer message while it has others to take.
TEST(a_packet_carries_more_while_earlier_ones_wait) {
  transport::shm::Options options;
  options.eager_most = transport::shm::kMaxEager;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b, options));
  ck_assert(pair.poll_until([&] {
    if (!is_hot(pair.b_to_a())) send_some(pair, 4);
    return is_hot(pair.b_to_a());
  }));
  Link& link = pair.b_to_a();
  ck_assert(pair.poll_until([&] { return link.limits().eager == options.eager_bytes; }));
  const std::vector<unsigned char> bytes(options.eager_most, 0x5a);
  const size_t before = pair.a.sink->packets.size();
  ck_assert_int_eq(pair.send(link, 1, nullptr, 0), 0);
  ck_assert_uint_eq(link.limits().eager, options.eager_most);
  ck_assert_int_eq(pair.send(link, 2, bytes.data(), bytes.size()), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == before + 2; }));
  ck_assert_uint_eq(pair.a.sink->packets[before + 1].payload.size(), bytes.size());
  ck_assert(pair.poll_until([&] { return link.limits().eager == options.eager_bytes; }));
}

TEST(a_busy_peer_is_promoted_although_the_background_thread_gets_no_time) {
  GateClock clock;
  Pair pair;
  auto opened = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), nullptr, &clock);
  ck_assert(bool(opened) && open_side(pair.b));
  pair.a.name = (*opened)->name();
  pair.a.transport = opened->get();
  send_some(pair, 1);
  clock.close();
  const auto knock = transport::shm::connect_as_peer(pair.a.name);
  clock.await_other();
  send_some(pair, 100);
  const bool promoted = pair.poll_until([&] { return is_hot(pair.b_to_a()); });
  clock.open();
  ck_assert(promoted);
}

TEST(a_hot_ring_that_cannot_be_had_is_not_lamented_again_and_again) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  send_some(pair, 1);
  // Both channels are up before descriptors run out: only the hot ring needs one more.
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit tight{3, limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
  send_some(pair, 50'000);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ck_assert(!is_hot(pair.b_to_a()));
  ck_assert_uint_ge(g_complaints, 1);
  ck_assert_uint_le(g_complaints, 6);
  // It is had once it can be.
  ck_assert(pair.poll_until([&] {
    (void)pair.b_to_a().send(numbered(0), nullptr, 0, 0, SendHint::none);
    return is_hot(pair.b_to_a());
  }));
}

/// One packet that may be taken back, the first in its hot ring.
uint64_t first_retractable(Pair& pair) {
  const iovec nothing{nullptr, 0};
  uint64_t packet = 0;
  ck_assert_int_eq(pair.b_to_a().optional().retractable->send(numbered(1), &nothing, 1, 0, packet),
                   0);
  return packet;
}

/// Sequence numbers begin anew in each hot ring: a name from the one before is not taken for that
/// of another packet.
TEST(a_packet_of_a_ring_that_was_given_up_is_not_taken_back) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  send_some(pair, 1);
  const iovec nothing{nullptr, 0};
  uint64_t old = 0;
  // Asks for a hot ring before there are packets for it.
  ck_assert(pair.poll_until([&] {
    return pair.b_to_a().optional().retractable->send(numbered(0), &nothing, 1, 0, old) == 0;
  }));
  const size_t before = pair.a.sink->packets.size();
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() > before || before > 1; }));
  static_cast<transport::shm::ShmLink&>(pair.b_to_a()).out().ask_cold();
  ck_assert(pair.poll_until([&] { return !is_hot(pair.b_to_a()); }));
  while (!is_hot(pair.b_to_a())) {
    for (int i = 0; i < 4 && !is_hot(pair.b_to_a()); ++i)
      (void)pair.b_to_a().send(numbered(2), &nothing, 1, 0, SendHint::none);
    for (int i = 0; i < 4; ++i) pair.a.poll();
    if (!is_hot(pair.b_to_a())) pair.b.poll();
  }
  const uint64_t packet = first_retractable(pair);
  ck_assert_uint_eq(uint32_t(packet), uint32_t(old));
  ck_assert_uint_ne(packet, old);
  ck_assert(!pair.b_to_a().optional().retractable->retract(old));
  ck_assert(pair.b_to_a().optional().retractable->retract(packet));
  pair.b_to_a().optional().retractable->retracted(packet, true);
}

}  // namespace

}  // namespace erdma::test

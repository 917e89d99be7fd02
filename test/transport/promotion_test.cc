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
#include "transport/shm/link_context.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm_pair.h"

/// Tests how a peer that sends many packets gets a hot ring.
namespace {

std::atomic<unsigned> g_complaints = 0;  ///< log lines about a segment that cannot be created

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

/// A clock that blocks the first other thread that asks for the time once the gate is closed.
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

/// Sends `count` packets from b to a and waits until they are delivered.
void send_some(Pair& pair, uint64_t count) {
  const size_t before = pair.a.sink->packets.size();
  for (uint64_t i = 0; i < count; ++i) ck_assert_int_eq(pair.send(pair.b_to_a(), i, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == before + count; }));
}

/// Opens both endpoints, and sends until b has a hot ring at a. Returns the link to a.
Link& open_hot(Pair& pair) {
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert(pair.poll_until([&] {
    if (!is_hot(pair.b_to_a())) send_some(pair, 4);
    return is_hot(pair.b_to_a());
  }));
  return pair.b_to_a();
}

/// Packets behind the one that is being taken back are not delivered, so the receiver has nothing
/// to do and may sleep. The end of the retraction wakes it.
TEST(a_receiver_sleeps_while_a_packet_is_taken_back, 4) {
  const bool executed = _i % 2;
  Pair pair;
  Link& link = open_hot(pair);
  const size_t length = _i / 2 ? 5000 : 0;
  const std::vector<std::byte> first = pattern(length, 1), second = pattern(length, 2);
  const iovec taken{const_cast<std::byte*>(first.data()), length};
  const iovec next{const_cast<std::byte*>(second.data()), length};
  uint64_t packet = 0;
  const size_t before = pair.a.sink->packets.size() + 1;
  // The receiver meets the packet right behind one that it delivers.
  ck_assert_int_eq(link.send(numbered(76), nullptr, 0, 0, SendHint::none), 0);
  ck_assert_int_eq(link.optional().retractable->send(numbered(77), &taken, 1, length, packet), 0);
  ck_assert_int_eq(link.send(numbered(78), &next, 1, length, SendHint::none), 0);
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
  ck_assert(pair.a.sink->packets[before].payload == (executed ? second : first));
  ck_assert(pair.a.sink->packets.back().payload == second);
}

/// The word that asks lies with the cold ring, also while the hot one is in use.
TEST(a_peer_that_polls_helps_with_a_long_access, 2) {
  const bool hot = _i;
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] {
    if (hot && !is_hot(pair.b_to_a())) send_some(pair, 4);
    return is_hot(pair.b_to_a()) == hot && pair.a_to_b().optional().sharing->possible();
  }));
  std::vector<std::byte> there = pattern(size_t{4} << 20, 1), here(there.size());
  const iovec owned{there.data(), there.size()}, local{here.data(), here.size()};
  transport::RemoteKey key;
  ck_assert_int_eq(pair.a_to_b().optional().sharing->share(owned, true, true, key), 0);
  auto& helper = static_cast<transport::shm::ShmTransport&>(*pair.a.transport);
  // The memory by which a helper takes part arrives during the first accesses.
  const auto& dones = pair.b.sink->dones;
  size_t begun = 0;
  ck_assert(pair.poll_until([&] {
    if (begun != dones.size()) return false;
    if (helper.counters().cma_write_bytes > 0) return true;
    begun += pair.b_to_a().get({key, 0, here.size()}, &local, 1, begun) == 0;
    return false;
  }));
  for (const auto& done : dones) ck_assert_int_eq(done.status, 0);
  ck_assert(here == there);
  pair.a_to_b().optional().sharing->revoke(key);
}

/// Sends until the link has a hot ring, stops in the middle of taking a packet back, and tells the
/// parent the packet's number. If the peer has executed a packet before it can be taken back, a
/// later packet is tried. Executes another program if the parent says so.
int take_back_forever(int channel) {
  Pair own;
  if (!open_side(own.a)) return 1;
  Link& link = **own.a.transport->link_to(address_of("127.0.0.1", hear(channel)));
  const iovec nothing{nullptr, 0};
  uint16_t number = 1;
  for (;; own.a.poll()) {
    uint64_t packet = 0;
    if (!is_hot(link)) {
      (void)link.send(numbered(0), nullptr, 0, 0, SendHint::none);
      continue;
    }
    if (link.optional().retractable->send(numbered(number), &nothing, 1, 0, packet)) continue;
    while (link.send(numbered(uint64_t(number) + 1), &nothing, 1, 0, SendHint::none)) own.a.poll();
    if (link.optional().retractable->retract(packet)) break;
    number += 2;
  }
  tell(channel, number);
  (void)hear(channel);
  execl("/bin/sleep", "sleep", "1000", nullptr);
  return 0;
}

/// Nobody knows whether the peer has executed what the packet asks for. It is delivered, and so is
/// the one behind it. The link goes down once, and other peers connect. Rows: the peer is killed,
/// or executes another program.
TEST(a_peer_that_ends_while_it_takes_a_packet_back_is_lost_as_others, 2) {
  Child child(take_back_forever);
  Pair pair;
  ck_assert(open_side(pair.a));
  tell(child.channel(), pair.a.name.port());
  pollfd stopped{child.channel(), POLLIN, 0};
  while (::poll(&stopped, 1, 0) == 0) pair.a.poll();
  const unsigned taken_back = unsigned(hear(child.channel()));
  ck_assert_uint_gt(taken_back, 0);
  for (int i = 0; i < 1000; ++i) pair.a.poll();
  const auto& packets = pair.a.sink->packets;
  for (const auto& packet : packets) ck_assert_uint_lt(packet.number(), taken_back);
  const size_t before = packets.size();
  if (_i) {
    tell(child.channel(), 1);
  } else {
    child.kill(SIGKILL);
    ck_assert_int_eq(child.wait(), 1000 + SIGKILL);
  }
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  for (int i = 0; i < 1000; ++i) pair.a.poll();
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNRESET);
  ck_assert_uint_eq(packets.size(), before + 2);
  ck_assert_uint_eq(pair.a.sink->downs[0].packets_before, packets.size());
  for (size_t i = 0; i < 2; ++i) ck_assert_uint_eq(packets[before + i].number(), taken_back + i);
  ck_assert(open_side(pair.b));
  send_some(pair, 3);
}

/// The receiver ends the link while its sender, which lives, takes a packet back.
TEST(a_link_that_ends_waits_for_a_peer_that_takes_a_packet_back, 2) {
  const bool executed = _i;
  Pair pair;
  Link& link = open_hot(pair);
  const iovec nothing{nullptr, 0};
  uint64_t packet = 0;
  ck_assert_int_eq(link.optional().retractable->send(numbered(77), &nothing, 1, 0, packet), 0);
  ck_assert_int_eq(link.send(numbered(78), &nothing, 1, 0, SendHint::none), 0);
  ck_assert(link.optional().retractable->retract(packet));
  auto& ends = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  ends.context().ends.end(ends, -FI_ECONNRESET, *pair.a.sink);
  const auto& packets = pair.a.sink->packets;
  const size_t before = packets.size();
  for (int i = 0; i < 1000; ++i) pair.a.poll();
  ck_assert_uint_eq(packets.size(), before);
  ck_assert(pair.a.sink->downs.empty());
  link.optional().retractable->retracted(packet, executed);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_uint_eq(packets.size(), before + (executed ? 1 : 2));
  ck_assert_uint_eq(packets[before].number(), executed ? 78 : 77);
  ck_assert_uint_eq(packets.back().number(), 78);
}

/// Has received what it waited for after each packet.
struct ServedSink final : transport::NullSink {
  void on_packet(Link& link, const std::byte*, const std::byte*, size_t) noexcept override {
    senders.push_back(link.address());
    x_served = true;
  }
  std::vector<util::SocketAddress> senders;
};

// A sender whose packets follow each other closely does not keep those of others waiting.
TEST(hot_rings_take_turns_where_each_packet_is_enough) {
  Pair pair;
  Side third;
  ck_assert(open_side(pair.a) && open_side(pair.b) && open_side(third));
  Side* senders[] = {&pair.b, &third};
  uint64_t sent = 0;
  for (Side* sender : senders) {
    Link& link = **sender->transport->link_to(pair.a.name);
    while (link.limits().eager <= kSlotPayload) {
      sent += link.send(numbered(0), nullptr, 0, 0, SendHint::none) == 0;
      pair.poll();
      third.poll();
    }
    // The receiver looks into the hot ring from its first entry on.
    sent += link.send(numbered(0), nullptr, 0, 0, SendHint::none) == 0;
    ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == sent; }));
  }
  constexpr size_t kEach = 10;
  for (Side* sender : senders) {
    Link& link = **sender->transport->link_to(pair.a.name);
    for (size_t i = 0; i < kEach; ++i)
      ck_assert_int_eq(link.send(numbered(i), nullptr, 0, 0, SendHint::none), 0);
  }
  ServedSink sink;
  for (size_t i = 1; i <= 2 * kEach; ++i) {
    pair.a.transport->poll(sink);
    ck_assert_uint_eq(sink.senders.size(), i);
    if (i > 1) ck_assert(!(sink.senders[i - 1] == sink.senders[i - 2]));
  }
  // A link that ends delivers all, however little the sink wants.
  Link& link = **third.transport->link_to(pair.a.name);
  for (size_t i = 0; i < kEach; ++i)
    ck_assert_int_eq(link.send(numbered(i), nullptr, 0, 0, SendHint::none), 0);
  third.transport->shutdown();
  sink.senders.clear();
  while (sink.senders.size() < kEach) pair.a.transport->poll(sink);
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

/// A peer that was granted a hot ring and does not poll keeps it only until other peers have sent
/// enough packets.
TEST(a_hot_ring_that_its_peer_never_uses_goes_to_another) {
  transport::shm::Options options;
  options.hot_peers = 1;
  Pair pair;
  Side busy;
  ck_assert(open_side(pair.a, options) && open_side(pair.b) && open_side(busy));
  send_some(pair, 12);
  // The receiver grants the ring while it takes these; the sender does not poll to hear of that.
  const size_t from_idle = pair.a.sink->packets.size() + 8;
  for (uint64_t i = 0; pair.a.sink->packets.size() < from_idle; ++i) {
    (void)pair.b_to_a().send(numbered(i), nullptr, 0, 0, SendHint::none);
    pair.a.poll();
  }
  ck_assert(!is_hot(pair.b_to_a()));
  Link& link = **busy.transport->link_to(pair.a.name);
  const auto send_busy = [&] {
    (void)link.send(numbered(1), nullptr, 0, 0, SendHint::none);
    busy.poll();
    pair.a.poll();
    return is_hot(link);
  };
  bool hot = false;
  for (int i = 0; i < 1'000'000 && !hot; ++i) hot = send_busy();
  ck_assert(hot);
  // The idle peer learns at once that the ring was granted and given up, and its messages arrive.
  send_some(pair, 100);
  ck_assert(pair.poll_until([&] { return !is_hot(pair.b_to_a()); }));
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
  // The peer gets the hot ring once descriptors are available.
  ck_assert(pair.poll_until([&] {
    (void)pair.b_to_a().send(numbered(0), nullptr, 0, 0, SendHint::none);
    return is_hot(pair.b_to_a());
  }));
}

/// Sends one packet that may be taken back, as the first in its hot ring.
uint64_t first_retractable(Pair& pair) {
  const iovec nothing{nullptr, 0};
  uint64_t packet = 0;
  ck_assert_int_eq(pair.b_to_a().optional().retractable->send(numbered(1), &nothing, 1, 0, packet),
                   0);
  return packet;
}

/// Sequence numbers begin anew in each hot ring, so the name of a packet in a former ring must not
/// match a packet in the present one.
TEST(a_packet_of_a_ring_that_was_given_up_is_not_taken_back) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  send_some(pair, 1);
  const iovec nothing{nullptr, 0};
  uint64_t old = 0;
  // send() asks for a hot ring although there are no packets for it yet.
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

/// The end of a used channel is an event, even if the receiver saw its packet and its switch to the
/// hot ring at the same time.
TEST(a_channel_that_brought_a_packet_before_its_switch_is_in_use) {
  transport::shm::Options options;
  options.background = false;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b, options));
  const auto step = [](Side& side) {
    (void)static_cast<transport::shm::ShmTransport&>(*side.transport).step();
  };
  const iovec nothing{nullptr, 0};
  int rc = -FI_EAGAIN;
  for (int i = 0; i < 1000 && rc == -FI_EAGAIN; ++i) {
    rc = pair.b_to_a().send(numbered(1), &nothing, 1, 0, SendHint::none);
    for (Side* side : {&pair.b, &pair.a}) step(*side);
    pair.b.poll();
  }
  ck_assert_int_eq(rc, 0);
  static_cast<transport::shm::ShmLink&>(pair.b_to_a()).out().ask_for_hot();
  for (int i = 0; i < 10; ++i) step(pair.a);
  pair.a.poll();
  for (int i = 0; i < 10 && !is_hot(pair.b_to_a()); ++i) step(pair.b), pair.b.poll();
  ck_assert(is_hot(pair.b_to_a()) && pair.a.sink->packets.empty());
  pair.a.poll();
  ck_assert_uint_eq(pair.a.sink->packets.size(), 1);
  const transport::shm::InChannel* const in =
      static_cast<transport::shm::ShmLink&>(pair.a_to_b()).in();
  ck_assert(in && in->hot() && in->in_use());
}

}  // namespace

}  // namespace erdma::test

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/impostor.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/memfd.h"
#include "transport/shm/ring.h"

/// Tests that processes of the same user that break the rules harm only themselves.
namespace erdma::test {
namespace {

using transport::shm::kSlotPayload;

TEST(noise_in_a_ring_costs_only_that_link, 20) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  uint64_t state = uint64_t(_i) * 7919 + 1;
  auto random = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  Impostor impostor;
  ck_assert(impostor.greet(pair.a.name, own_port(0)));
  for (uint32_t i = 0; i < 200 && pair.a.sink->downs.empty(); ++i) {
    auto& slot = impostor.chunk->slots[impostor.ring][i % transport::shm::kColdSlots];
    for (std::byte& byte : slot.header) byte = std::byte(random());
    for (std::byte& byte : slot.payload) byte = std::byte(random());
    const uint64_t kind = random() % 8;
    const uint64_t length = random() % 8 ? random() % (kSlotPayload + 1) : random() & 0xFFFFFF;
    slot.stamp.store((length | kind << 24) << 32 | (i + 1));
    impostor.chunk->ready.fetch_or(uint64_t(1) << impostor.ring);
    pair.poll();
    pair.poll();
  }
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNRESET);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 5, nullptr, 0), 0);
  ck_assert(pair.poll_until(
      [&] { return !pair.a.sink->packets.empty() && pair.a.sink->packets.back().number() == 5; }));
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
}

/// A write is kept until it is served, and this peer never lets one be served.
TEST(writes_that_are_never_served_do_not_pile_up) {
  using namespace transport::shm;
  Side side;
  ck_assert(open_side(side));
  Impostor peer;
  ck_assert(peer.greet(side.name, own_port(0)));
  transport::Link& link = **side.transport->link_to(address_of("127.0.0.1", own_port(0)));
  std::vector<std::byte> memory(4096);
  const iovec into{memory.data(), memory.size()};
  transport::RemoteKey target, source;
  ck_assert_int_eq(link.share(&into, 1, memory.size(), transport::Access::remote_write, target), 0);
  SharedMemory named;
  named.generation = 1;
  named.count = 1;
  named.length = memory.size();
  named.iov[0] = into;
  encode(named, source);
  RingSender ring(RingMemory::cold(*peer.chunk, peer.ring), 0);
  const uint64_t header[4] = {memory.size()};
  unsigned writes = 0;
  for (; writes < 4 * kMaxShared && side.sink->downs.empty(); ++writes) {
    for (const auto& [kind, remote_key] :
         {std::pair{Kind::write_target, &target}, std::pair{Kind::write_source, &source}}) {
      const iovec payload{remote_key->bytes, remote_key->size};
      for (int i = 0; i < 1000 && side.sink->downs.empty() &&
                      !ring.push(kind, header, &payload, 1, payload.iov_len);
           ++i)
        side.transport->poll(*side.sink);
      peer.chunk->ready.fetch_or(uint64_t(1) << peer.ring);
    }
  }
  ck_assert_uint_le(writes, kMaxShared + 10);
  ck_assert_uint_eq(side.sink->downs.size(), 1);
  link.revoke(target);
}

TEST(an_invalid_control_message_costs_only_that_link) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  const transport::shm::Control messages[] = {
      {transport::shm::ControlType(99), 0},
      {transport::shm::ControlType::demote, 0},    // only receivers send demote
      {transport::shm::ControlType::hot_ring, 0},  // only receivers send hot_ring, and with a memfd
      {transport::shm::ControlType::bulk_memory, 0},  //
  };
  size_t downs = 0;
  for (const auto& message : messages) {
    Impostor impostor;
    ck_assert(impostor.greet(pair.a.name, own_port(unsigned(downs))));
    ck_assert_int_eq(transport::shm::send_message(impostor.socket.get(), &message, sizeof(message)),
                     0);
    ck_assert(pair.poll_until([&] { return pair.a.sink->downs.size() > downs; }));
    ck_assert_int_eq(pair.a.sink->downs[downs++].status, -FI_ECONNRESET);
  }
  ck_assert_int_eq(pair.send(pair.b_to_a(), 5, nullptr, 0), 0);
}

TEST(a_peer_that_connects_is_connected_back_without_a_poll) {
  Side side;
  ck_assert(open_side(side));
  Impostor peer;
  ck_assert(peer.greet(side.name, own_port(0)));
  pollfd knock{peer.listener.get(), POLLIN, 0};
  ck_assert_int_eq(poll(&knock, 1, 20'000), 1);
}

TEST(control_messages_that_nobody_reads_do_not_pile_up) {
  Side side;
  ck_assert(open_side(side));
  Impostor peer;
  ck_assert(peer.greet(side.name, own_port(0)));
  const transport::shm::Control ask{transport::shm::ControlType::promote, 0};
  transport::shm::Control answer{};
  ssize_t heard = -EAGAIN;
  // The endpoint never polls. The loop ends when its connection thread gives up on the peer.
  while (heard == -EAGAIN) {
    (void)transport::shm::send_message(peer.socket.get(), &ask, sizeof(ask));
    heard = transport::shm::receive(peer.socket.get(), &answer, sizeof(answer)).bytes;
  }
  ck_assert_int_eq(heard, sizeof(answer));
  ck_assert(answer.type == transport::shm::ControlType::bye);
  // The endpoint reads nothing more, so further messages fill only the peer's own socket.
  while (!transport::shm::send_message(peer.socket.get(), &ask, sizeof(ask))) continue;
}

TEST(nobody_can_take_the_identity_of_another_process) {
  Pair pair;
  ck_assert(open_side(pair.a));
  Impostor first;
  first.nonce = own_port(0);
  ck_assert(first.greet(pair.a.name, own_port(0)));
  Child child([&](int) {
    Impostor thief;
    thief.nonce = first.nonce;
    return thief.greet_as(pair.a.name, own_port(0)) ? 1 : 0;
  });
  ck_assert_int_eq(child.wait(), 0);
}

/// Runs a thief, forked before there are threads. It is told two ports, and greets the endpoint of
/// the first under the name of the second. Returns 0 if the thief was turned away.
int steal_name(int channel) {
  const uint16_t victim = hear(channel);
  const uint16_t stolen = hear(channel);
  Impostor thief;
  return thief.greet_as(address_of("127.0.0.1", victim), stolen) ? 1 : 0;
}

TEST(a_greeting_under_the_name_of_a_peer_leaves_that_peer_connected) {
  Child child(steal_name);
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1; }));
  tell(child.channel(), pair.a.name.port());
  tell(child.channel(), pair.b.name.port());
  ck_assert_int_eq(child.wait(), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 2, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 2; }));
  ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

TEST(a_greeting_under_the_name_of_a_peer_to_come_is_turned_away) {
  Child child(steal_name);
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  tell(child.channel(), pair.a.name.port());
  tell(child.channel(), pair.b.name.port());
  ck_assert_int_eq(child.wait(), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1; }));
  ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

TEST(a_greeting_under_a_name_that_nobody_listens_to_is_turned_away) {
  Side side;
  ck_assert(open_side(side));
  Impostor nobody;
  ck_assert(!nobody.greet_as(side.name, own_port(0)));
}

/// Answers the endpoint that connects to `listener` under the name of `port`. The answer names a
/// chunk and the ring `index` in it.
void welcome_into(const util::Fd& listener, uint16_t port, uint32_t index) {
  using namespace transport::shm;
  pollfd knock{listener.get(), POLLIN, 0};
  ck_assert_int_eq(poll(&knock, 1, 20'000), 1);
  const util::Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pollfd readable{socket.get(), POLLIN, 0};
  ck_assert_int_eq(poll(&readable, 1, 20'000), 1);
  Hello hello;
  ck_assert_int_eq(receive(socket.get(), &hello, sizeof(hello)).bytes, sizeof(hello));
  auto bell = WakeSocket::open();
  auto chunk = Memfd::create("test", kColdChunkBytes, kColdChunkBytes);
  ck_assert(bool(bell) && bool(chunk));
  Welcome welcome;
  welcome.greeting.boot = boot_id_hash();
  welcome.greeting.nonce = port;
  const auto name = address_of("127.0.0.1", port);
  welcome.greeting.name_bytes = uint32_t(name.size());
  std::memcpy(welcome.greeting.name, name.data(), name.size());
  welcome.greeting.wake_socket = bell->address();
  welcome.ring = index;
  const int fd = chunk->fd();
  ck_assert_int_eq(send_message(socket.get(), &welcome, sizeof(welcome), &fd, 1), 0);
  char nothing;
  (void)!recv(socket.get(), &nothing, 1, 0);  // waits until the endpoint has read the answer
}

/// The chunk has 64 rings. The last one is accepted, and an index beyond it is refused.
TEST(a_ring_that_is_not_in_its_chunk_is_refused, 2) {
  const bool exists = _i == 0;
  const uint16_t port = own_port(0);
  Pair pair;
  ck_assert(open_side(pair.a));
  auto listener = transport::shm::listen_as(address_of("127.0.0.1", port), {});
  ck_assert(bool(listener));
  auto& link = **pair.a.transport->link_to(address_of("127.0.0.1", port));
  using transport::SendHint;
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  std::thread peer(
      [&] { welcome_into(*listener, port, transport::shm::kColdRings - (exists ? 1 : 0)); });
  int sent = -FI_EAGAIN;
  const bool over = pair.poll_until([&] {
    if (sent == -FI_EAGAIN && pair.a.sink->downs.empty())
      sent = link.send(numbered(1), nullptr, 0, 0, SendHint::none);
    return sent != -FI_EAGAIN || !pair.a.sink->downs.empty();
  });
  pair.a.transport->shutdown();
  peer.join();
  ck_assert(over);
  ck_assert_int_eq(sent, exists ? 0 : -FI_EAGAIN);
  if (!exists) ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
}

}  // namespace

}  // namespace erdma::test

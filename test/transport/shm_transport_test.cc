#include "transport/shm/shm_transport.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "libcheck.h"
#include "transport/shm/layout.h"
#include "transport/shm/region_gate.h"
#include "transport/shm_pair.h"

/// Tests peers that die, stop, restart and sleep, with hot and cold rings.
namespace erdma::test {
namespace {

using transport::Link;
using transport::SendHint;
using transport::shm::kSlotPayload;
using transport::shm::Options;

/// Runs a child that greets its parent with packet 0 and then sends numbered packets until it is
/// killed. Sanitizers require that children are forked before their parent has threads.
int flood_parent(int channel) {
  const uint16_t parent_port = hear(channel);
  Pair own;
  if (!open_side(own.a)) return 1;
  Link& link = **own.a.transport->link_to(address_of("127.0.0.1", parent_port));
  for (uint64_t i = 0; own.a.sink->downs.empty(); ++i) {
    if (own.send(link, i, nullptr, 0)) return 2;
    own.a.poll();
  }
  return 0;
}

/// Runs a child that only polls until its parent sends a word.
int idle_child(int channel) {
  Pair own;
  if (!open_side(own.a)) return 1;
  tell(channel, own.a.name.port());
  pollfd fd{channel, POLLIN, 0};
  while (poll(&fd, 1, 0) == 0) own.a.poll();
  return 0;
}

/// Counts the files whose name starts with `prefix`, as other programs use /dev/shm, too.
size_t count_files(const char* directory, const char* prefix = "") {
  DIR* dir = opendir(directory);
  if (!dir) return 0;
  size_t count = 0;
  while (const dirent* entry = readdir(dir))
    count += std::string_view(entry->d_name).starts_with(prefix);
  closedir(dir);
  return count;
}

TEST(packets_cross_processes_in_order) {
  Child child(flood_parent);
  Pair pair;
  ck_assert(open_side(pair.a));
  tell(child.channel(), pair.a.name.port());
  while (pair.a.sink->packets.size() < 20'000) pair.a.poll();
  for (uint64_t i = 0; i < 20'000; ++i)
    if (pair.a.sink->packets[i].number() != i) ck_abort_msg("packet %lu is out of order", i);
}

/// Asks for previews, and compares each with the packet that follows the next one.
struct Previewing final : transport::Sink {
  static uint64_t number_in(const std::byte* header) {
    uint64_t number;
    std::memcpy(&number, header, sizeof(number));
    return number;
  }
  void on_packet(Link&, const std::byte* header, const std::byte*, size_t) noexcept override {
    if (due) ck_assert_uint_eq(number_in(header), due);
    due = std::exchange(announced, 0);
    ++packets;
  }
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(Link&, int) noexcept override {}
  bool wants_previews() const noexcept override { return wanted; }
  void on_preview(Link&, const std::byte* header) noexcept override {
    announced = number_in(header);
    ++previews;
  }
  bool wanted = true;
  uint64_t due = 0, announced = 0;
  int packets = 0, previews = 0;
};

TEST(a_process_without_cma_accesses_no_shared_region) {
  Options options;
  options.cma = false;
  Side side, owner;
  ck_assert(open_side(side, options) && open_side(owner));
  uint64_t memory = 0, local = 0;
  transport::shm::SharedRegion region;
  region.address = reinterpret_cast<uintptr_t>(&memory);
  region.length = sizeof(memory);
  transport::RemoteKey key;
  key.size = sizeof(region);
  std::memcpy(key.bytes, &region, sizeof(region));
  const iovec iov{&local, sizeof(local)};
  Link& link = **side.transport->link_to(owner.name);
  ck_assert_int_eq(link.get({key, 0, sizeof(local)}, &iov, 1, 1), -FI_EOPNOTSUPP);
  ck_assert_int_eq(link.put({key, 0, sizeof(local)}, &iov, 1, 1, true), -FI_EOPNOTSUPP);
}

TEST(packets_in_a_row_are_announced_to_who_wants_it) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1; }));
  for (const bool wanted : {true, false}) {
    Previewing sink;
    sink.wanted = wanted;
    for (uint64_t i = 2; i < 6; ++i) ck_assert_int_eq(pair.send(pair.b_to_a(), i, nullptr, 0), 0);
    while (sink.packets < 4) pair.a.transport->poll(sink);
    ck_assert_int_eq(sink.previews, wanted ? 2 : 0);  // previews of the third and the fourth packet
  }
}

TEST(a_killed_peer_brings_only_its_own_link_down) {
  for (int round = 0; round < 8; ++round) {
    Child victim(flood_parent);
    Pair pair;
    ck_assert(open_side(pair.a) && open_side(pair.b));
    tell(victim.channel(), pair.a.name.port());
    ck_assert_int_eq(pair.send(pair.b_to_a(), 77, nullptr, 0), 0);
    while (pair.a.sink->packets.size() < size_t(2 + round * 137)) pair.poll();
    victim.kill(SIGKILL);
    ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
    ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNRESET);
    const size_t packets = pair.a.sink->packets.size();
    ck_assert_uint_eq(pair.a.sink->downs[0].packets_before, packets);
    ck_assert_int_eq(pair.send(pair.b_to_a(), 78, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == packets + 1; }));
    ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
  }
  ck_assert_uint_eq(count_files("/dev/shm", "erdma"), 0);
}

TEST(a_read_from_a_killed_peer_ends_with_an_error) {
  Child child([](int channel) {
    const uint16_t port = hear(channel);
    Pair own;
    if (!open_side(own.a)) return 1;
    Link& link = **own.a.transport->link_to(address_of("127.0.0.1", port));
    std::vector<std::byte> memory(64 << 20);
    const iovec iov{memory.data(), memory.size()};
    transport::RemoteKey remote_key;
    while (link.share(&iov, 1, memory.size(), transport::Access::remote_read, remote_key))
      own.a.poll();
    if (own.send(link, remote_key.size, remote_key.bytes, remote_key.size)) return 2;
    for (;;) pause();
    return 0;
  });
  Pair pair;
  ck_assert(open_side(pair.a));
  tell(child.channel(), pair.a.name.port());
  while (pair.a.sink->packets.empty()) pair.a.poll();
  const auto& packet = pair.a.sink->packets[0];
  transport::RemoteKey remote_key;
  remote_key.size = uint8_t(packet.number());
  std::memcpy(remote_key.bytes, packet.payload.data(), packet.payload.size());
  std::vector<std::byte> target(64 << 20);
  const iovec iov{target.data(), target.size()};
  ck_assert_int_eq(packet.link->get({remote_key, 0, target.size()}, &iov, 1, 5), 0);
  pair.a.poll();
  child.kill(SIGKILL);
  child.wait();  // waits for the end, as a read from a dying process may succeed
  while (pair.a.sink->downs.empty()) pair.a.poll();
  ck_assert_uint_eq(pair.a.sink->dones.size(), 1);
  ck_assert_uint_eq(pair.a.sink->downs[0].dones_before, 1);
  ck_assert_int_ne(pair.a.sink->dones[0].status, 0);
}

/// Makes the real calls. `before` interrupts the next write.
struct Interrupted final : transport::shm::CmaCalls {
  ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                 size_t remotes) noexcept override {
    if (before) std::exchange(before, nullptr)();
    return transport::shm::CmaCalls::writev(pid, local, locals, remote, remotes);
  }
  std::function<void()> before;
};

TEST(a_link_comes_down_after_a_write_under_way_and_nobody_waits_for_it) {
  Options options;
  options.paths = transport::shm::PathPolicy::cma;
  Interrupted calls;
  Pair pair;
  ck_assert(open_side(pair.a, options));
  auto writer = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), &calls);
  ck_assert(bool(writer));
  pair.b.name = (*writer)->name();
  pair.b.transport = writer->get();
  const std::vector<std::byte> from = pattern(size_t{16} << 20, 1);
  std::vector<std::byte> to(from.size());
  const iovec remote{const_cast<std::byte*>(from.data()), from.size()};
  const iovec local{to.data(), to.size()};
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  transport::RemoteKey remote_key;
  ck_assert_int_eq(
      pair.b_to_a().share(&remote, 1, from.size(), transport::Access::remote_read, remote_key), 0);
  size_t gets = 0, polls = 0;
  calls.before = [&] {
    pair.a_to_b().fail(-FI_EIO);
    for (; polls < 100; ++polls) pair.a.poll();
    ck_assert_uint_eq(pair.a.sink->dones.size() + pair.a.sink->downs.size(), gets - 1);
    ck_assert_int_eq(pair.a_to_b().send(numbered(2), &local, 1, 0, SendHint::none), -FI_EAGAIN);
  };
  // The writer helps once it has mapped the shared page, and again after a request that it left
  // unanswered.
  while (calls.before && gets < 1000) {
    ck_assert_int_eq(pair.a_to_b().get({remote_key, 0, to.size()}, &local, 1, ++gets), 0);
    ck_assert(pair.poll_until([&] {
      return pair.a.sink->dones.size() == gets && (calls.before || !pair.a.sink->downs.empty());
    }));
  }
  ck_assert_uint_eq(polls, 100);
  for (size_t i = 0; i < gets; ++i)
    ck_assert_int_eq(pair.a.sink->dones[i].status, i + 1 < gets ? 0 : -FI_EIO);
  ck_assert_uint_eq(pair.a.sink->downs[0].dones_before, gets);
  pair.b_to_a().revoke(remote_key);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 3, nullptr, 0), 0);  // send() connects again
}

/// Returns the link of b, which can share memory with a.
Link& connect_to_share(Pair& pair) {
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.b_to_a().optional().sharing->possible(); }));
  return pair.b_to_a();
}

TEST(a_target_taken_back_ends_its_write_and_nothing_else_of_the_link) {
  Pair pair;
  Link& owner = connect_to_share(pair);
  const std::vector<std::byte> from = pattern(size_t{8} << 20, 1);
  std::vector<std::byte> to[] = {std::vector<std::byte>(from.size()),
                                 std::vector<std::byte>(from.size())};
  transport::RemoteKey targets[2], region;
  const iovec local{const_cast<std::byte*>(from.data()), from.size()};
  for (size_t i = 0; i < 2; ++i) {
    const iovec memory{to[i].data(), to[i].size()};
    ck_assert_int_eq(
        owner.share(&memory, 1, from.size(), transport::Access::remote_write, targets[i]), 0);
  }
  uint64_t word = 7;
  ck_assert_int_eq(owner.optional().sharing->share({&word, sizeof(word)}, true, true, region), 0);
  for (const size_t i : {1u, 0u}) {
    int rc = -FI_EAGAIN;
    while ((rc = pair.a_to_b().put({targets[i], 0, from.size()}, &local, 1, i, false)) ==
           -FI_EAGAIN)
      pair.b.poll();  // the ring of b has little room
    ck_assert_int_eq(rc, 0);
  }
  while (to[0][0] != from[0]) pair.b.poll();
  ck_assert(pair.a.sink->dones.empty());
  ck_assert_int_eq(owner.revoke(targets[0]), 0);
  std::fill(to[0].begin(), to[0].end(), std::byte{});
  ck_assert(pair.poll_until([&] { return pair.a.sink->dones.size() == 2; }));
  for (const auto& done : pair.a.sink->dones)
    ck_assert_int_eq(done.status, done.token == 0 ? -FI_ECANCELED : 0);
  ck_assert(to[1] == from);
  ck_assert(std::all_of(to[0].begin(), to[0].end(), [](std::byte b) { return b == std::byte{}; }));
  uint64_t here = 9;
  const iovec small{&here, sizeof(here)};
  const size_t before = pair.a.sink->dones.size();
  const int rc = pair.a_to_b().put({region, 0, sizeof(here)}, &small, 1, 5, true);
  ck_assert_int_eq(rc, transport::kDone);
  ck_assert_uint_eq(pair.a.sink->dones.size(), before);
  ck_assert_uint_eq(word, 9);
  ck_assert_int_eq(owner.revoke(targets[1]), 0);
  owner.optional().sharing->revoke(region);
  pair.a_to_b().optional().sharing->on_revoked();
}

/// An owner that revokes memory does not wait for peers that are outside it. Their transfers end as
/// soon as they learn of the revocation.
TEST(nothing_is_written_to_memory_that_was_revoked) {
  Pair pair;
  Link& owner = connect_to_share(pair);
  const std::vector<std::byte> from = pattern(size_t{8} << 20, 1);
  std::vector<std::byte> to(from.size());
  transport::RemoteKey region;
  ck_assert_int_eq(owner.optional().sharing->share({to.data(), to.size()}, true, true, region), 0);
  const iovec local{const_cast<std::byte*>(from.data()), from.size()};
  // put() returns -FI_EBUSY until both sides are connected.
  ck_assert(pair.poll_until([&] {
    return pair.a_to_b().put({region, 0, from.size()}, &local, 1, 5, true) == 0;
  }));
  while (to[0] != from[0]) pair.a.poll();
  ck_assert(pair.a.sink->dones.empty());
  owner.optional().sharing->revoke(region);
  ck_assert(owner.optional().sharing->unused());
  std::fill(to.begin(), to.end(), std::byte{});
  pair.a_to_b().optional().sharing->on_revoked();
  ck_assert(pair.poll_until([&] { return pair.a.sink->dones.size() == 1; }));
  ck_assert_int_eq(pair.a.sink->dones[0].status, -FI_EBUSY);
  ck_assert(std::all_of(to.begin(), to.end(), [](std::byte b) { return b == std::byte{}; }));
}

TEST(a_stopped_peer_is_only_slow) {
  Child child(idle_child);
  Pair pair;
  ck_assert(open_side(pair.a));
  pair.b.name = address_of("127.0.0.1", hear(child.channel()));
  pair.b.transport = pair.a.transport;
  Link& link = pair.a_to_b();
  uint64_t sent = 0;
  for (; sent < 100; ++sent) ck_assert_int_eq(pair.send(link, sent, nullptr, 0), 0);
  child.kill(SIGSTOP);
  const util::SystemClock clock;
  const uint64_t end = clock.now() + 300'000'000;
  uint64_t refused = 0;
  while (clock.now() < end) {
    const int rc = link.send(numbered(sent), nullptr, 0, 0, SendHint::none);
    ck_assert(rc == 0 || rc == -FI_EAGAIN);
    refused += rc != 0;
    pair.a.poll();
  }
  ck_assert_uint_gt(refused, 0);
  ck_assert(pair.a.sink->downs.empty());
  child.kill(SIGCONT);
  for (int i = 0; i < 1000; ++i) ck_assert_int_eq(pair.send(link, sent, nullptr, 0), 0);
  tell(child.channel(), 0);
  ck_assert_int_eq(child.wait(), 0);
}

TEST(a_restarted_peer_of_the_same_name_is_a_new_connection) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  const uint16_t port = pair.b.name.port();
  for (uint64_t round = 0; round < 5; ++round) {
    ck_assert_int_eq(pair.send(pair.b_to_a(), round, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == round + 1; }));
    ck_assert_int_eq(pair.send(pair.a_to_b(), round, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
    pair.b.owned.reset();
    pair.b.own_sink = {};
    ck_assert(open_side(pair.b, {}, port));
    // The new peer may greet before the end of the old one is noticed.
    if (round % 2) continue;
    ck_assert(pair.poll_until([&] { return pair.a.sink->downs.size() == round + 1; }));
  }
}

TEST(a_peer_known_before_and_gone_is_refused_at_once) {
  Options options;
  options.connect_timeout_ns = UINT64_MAX / 2;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  // Without this packet, the peer's own channel may come up, and be lost, after the link has ended.
  ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1; }));
  pair.b.owned.reset();
  while (pair.a.sink->downs.empty()) pair.a.poll();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  while (pair.a.sink->downs.size() < 2) pair.a.poll();
  ck_assert_int_eq(pair.a.sink->downs[1].status, -FI_ECONNREFUSED);
}

TEST(order_holds_while_senders_take_turns_in_one_hot_ring) {
  Options options;
  options.hot_peers = 1;
  Pair pair;
  Side third;
  ck_assert(open_side(pair.a, options) && open_side(pair.b) && open_side(third));
  Side* senders[] = {&pair.b, &third};
  uint64_t next[2] = {};
  uint64_t expected[2] = {};
  size_t seen = 0;
  for (int turn = 0; turn < 8; ++turn) {
    const int who = turn % 2;
    Link& link = **senders[who]->transport->link_to(pair.a.name);
    // The loop runs until the sender has a hot ring, and 500 rounds longer. The other sender has
    // to give up its hot ring.
    for (uint64_t after = 0; after<500; after += link.limits().eager> kSlotPayload) {
      if (!link.send(numbered(next[who]), nullptr, 0, 0, SendHint::none)) ++next[who];
      pair.poll();
      third.poll();
    }
    ck_assert(pair.poll_until([&] {
      third.poll();
      return pair.a.sink->packets.size() == next[0] + next[1];
    }));
    for (; seen < pair.a.sink->packets.size(); ++seen) {
      const auto& packet = pair.a.sink->packets[seen];
      const int from = packet.link->address() == third.name;
      if (packet.number() != expected[from]++) ck_abort_msg("packet %zu is out of order", seen);
    }
  }
}

TEST(many_cold_peers_are_served_across_chunks) {
  constexpr size_t kPeers = 70;  // more than one chunk holds
  Side center;
  ck_assert(open_side(center));
  std::vector<Side> peers(kPeers);
  for (Side& peer : peers) {
    peer.sink = &peer.own_sink;
    ck_assert(open_side(peer));
  }
  for (uint64_t round = 0; round < 3; ++round) {
    for (Side& peer : peers) {
      Link& link = **peer.transport->link_to(center.name);
      while (link.send(numbered(round), nullptr, 0, 0, SendHint::none)) peer.poll(), center.poll();
    }
  }
  while (center.sink->packets.size() < 3 * kPeers) center.poll();
  ck_assert(center.sink->downs.empty());
}

void sleep_until_work(Side& side) {
  if (!side.transport->arm()) return;
  pollfd fd{side.transport->wait_fd(), POLLIN, 0};
  if (poll(&fd, 1, 10'000) != 1) ck_abort_msg("nobody woke the sleeper");
  side.transport->disarm();
}

/// Both sides sleep whenever they have nothing to do. A lost wake-up is a timeout.
void ping_pong_asleep(Side& side, const util::SocketAddress& peer, uint64_t rounds, bool first) {
  Link& link = **side.transport->link_to(peer);
  const size_t burst = 100;  // more than the ring holds: senders sleep for room, too
  for (uint64_t i = 0; i < rounds; ++i) {
    if (first == (i % 2 == 0)) {
      for (size_t k = 0; k < burst; ++k)
        while (link.send(numbered(i), nullptr, 0, 0, SendHint::none) == -FI_EAGAIN)
          if (!side.poll()) sleep_until_work(side);
    } else {
      const size_t until = side.sink->packets.size() + burst - side.sink->packets.size() % burst;
      while (side.sink->packets.size() < until)
        if (!side.poll()) sleep_until_work(side);
      side.sink->packets.clear();
    }
  }
}

TEST(no_wake_up_is_lost_between_two_sleepers) {
  Side a, b;
  ck_assert(open_side(a) && open_side(b));
  std::thread other([&] { ping_pong_asleep(b, a.name, 2'000, false); });
  ping_pong_asleep(a, b.name, 2'000, true);
  other.join();
}

TEST(no_wake_up_is_lost_between_sleeper_and_sender) {
  Side a, b;
  ck_assert(open_side(a) && open_side(b));
  constexpr uint64_t kRounds = 20'000;
  std::atomic<uint64_t> received = 0;
  std::thread other([&] {
    while (received.load() < kRounds) {
      if (!b.poll()) sleep_until_work(b);
      received.store(b.sink->packets.size());
    }
  });
  Link& link = **a.transport->link_to(b.name);
  for (uint64_t i = 0; i < kRounds; ++i) {
    while (link.send(numbered(i), nullptr, 0, 0, SendHint::none)) a.poll();
    while (received.load() <= i) a.poll();
  }
  other.join();
}

/// Polls `side` until it has nothing to do and has told its senders so.
void fall_asleep(Side& side) {
  while (!side.transport->arm()) side.poll();
}

/// A hostile peer of the same user can misuse its own end of the wake-up socket.
TEST(a_peer_that_reads_no_wake_ups_neither_blocks_its_sender_nor_takes_them_from_others) {
  Pair pair;
  Side third;
  ck_assert(open_side(pair.a) && open_side(pair.b) && open_side(third));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  Link& to_third = **pair.a.transport->link_to(third.name);
  while (to_third.send(numbered(0), nullptr, 0, 0, SendHint::none)) pair.a.poll(), third.poll();
  while (third.sink->packets.empty()) third.poll();
  fall_asleep(pair.b);
  // If the wake-up descriptor were an eventfd, it would now be full, and a blocking write to it
  // would hang.
  const int fd = pair.b.transport->wait_fd();
  const uint64_t full = UINT64_MAX - 1;
  (void)!::write(fd, &full, sizeof(full));
  ck_assert_int_eq(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK), 0);
  for (uint64_t i = 1; i < 3'000; ++i) {
    ck_assert_int_eq(pair.send(pair.a_to_b(), i, nullptr, 0), 0);
    fall_asleep(pair.b);
  }
  fall_asleep(third);
  ck_assert_int_eq(to_third.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  pollfd woken{third.transport->wait_fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&woken, 1, 20'000), 1);
  ck_assert(pair.a.sink->downs.empty());
}

TEST(a_forked_child_destroys_its_copy_without_harm) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  Child child([&](int) {
    pair.a.owned.reset();
    pair.b.owned.reset();
    return 0;
  });
  ck_assert_int_eq(child.wait(), 0);
  for (uint64_t i = 0; i < 1000; ++i) ck_assert_int_eq(pair.send(pair.a_to_b(), i, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1001; }));
  ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
}

TEST(a_child_that_holds_the_sockets_does_not_hide_a_death) {
  Child child([](int channel) {
    const uint16_t port = hear(channel);
    Pair own;
    if (!open_side(own.a)) return 1;
    if (own.send(**own.a.transport->link_to(address_of("127.0.0.1", port)), 1, nullptr, 0))
      return 2;
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      for (;;) pause();
    }
    (void)!::write(channel, &grandchild, sizeof(grandchild));
    for (;;) pause();
    return 0;
  });
  Pair pair;
  ck_assert(open_side(pair.a));
  tell(child.channel(), pair.a.name.port());
  pid_t grandchild = 0;
  ck_assert_int_eq(read(child.channel(), &grandchild, sizeof(grandchild)), sizeof(grandchild));
  while (pair.a.sink->packets.empty()) pair.a.poll();
  child.kill(SIGKILL);
  while (pair.a.sink->downs.empty()) pair.a.poll();
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNRESET);
  kill(grandchild, SIGKILL);
}

TEST(an_endpoint_that_closes_leaves_no_descriptor) {
  const size_t before = count_files("/proc/self/fd");
  {
    Pair pair;
    ck_assert(open_side(pair.a) && open_side(pair.b));
    for (uint64_t i = 0; i < 100; ++i) {
      ck_assert_int_eq(pair.send(pair.a_to_b(), i, nullptr, 0), 0);
      ck_assert_int_eq(pair.send(pair.b_to_a(), i, nullptr, 0), 0);
    }
  }
  ck_assert_uint_eq(count_files("/proc/self/fd"), before);
}

TEST(a_peer_costs_four_descriptors) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  std::vector<Side> peers(10);
  size_t before = 0;
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].sink = &peers[i].own_sink;
    if (i == 1) before = count_files("/proc/self/fd");
    ck_assert(open_side(peers[i]));
    for (Side* sender : {&peers[i], &pair.a}) {
      Side& receiver = sender == &pair.a ? peers[i] : pair.a;
      Link& link = **sender->transport->link_to(receiver.name);
      const size_t packets = receiver.sink->packets.size();
      while (link.send(numbered(1), nullptr, 0, 0, SendHint::none)) peers[i].poll(), pair.a.poll();
      while (receiver.sink->packets.size() == packets) peers[i].poll(), pair.a.poll();
    }
  }
  // The limit counts the descriptors of both sides, and those of each new endpoint: listener,
  // reserved name, epoll, doorbell, eventfd and memfd.
  ck_assert_uint_le(count_files("/proc/self/fd") - before, (2 * 4 + 6) * 9);
}

}  // namespace

}  // namespace erdma::test

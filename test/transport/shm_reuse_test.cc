#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/impostor.h"
#include "transport/shm/link_context.h"
#include "transport/shm/memfd.h"

/// Tests that the resources of a peer are given to another one only once the former peer can no
/// longer access them (docs/architecture.md, "Reuse").
namespace erdma::test {
namespace {

using transport::Access;
using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

constexpr uint64_t kRingful = transport::shm::kColdSlots;

Link& link_from(Side& side, const Side& to) {
  return **side.transport->link_to(to.name);
}

/// Sends one packet. Polls only these two endpoints.
bool send_between(Side& from, Side& to, uint64_t number) {
  Link& link = link_from(from, to);
  const size_t packets = to.sink->packets.size();
  const util::SystemClock clock;
  const uint64_t end = clock.now() + 20'000'000'000;
  int rc = -EAGAIN;
  while (rc == -EAGAIN || (rc == 0 && to.sink->packets.size() == packets)) {
    if (rc == -EAGAIN) rc = link.send(numbered(number), nullptr, 0, 0, SendHint::none);
    from.poll();
    to.poll();
    if (clock.now() > end) return false;
  }
  return rc == 0;
}

/// Makes `side` end its link to a living peer.
bool end_link(Side& side, const Side& peer) {
  link_from(side, peer).fail(-FI_EIO);
  const size_t downs = side.sink->downs.size();
  for (int i = 0; i < 1000 && side.sink->downs.size() == downs; ++i) side.poll();
  return side.sink->downs.size() == downs + 1;
}

TEST(what_is_sent_over_a_link_that_the_receiver_ended_is_nobody_elses) {
  Side receiver, former, next;
  ck_assert(open_side(receiver) && open_side(former) && open_side(next));
  for (uint64_t i = 0; i < kRingful; ++i) ck_assert(send_between(former, receiver, 0xA0 + i));
  ck_assert(end_link(receiver, former));
  // The next peer sends as many packets, so its ring is at the number that the former peer would
  // use next.
  for (uint64_t i = 0; i < kRingful; ++i) ck_assert(send_between(next, receiver, 0xB0 + i));
  receiver.sink->packets.clear();
  // The former peer has not polled, so it does not know of the end yet.
  ck_assert_int_eq(link_from(former, receiver).send(numbered(0xAA), nullptr, 0, 0, SendHint::none),
                   0);
  for (int i = 0; i < 100; ++i) receiver.poll();
  ck_assert_uint_eq(receiver.sink->packets.size(), 0);
  for (uint64_t i = 0; i < 2 * kRingful; ++i) {
    ck_assert(send_between(next, receiver, 0xC0 + i));
    ck_assert_uint_eq(receiver.sink->packets.size(), i + 1);
    ck_assert_uint_eq(receiver.sink->packets[i].number(), 0xC0 + i);
    ck_assert_ptr_eq(receiver.sink->packets[i].link, &link_from(receiver, next));
  }
}

TEST(a_late_goodbye_does_not_end_the_next_channel) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert(send_between(pair.b, pair.a, 1) && send_between(pair.a, pair.b, 1));
  ck_assert(end_link(pair.a, pair.b));
  // Both channels come up again before b has polled: its background thread answers.
  Link& again = pair.a_to_b();
  while (again.send(numbered(2), nullptr, 0, 0, SendHint::none)) pair.a.poll();
  while (!again.optional().sharing->possible()) pair.a.poll();
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 2; }));
  const std::vector<std::byte> from = pattern(size_t{1} << 20, 1);
  std::vector<std::byte> to(from.size());
  const iovec remote{const_cast<std::byte*>(from.data()), from.size()};
  const iovec local{to.data(), to.size()};
  RemoteKey remote_key;
  int rc = -EAGAIN;
  ck_assert(pair.poll_until([&] {
    rc = pair.b_to_a().share(&remote, 1, from.size(), Access::remote_read, remote_key);
    return rc != -EAGAIN;
  }));
  ck_assert_int_eq(rc, 0);
  ck_assert_int_eq(pair.a_to_b().get({remote_key, 0, to.size()}, &local, 1, 7), 0);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->dones.empty(); }));
  ck_assert_int_eq(pair.a.sink->dones[0].status, 0);
  ck_assert(from == to);
  pair.b_to_a().revoke(remote_key);
}

/// Two endpoints without threads. The connectors make their steps when the test says so.
struct SteppedPair : Pair {
  SteppedPair() {
    transport::shm::Options options;
    options.background = false;
    ck_assert(open_side(a, options) && open_side(b, options));
    send_from(a, b, 1);
    send_from(b, a, 1);
    for (int i = 0; i < 100 && a.sink->packets.size() + b.sink->packets.size() < 2; ++i) poll();
    ck_assert_uint_eq(a.sink->packets.size() + b.sink->packets.size(), 2);
  }
  void step() {
    for (int i = 0; i < 100; ++i)
      for (Side* side : {&a, &b})
        (void)static_cast<transport::shm::ShmTransport&>(*side->transport).step();
  }
  void send_from(Side& from, Side& to, uint64_t number) {
    Link& link = link_from(from, to);
    int rc = -FI_EAGAIN;
    for (int i = 0; i < 1000 && rc == -FI_EAGAIN; ++i) {
      rc = link.send(numbered(number), nullptr, 0, 0, SendHint::none);
      step();
      from.poll();
    }
    ck_assert_int_eq(rc, 0);
  }
};

/// While the receiver's link still ends, the peer connects again, and the receiver's connector
/// connects back. Both channels belong to the next link.
TEST(a_channel_back_that_comes_before_the_link_has_ended_belongs_to_the_next_one) {
  SteppedPair pair;
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  link.context().ends.end(link, -FI_ECONNRESET, *pair.a.sink);
  pair.step();
  pair.b.poll();
  ck_assert_uint_eq(pair.b.sink->downs.size(), 1);
  pair.send_from(pair.b, pair.a, 2);
  ck_assert_ptr_nonnull(static_cast<transport::shm::ShmLink&>(pair.b_to_a()).in());
  ck_assert(link.phase().state == transport::shm::LinkState::ending);
  pair.a.poll();
  ck_assert(link.phase().state == transport::shm::LinkState::up);
  for (int i = 0; i < 10; ++i) pair.step(), pair.poll();
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
  ck_assert_uint_eq(pair.b.sink->downs.size(), 1);
  ck_assert_uint_eq(pair.a.sink->packets.back().number(), 2);
}

/// Makes `side` end its link to an impostor that still has its ring.
void greet_and_be_ended(Impostor& impostor, Side& side, uint16_t as) {
  ck_assert(impostor.greet(side.name, as));
  Link& link = **side.transport->link_to(address_of("127.0.0.1", as));
  const util::SystemClock clock;
  const uint64_t end = clock.now() + 20'000'000'000;
  // The link comes up.
  while (!link.optional().sharing->possible() && clock.now() < end) side.poll();
  Side peer;
  peer.name = link.address();
  ck_assert(end_link(side, peer));
}

TEST(a_ring_is_given_out_again_once_its_sender_has_shut_its_socket_down) {
  Side side;
  ck_assert(open_side(side));
  Impostor former, next, last;
  greet_and_be_ended(former, side, own_port(1));
  ck_assert(next.greet(side.name, own_port(2)));
  ck_assert_uint_ne(next.ring, former.ring);
  ck_assert_int_eq(shutdown(former.socket.get(), SHUT_RDWR), 0);
  ck_assert(last.greet(side.name, own_port(3)));  // arrives after the shutdown
  ck_assert_uint_eq(last.ring, former.ring);
}

/// Runs a peer that greets the endpoint of the port it is told, and sends the index of its ring.
/// When it is killed, its child still has its socket.
int greet_and_fork(int channel) {
  Impostor impostor;
  if (!impostor.greet(address_of("127.0.0.1", hear(channel)), own_port(1))) return 1;
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  tell(channel, uint16_t(impostor.ring));
  (void)!::write(channel, &child, sizeof(child));
  for (;;) pause();
  return 0;
}

TEST(a_ring_is_given_out_again_once_its_sender_is_dead) {
  Child child(greet_and_fork);
  Side side;
  ck_assert(open_side(side));
  tell(child.channel(), side.name.port());
  const uint32_t ring = hear(child.channel());
  pid_t grandchild = 0;
  ck_assert_int_eq(read(child.channel(), &grandchild, sizeof(grandchild)), sizeof(grandchild));
  Side peer;
  peer.name = address_of("127.0.0.1", own_port(1));
  while (!link_from(side, peer).optional().sharing->possible()) side.poll();
  ck_assert(end_link(side, peer));
  Impostor before;
  ck_assert(before.greet(side.name, own_port(2)));
  ck_assert_uint_ne(before.ring, ring);
  child.kill(SIGKILL);
  child.wait();
  Impostor after;  // the endpoint hears of the exit before this greeting
  ck_assert(after.greet(side.name, own_port(3)));
  ck_assert_uint_eq(after.ring, ring);
  // The grandchild also has the listening socket, with a port that the next test uses.
  const util::Fd ended(int(syscall(SYS_pidfd_open, grandchild, 0)));
  ck_assert(bool(ended));
  kill(grandchild, SIGKILL);
  pollfd end{ended.get(), POLLIN, 0};
  ck_assert_int_eq(::poll(&end, 1, -1), 1);
}

TEST(a_peer_that_never_closes_gets_no_rings_without_end) {
  Side side, other;
  ck_assert(open_side(side) && open_side(other));
  auto listening = transport::shm::listen_as(address_of("127.0.0.1", own_port(1)), {});
  ck_assert(bool(listening));
  std::vector<Impostor> impostors(100);
  size_t greeted = 0;
  for (Impostor& impostor : impostors) {
    impostor.nonce = 1000 + greeted;  // a new nonce looks like a restart
    if (!impostor.greet_as(side.name, own_port(1))) break;
    ++greeted;
    side.poll();
  }
  ck_assert_uint_gt(greeted, 8);
  ck_assert_uint_lt(greeted, impostors.size());
  ck_assert(send_between(other, side, 5));
  impostors.clear();
  // The endpoint learns of the closed sockets before the next greeting and after this poll.
  for (int i = 0; i < 100; ++i) side.poll();
  Impostor again;
  const util::SystemClock clock;
  const uint64_t end = clock.now() + 20'000'000'000;
  while (!again.greet_as(side.name, own_port(1)) && clock.now() < end) side.poll();
  ck_assert_ptr_nonnull(again.chunk);
}

/// Stands in for a receiver: accepts one connection and gives it a ring.
struct FalseReceiver {
  util::Fd listener, socket;
  transport::shm::WakeSocket wake_socket;
  transport::shm::Memfd chunk;

  bool listen(uint16_t as) {
    auto listening = transport::shm::listen_as(address_of("127.0.0.1", as), {});
    auto segment = transport::shm::Memfd::create("test", transport::shm::kColdChunkBytes,
                                                 transport::shm::kShmPage);
    auto bell = transport::shm::WakeSocket::open();
    if (!listening || !segment || !bell) return false;
    wake_socket = std::move(*bell);
    listener = std::move(*listening);
    chunk = std::move(*segment);
    return true;
  }
  /// Call this after a peer has connected.
  bool welcome(uint16_t as) {
    pollfd knock{listener.get(), POLLIN, 0};
    if (poll(&knock, 1, 20'000) != 1) return false;
    socket.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    transport::shm::Welcome answer;
    answer.greeting.boot = transport::shm::boot_id_hash();
    answer.greeting.nonce = as;
    const auto name = address_of("127.0.0.1", as);
    answer.greeting.wake_socket = wake_socket.address();
    answer.greeting.name_bytes = uint32_t(name.size());
    std::memcpy(answer.greeting.name, name.data(), name.size());
    const int fd = chunk.fd();
    return !transport::shm::send_message(socket.get(), &answer, sizeof(answer), &fd, 1);
  }
};

/// Reads the messages on `socket` up to a goodbye.
bool hears_goodbye(int socket) {
  transport::shm::Control heard{};
  while (heard.type != transport::shm::ControlType::bye) {
    pollfd readable{socket, POLLIN, 0};
    if (poll(&readable, 1, 20'000) != 1) return false;
    (void)transport::shm::receive(socket, &heard, sizeof(heard));
  }
  return true;
}

TEST(a_sender_shuts_its_socket_down_when_it_polls_and_not_before) {
  Side side;
  ck_assert(open_side(side));
  FalseReceiver receiver;
  ck_assert(receiver.listen(own_port(1)));
  Link& link = **side.transport->link_to(address_of("127.0.0.1", own_port(1)));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(receiver.welcome(own_port(1)));
  while (link.send(numbered(1), nullptr, 0, 0, SendHint::none)) side.poll();
  // A receiver never sends this message. The connection thread ends the channel at once, and says
  // so.
  const transport::shm::Control wrong{transport::shm::ControlType::promote, 0};
  const int socket = receiver.socket.get();
  ck_assert_int_eq(transport::shm::send_message(socket, &wrong, sizeof(wrong)), 0);
  ck_assert(hears_goodbye(socket));
  pollfd over{socket, POLLRDHUP, 0};
  ck_assert_int_eq(poll(&over, 1, 0), 0);
  ck_assert_int_eq(link.send(numbered(2), nullptr, 0, 0, SendHint::none),
                   0);  // the sender may write
  while (side.sink->downs.empty()) side.poll();
  ck_assert_int_eq(poll(&over, 1, 20'000), 1);
}

/// Sends one packet and, if `leaves`, gives up the ring.
void send_from(Impostor& peer, uint64_t number, bool leaves) {
  using namespace transport::shm;
  RingSender ring(RingMemory::cold(*peer.chunk, peer.ring), 0);
  const transport::Header header = numbered(number);
  ck_assert(ring.push(Kind::packet, &header, nullptr, 0, 0));
  peer.chunk->ready.fetch_or(uint64_t{1} << peer.ring);
  if (leaves) store_release(peer.chunk->controls[peer.ring].left, uint32_t(SenderState::left));
}

TEST(a_channel_that_waits_for_the_end_of_a_link_comes_before_the_next) {
  Side side;
  ck_assert(open_side(side));
  FalseReceiver receiver;
  ck_assert(receiver.listen(own_port(1)));
  Link& link = **side.transport->link_to(address_of("127.0.0.1", own_port(1)));
  ck_assert_int_eq(link.send(numbered(9), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(receiver.welcome(own_port(1)));
  while (link.send(numbered(9), nullptr, 0, 0, SendHint::none)) side.poll();
  link.fail(-FI_EIO);
  // Before the next poll, three events occur: a channel opens that has to wait for the end of the
  // link, the link ends, and a channel opens that need not wait.
  Impostor former, next;
  former.nonce = next.nonce = own_port(1);
  ck_assert(former.greet_as(side.name, own_port(1)));
  send_from(former, 1, true);
  const transport::shm::Control bye{transport::shm::ControlType::bye, -FI_ESHUTDOWN};
  ck_assert_int_eq(transport::shm::send_message(receiver.socket.get(), &bye, sizeof(bye)), 0);
  ck_assert(hears_goodbye(receiver.socket.get()));
  ck_assert(next.greet_as(side.name, own_port(1)));
  send_from(next, 2, false);
  while (side.sink->packets.size() < 2) side.poll();
  ck_assert_uint_eq(side.sink->packets[0].number(), 1);
  ck_assert_uint_eq(side.sink->packets[1].number(), 2);
  ck_assert_uint_eq(side.sink->downs.size(), 2);
}

/// The system's clock, `ahead` nanoseconds in the future.
struct Ahead final : util::Clock {
  uint64_t now() const noexcept override { return util::SystemClock().now() + ahead; }
  std::atomic<uint64_t> ahead = 0;
};

/// Counts the calls on the process `watched`. If `instead` is set, it answers them. `after` runs
/// after each write.
struct Watching final : transport::shm::CmaCalls {
  ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                size_t remotes) noexcept override {
    if (pid == watched && instead) return ++calls, instead(local->iov_len);
    return CmaCalls::readv(pid, local, locals, remote, remotes);
  }
  ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                 size_t remotes) noexcept override {
    if (pid == watched && instead) return ++calls, instead(local->iov_len);
    const ssize_t moved = CmaCalls::writev(pid, local, locals, remote, remotes);
    if (pid == watched && after) after(moved);
    return moved;
  }
  std::atomic<pid_t> watched = -1;  ///< atomic, as the connector reads it, too
  std::function<ssize_t(size_t)> instead;
  std::function<void(ssize_t)> after;
  int calls = 0;
};

constexpr size_t kSharedBytes = 256 * 1024;

/// Greets its parent, shares the same memory with it as a region and for one transfer, and polls
/// until it is told to end. If it is told 1, it executes another program.
int share_with_parent(int channel) {
  static std::byte memory[kSharedBytes];
  const iovec all{memory, sizeof(memory)};
  const uint16_t parent = hear(channel);
  Pair own;
  transport::shm::Options options;
  options.paths = transport::shm::PathPolicy::cma;
  if (!open_side(own.a, options)) return 1;
  Link& link = **own.a.transport->link_to(address_of("127.0.0.1", parent));
  RemoteKey region, shared;
  while (link.share(&all, 1, sizeof(memory), Access::remote_read, shared)) own.a.poll();
  while (!link.optional().sharing->possible()) own.a.poll();
  if (link.optional().sharing->share(all, true, true, region)) return 2;
  if (own.send(link, region.size, region.bytes, region.size)) return 3;
  if (own.send(link, shared.size, shared.bytes, shared.size)) return 4;
  pollfd fd{channel, POLLIN, 0};
  while (poll(&fd, 1, 0) == 0) own.a.poll();
  if (hear(channel) == 1) execl("/bin/sleep", "sleep", "1000", nullptr);
  return 5;
}

/// An endpoint, and a peer in another process that shares a region with it.
struct SharedByChild {
  Child child{share_with_parent};
  Ahead clock;
  Watching calls;
  Side side;
  RemoteKey region, shared;
  Link* link = nullptr;
  std::byte bytes[kSharedBytes] = {};

  void find_or_add_process() {
    transport::shm::Options options;
    options.paths = transport::shm::PathPolicy::cma;
    auto opened =
        transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), &calls, &clock);
    ck_assert(bool(opened));
    side.name = (*opened)->name();
    side.transport = opened->get();
    side.owned = std::move(*opened);
    calls.watched = child.pid();
    tell(child.channel(), side.name.port());
    while (side.sink->packets.size() < 2) side.poll();
    keep(side.sink->packets[0], region);
    keep(side.sink->packets[1], shared);
    link = side.sink->packets[0].link;
    while (access(transport::shm::CmaCall::write, 8) != transport::kDone) side.poll();
  }
  static void keep(const RecordingSink::Packet& packet, RemoteKey& remote_key) {
    remote_key.size = uint8_t(packet.number());
    std::memcpy(remote_key.bytes, packet.payload.data(), packet.payload.size());
  }
  int access(transport::shm::CmaCall call, size_t length) {
    const transport::RemoteRange remote{region, 0, length};
    const iovec local{bytes, length};
    return call == transport::shm::CmaCall::read ? link->get(remote, &local, 1, 5)
                                                 : link->put(remote, &local, 1, 5, true);
  }
  void kill_and_reap() {
    child.kill(SIGKILL);
    child.wait();  // another process may have the pid from now on
  }
};

constexpr transport::shm::CmaCall kCalls[] = {transport::shm::CmaCall::read,
                                              transport::shm::CmaCall::write};

TEST(the_pid_of_a_peer_that_died_unnoticed_is_not_called, 2) {
  SharedByChild rig;
  rig.find_or_add_process();
  ck_assert_int_eq(rig.access(kCalls[_i], 1024), transport::kDone);
  rig.kill_and_reap();
  rig.calls.instead = [](size_t length) { return ssize_t(length); };
  rig.clock.ahead += 1'000'000;
  ck_assert_int_eq(rig.access(kCalls[_i], 1024), -FI_EBUSY);
  // One read may be called until the connection thread learns of the end. The nonce, for which it
  // calls again, then shows whose memory it read.
  ck_assert_int_le(rig.calls.calls, kCalls[_i] == transport::shm::CmaCall::write ? 0 : 2);
}

TEST(an_access_during_which_the_peer_died_has_not_succeeded, 2) {
  SharedByChild rig;
  rig.find_or_add_process();
  rig.calls.instead = [&](size_t length) {
    if (rig.child.pid() > 0) rig.kill_and_reap();
    return ssize_t(length);  // a successor with this pid would return this
  };
  ck_assert_int_eq(rig.access(kCalls[_i], 1024), -FI_EBUSY);
  ck_assert_int_eq(rig.calls.calls, 2);  // the second one asks for the nonce
}

TEST(an_access_for_which_the_kernel_lacks_memory_is_possible_later, 2) {
  SharedByChild rig;
  rig.find_or_add_process();
  rig.calls.instead = [](size_t) { return -ENOMEM; };
  ck_assert_int_eq(rig.access(kCalls[_i], 1024), -FI_EBUSY);
  rig.calls.instead = nullptr;
  ck_assert_int_eq(rig.access(kCalls[_i], 1024), transport::kDone);
}

/// A peer that sees the bytes may end at once, before the writer runs again. Rows: a write of one
/// call, and one that poll() moves.
TEST(a_write_after_which_the_peer_died_has_succeeded, 2) {
  constexpr size_t kLengths[] = {1024, kSharedBytes};
  const size_t length = kLengths[_i];
  SharedByChild rig;
  rig.find_or_add_process();
  rig.child.kill(SIGSTOP);  // it would move some of the bytes itself
  size_t written = 0;
  rig.calls.after = [&](ssize_t moved) {
    written += size_t(moved);
    if (written == length) rig.kill_and_reap();
  };
  const int rc = rig.access(transport::shm::CmaCall::write, length);
  if (rc == 0) {
    while (rig.side.sink->dones.empty()) rig.side.poll();
    ck_assert_int_eq(rig.side.sink->dones[0].status, 0);
  } else {
    ck_assert_int_eq(rc, transport::kDone);
  }
  ck_assert_uint_eq(written, length);
}

/// poll() moves longer transfers. Rows: a region that is read, a region that is written, and memory
/// that was shared for one transfer.
TEST(a_transfer_during_which_the_peer_died_has_not_succeeded, 3) {
  SharedByChild rig;
  rig.find_or_add_process();
  rig.calls.instead = [&](size_t length) {
    if (rig.child.pid() > 0) rig.kill_and_reap();
    return ssize_t(length);
  };
  const iovec local{rig.bytes, kSharedBytes};
  const int rc = _i < 2 ? rig.access(kCalls[_i], kSharedBytes)
                        : rig.link->get({rig.shared, 0, kSharedBytes}, &local, 1, 5);
  ck_assert_int_eq(rc, 0);
  while (rig.side.sink->dones.empty()) rig.side.poll();
  ck_assert_int_gt(rig.calls.calls, 0);
  ck_assert_int_ne(rig.side.sink->dones[0].status, 0);
}

TEST(a_peer_that_executes_another_program_is_not_called_for_long) {
  SharedByChild rig;
  rig.find_or_add_process();
  rig.calls.instead = [](size_t length) { return ssize_t(length); };
  tell(rig.child.channel(), 1);
  // No thread polls the child: the connection thread sees that its sockets are closed.
  while (rig.access(transport::shm::CmaCall::write, 1024) == transport::kDone) continue;
  ck_assert_int_eq(kill(rig.child.pid(), 0), 0);
  // It has not closed its endpoint in order, so receives that wait for it must fail.
  while (rig.side.sink->downs.empty()) rig.side.poll();
  ck_assert_int_eq(rig.side.sink->downs[0].status, -FI_ECONNRESET);
}

/// The peer lives, but does not show it, and its sockets are open. So only the nonce shows that the
/// memory is not the peer's.
TEST(a_read_without_the_nonce_has_not_succeeded) {
  SharedByChild rig;
  rig.find_or_add_process();
  static_cast<transport::shm::ShmLink*>(rig.link)->direct().peer().life = nullptr;
  rig.calls.instead = [](size_t length) { return ssize_t(length); };
  ck_assert_int_eq(rig.access(transport::shm::CmaCall::read, 1024), -FI_EBUSY);
  ck_assert_int_eq(rig.calls.calls, 2);
}

/// Blocks a connection thread when it asks for the second time which process is at the other end of
/// a socket.
struct Gated final : transport::shm::CmaCalls {
  pid_t pid_of(int socket, const util::SocketAddress& name) noexcept override {
    if (++looks == 2) open.wait(false);
    return CmaCalls::pid_of(socket, name);
  }
  int looks = 0;
  std::atomic<bool> open = false;
};

TEST(what_was_revoked_before_the_peer_knew_its_channel_is_not_touched) {
  Gated calls;
  Pair pair;
  ck_assert(open_side(pair.a));
  auto peer = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), &calls);
  ck_assert(bool(peer));
  pair.b.name = (*peer)->name();
  pair.b.transport = peer->get();
  // The owner connects. The peer's connection thread has heard of the channel back, and reports it
  // only once the gate opens.
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
  ck_assert(pair.poll_until([&] { return pair.a_to_b().optional().sharing->possible(); }));
  uint64_t memory = 0;
  const uint64_t news = 7;
  const iovec all{&memory, sizeof(memory)};
  const iovec local{const_cast<uint64_t*>(&news), sizeof(news)};
  RemoteKey region;
  ck_assert_int_eq(pair.a_to_b().optional().sharing->share(all, true, true, region), 0);
  const transport::RemoteRange remote{region, 0, sizeof(memory)};
  pair.a_to_b().optional().sharing->revoke(region);
  ck_assert(pair.a_to_b().optional().sharing->unused());
  ck_assert_int_eq(pair.b_to_a().put(remote, &local, 1, 5, true), -FI_EBUSY);
  calls.open = true;
  calls.open.notify_all();
  ck_assert_int_eq(pair.send(pair.b_to_a(), 2, nullptr, 0), 0);
  ck_assert_int_eq(pair.b_to_a().put(remote, &local, 1, 5, true), -FI_EBUSY);
  ck_assert_uint_eq(memory, 0);
  pair.b_to_a().optional().sharing->on_revoked();
  ck_assert_int_eq(pair.a_to_b().optional().sharing->share(all, true, true, region), 0);
  ck_assert_int_eq(pair.b_to_a().put(remote, &local, 1, 5, true), transport::kDone);
  ck_assert_uint_eq(memory, news);
}

}  // namespace

}  // namespace erdma::test

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm/wire.h"
#include "transport/shm_pair.h"

/// Tests that an endpoint keeps serving its peers, whatever strangers send to its socket.
namespace erdma::test {
namespace {

using transport::SendHint;
using transport::shm::connect_as_peer;
using transport::shm::NameScope;
using transport::shm::Options;

/// Fails unless a packet from a new endpoint reaches `side`.
void expect_alive(Side& side) {
  Pair pair;
  ck_assert(open_side(pair.a));
  pair.b.name = side.name;
  pair.b.transport = side.transport;
  pair.b.sink = side.sink;
  const size_t before = side.sink->packets.size();
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return side.sink->packets.size() > before; }));
}

/// Returns true once the other end has closed its socket.
bool closes(int socket) {
  for (;;) {
    pollfd fd{socket, POLLIN, 0};
    if (poll(&fd, 1, 20'000) != 1) return false;
    char buffer[4096];
    const ssize_t bytes = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN)) return true;
  }
}

TEST(a_free_port_is_picked_when_none_is_named) {
  Side a, b;
  ck_assert(open_side(a) && open_side(b));
  ck_assert_uint_ge(a.name.port(), 32768);
  ck_assert_uint_le(a.name.port(), 60999);
  ck_assert(!(a.name == b.name));
}

TEST(an_explicit_port_in_use_is_refused) {
  Side a;
  ck_assert(open_side(a));
  ck_assert_int_eq(open_shm({}, a.name.port()).error(), -FI_EADDRINUSE);
  const uint16_t port = a.name.port();
  a.owned.reset();
  ck_assert_int_eq(open_shm({}, port).error(), 0);
}

TEST(two_addresses_of_a_host_can_use_the_same_port) {
  Options options;
  options.scope = NameScope::address;
  auto a = transport::shm::ShmTransport::open(options, address_of("10.1.2.3", 0));
  ck_assert(bool(a));
  auto b = transport::shm::ShmTransport::open(options, address_of("10.1.2.4", (*a)->name().port()));
  ck_assert(bool(b));
}

/// Peers of an endpoint of one address, and of one of all addresses, reach that endpoint.
TEST(no_two_endpoints_have_the_same_name) {
  Options of_one_address;
  of_one_address.scope = NameScope::address;
  Side a;
  ck_assert(open_side(a));
  ck_assert_int_eq(transport::shm::ShmTransport::open(of_one_address, a.name).error(),
                   -FI_EADDRINUSE);
  const uint16_t port = a.name.port();
  a.owned.reset();
  auto b = transport::shm::ShmTransport::open(of_one_address, address_of("127.0.0.1", port));
  ck_assert(bool(b));
  ck_assert_int_eq(open_shm({}, port).error(), -FI_EADDRINUSE);
}

TEST(a_peer_is_the_same_link_under_every_ip_of_the_host) {
  Side a;
  ck_assert(open_side(a));
  ck_assert_ptr_eq(*a.transport->link_to(address_of("127.0.0.1", 5)),
                   *a.transport->link_to(address_of("10.9.8.7", 5)));
}

TEST(nobody_there_is_refused_after_the_connect_timeout) {
  Options options;
  options.connect_timeout_ns = 20'000'000;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  transport::Link& link = **pair.a.transport->link_to(address_of("127.0.0.1", 1));
  ck_assert_int_eq(link.send(numbered(0), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_ptr_eq(pair.a.sink->downs[0].link, &link);
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
}

TEST(a_peer_that_appears_later_is_reached) {
  Options options;
  options.connect_timeout_ns = 20'000'000'000;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b));
  const uint16_t port = pair.b.name.port();
  pair.b.owned.reset();
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(open_side(pair.b, {}, port));
  ck_assert_int_eq(pair.send(link, 2, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
  ck_assert_uint_eq(pair.b.sink->packets[0].number(), 2);
  ck_assert(pair.a.sink->downs.empty());
}

TEST(garbage_instead_of_a_hello_is_turned_away) {
  Side side;
  ck_assert(open_side(side));
  const size_t lengths[] = {1,
                            7,
                            8,
                            sizeof(transport::shm::Hello) - 1,
                            sizeof(transport::shm::Hello),
                            sizeof(transport::shm::Hello) + 1,
                            60'000};
  for (size_t length : lengths) {
    auto socket = connect_as_peer(side.name);
    ck_assert(bool(socket));
    const auto bytes = pattern(length, unsigned(length));
    ck_assert_int_eq(send(socket->get(), bytes.data(), length, 0), ssize_t(length));
    ck_assert(closes(socket->get()));
  }
  expect_alive(side);
}

/// Sends a valid hello that `spoil` has changed, and expects a refusal.
template <typename Spoil>
void expect_refused(Side& side, Spoil spoil) {
  auto socket = connect_as_peer(side.name);
  transport::shm::Hello hello;
  hello.greeting.boot = transport::shm::boot_id_hash();
  hello.greeting.nonce = 1234;
  hello.greeting.name_bytes = 16;
  const auto name = address_of("127.0.0.1", own_port(0));
  std::memcpy(hello.greeting.name, name.data(), name.size());
  spoil(hello.greeting);
  ck_assert_int_eq(transport::shm::send_message(socket->get(), &hello, sizeof(hello)), 0);
  ck_assert(closes(socket->get()));
}

TEST(a_hello_with_a_wrong_field_is_turned_away) {
  Side side;
  ck_assert(open_side(side));
  using transport::shm::Greeting;
  expect_refused(side, [](Greeting& g) { g.magic ^= 1; });
  expect_refused(side, [](Greeting& g) { ++g.version; });
  expect_refused(side, [](Greeting& g) { g.byte_order = 0x0201; });
  expect_refused(side, [](Greeting& g) { ++g.geometry; });
  expect_refused(side, [](Greeting& g) { ++g.boot; });
  expect_refused(side, [](Greeting& g) { g.name_bytes = 3; });
  expect_refused(side, [](Greeting& g) { g.name_bytes = 0xFFFFFFFF, g.name[0] = std::byte(99); });
  expect_refused(side, [](Greeting& g) { ++g.wake_socket.name; });
  expect_alive(side);
}

TEST(descriptors_that_nobody_asked_for_are_closed) {
  Side side;
  ck_assert(open_side(side));
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  auto socket = connect_as_peer(side.name);
  const int fds[] = {ends[1], ends[1]};
  ck_assert_int_eq(transport::shm::send_message(socket->get(), "x", 1, fds, 2), 0);
  ck_assert(closes(socket->get()));
  close(ends[1]);
  char byte;
  ck_assert_int_eq(read(ends[0], &byte, 1), 0);  // end of file: no copy of the descriptor is left
  close(ends[0]);
}

TEST(silent_connections_do_not_keep_others_out) {
  Side side;
  ck_assert(open_side(side));
  std::vector<util::Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::move(*connect_as_peer(side.name)));
  expect_alive(side);
}

TEST(a_connection_closed_at_once_is_forgotten) {
  Side side;
  ck_assert(open_side(side));
  for (int i = 0; i < 300; ++i) ck_assert(bool(connect_as_peer(side.name)));
  expect_alive(side);
}

/// A listener with a full queue exists, and may have room later.
TEST(a_full_queue_is_not_taken_for_no_listener) {
  const auto name = address_of("127.0.0.1", own_port(0));
  auto listener = transport::shm::listen_as(name, NameScope::address);
  ck_assert(bool(listener));
  ck_assert_int_eq(listen(listener->get(), 0), 0);
  auto first = connect_as_peer(name);
  ck_assert(bool(first));
  ck_assert_int_eq(connect_as_peer(name).error(), -FI_EAGAIN);
  first = util::Fd();
  listener = util::Fd();
  ck_assert_int_eq(connect_as_peer(name).error(), -FI_ECONNREFUSED);
}

/// A clock that the test sets. The background thread reads it.
struct ManualClock final : util::Clock {
  std::atomic<uint64_t> time{1'000'000'000};
  uint64_t now() const noexcept override { return time.load(); }
};

/// Runs a peer that ends after it has received a packet.
int await_packet(int channel) {
  Pair own;
  if (!open_side(own.a)) return 1;
  tell(channel, own.a.name.port());
  while (own.a.sink->packets.empty()) own.a.poll();
  return 0;
}

TEST(a_peer_stopped_before_the_hello_is_waited_for) {
  Child child(await_packet);
  ManualClock time;
  Side side;
  auto opened = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), nullptr, &time);
  ck_assert(bool(opened));
  side.transport = opened->get();
  side.name = (*opened)->name();
  const uint16_t port = hear(child.channel());
  child.kill(SIGSTOP);
  int status = 0;
  ck_assert_int_eq(waitpid(child.pid(), &status, WUNTRACED), child.pid());
  transport::Link& link = **side.transport->link_to(address_of("127.0.0.1", port));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  // The side connects to another peer, and an hour later to one more, so it has handled all that
  // was due at the first hello.
  for (uint64_t i = 0; i < 2; ++i) {
    Pair pair;
    ck_assert(open_side(pair.a));
    pair.b.name = side.name;
    pair.b.transport = side.transport;
    pair.b.sink = side.sink;
    ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return side.sink->packets.size() == i + 1; }));
    time.time += 3600'000'000'000;
    pair.a.transport->shutdown();
    ck_assert(pair.poll_until([&] { return side.sink->downs.size() == i + 1; }));
  }
  ck_assert_ptr_ne(side.sink->downs[0].link, &link);
  ck_assert_ptr_ne(side.sink->downs[1].link, &link);
  child.kill(SIGCONT);
  while (link.send(numbered(1), nullptr, 0, 0, SendHint::none) == -FI_EAGAIN) side.poll();
  ck_assert_int_eq(child.wait(), 0);
}

/// Refuses reads by CMA, as a seccomp filter does.
struct NoReading final : transport::shm::CmaCalls {
  ssize_t readv(pid_t, const iovec*, size_t, const iovec*, size_t) noexcept override {
    return -EPERM;
  }
};

TEST(where_only_reading_is_refused_the_sender_writes) {
  NoReading calls;
  Pair pair;
  auto a = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), &calls);
  auto b = transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), &calls);
  ck_assert(bool(a) && bool(b));
  pair.a.transport = a->get();
  pair.a.name = (*a)->name();
  pair.b.transport = b->get();
  pair.b.name = (*b)->name();
  const auto source = pattern(100'000, 7);
  const iovec from{const_cast<std::byte*>(source.data()), source.size()};
  // The proof takes one message each way. Bytes that are sent before go by copy.
  for (size_t count = 1; (*a)->counters().cma_write_bytes == 0; ++count) {
    transport::RemoteKey remote_key;
    ck_assert(pair.poll_until([&] {
      return pair.a_to_b().share(&from, 1, source.size(), transport::Access::remote_read,
                                 remote_key) == 0;
    }));
    ck_assert_int_eq(pair.send(pair.a_to_b(), remote_key.size, remote_key.bytes, remote_key.size),
                     0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == count; }));
    std::vector<std::byte> target(source.size());
    const iovec to{target.data(), target.size()};
    ck_assert_int_eq(pair.b_to_a().get({remote_key, 0, to.iov_len}, &to, 1, count), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() == count; }));
    ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
    ck_assert(target == source);
    pair.a_to_b().revoke(remote_key);
  }
  ck_assert_uint_eq((*b)->counters().cma_read_bytes, 0);
  ck_assert_uint_eq((*a)->counters().cma_refusals, 1);
}

TEST(another_user_is_refused_in_both_directions) {
  if (geteuid() != 0) return;
  Child child([](int channel) {
    if (setresuid(65534, 65534, 65534)) return 1;
    const uint16_t port = hear(channel);
    Pair own;
    if (!open_side(own.a)) return 2;
    tell(channel, own.a.name.port());
    transport::Link& link = **own.a.transport->link_to(address_of("127.0.0.1", port));
    if (link.send(numbered(1), nullptr, 0, 0, SendHint::none) != -FI_EAGAIN) return 3;
    while (own.a.sink->downs.empty()) own.a.poll();
    const int status = own.a.sink->downs[0].status;
    hear(channel);
    return status == -FI_EACCES ? 0 : 4;
  });
  Pair pair;
  ck_assert(open_side(pair.a));
  tell(child.channel(), pair.a.name.port());
  transport::Link& link =
      **pair.a.transport->link_to(address_of("127.0.0.1", hear(child.channel())));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  while (pair.a.sink->downs.empty()) pair.a.poll();
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_EACCES);
  tell(child.channel(), 1);
  ck_assert_int_eq(child.wait(), 0);
  ck_assert(pair.a.sink->packets.empty());
}

/// 0: it gets one in time.
TEST(without_descriptors_a_connection_fails_with_that_reason_after_a_while, 2) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  const int highest = fcntl(0, F_DUPFD_CLOEXEC, 0);
  close(highest);
  rlimit limit{rlim_t(highest), rlim_t(highest)};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit tight{rlim_t(highest), limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  const auto tried = [] {
    const std::lock_guard guard(g_log_mutex);
    return std::ranges::any_of(
        g_log, [](const LogLine& line) { return contains(line.text, "cannot connect to"); });
  };
  ck_assert(pair.poll_until([&] { return _i ? !pair.a.sink->downs.empty() : tried(); }));
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (_i) ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_EMFILE);
  ck_assert_int_eq(pair.send(link, 2, nullptr, 0), 0);
  ck_assert_uint_eq(pair.a.sink->downs.size(), unsigned(_i));
  ck_assert(pair.poll_until([&] { return !pair.b.sink->packets.empty(); }));
}

TEST(descriptors_lost_for_want_of_room_are_told_from_a_malformed_message) {
  int ends[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const int fd = 0;
  ck_assert_int_eq(transport::shm::send_message(ends[0], "x", 1, &fd, 1), 0);
  ck_assert_int_eq(transport::shm::send_message(ends[0], "x", 1, &fd, 1), 0);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit tight{3, limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
  char byte;
  const bool lost = transport::shm::receive(ends[1], &byte, 1).fds_lost;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ck_assert(lost);
  ck_assert(!transport::shm::receive(ends[1], &byte, 1).fds_lost);
  for (const int end : ends) close(end);
}

}  // namespace

}  // namespace erdma::test

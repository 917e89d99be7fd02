// Tests that each call of a transport that finds no memory says so, and does its work once there is
// memory again.
#include <sys/mman.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <rdma/fi_errno.h>

#include "fabric/descriptors.h"
#include "fake/scarce_memory.h"
#include "hmem/device_memory.h"
#include "transport/deferred_dones.h"
#include "transport/mailbox.h"
#include "transport/self/self_transport.h"
#include "transport/shm/passed_files.h"
#include "transport/shm_pair.h"
#include "transport/staging/staging_transport.h"

namespace erdma::test {
namespace {

using fake::without_each_allocation;
using transport::Access;
using transport::kMaxIov;
using transport::RemoteKey;
using transport::SendHint;

struct Silent {
  void ring() const noexcept {}
};

TEST(what_cannot_be_noted_is_told) {
  const Silent bell;
  transport::Mailbox<int, Silent> box(bell);
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, [&] { return box.try_post(7); }), 0);
  ck_assert_uint_eq(box.take().size(), 1);
  transport::DeferredDones dones;
  RecordingSink sink;
  ck_assert_int_eq(without_each_allocation(-FI_EAGAIN, [&] { return dones.add(7, 0); }), 0);
  ck_assert_int_eq(dones.report(sink), 1);
  ck_assert_uint_eq(sink.dones.size(), 1);
}

/// An endpoint with a link to itself. `on_device` stands for device memory.
struct Staged final : hmem::DeviceMemory {
  explicit Staged(size_t length) : on_device(pattern(length, 1)) {}
  bool is_device(const void* pointer) const noexcept override {
    return pointer >= on_device.data() && pointer < on_device.data() + on_device.size();
  }
  int from_device(void* to, const void* from, size_t length) noexcept override {
    std::memcpy(to, from, length);
    return copy_status;
  }
  int to_device(void* to, const void* from, size_t length) noexcept override {
    std::memcpy(to, from, length);
    return copy_status;
  }

  std::vector<std::byte> on_device;
  int copy_status = 0;
  util::SocketAddress name = address_of("127.0.0.1", 7);
  transport::staging::StagingTransport transport{
      std::make_unique<transport::self::SelfTransport>(name), *this};
  RecordingSink sink;
};

TEST(a_link_that_stages_lacks_memory_for_the_copy) {
  Staged staged(100'000);
  ck_assert_int_eq(without_each_allocation(
                       -FI_ENOMEM, [&] { return staged.transport.link_to(staged.name).error(); }),
                   0);
  transport::Link& link = **staged.transport.link_to(staged.name);
  std::vector<std::byte> host(100'000);
  const iovec device{staged.on_device.data(), host.size()}, packet{staged.on_device.data(), 8192},
      local{host.data(), host.size()};
  ck_assert_int_eq(without_each_allocation(-FI_EAGAIN,
                                           [&] {
                                             const int rc = link.send(numbered(1), &packet, 1, 8192,
                                                                      SendHint::none);
                                             if (rc) ck_assert(!staged.transport.arm());
                                             return rc;
                                           }),
                   0);
  ck_assert_int_eq(staged.transport.poll(staged.sink), 1);
  ck_assert_mem_eq(staged.sink.packets[0].payload.data(), staged.on_device.data(), 8192);
  RemoteKey key;
  ck_assert_int_eq(
      without_each_allocation(
          -FI_ENOMEM,
          [&] { return link.share(&device, 1, host.size(), Access::remote_read, key); }),
      0);
  ck_assert_int_eq(link.get({key, 0, host.size()}, &local, 1, 5), 0);
  ck_assert_int_eq(staged.transport.poll(staged.sink), 1);
  ck_assert(host == staged.on_device);
  ck_assert_int_eq(link.revoke(key), 0);
}

/// -FI_EAGAIN: there is no Transfer object. -FI_ENOMEM: there is no memory for the copy.
TEST(a_transfer_that_is_staged_lacks_memory) {
  Staged staged(1000);
  transport::Link& link = **staged.transport.link_to(staged.name);
  std::vector<std::byte> host = pattern(1000, 2);
  const iovec theirs{host.data(), host.size()}, device{staged.on_device.data(), 1000};
  RemoteKey key;
  ck_assert_int_eq(link.share(&theirs, 1, 1000, Access::remote_read, key), 0);
  for (const bool reads : {true, false}) {
    std::vector<int> said;
    int left = 0, result = -1;
    for (; result; ++left) {
      fake::run_short(left);
      result = fake::counted([&] {
        return reads ? link.get({key, 0, 1000}, &device, 1, 5)
                     : link.put({key, 0, 1000}, &device, 1, 6, true);
      });
      fake::replenish();
      if (result == -FI_EAGAIN) ck_assert(!staged.transport.arm());
      said.push_back(result);
    }
    ck_assert_int_eq(staged.transport.poll(staged.sink), 1);
    ck_assert(staged.transport.arm());
    // The first transfer allocates more Transfer objects.
    if (reads) ck_assert_int_eq(said[0], -FI_EAGAIN);
    ck_assert_int_eq(std::count(said.begin(), said.end(), -FI_ENOMEM), 1);
    ck_assert_int_eq(std::count(said.begin(), said.end(), 0), 1);
    ck_assert_int_eq(std::count(said.begin(), said.end(), -FI_EAGAIN), int(said.size()) - 2);
  }
  ck_assert(host == staged.on_device);
  ck_assert_uint_eq(staged.sink.dones.size(), 2);
}

TEST(a_link_that_stages_takes_as_many_pieces_as_the_others) {
  Staged staged(100);
  transport::Link& link = **staged.transport.link_to(staged.name);
  iovec pieces[kMaxIov + 1];
  for (size_t i = 0; i <= kMaxIov; ++i) pieces[i] = {staged.on_device.data() + 10 * i, 10};
  RemoteKey key, offer;
  ck_assert_int_eq(link.share(pieces, kMaxIov + 1, 50, Access::remote_read, key), -FI_EINVAL);
  const size_t length = 10 * kMaxIov;
  ck_assert_int_eq(link.share(pieces, kMaxIov, length, Access::remote_read, key), 0);
  ck_assert_int_eq(link.get({key, 0, length}, pieces, kMaxIov + 1, 1), -FI_EINVAL);
  ck_assert_int_eq(link.put({key, 0, length}, pieces, kMaxIov + 1, 1, true), -FI_EINVAL);
  ck_assert_int_eq(link.get({key, 0, length}, pieces, kMaxIov, 1), 0);
  ck_assert_int_eq(staged.transport.poll(staged.sink), 1);
  // The key names an IPC handle, but the peer passes no files.
  offer.put(transport::KeyHead{transport::KeyKind::ipc, 0, 0, 1});
  ck_assert_int_eq(link.get({offer, 0, length}, pieces, kMaxIov + 1, 1), -FI_EINVAL);
  ck_assert_int_eq(link.get({offer, 0, length}, pieces, kMaxIov, 1), -FI_EOPNOTSUPP);
  ck_assert_int_eq(link.revoke(key), 0);
}

TEST(a_copy_from_a_device_that_fails_is_told) {
  Staged staged(10'000);
  transport::Link& link = **staged.transport.link_to(staged.name);
  const iovec device{staged.on_device.data(), 10'000};
  RemoteKey key;
  staged.copy_status = -FI_EIO;
  ck_assert_int_eq(link.send(numbered(1), &device, 1, 8, SendHint::none), -FI_EIO);
  ck_assert_int_eq(link.send(numbered(1), &device, 1, 10'000, SendHint::none), -FI_EIO);
  ck_assert_int_eq(link.share(&device, 1, 10'000, Access::remote_read, key), -FI_EIO);
  ck_assert_uint_eq(key.size, 0);
  ck_assert_int_eq(staged.transport.poll(staged.sink), 0);
}

TEST(a_loop_without_memory_is_full) {
  transport::self::SelfTransport transport(address_of("127.0.0.1", 7));
  transport::Link& link = **transport.link_to(address_of("127.0.0.1", 7));
  RecordingSink sink;
  const iovec empty{nullptr, 0};
  const auto send = [&] { return link.send(numbered(1), &empty, 1, 0, SendHint::none); };
  int failures = 0;
  for (int i = 0; i < 100; ++i) {
    int more = 0;
    ck_assert_int_eq(without_each_allocation(-FI_EAGAIN, send, &more), 0);
    failures += more;
  }
  ck_assert_int_gt(failures, 0);
  ck_assert_int_eq(transport.poll(sink), 100);
  ck_assert_uint_eq(sink.packets.size(), 100);
}

/// The protocol repeats the operation after each poll(). Nothing would wake it for that: memory is
/// freed elsewhere.
TEST(a_loop_that_lacked_memory_does_not_sleep, 3) {
  transport::self::SelfTransport transport(address_of("127.0.0.1", 7));
  transport::Link& link = **transport.link_to(address_of("127.0.0.1", 7));
  RecordingSink sink;
  std::byte bytes[2]{};
  const iovec there{bytes, 1}, here{bytes + 1, 1}, empty{nullptr, 0};
  RemoteKey key;
  ck_assert_int_eq(link.share(&there, 1, 1, Access::remote_read, key), 0);
  const auto operation = [&] {
    const int rc = _i == 0   ? link.send(numbered(1), &empty, 1, 0, SendHint::none)
                   : _i == 1 ? link.get({key, 0, 1}, &here, 1, 5)
                             : link.put({key, 0, 1}, &here, 1, 6, true);
    if (rc == -FI_EAGAIN) ck_assert(!transport.arm());
    return rc;
  };
  int failures = 0, all = 0;
  for (int i = 0; i < 100; ++i) {
    ck_assert_int_eq(without_each_allocation(-FI_EAGAIN, operation, &failures), 0);
    all += failures;
    (void)transport.poll(sink);
    ck_assert(transport.arm());
  }
  ck_assert_int_gt(all, 0);
}

// --- shared memory -------------------------------------------------------------------------------

struct Moving : Met {
  void await_done(Side& side) {
    ck_assert(poll_until([&] { return !side.sink->dones.empty(); }));
    ck_assert_int_eq(side.sink->dones[0].status, 0);
    side.sink->dones.clear();
  }
};

TEST(a_peer_that_cannot_be_kept_is_told) {
  Side side;
  ck_assert(open_side(side));
  int failures = 0;
  const auto know = [&] { return side.transport->link_to(address_of("127.0.0.1", 1)).error(); };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, know, &failures), 0);
  ck_assert_int_gt(failures, 0);
  ck_assert_int_eq(side.transport->link_to(address_of("127.0.0.1", 0)).error(), -FI_EINVAL);
  ck_assert_int_eq(side.transport->link_to({}).error(), -FI_EINVAL);
}

/// The connector learns that a channel is closed although there was no memory for the order to
/// close it. No socket and no ring stays behind.
TEST(a_channel_is_closed_also_without_memory_for_the_order) {
  Met pair;
  pair.b.sink->downs.reserve(8);
  const size_t before = descriptors().size();
  pair.b_to_a().fail(-FI_ECONNRESET);
  fake::run_short(0, LONG_MAX);
  while (pair.b.sink->downs.empty()) {
    fake::counted([&] { return pair.b.poll(); });
    pair.a.poll();
  }
  ck_assert(fake::replenish());
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return descriptors().size() == before; }));
}

TEST(reads_and_writes_over_shared_memory_lack_memory_here) {
  Moving pair;
  const std::vector<std::byte> from = pattern(100'000, 1);
  std::vector<std::byte> read(from.size()), written(from.size());
  const iovec source{const_cast<std::byte*>(from.data()), from.size()},
      into{read.data(), read.size()}, target{written.data(), written.size()};
  RemoteKey readable, writable;
  int failures[4] = {};
  const auto share = [&](const iovec& memory, Access access, RemoteKey& key, int& count) {
    const auto call = [&] { return pair.a_to_b().share(&memory, 1, from.size(), access, key); };
    ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, call, &count), 0);
  };
  share(source, Access::remote_read, readable, failures[0]);
  share(target, Access::remote_write, writable, failures[1]);
  const auto get = [&] { return pair.b_to_a().get({readable, 0, from.size()}, &into, 1, 1); };
  const auto put = [&] {
    return pair.b_to_a().put({writable, 0, from.size()}, &source, 1, 2, false);
  };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, get, &failures[2]), 0);
  pair.await_done(pair.b);
  ck_assert(read == from);
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, put, &failures[3]), 0);
  pair.await_done(pair.b);
  ck_assert(written == from);
  for (const int count : failures) ck_assert_int_gt(count, 0);
  pair.a_to_b().revoke(readable);
  pair.a_to_b().revoke(writable);
}

struct WithoutMemory final : transport::Sink {
  void on_packet(transport::Link&, const std::byte*, const std::byte*, size_t) override {
    if (lacks) {
      ++refused;
      throw std::bad_alloc();
    }
    ++packets;
  }
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(transport::Link&, int status) noexcept override { ends.push_back(status); }
  bool waits_for(const transport::Link&) noexcept override { return false; }

  bool lacks = true;
  int refused = 0, packets = 0;
  std::vector<int> ends;
};

/// The system's clock, which can be stopped.
class StoppedClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override {
    const uint64_t stopped = x_stopped;
    return stopped ? stopped : util::SystemClock().now();
  }
  void stop() { x_stopped = now(); }
  void advance(uint64_t nanoseconds) { x_stopped += nanoseconds; }

 private:
  std::atomic<uint64_t> x_stopped = 0;
};

/// Endpoint a sends a packet for which b has no memory, and then shuts down.
class Leaving {
 public:
  Leaving() {
    ck_assert(open_side(x_pair.a));
    auto opened =
        transport::shm::ShmTransport::open({}, address_of("127.0.0.1", 0), nullptr, &clock);
    ck_assert(bool(opened));
    x_pair.b.name = (*opened)->name();
    x_pair.b.transport = opened->get();
    x_pair.b.owned = std::move(*opened);
    ck_assert_int_eq(x_pair.send(x_pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert_int_eq(x_pair.send(x_pair.b_to_a(), 0, nullptr, 0), 0);
    ck_assert(x_pair.poll_until([&] { return x_pair.b.sink->packets.size() == 1; }));
    ck_assert_int_eq(x_pair.send(x_pair.a_to_b(), 1, nullptr, 0), 0);
    clock.stop();  // b does not reach its time limit, however slow the machine is
    x_pair.a.transport->shutdown();
    auto& link = static_cast<transport::shm::ShmLink&>(x_pair.b_to_a());
    poll_b([&] { return link.phase().state == transport::shm::LinkState::ending; });
    ck_assert_int_gt(sink.refused, 0);
    ck_assert(sink.ends.empty());
  }
  template <typename Condition>
  void poll_b(Condition done) {
    while (!done()) x_pair.b.transport->poll(sink);
  }

  WithoutMemory sink;
  StoppedClock clock;

 private:
  Pair x_pair;
};

TEST(what_was_sent_before_the_end_waits_for_memory) {
  Leaving pair;
  pair.sink.lacks = false;
  pair.poll_b([&] { return !pair.sink.ends.empty(); });
  ck_assert_int_eq(pair.sink.packets, 1);
  ck_assert_uint_eq(pair.sink.ends.size(), 1);
  ck_assert_int_eq(pair.sink.ends[0], -FI_ESHUTDOWN);
}

TEST(an_end_that_loses_a_message_for_want_of_memory_is_told) {
  Leaving pair;
  pair.clock.advance(10'000'000'000);
  pair.poll_b([&] { return !pair.sink.ends.empty(); });
  ck_assert_int_eq(pair.sink.packets, 0);
  ck_assert_int_eq(pair.sink.ends[0], -FI_ENOMEM);
}

TEST(a_file_for_which_there_is_no_memory_stays_with_its_receiver) {
  Met pair;
  auto& link = static_cast<transport::shm::ShmLink&>(pair.a_to_b());
  transport::shm::PassedFiles files(link);
  util::Fd file(memfd_create("handed", MFD_CLOEXEC));
  const auto put = [&]() -> int {
    try {
      files.put(1, std::move(file));
    } catch (const std::bad_alloc&) {
      ck_assert_int_ge(file.get(), 0);
      return -FI_ENOMEM;
    }
    return 0;
  };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, put), 0);
}

TEST(who_could_not_ask_to_connect_does_not_sleep) {
  Side side;
  ck_assert(open_side(side));
  transport::Link& link = **side.transport->link_to(address_of("127.0.0.1", 1));
  const iovec empty{nullptr, 0};
  const auto send = [&] { return link.send(numbered(1), &empty, 1, 0, SendHint::none); };
  int failures = 0;
  const auto arm_after = [&] {
    const int rc = send();
    if (rc == -FI_ENOMEM) ck_assert(!side.transport->arm());
    return rc;
  };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, arm_after, &failures), -FI_EAGAIN);
  ck_assert_int_gt(failures, 0);
}

/// The k-th allocation of the target fails. The write goes on later, or ends with an error of its
/// own.
TEST(a_write_whose_target_lacks_memory_costs_no_link) {
  const std::vector<std::byte> from = pattern(100'000, 1);
  for (int failures = 0;; ++failures) {
    Moving pair;
    std::vector<std::byte> written(from.size());
    const iovec source{const_cast<std::byte*>(from.data()), from.size()},
        target{written.data(), written.size()};
    RemoteKey key;
    ck_assert_int_eq(pair.a_to_b().share(&target, 1, from.size(), Access::remote_write, key), 0);
    fake::run_short(failures);
    ck_assert_int_eq(pair.b_to_a().put({key, 0, from.size()}, &source, 1, 2, false), 0);
    while (pair.b.sink->dones.empty() && pair.b.sink->downs.empty()) {
      pair.b.poll();
      fake::counted([&] { return pair.a.poll(); });
    }
    const bool failed = fake::replenish();
    ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
    const int status = pair.b.sink->dones[0].status;
    ck_assert(!status || (failed && status == -FI_ENOMEM));
    ck_assert(status || written == from);
    pair.a_to_b().revoke(key);
    if (!failed && failures > 0) return;
    ck_assert(failed && failures < 100);
  }
}

/// The k-th allocation of the target fails while the target is not connected to the initiator. The
/// write ends nevertheless.
TEST(an_answer_to_a_write_waits_for_memory_to_connect) {
  transport::shm::Options options;
  options.background = false;
  bool failed = true;
  for (int failures = 0; failed; ++failures) {
    ck_assert_int_lt(failures, 100);
    Pair pair;
    ck_assert(open_side(pair.a, options) && open_side(pair.b, options));
    const auto step = [](Side& side) {
      (void)static_cast<transport::shm::ShmTransport&>(*side.transport).step();
    };
    std::byte from{7}, written{0};
    const iovec source{&from, 1}, target{&written, 1};
    RemoteKey key;
    ck_assert_int_eq(pair.a_to_b().share(&target, 1, 1, Access::remote_write, key), 0);
    int rc = -FI_EAGAIN;
    for (int i = 0; i < 1000 && rc == -FI_EAGAIN; ++i) {
      rc = pair.b_to_a().put({key, 0, 1}, &source, 1, 2, false);
      for (Side* side : {&pair.b, &pair.a}) step(*side);
      pair.b.poll();
    }
    ck_assert_int_eq(rc, 0);
    fake::run_short(failures);
    for (int i = 0; i < 20; ++i) fake::counted([&] { return pair.a.poll(); });
    failed = fake::replenish();
    for (int i = 0; i < 10'000 && pair.b.sink->dones.empty(); ++i) {
      for (Side* side : {&pair.b, &pair.a}) step(*side);
      pair.poll();
    }
    ck_assert_uint_eq(pair.b.sink->dones.size(), 1);
    const int status = pair.b.sink->dones[0].status;
    ck_assert(!status || (failed && status == -FI_ENOMEM));
    ck_assert(pair.a.sink->downs.empty() && pair.b.sink->downs.empty());
    pair.a_to_b().revoke(key);
  }
}

// --- in every order of what two processes and their threads do
// ------------------------------------

/// A sink that allocates nothing.
struct CountingSink final : transport::Sink {
  void on_packet(transport::Link&, const std::byte* header, const std::byte*,
                 size_t) noexcept override {
    uint64_t number;
    std::memcpy(&number, header, sizeof(number));
    in_order = in_order && number == packets;
    ++packets;
  }
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(transport::Link&, int) noexcept override { ++downs; }
  bool waits_for(const transport::Link&) noexcept override { return true; }

  uint64_t packets = 0;
  int downs = 0;
  bool in_order = true;
};

struct SetClock final : util::Clock {
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1'000'000'000;
};

/// Two endpoints without threads of their own. The order and the times of the steps of their
/// polling threads and connectors are random.
struct Drawn {
  static constexpr uint64_t kMessages = 6;

  explicit Drawn(uint64_t seed) : random(seed) {
    transport::shm::Options options;
    options.background = false;
    for (size_t i = 0; i < 2; ++i) {
      const util::SocketAddress any = address_of("127.0.0.1", 0);
      auto opened = transport::shm::ShmTransport::open(options, any, nullptr, &clock);
      ck_assert(bool(opened));
      names[i] = (*opened)->name();
      transports[i] = std::move(*opened);
    }
  }
  void send(size_t from) {
    const iovec empty{nullptr, 0};
    auto link = transports[from]->link_to(names[1 - from]);
    if (link && !(*link)->send(numbered(sent[from]), &empty, 1, 0, SendHint::none)) ++sent[from];
  }
  void step() {
    // A thread that runs goes on for several steps, as on a shared core.
    if (random() % 4 == 0) runs = random() % 4;
    clock.time += random() % 16 ? random() % 1'000'000 : random() % 300'000'000;
    const size_t at = runs % 2;
    if (runs < 2) return (void)transports[at]->step();
    if (random() % 2 && sent[at] < kMessages) return send(at);
    transports[at]->poll(sinks[at]);
  }
  bool over() const {
    return sent[0] == kMessages && sent[1] == kMessages && sinks[0].packets == kMessages &&
           sinks[1].packets == kMessages;
  }

  std::mt19937_64 random;
  uint64_t runs = 0;
  SetClock clock;
  CountingSink sinks[2];
  util::SocketAddress names[2];
  std::unique_ptr<transport::shm::ShmTransport> transports[2];
  uint64_t sent[2] = {};
};

TEST_CASE(.name = "orders", .timeout = 600);

/// Any allocation of either side fails, in any order of the steps of their threads.
TEST(what_a_link_took_arrives_wherever_memory_lacks) {
  fake::g_anywhere = true;
  const char* const set = std::getenv("ERDMA_MODEL_RUNS");
  int downs = 0;
  for (uint64_t seed = 1, runs = set ? std::strtoull(set, nullptr, 0) : 20; seed <= runs; ++seed) {
    long allocation = 0;
    for (bool failed = true; failed; ++allocation) {
      Drawn run(seed * 1000 + uint64_t(allocation));
      fake::run_short(allocation);
      for (int steps = 0; steps < 50'000 && !run.over(); ++steps) run.step();
      failed = fake::replenish();
      downs += run.sinks[0].downs + run.sinks[1].downs;
      ck_assert_msg(run.over() && run.sinks[0].in_order && run.sinks[1].in_order,
                    "seed %lu, allocation %ld: %lu and %lu messages sent, %lu and %lu arrived%s",
                    seed, allocation, run.sent[0], run.sent[1], run.sinks[1].packets,
                    run.sinks[0].packets,
                    run.sinks[0].in_order && run.sinks[1].in_order ? "" : ", not in order");
    }
    ck_assert_int_gt(allocation, 20);
  }
  ck_assert_int_gt(downs, 0);  // links went down although the peer lived and sent
}

}  // namespace
}  // namespace erdma::test

#include "transport/shm_lacks.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "fake/refused_call.h"
#include "libcheck.h"
#include "transport/shm/bulk.h"
#include "transport/shm/link.h"
#include "transport/shm/link_context.h"

/// Tests that a process which lacks descriptors or memory for a moment loses nothing.
namespace erdma::test {
namespace {

using transport::Access;
using transport::RemoteKey;
using transport::SendHint;

/// The side that accepts a peer has no descriptor left when it reads the greeting.
TEST(a_peer_that_finds_no_descriptor_left_connects_a_moment_later) {
  transport::shm::Options options;
  options.background = false;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b, options));
  const auto step = [](Side& side) {
    return static_cast<transport::shm::ShmTransport&>(*side.transport).step();
  };
  const auto run = [&](Side& side) {
    for (int idle = 0; idle < 4; ++idle)
      while (step(side)) idle = 0;
  };
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  run(pair.a);              // connects
  ck_assert(step(pair.b));  // accepts
  {
    const NoDescriptors none;
    ck_assert(step(pair.b));  // reads the greeting
  }
  ck_assert(told("too many open files"));
  int rc = -FI_EAGAIN;
  ck_assert(pair.poll_until([&] {
    run(pair.a), run(pair.b);
    rc = link.send(numbered(1), nullptr, 0, 0, SendHint::none);
    return rc != -FI_EAGAIN || !pair.a.sink->downs.empty();
  }));
  ck_assert_int_eq(rc, 0);
  ck_assert(pair.a.sink->downs.empty());
  ck_assert(pair.poll_until([&] { return run(pair.b), !pair.b.sink->packets.empty(); }));
}

/// A large message that b reads from a.
struct LargeRead {
  explicit LargeRead(Pair& of) : pair(of) {}
  LargeRead(const LargeRead&) = delete;
  LargeRead& operator=(const LargeRead&) = delete;
  ~LargeRead() { (void)pair.a_to_b().revoke(key); }

  void connect() {
    ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return share() == 0; }));
  }
  int share() { return pair.a_to_b().share(&from, 1, from.iov_len, Access::remote_read, key); }
  int get() { return pair.b_to_a().get({key, 0, source.size()}, &to, 1, 7); }
  bool over() const { return !pair.b.sink->dones.empty(); }
  void expect_arrived() const {
    ck_assert(over());
    ck_assert_int_eq(pair.b.sink->dones[0].status, 0);
    ck_assert(target == source);
  }

  Pair& pair;
  std::vector<std::byte> source = pattern(100'000, 7), target{source.size()};
  const iovec from{source.data(), source.size()}, to{target.data(), target.size()};
  RemoteKey key;
};

/// The receiver of a large message needs a descriptor for a moment. 0: it gets one in time; 1: it
/// does not; 2: nobody tries for an hour, and then there is none again.
TEST(a_read_waits_for_a_descriptor_but_not_for_ever, 3) {
  LeapClock clock;
  Pair pair;
  ck_assert(open_side_at(pair.b, clock) && open_side(pair.a));
  LargeRead read(pair);
  read.connect();
  const auto get = [&] {
    clock.time += 1'000'000;  // what is tried again after a pause must come due
    return read.get();
  };
  {
    const NoDescriptors none;
    for (int i = 0; i < 3; ++i) {
      ck_assert_int_eq(get(), -FI_EAGAIN);
      ck_assert(!pair.b.transport->arm());  // nothing would wake this side to try again
      pair.b.poll();
    }
    if (_i == 1) {
      int rc = -FI_EAGAIN;
      for (int i = 0; i < 6'000 && rc == -FI_EAGAIN; ++i) rc = get();
      ck_assert_int_eq(rc, -FI_EMFILE);
    } else if (_i == 2) {
      clock.time += 3600'000'000'000;
      ck_assert_int_eq(get(), -FI_EAGAIN);
    }
  }
  ck_assert_int_eq(get(), 0);
  ck_assert(pair.poll_until([&] { return read.over(); }));
  read.expect_arrived();
}

/// What the sender of a large message may lack for a moment, to map the memory for it.
enum class Lack { descriptors, room };

/// Runs `what` while this process has no descriptor, or its kernel maps no such memory.
template <typename What>
void while_lacking(Lack lack, What&& what) {
  if (lack == Lack::descriptors) {
    const NoDescriptors none;
    what();
  } else {
    std::thread lacking([&] {  // the refusal is of this thread, and ends with it
      fake::refuse_call(SYS_mmap, ENOMEM, 1, transport::shm::kBulkBytes);
      what();
    });
    lacking.join();
  }
}

/// Two sides, and no thread of theirs, of which b has begun to read a large message without CMA.
struct SteppedRead {
  SteppedRead() {
    transport::shm::Options options;
    options.background = options.cma = false;
    ck_assert(open_side_at(pair.a, clock, options) && open_side_at(pair.b, clock, options));
    for (transport::Link* link : {&pair.a_to_b(), &pair.b_to_a()})
      while (link->send(numbered(1), nullptr, 0, 0, SendHint::none) == -FI_EAGAIN) once();
    while (read.share() == -FI_EAGAIN) once();
    ck_assert_int_eq(read.get(), 0);
  }
  void once() {
    clock.time += 1'000'000;
    for (Side* side : {&pair.a, &pair.b})
      (void)static_cast<transport::shm::ShmTransport&>(*side->transport).step();
    pair.poll();
  }
  void times(int count) {
    for (int i = 0; i < count; ++i) once();
  }

  LeapClock clock;
  Pair pair;
  LargeRead read{pair};
};

/// Rows: the sender gets in time what it lacks, or does not; both for each lack.
TEST(the_sender_of_a_large_message_waits_for_what_it_lacks_but_not_for_ever, 4) {
  const bool in_time = _i % 2 == 0;
  const Lack lack = Lack(_i / 2);
  SteppedRead steps;
  Pair& pair = steps.pair;
  LargeRead& read = steps.read;
  while_lacking(lack, [&] {
    steps.times(100);
    ck_assert(pair.a.sink->downs.empty() && !read.over());
    for (int i = 0; !in_time && pair.a.sink->downs.empty() && i < 10'000; ++i) steps.once();
  });
  if (!in_time) {
    ck_assert(!pair.a.sink->downs.empty());
    ck_assert_int_eq(pair.a.sink->downs[0].status,
                     lack == Lack::descriptors ? -FI_EMFILE : -FI_ENOMEM);
    ck_assert(told(lack == Lack::descriptors ? "cannot take what" : "cannot map"));
    return;
  }
  for (int i = 0; !read.over() && i < 10'000; ++i) steps.once();
  read.expect_arrived();
}

/// When the memory can be mapped at last, the kernel lacks memory to watch the control socket.
TEST(a_control_socket_that_could_not_be_watched_again_is_read_later) {
  SteppedRead steps;
  Pair& pair = steps.pair;
  LargeRead& read = steps.read;
  while_lacking(Lack::room, [&] { steps.times(100); });
  std::thread lacking([&] {  // the refusal is of this thread, and ends with it
    fake::refuse_call(SYS_epoll_ctl, ENOMEM, 1, EPOLL_CTL_ADD);
    steps.times(10);
  });
  lacking.join();
  for (int i = 0; !read.over() && i < 10'000; ++i) steps.once();
  read.expect_arrived();
  pair.b.transport->shutdown();
  for (int i = 0; pair.a.sink->downs.empty() && i < 10'000; ++i) steps.once();
  ck_assert_int_eq(pair.a.sink->downs.at(0).status, -FI_ESHUTDOWN);
}

/// The kernel has no memory for a moment, in which a message comes for a peer that sleeps.
TEST(a_wake_up_that_finds_no_memory_comes_a_moment_later) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
  transport::Link& link = pair.a_to_b();
  ck_assert(pair.poll_until([&] { return pair.b.transport->arm(); }));
  std::thread lacking([&] {  // the refusal is of this thread, and ends with it
    fake::refuse_call(SYS_sendto, ENOBUFS);
    ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
    pair.a.poll();
  });
  lacking.join();
  ck_assert(!pair.a.transport->arm());  // nothing would wake this side to try again
  pair.a.poll();
  pollfd bell{pair.b.transport->wait_fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&bell, 1, 0), 1);
  pair.b.transport->disarm();
}

/// Waiting does not help against this limit.
TEST(what_a_limit_of_file_sizes_forbids_is_not_waited_for) {
  rlimit usual{};
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &usual), 0);
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  LargeRead read(pair);
  read.connect();
  const rlimit low{4096, usual.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
  ck_assert_int_eq(read.get(), -FI_ENOMEM);
  Side crowded;  // has no ring yet
  ck_assert(open_side(crowded));
  transport::Link& link = **pair.a.transport->link_to(crowded.name);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
  ck_assert(!told("has to connect again"));
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &usual), 0);  // what ends the test may write files
}

/// Without CMA a large message moves through slots, which get their memory with the first of them.
TEST(a_read_waits_for_the_memory_of_its_slots_but_not_for_ever) {
  constexpr unsigned kPopulateWrite = 23;
  LeapClock clock;
  transport::shm::Options options;
  options.cma = false;
  Pair pair;
  ck_assert(open_side_at(pair.b, clock, options) && open_side(pair.a, options));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
  std::vector<std::byte> source(100'000), target(source.size());
  const iovec from{source.data(), source.size()}, to{target.data(), target.size()};
  RemoteKey key;
  ck_assert(pair.poll_until(
      [&] { return pair.a_to_b().share(&from, 1, from.iov_len, Access::remote_read, key) == 0; }));
  ck_assert_int_eq(pair.b_to_a().get({key, 0, source.size()}, &to, 1, 7), 0);
  fake::refuse_call(SYS_fallocate, ENOMEM);
  fake::refuse_call(SYS_madvise, ENOMEM, 2, kPopulateWrite);
  // A hot ring may meet the lack too, even before the sender has told that it cannot write.
  const size_t bytes = transport::shm::kBulkBytes - transport::shm::kBulkControlBytes;
  const std::string slots = "no memory for " + std::to_string(bytes);
  ck_assert(pair.poll_until([&] { return told(slots.c_str()); }));
  for (int i = 0; i < 100; ++i) pair.poll();
  ck_assert(pair.b.sink->dones.empty());
  ck_assert(!pair.b.transport->arm());  // nothing would wake this side to try again
  ck_assert(pair.poll_until([&] {
    clock.time += 1'000'000;
    return !pair.b.sink->dones.empty();
  }));
  ck_assert_int_eq(pair.b.sink->dones[0].status, -FI_ENOMEM);
  pair.a_to_b().revoke(key);
}

/// All slots of four channels take 8 MiB. Rows: channels of the endpoint that use all.
TEST(only_the_first_few_channels_use_all_slots, 2) {
  const unsigned others = _i ? 4 : 3;
  transport::shm::Options options;
  options.cma = false;
  Pair pair;
  ck_assert(open_side(pair.a, options) && open_side(pair.b, options));
  LargeRead read(pair);
  read.connect();
  auto& context = static_cast<transport::shm::ShmLink&>(pair.b_to_a()).context();
  context.core =
      transport::shm::CoreSharing([]() noexcept { return transport::shm::CoreSharing::Usage{}; });
  context.whole_bounces = others;
  ck_assert_int_eq(read.get(), 0);
  ck_assert(pair.poll_until([&] { return read.over(); }));
  read.expect_arrived();
  ck_assert_uint_eq(context.bounces, 1);
  ck_assert_uint_eq(context.whole_bounces, 4);
  context.whole_bounces -= others;
}

}  // namespace
}  // namespace erdma::test

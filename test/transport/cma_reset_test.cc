#include <cerrno>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/shm_pair.h"

/// Tests under Yama scope 1 that large messages are copied once after a link between two endpoints
/// was reset, whatever the endpoints were negotiating when that happened.
namespace erdma::test {
namespace {

using transport::Access;
using transport::RemoteKey;
using transport::shm::PtracerPolicy;

/// The calls of one endpoint. Reading the peer is refused until the peer has named this process as
/// its tracer.
struct YamaCalls final : transport::shm::CmaCalls {
  ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                size_t remotes) noexcept override {
    return admitted ? CmaCalls::readv(pid, local, locals, remote, remotes) : -EPERM;
  }
  ssize_t writev(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                 size_t remotes) noexcept override {
    return admitted ? CmaCalls::writev(pid, local, locals, remote, remotes) : -EPERM;
  }
  int set_ptracer(unsigned long) noexcept override {
    peer->admitted = true;
    return 0;
  }
  transport::shm::CmaIdentity identity() override {
    transport::shm::CmaIdentity identity = CmaCalls::identity();
    identity.ptrace_scope = 1;
    return identity;
  }
  YamaCalls* peer = nullptr;
  bool admitted = false;
};

/// Two endpoints without threads. `a` receives what `b` shares.
struct Reset {
  explicit Reset(PtracerPolicy policy = PtracerPolicy::ancestor) {
    calls_a.peer = &calls_b;
    calls_b.peer = &calls_a;
    open(pair.a, policy, calls_a);
    open(pair.b, policy, calls_b);
    connect();
  }
  static void work(Side& side) {
    while (core(side).step()) continue;
  }
  void work() { work(pair.a), work(pair.b); }
  /// Sends one packet each way.
  void connect() {
    const size_t packets = pair.a.sink->packets.size() + pair.b.sink->packets.size();
    send(pair.a_to_b()), send(pair.b_to_a());
    until([&] { return pair.a.sink->packets.size() + pair.b.sink->packets.size() >= packets + 2; });
    work();
    pair.poll();
  }
  static void end(Side& side, transport::Link& link) {
    const size_t downs = side.sink->downs.size();
    link.fail(-FI_EIO);
    while (side.sink->downs.size() == downs) side.poll();
  }
  /// Connects while the other side does not poll.
  void connect_from(Side& side, transport::Link& link) {
    while (link.send(numbered(0), nullptr, 0, 0, transport::SendHint::none)) work(), side.poll();
  }
  /// `a` ends the link and connects again before `b` polls.
  void reset() {
    end(pair.a, pair.a_to_b());
    connect_from(pair.a, pair.a_to_b());
    connect();
  }
  /// Moves a large message from `b` to `a`. Returns the bytes that the kernel copied.
  uint64_t copied_once() {
    const std::vector<std::byte> from = pattern(size_t{1} << 20, 1);
    std::vector<std::byte> to(from.size());
    const iovec remote{const_cast<std::byte*>(from.data()), from.size()},
        local{to.data(), to.size()};
    const uint64_t before = core(pair.a).counters().cma_read_bytes;
    const size_t dones = pair.a.sink->dones.size();
    RemoteKey key;
    until([&] { return !pair.b_to_a().share(&remote, 1, from.size(), Access::remote_read, key); });
    ck_assert_int_eq(pair.a_to_b().get({key, 0, to.size()}, &local, 1, 7), 0);
    until([&] { return pair.a.sink->dones.size() == dones + 1; });
    ck_assert_int_eq(pair.a.sink->dones.back().status, 0);
    ck_assert(from == to);
    pair.b_to_a().revoke(key);
    return core(pair.a).counters().cma_read_bytes - before;
  }

  YamaCalls calls_a, calls_b;
  Pair pair;

 private:
  static transport::shm::ShmTransport& core(const Side& side) {
    return static_cast<transport::shm::ShmTransport&>(*side.transport);
  }
  static void open(Side& side, PtracerPolicy policy, YamaCalls& calls) {
    transport::shm::Options options;
    options.paths = transport::shm::PathPolicy::cma;
    options.background = false;
    options.ptracer = policy;
    auto opened = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0), &calls);
    ck_assert(bool(opened));
    side.name = (*opened)->name();
    side.transport = opened->get();
    side.owned = std::move(*opened);
  }
  template <typename Condition>
  void until(Condition condition) {
    ck_assert(pair.poll_until([&] { return work(), condition(); }));
  }
  void send(transport::Link& link) {
    until([&] { return !link.send(numbered(0), nullptr, 0, 0, transport::SendHint::none); });
  }
};

unsigned warnings_about_cma() {
  const std::lock_guard guard(g_log_mutex);
  unsigned lines = 0;
  for (const LogLine& line : g_log)
    lines += line.level == FI_LOG_WARN && contains(line.text, "process_vm_readv");
  return lines;
}

TEST(a_link_that_is_reset_while_it_awaits_the_answer_is_copied_once_later) {
  Reset rig;
  ck_assert_uint_eq(rig.copied_once(), 0);
  rig.reset();
  Reset::end(rig.pair.a, rig.pair.a_to_b());
  // No connection is up that could take the answer.
  rig.pair.b_to_a().addressed();
  Reset::work(rig.pair.b);
  rig.connect_from(rig.pair.a, rig.pair.a_to_b());
  rig.connect();
  ck_assert_uint_eq(rig.copied_once(), size_t{1} << 20);
  ck_assert_uint_eq(warnings_about_cma(), 0);
}

TEST(a_question_is_asked_again_while_the_process_that_asks_does_not_poll) {
  Reset rig;
  Reset::end(rig.pair.b, rig.pair.b_to_a());
  rig.connect_from(rig.pair.b, rig.pair.b_to_a());
  rig.pair.b_to_a().addressed();
  ck_assert(!rig.calls_a.admitted);
  rig.work();
  ck_assert(rig.calls_a.admitted);
  rig.connect();
  ck_assert_uint_eq(rig.copied_once(), size_t{1} << 20);
}

TEST(a_link_that_is_reset_after_the_answer_is_copied_once) {
  Reset rig;
  rig.pair.b_to_a().addressed();
  rig.connect();
  ck_assert_uint_eq(rig.copied_once(), size_t{1} << 20);
  for (int resets = 0; resets < 2; ++resets) {
    rig.reset();
    ck_assert_uint_eq(rig.copied_once(), size_t{1} << 20);
  }
}

TEST(a_link_that_is_reset_after_a_refusal_is_copied_twice_without_another_warning) {
  Reset rig(PtracerPolicy::none);
  for (int resets = 0; resets < 3; ++resets) {
    ck_assert_uint_eq(rig.copied_once(), 0);
    ck_assert_uint_eq(warnings_about_cma(), 2);  // one of each endpoint
    rig.reset();
  }
}

}  // namespace

}  // namespace erdma::test

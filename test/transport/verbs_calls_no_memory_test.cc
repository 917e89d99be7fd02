#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "fake/scarce_memory.h"
#include "goes_to_children.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs_rig.h"

/// Tests calls of an endpoint on a fake NIC while there is no memory.
namespace erdma::test {
namespace {

using fake::without_each_allocation;
using transport::Access;
using transport::RemoteKey;
using transport::SendHint;

TEST(a_transfer_without_memory_is_not_begun) {
  Two two;
  two.meet();
  std::vector<std::byte> from = pattern(10'000, 1), to(from.size());
  const iovec source{from.data(), from.size()}, target{to.data(), to.size()};
  RemoteKey key;
  two.rig.cache.refuse = true;  // the fake device would find no memory, either
  int shares = 0, gets = 0;
  const auto share = [&] {
    return two.pair.a_to_b().share(&source, 1, from.size(), Access::remote_read, key);
  };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, share, &shares), 0);
  const auto get = [&] { return two.pair.b_to_a().get({key, 0, from.size()}, &target, 1, 7); };
  ck_assert_int_eq(without_each_allocation(-FI_EAGAIN, get, &gets), 0);
  ck_assert(two.until([&] { return !two.b().sink->dones.empty(); }));
  ck_assert_uint_eq(two.b().sink->dones.size(), 1);
  ck_assert_int_eq(two.b().sink->dones[0].status, 0);
  ck_assert(from == to);
  ck_assert(shares > 0 && gets > 0);
  two.pair.a_to_b().revoke(key);
}

TEST(a_peer_that_cannot_be_kept_is_told) {
  Two two;
  const auto know = [&] { return two.a().transport->link_to(address_of("10.0.0.1", 9)).error(); };
  int failures = 0;
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, know, &failures), 0);
  ck_assert_int_gt(failures, 0);
  sockaddr_in6 other{};
  other.sin6_family = AF_INET6;
  other.sin6_port = htons(1);
  other.sin6_addr.s6_addr[15] = 1;
  const auto ip6 = util::SocketAddress::from_sockaddr(&other, sizeof(other));
  ck_assert_int_eq(two.a().transport->link_to(ip6).error(), -FI_EINVAL);
}

/// Above the limit of connections, a link waits for a place, and the queue needs memory.
TEST(a_link_that_cannot_wait_for_its_turn_says_so) {
  verbs::Options options;
  options.max_connections = 2;
  Two two(options);
  two.meet();
  two.rig.fabric.hold = true;
  const auto connect = [&](uint16_t port) {
    transport::Link& link = **two.a().transport->link_to(address_of("10.0.0.1", port));
    return link.send(numbered(1), nullptr, 0, 0, SendHint::none);
  };
  ck_assert_int_eq(connect(8), -FI_EAGAIN);
  ck_assert(bool(two.a().transport->link_to(address_of("10.0.0.1", 9))));
  fake::run_short(0);
  ck_assert_int_eq(fake::counted([&] { return connect(9); }), -FI_ENOMEM);
  ck_assert(fake::replenish());
  ck_assert_int_eq(connect(9), -FI_EAGAIN);
}

/// A link without a connection that waits for its peer is checked, and a link that broke the rules
/// goes down, even without memory.
TEST(a_link_without_a_connection_fails_without_memory) {
  Two two;
  two.a().sink->downs.reserve(4);
  transport::Link& link = two.pair.a_to_b();
  fake::run_short(0);
  fake::counted([&] {
    link.fail(-FI_ECONNRESET);
    return two.a().poll();
  });
  ck_assert(!fake::replenish());
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ECONNRESET);
}

TEST(a_region_that_is_not_opened_for_want_of_memory_goes_to_children) {
  fake::g_concerns = [](const void*) { return fake::t_in_adapter == 0; };
  fake::Nic::one().fork_status = IBV_FORK_DISABLED;
  Rig rig;
  verbs::HostRegistrar registrar(*rig.device, rig.cache);
  const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool failed = true;
  for (long allocation = 0; failed; ++allocation) {
    fake::run_short(allocation);
    const int rc = fake::counted([&] {
      try {
        return registrar.open({memory, bytes}, nullptr, true, true).error();
      } catch (const std::bad_alloc&) {
        return -FI_ENOMEM;
      }
    });
    failed = fake::replenish();
    ck_assert_int_eq(rc, failed ? -FI_ENOMEM : 0);
    ck_assert(goes_to_children(memory));
    ck_assert(failed || allocation > 0);
  }
  munmap(memory, bytes);
}

/// A sink that finds no memory for some packets.
struct Lacking final : transport::Sink {
  explicit Lacking(RecordingSink& to) : heard(to) {}
  RecordingSink& heard;
  bool lacks = true;
  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) override {
    if (lacks) throw std::bad_alloc();
    heard.on_packet(link, header, payload, length);
  }
  void on_done(uint64_t token, int status) noexcept override { heard.on_done(token, status); }
  void on_link_down(transport::Link& link, int status) noexcept override {
    heard.on_link_down(link, status);
  }
};

/// Two peers with many packets on the way, and a third that is lost.
struct Crowd : Two {
  Side second, third;
  RecordingSink& heard = *b().sink;
  Crowd() {
    ck_assert(rig.open(second, {}, &rig.clock));
    ck_assert(rig.open(third, {}, &rig.clock));
    for (Side* side : {&a(), &second, &third}) deliver(*side);
    for (Side* side : {&a(), &second}) {
      while (send(*side, 0)) {
      }
      const size_t before = heard.packets.size() + 200;
      while (heard.packets.size() < before) deliver(*side);
    }
  }
  bool send(Side& from, uint64_t number) {
    const iovec none{nullptr, 0};
    return !(*from.transport->link_to(b().name))
                ->send(numbered(number), &none, 1, 0, SendHint::none);
  }
  void deliver(Side& from) {
    const size_t before = heard.packets.size();
    ck_assert(until([&] {
      from.poll();
      return send(from, 0);
    }));
    ck_assert(until([&] {
      from.poll();
      return heard.packets.size() > before;
    }));
  }
  /// Breaks b's end of its youngest connection.
  void lose_third() {
    const FakeFabric::Wire& wire = rig.fabric.wires.back();
    FakeConnector* const connector = rig.fabric.find(b().name);
    connector->lose(wire.ids[wire.ends[1] == connector], -FI_ECONNRESET);
  }
  void poll_b(transport::Sink& sink, uint64_t passes) {
    b().transport->poll(sink);
    rig.clock.time += passes;
  }
};

/// The packet waits behind one packet for which there is no memory, or behind more packets than one
/// poll() takes. It waits longer than a broken connection is kept.
TEST(a_packet_that_waits_behind_others_arrives_before_its_peer_is_lost, 2) {
  Crowd crowd;
  size_t sent = crowd.heard.packets.size() + 1;
  ck_assert(crowd.send(crowd.a(), 1));
  if (_i)
    for (Side* side : {&crowd.a(), &crowd.second})
      for (; crowd.send(*side, 1); ++sent) {
      }
  if (_i) ck_assert_uint_gt(sent, crowd.heard.packets.size() + 64);
  ck_assert(crowd.send(crowd.third, 2));
  crowd.lose_third();
  Lacking sink{crowd.heard};
  for (int i = 0; i < 3; ++i) crowd.poll_b(sink, 21'000'000);
  sink.lacks = false;
  for (int i = 0; i < 100 && crowd.heard.downs.empty(); ++i) crowd.poll_b(sink, 1'000'000);
  ck_assert_uint_eq(crowd.heard.downs.size(), 1);
  ck_assert_uint_eq(crowd.heard.packets.size(), sent + 1);
  ck_assert_uint_eq(crowd.heard.packets.back().number(), 2);
  ck_assert_uint_eq(crowd.heard.downs[0].packets_before, sent + 1);
}

}  // namespace
}  // namespace erdma::test

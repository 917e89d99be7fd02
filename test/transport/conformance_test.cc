#include "transport/conformance.h"

#include <check.h>
#include <rdma/fi_errno.h>
#undef fail  // of check.h, in the way of Link::fail()

#include <cstdlib>
#include <span>

#include "transport/shm/shm_transport.h"
#include "transport/simulated_device.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/verbs_transport.h"

/// The rules of transport/transport.h, held against every transport: shared memory here, the NIC's
/// on the simulated adapter.
namespace erdma::test {
namespace {

using transport::Access;
using transport::Exposure;
using transport::Link;
using transport::SendHint;

void open_shm(Side& side, const transport::shm::Options& options) {
  auto opened = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0));
  ck_assert_int_eq(opened.error(), 0);
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
}

void shm_pair(Pair& pair) {
  open_shm(pair.a, {});
  open_shm(pair.b, {});
}

void shm_pair_without_cma(Pair& pair) {
  transport::shm::Options options;
  options.cma = false;
  open_shm(pair.a, options);
  open_shm(pair.b, options);
}

void shm_pair_without_hot_rings(Pair& pair) {
  transport::shm::Options options;
  options.hot_peers = 0;  // at least one: taken by nobody that sends fewer than 16 messages
  open_shm(pair.a, options);
  open_shm(pair.b, options);
}

/// Outlive the sides of a test, which is a process of its own.
std::unique_ptr<transport::verbs::Device> g_device;
std::unique_ptr<transport::verbs::RegistrationCache> g_cache;

void open_verbs(Side& side, const transport::verbs::Options& options, bool registers) {
  if (!g_device) g_device = open_first_device();
  ck_assert_ptr_nonnull(g_device.get());
  if (!g_cache) {
    auto cache = transport::verbs::RegistrationCache::create(*g_device, {.enabled = registers});
    ck_assert_int_eq(cache.error(), 0);
    g_cache = std::move(*cache);
  }
  auto opened =
      transport::verbs::VerbsTransport::open(options, *g_device, *g_cache, g_device->address());
  ck_assert_int_eq(opened.error(), 0);
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
}

void verbs_pair(Pair& pair) {
  open_verbs(pair.a, {}, true);
  open_verbs(pair.b, {}, true);
}

void verbs_pair_without_registration(Pair& pair) {
  open_verbs(pair.a, {}, false);
  open_verbs(pair.b, {}, false);
}

void verbs_to_itself(Pair& pair) {
  open_verbs(pair.a, {}, true);
  pair.b.transport = pair.a.transport;
  pair.b.name = pair.a.name;
  pair.b.sink = pair.a.sink;
}

struct Factory {
  const char* name;
  void (*make)(Pair& pair);
  /// withdraw() takes the memory away from a peer that does not keep to the rules, too.
  bool revokes;
};
const Factory kShm[] = {{"shm", shm_pair, true},
                        {"shm without CMA", shm_pair_without_cma, true},
                        {"shm with one hot ring", shm_pair_without_hot_rings, true}};
const Factory kVerbs[] = {{"verbs", verbs_pair, false},
                          {"verbs without registration", verbs_pair_without_registration, true},
                          {"verbs to itself", verbs_to_itself, false}};
std::span<const Factory> g_factories = kShm;

void make(Pair& pair, int factory) {
  g_factories[size_t(factory)].make(pair);
}

bool has_packets(const Side& side, size_t count) {
  return side.sink->packets.size() >= count;
}

START_TEST(packets_arrive_once_and_in_the_order_of_send) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  constexpr uint64_t kCount = 3000;
  for (uint64_t i = 0; i < kCount; ++i) ck_assert_int_eq(pair.send(link, i, &i, sizeof(i)), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, kCount); }));
  for (uint64_t i = 0; i < kCount; ++i) {
    ck_assert_uint_eq(pair.b.sink->packets[i].number(), i);
    ck_assert_mem_eq(pair.b.sink->packets[i].payload.data(), &i, sizeof(i));
  }
  pair.poll();
  ck_assert_uint_eq(pair.b.sink->packets.size(), kCount);
}
END_TEST

START_TEST(payload_of_any_length_up_to_the_limit_arrives_unchanged) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  for (uint64_t round = 0, sent = 0; round < 400; ++round) {
    const size_t limit = link.limits().eager;
    const size_t length = round < 40 ? std::min(size_t(round), limit) : (round * 397) % (limit + 1);
    const auto bytes = pattern(length, unsigned(round));
    if (pair.send(link, round, bytes.data(), length)) continue;  // the limit may have shrunk
    ++sent;
    ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent); }));
    const auto& packet = pair.b.sink->packets.back();
    ck_assert_uint_eq(packet.payload.size(), length);
    ck_assert(packet.payload == bytes);
  }
}
END_TEST

START_TEST(payload_in_several_pieces_is_gathered) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  const auto bytes = pattern(60, 5);
  std::byte* data = const_cast<std::byte*>(bytes.data());
  const iovec pieces[] = {{data, 1}, {data + 1, 0}, {data + 1, 30}, {data + 31, 29}};
  ck_assert(
      pair.poll_until([&] { return link.send(numbered(1), pieces, 4, 60, SendHint::none) == 0; }));
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert(pair.b.sink->packets[0].payload == bytes);
}
END_TEST

START_TEST(a_packet_without_payload_arrives) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert(
      pair.poll_until([&] { return link.send(numbered(9), nullptr, 0, 0, SendHint::none) == 0; }));
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert_uint_eq(pair.b.sink->packets[0].number(), 9);
}
END_TEST

START_TEST(send_makes_no_upcall) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  for (int i = 0; i < 4; ++i)
    ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  ck_assert_uint_eq(pair.b.sink->packets.size(), 1);
}
END_TEST

START_TEST(a_full_link_says_again_and_goes_on_after_poll) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  const auto bytes = pattern(88, 1);
  const iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  uint64_t sent = 1;
  while (sent < 1'000'000 && !link.send(numbered(sent), &iov, 1, 88, SendHint::none)) ++sent;
  if (sent == 1'000'000) return;  // a transport without bounds
  ck_assert_int_eq(link.send(numbered(sent), &iov, 1, 88, SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent); }));
  ck_assert_int_eq(pair.send(link, sent, bytes.data(), 88), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent + 1); }));
  ck_assert_uint_eq(pair.b.sink->packets.back().number(), sent);
}
END_TEST

START_TEST(both_directions_name_the_peer_by_the_same_link) {
  Pair pair;
  make(pair, _i);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  Link& back = *pair.b.sink->packets[0].link;
  ck_assert_ptr_eq(&back, &pair.b_to_a());
  ck_assert(back.address() == pair.a.name);
  ck_assert_int_eq(pair.send(back, 2, nullptr, 0), 0);
  const size_t expected = pair.a.sink == pair.b.sink ? 2 : 1;
  ck_assert(pair.poll_until([&] { return has_packets(pair.a, expected); }));
  ck_assert_ptr_eq(pair.a.sink->packets.back().link, &pair.a_to_b());
}
END_TEST

void expose_to_b(Pair& pair, const iovec* iov, size_t count, size_t length, Access access,
                 Exposure& exposure) {
  Link& link = pair.a_to_b();
  // The exposure travels in a packet, so the link is there once it is used.
  ck_assert(pair.poll_until([&] {
    const int rc = link.expose(iov, count, length, access, exposure);
    ck_assert(rc == 0 || rc == -FI_EAGAIN);
    return rc == 0;
  }));
  const size_t before = pair.b.sink->packets.size();
  ck_assert_int_eq(pair.send(link, 0, exposure.bytes, exposure.size), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, before + 1); }));
  const auto& payload = pair.b.sink->packets.back().payload;
  ck_assert_uint_eq(payload.size(), exposure.size);
  ck_assert_mem_eq(payload.data(), exposure.bytes, exposure.size);
}

constexpr size_t kBulkSizes[] = {1, 4096, 100'001, 3'000'000};

START_TEST(read_copies_the_exposed_memory) {
  Pair pair;
  make(pair, _i);
  for (size_t size : kBulkSizes) {
    auto source = pattern(size, unsigned(size));
    std::vector<std::byte> target(size);
    const iovec from[] = {{source.data(), size / 3}, {source.data() + size / 3, size - size / 3}};
    const iovec to{target.data(), size};
    Exposure exposure;
    expose_to_b(pair, from, 2, size, Access::remote_read, exposure);
    const size_t dones = pair.b.sink->dones.size();
    ck_assert(
        pair.poll_until([&] { return pair.b_to_a().read(exposure, &to, 1, size, size) == 0; }));
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > dones; }));
    ck_assert_uint_eq(pair.b.sink->dones.back().token, size);
    ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
    ck_assert(source == target);
    pair.a_to_b().withdraw(exposure);
  }
}
END_TEST

START_TEST(write_fills_the_exposed_memory) {
  Pair pair;
  make(pair, _i);
  for (size_t size : kBulkSizes) {
    auto source = pattern(size, unsigned(size));
    std::vector<std::byte> target(size);
    const iovec from{source.data(), size};
    const iovec to{target.data(), size};
    Exposure exposure;
    expose_to_b(pair, &to, 1, size, Access::remote_write, exposure);
    const size_t dones = pair.b.sink->dones.size();
    ck_assert(
        pair.poll_until([&] { return pair.b_to_a().write(exposure, &from, 1, size, size) == 0; }));
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > dones; }));
    ck_assert_uint_eq(pair.b.sink->dones.back().token, size);
    ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
    ck_assert(source == target);
    pair.a_to_b().withdraw(exposure);
  }
}
END_TEST

START_TEST(a_malformed_exposure_is_refused) {
  Pair pair;
  make(pair, _i);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  Exposure nonsense;
  nonsense.size = 3;
  std::byte byte{};
  const iovec iov{&byte, 1};
  ck_assert_int_eq(pair.b_to_a().read(nonsense, &iov, 1, 1, 0), -FI_EINVAL);
  ck_assert_int_eq(pair.b_to_a().write(nonsense, &iov, 1, 1, 0), -FI_EINVAL);
}
END_TEST

START_TEST(a_write_to_withdrawn_memory_fails_and_touches_nothing) {
  if (!g_factories[size_t(_i)].revokes) return;
  Pair pair;
  make(pair, _i);
  auto source = pattern(1000, 1);
  std::vector<std::byte> target(1000);
  const iovec from{source.data(), 1000};
  const iovec to{target.data(), 1000};
  Exposure exposure;
  expose_to_b(pair, &to, 1, 1000, Access::remote_write, exposure);
  pair.a_to_b().withdraw(exposure);
  ck_assert(pair.poll_until(
      [&] { return pair.b_to_a().write(exposure, &from, 1, 1000, 7) != -FI_EAGAIN; }));
  ck_assert(pair.poll_until([&] { return !pair.b.sink->dones.empty(); }));
  ck_assert_int_lt(pair.b.sink->dones[0].status, 0);
  ck_assert(target == std::vector<std::byte>(1000));
}
END_TEST

// --- direct access ------------------------------------------------------------------------------

/// Memory of a's that b may access.
struct Opened {
  Opened(Pair& pair, size_t size, bool reads = true, bool writes = true) : bytes(size) {
    // b has heard of a: until then it may have to be silent.
    ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
    memory = pair.a_to_b().open({bytes.data(), size}, reads, writes);
    if (memory) memory->describe(described);
  }
  std::vector<std::byte> bytes;
  std::unique_ptr<transport::OpenMemory> memory;
  Exposure described;
};

bool skips_direct(Pair& pair) {
  if (pair.b_to_a().opens_memory()) return false;
  std::byte byte{};
  const iovec iov{&byte, 1};
  const Exposure none{};
  ck_assert(!pair.a_to_b().open(iov, true, true));
  ck_assert_int_eq(pair.b_to_a().read_direct({none, 0, 1}, &iov, 1, 0), -FI_EOPNOTSUPP);
  ck_assert_int_eq(pair.b_to_a().write_direct({none, 0, 1}, &iov, 1, 0, false), -FI_EOPNOTSUPP);
  return true;
}

void expect_done(Pair& pair, size_t before, uint64_t token) {
  ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > before; }));
  ck_assert_uint_eq(pair.b.sink->dones.size(), before + 1);
  ck_assert_uint_eq(pair.b.sink->dones.back().token, token);
  ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
}

constexpr size_t kDirectSizes[] = {1, 8, 64, 65, 96, 97, 4096, 4097, 3'000'000};

START_TEST(direct_access_moves_any_number_of_bytes) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 3'000'100);
  ck_assert(there.memory);
  for (size_t size : kDirectSizes) {
    for (const bool until_placed : {false, true}) {
      auto source = pattern(size, unsigned(size) + until_placed);
      const iovec from[] = {{source.data(), size / 3}, {source.data() + size / 3, size - size / 3}};
      size_t before = pair.b.sink->dones.size();
      ck_assert(pair.poll_until([&] {
        return pair.b_to_a().write_direct({there.described, 50, size}, from, 2, size,
                                          until_placed) == 0;
      }));
      expect_done(pair, before, size);
      std::vector<std::byte> back(size);
      const iovec into[] = {{back.data(), size / 2}, {back.data() + size / 2, size - size / 2}};
      before = pair.b.sink->dones.size();
      ck_assert(pair.poll_until([&] {
        return pair.b_to_a().read_direct({there.described, 50, size}, into, 2, size + 1) == 0;
      }));
      expect_done(pair, before, size + 1);
      ck_assert(source == back);
      ck_assert(std::equal(source.begin(), source.end(), there.bytes.begin() + 50));
      ck_assert(there.bytes[49] == std::byte{} && there.bytes[50 + size] == std::byte{});
      std::fill(there.bytes.begin(), there.bytes.end(), std::byte{});
    }
  }
}
END_TEST

START_TEST(a_packet_finds_what_was_written_directly_before_it) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 64);
  const size_t before = pair.a.sink->packets.size();
  uint64_t next = 1, seen = 0;
  const auto all_came = [&] {
    const iovec iov{&next, 8};
    if (next <= 500 && !pair.b_to_a().write_direct({there.described, 8, 8}, &iov, 1, 1, false)) {
      ck_assert_int_eq(pair.send(pair.b_to_a(), next, nullptr, 0), 0);
      ++next;
    }
    for (; seen < pair.a.sink->packets.size() - before; ++seen) {
      uint64_t value = 0;
      std::memcpy(&value, &there.bytes[8], 8);
      ck_assert_uint_ge(value, pair.a.sink->packets[before + seen].number());
    }
    return seen == 500;
  };
  ck_assert(pair.poll_until(all_came));
}
END_TEST

START_TEST(direct_operations_that_find_no_room_are_done_once_tried_again) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 4096);
  const size_t before = pair.b.sink->dones.size();
  std::vector<uint64_t> values(1000);
  unsigned refused = 0;
  for (uint64_t i = 0; i < values.size(); ++i) {
    const iovec iov{&values[i], 8};
    const auto post = [&] {
      return i % 2 ? pair.b_to_a().read_direct({there.described, 8, 8}, &iov, 1, i)
                   : pair.b_to_a().write_direct({there.described, 8, 8}, &iov, 1, i, i % 4 == 0);
    };
    if (i % 2 == 0) values[i] = i;
    int rc = post();
    refused += rc == -FI_EAGAIN;
    while (rc == -FI_EAGAIN) pair.poll(), rc = post();
    ck_assert_int_eq(rc, 0);
  }
  ck_assert_uint_gt(refused, 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() - before == values.size(); }));
  std::vector<bool> done(values.size());
  for (size_t i = before; i < pair.b.sink->dones.size(); ++i) {
    const RecordingSink::Done& each = pair.b.sink->dones[i];
    ck_assert_int_eq(each.status, 0);
    ck_assert(!done[each.token]);
    done[each.token] = true;
  }
  // A read sees the write before it.
  for (size_t i = 1; i < values.size(); i += 2) ck_assert_uint_ge(values[i], i - 1);
}
END_TEST

START_TEST(memory_that_was_closed_is_not_touched_and_costs_the_link) {
  for (const bool large : {false, true}) {
    for (const bool write : {false, true}) {
      Pair pair;
      make(pair, _i);
      if (skips_direct(pair)) return;
      const size_t size = large ? 1'000'000 : 8;
      Opened there(pair, size);
      there.memory.reset();
      std::vector<std::byte> local(size, std::byte{7});
      const iovec iov{local.data(), size};
      const size_t before = pair.b.sink->dones.size();
      ck_assert_int_eq(
          write ? pair.b_to_a().write_direct({there.described, 0, size}, &iov, 1, 5, true)
                : pair.b_to_a().read_direct({there.described, 0, size}, &iov, 1, 5),
          0);
      ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
      ck_assert_uint_eq(pair.b.sink->dones.size(), before + 1);
      ck_assert_int_ne(pair.b.sink->dones.back().status, 0);
      ck_assert_uint_eq(pair.b.sink->downs.front().dones_before, before + 1);
      ck_assert(there.bytes == std::vector<std::byte>(size));
      ck_assert(local == std::vector<std::byte>(size, std::byte{7}));
    }
  }
}
END_TEST

START_TEST(a_range_beyond_what_was_described_is_refused) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 64);
  std::byte bytes[65];
  const iovec iov{bytes, 65};
  Exposure nonsense;
  nonsense.size = 3;
  const transport::RemoteRange wrong[] = {{there.described, 0, 65},
                                          {there.described, 60, 5},
                                          {there.described, ~uint64_t{0}, 2},
                                          {there.described, 0, 0},
                                          {nonsense, 0, 1}};
  for (const auto& range : wrong) {
    ck_assert_int_eq(pair.b_to_a().read_direct(range, &iov, 1, 0), -FI_EINVAL);
    ck_assert_int_eq(pair.b_to_a().write_direct(range, &iov, 1, 0, true), -FI_EINVAL);
  }
}
END_TEST

START_TEST(shutdown_reaches_the_peer_after_everything_sent) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  uint64_t sent = 1;
  while (sent < 60 && !link.send(numbered(sent), nullptr, 0, 0, SendHint::none)) ++sent;
  pair.a.transport->shutdown();
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.b.sink->downs[0].packets_before, sent);
  ck_assert_int_eq(pair.b.sink->downs[0].status, -FI_ESHUTDOWN);
  ck_assert_uint_eq(pair.b.sink->downs.size(), 1);
  ck_assert(pair.a.sink->downs.empty());
}
END_TEST

START_TEST(reads_under_way_end_before_the_link_goes_down) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  constexpr size_t kBytes = 40'000'000;
  auto source = pattern(kBytes, 1);
  std::vector<std::byte> target(kBytes);
  const iovec from{source.data(), kBytes};
  const iovec to{target.data(), kBytes};
  Exposure exposure;
  expose_to_b(pair, &from, 1, kBytes, Access::remote_read, exposure);
  ck_assert(pair.poll_until([&] { return pair.b_to_a().read(exposure, &to, 1, kBytes, 3) == 0; }));
  pair.poll();
  pair.a.transport->shutdown();
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.b.sink->dones.size(), 1);
  ck_assert_uint_eq(pair.b.sink->downs[0].dones_before, 1);
}
END_TEST

START_TEST(fail_brings_the_link_down_once_and_delivers_nothing_more) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  pair.b_to_a().fail(-FI_ECONNABORTED);
  ck_assert(pair.b.sink->downs.empty());
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_int_eq(pair.b.sink->downs[0].status, -FI_ECONNABORTED);
  ck_assert_uint_eq(pair.b.sink->packets.size(), 1);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
}
END_TEST

START_TEST(an_armed_transport_wakes_for_a_packet) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  if (pair.b.transport->wait_fd() < 0) return;
  ck_assert(pair.poll_until([&] { return pair.b.transport->arm(); }));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  pollfd fd{pair.b.transport->wait_fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&fd, 1, 20'000), 1);
  pair.b.transport->disarm();
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 2); }));
}
END_TEST

START_TEST(arm_refuses_while_a_packet_waits) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  if (pair.b.transport->wait_fd() < 0) return;
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  ck_assert(!pair.b.transport->arm());
}
END_TEST

Suite* suite() {
  Suite* suite = suite_create("transport conformance");
  TCase* tc = tcase_create("rules");
  tcase_set_timeout(tc, 120);
  const TTest* const tests[] = {packets_arrive_once_and_in_the_order_of_send,
                                payload_of_any_length_up_to_the_limit_arrives_unchanged,
                                payload_in_several_pieces_is_gathered,
                                a_packet_without_payload_arrives,
                                send_makes_no_upcall,
                                a_full_link_says_again_and_goes_on_after_poll,
                                both_directions_name_the_peer_by_the_same_link,
                                read_copies_the_exposed_memory,
                                write_fills_the_exposed_memory,
                                a_malformed_exposure_is_refused,
                                a_write_to_withdrawn_memory_fails_and_touches_nothing,
                                direct_access_moves_any_number_of_bytes,
                                a_packet_finds_what_was_written_directly_before_it,
                                direct_operations_that_find_no_room_are_done_once_tried_again,
                                memory_that_was_closed_is_not_touched_and_costs_the_link,
                                a_range_beyond_what_was_described_is_refused,
                                shutdown_reaches_the_peer_after_everything_sent,
                                reads_under_way_end_before_the_link_goes_down,
                                fail_brings_the_link_down_once_and_delivers_nothing_more,
                                an_armed_transport_wakes_for_a_packet,
                                arm_refuses_while_a_packet_waits};
  for (const TTest* test : tests) tcase_add_loop_test(tc, test, 0, int(g_factories.size()));
  suite_add_tcase(suite, tc);
  return suite;
}

int run() {
  for (const Factory& factory : g_factories)
    printf("%td: %s\n", &factory - g_factories.data(), factory.name);
  fflush(stdout);
  SRunner* runner = srunner_create(suite());
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}

int run_verbs() {
  g_factories = kVerbs;
  return run();
}

}  // namespace
}  // namespace erdma::test

int main(int, char** argv) {
  using namespace erdma::test;
  // Again, in a process with the simulated adapter.
  const char* preloaded = std::getenv("LD_PRELOAD");
  const bool simulated = preloaded && std::string(preloaded).find("softerdma") != std::string::npos;
  const int shm = simulated ? 0 : run();
  const int nic = on_simulated_devices(argv, run_verbs);
  return shm || (nic && nic != 77) ? 1 : 0;
}

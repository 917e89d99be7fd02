#include "transport/conformance_pairs.h"

/// Tests direct access to a peer's memory with every transport. Transports without it must say so.
namespace erdma::test {
namespace {

/// Memory of a that b may access.
struct Opened {
  Opened(Pair& pair, size_t size, bool reads = true, bool writes = true) : bytes(size) {
    // b may refuse to access memory of a before it has received a packet of a.
    ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
    const transport::OptionalInterfaces& link = pair.a_to_b().optional();
    if (link.sharing) {
      ck_assert_int_eq(link.sharing->share({bytes.data(), size}, reads, writes, described), 0);
      return;
    }
    auto registered = link.registrar->open({bytes.data(), size}, nullptr, reads, writes);
    ck_assert(registered);
    memory = std::move(*registered);
    memory->describe(described);
  }
  std::vector<std::byte> bytes;
  std::unique_ptr<transport::RegisteredRegion> memory;
  RemoteKey described;
};

/// Posts an access from b to a. If it is done at once, reports its completion as the transport
/// would.
int access(Pair& pair, bool reads, const transport::RemoteRange& range, const iovec* local,
           size_t count, uint64_t token, bool until_placed = false) {
  const int rc = reads ? pair.b_to_a().get(range, local, count, token)
                       : pair.b_to_a().put(range, local, count, token, until_placed);
  if (rc != transport::kDone) return rc;
  pair.b.sink->on_done(token, 0);
  return 0;
}

bool has_direct(Pair& pair) {
  if (pair.b_to_a().optional().registrar) return true;
  ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.a, 1); }));
  transport::RegionSharing* const sharing = pair.a_to_b().optional().sharing;
  return sharing && sharing->possible();
}

bool has_fast_path(Pair& pair, const Opened& there, transport::DeviceAddress& first) {
  transport::FastAccess* const fast = pair.b_to_a().optional().fast;
  if (!fast) return false;
  RemoteKey nonsense{};
  nonsense.size = 3;
  ck_assert(!fast->unpack(nonsense, first));
  ck_assert(fast->unpack(there.described, first));
  return true;
}

bool skips_direct(Pair& pair) {
  if (has_direct(pair)) return false;
  std::byte byte{};
  const iovec iov{&byte, 1};
  RemoteKey none{};
  none.put(transport::KeyHead{transport::KeyKind::region});
  ck_assert(!pair.a_to_b().optional().registrar && !pair.a_to_b().optional().fast);
  for (const int refusal : {pair.b_to_a().get({none, 0, 1}, &iov, 1, 0),
                            pair.b_to_a().put({none, 0, 1}, &iov, 1, 0, false)})
    ck_assert(refusal == -FI_EOPNOTSUPP || refusal == -FI_EINVAL);
  return true;
}

void expect_done(Pair& pair, size_t before, uint64_t token) {
  ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > before; }));
  ck_assert_uint_eq(pair.b.sink->dones.size(), before + 1);
  ck_assert_uint_eq(pair.b.sink->dones.back().token, token);
  ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
}

constexpr size_t kDirectSizes[] = {1, 8, 64, 65, 96, 97, 4096, 4097, 3'000'000};

TEST_CASE(.timeout = 120, .tear_down = close_device);

TEST(direct_access_moves_any_number_of_bytes, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 3'000'100);
  for (size_t size : kDirectSizes) {
    for (const bool until_placed : {false, true}) {
      auto source = pattern(size, unsigned(size) + until_placed);
      const iovec from[] = {{source.data(), size / 3}, {source.data() + size / 3, size - size / 3}};
      size_t before = pair.b.sink->dones.size();
      ck_assert(pair.poll_until([&] {
        return access(pair, false, {there.described, 50, size}, from, 2, size, until_placed) == 0;
      }));
      expect_done(pair, before, size);
      std::vector<std::byte> back(size);
      const iovec into[] = {{back.data(), size / 2}, {back.data() + size / 2, size - size / 2}};
      before = pair.b.sink->dones.size();
      ck_assert(pair.poll_until([&] {
        return access(pair, true, {there.described, 50, size}, into, 2, size + 1) == 0;
      }));
      expect_done(pair, before, size + 1);
      ck_assert(source == back);
      ck_assert(std::equal(source.begin(), source.end(), there.bytes.begin() + 50));
      ck_assert(there.bytes[49] == std::byte{} && there.bytes[50 + size] == std::byte{});
      std::fill(there.bytes.begin(), there.bytes.end(), std::byte{});
    }
  }
}

TEST(the_fast_path_moves_what_always_fits_a_packet, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 200);
  transport::DeviceAddress first;
  if (!has_fast_path(pair, there, first)) return;
  first.address += 50;
  for (size_t size = 1; size <= transport::kAlwaysEager; ++size) {
    const auto source = pattern(size, unsigned(size));
    size_t before = pair.b.sink->dones.size();
    ck_assert_int_eq(pair.b_to_a().optional().fast->put(first, source.data(), size, size), 0);
    expect_done(pair, before, size);
    std::vector<std::byte> back(size + 1);
    before = pair.b.sink->dones.size();
    ck_assert_int_eq(pair.b_to_a().optional().fast->get(first, back.data(), size, size + 100), 0);
    expect_done(pair, before, size + 100);
    ck_assert(std::equal(source.begin(), source.end(), back.begin()));
    ck_assert(std::equal(source.begin(), source.end(), there.bytes.begin() + 50));
    ck_assert(back[size] == std::byte{} && there.bytes[49] == std::byte{});
    ck_assert(there.bytes[50 + size] == std::byte{});
  }
}

TEST(a_packet_finds_what_was_written_directly_before_it, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 64);
  transport::DeviceAddress first;
  const bool both = has_fast_path(pair, there, first);
  first.address += 8;
  const size_t before = pair.a.sink->packets.size();
  uint64_t next = 1, seen = 0;
  const auto write = [&] {
    const iovec iov{&next, 8};
    return both && next % 2 ? pair.b_to_a().optional().fast->put(first, &next, 8, 1)
                            : access(pair, false, {there.described, 8, 8}, &iov, 1, 1);
  };
  const auto all_came = [&] {
    if (next <= 500 && !write()) {
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

void find_no_room(int factory, bool by_short) {
  Pair pair;
  make(pair, factory);
  if (skips_direct(pair)) return;
  Opened there(pair, 4096);
  transport::DeviceAddress first;
  if (!has_fast_path(pair, there, first) && by_short) return;
  first.address += 8;
  const size_t before = pair.b.sink->dones.size();
  std::vector<uint64_t> values(1000);
  unsigned refused = 0;
  for (uint64_t i = 0; i < values.size(); ++i) {
    const iovec iov{&values[i], 8};
    const auto post = [&] {
      if (by_short)
        return i % 2 ? pair.b_to_a().optional().fast->get(first, &values[i], 8, i)
                     : pair.b_to_a().optional().fast->put(first, &values[i], 8, i);
      return access(pair, i % 2, {there.described, 8, 8}, &iov, 1, i, i % 4 == 0);
    };
    if (i % 2 == 0) values[i] = i;
    int rc = post();
    refused += rc == -FI_EAGAIN;
    while (rc == -FI_EAGAIN) pair.poll(), rc = post();
    ck_assert_int_eq(rc, 0);
  }
  if (there.memory) ck_assert_uint_gt(refused, 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() - before == values.size(); }));
  std::vector<bool> done(values.size());
  for (size_t i = before; i < pair.b.sink->dones.size(); ++i) {
    const RecordingSink::Done& each = pair.b.sink->dones[i];
    ck_assert_int_eq(each.status, 0);
    ck_assert(!done[each.token]);
    done[each.token] = true;
  }
  // A read returns the value of the write before it.
  for (size_t i = 1; i < values.size(); i += 2) ck_assert_uint_ge(values[i], i - 1);
}

TEST(direct_operations_that_find_no_room_are_done_once_tried_again, g_factories.size()) {
  find_no_room(_i, false);
}

TEST(those_of_the_fast_path_too, g_factories.size()) {
  find_no_room(_i, true);
}

TEST(memory_that_was_closed_is_not_touched_and_costs_the_link, g_factories.size()) {
  for (const bool large : {false, true}) {
    for (const bool write : {false, true}) {
      Pair pair;
      make(pair, _i);
      if (!pair.b_to_a().optional().registrar) return;
      const size_t size = large ? 1'000'000 : 8;
      Opened there(pair, size);
      there.memory.reset();
      std::vector<std::byte> local(size, std::byte{7});
      const iovec iov{local.data(), size};
      const size_t before = pair.b.sink->dones.size();
      ck_assert_int_eq(write ? pair.b_to_a().put({there.described, 0, size}, &iov, 1, 5, true)
                             : pair.b_to_a().get({there.described, 0, size}, &iov, 1, 5),
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

/// After a revocation, b accesses no other memory of a until on_revoked().
TEST(what_was_revoked_is_not_touched, g_factories.size()) {
  for (const size_t size : {size_t{8}, size_t{1'000'000}}) {
    for (const bool reads : {false, true}) {
      Pair pair;
      make(pair, _i);
      if (skips_direct(pair) || pair.b_to_a().optional().registrar) return;
      Opened there(pair, size), other(pair, size);
      std::vector<std::byte> local(size, std::byte{7});
      const iovec iov{local.data(), size};
      const bool under_way = size > 8;
      if (under_way)
        ck_assert_int_eq(access(pair, reads, {there.described, 0, size}, &iov, 1, 1), 0);
      pair.a_to_b().optional().sharing->revoke(there.described);
      ck_assert(pair.a_to_b().optional().sharing->unused());
      if (under_way) {
        ck_assert(pair.poll_until([&] { return !pair.b.sink->dones.empty(); }));
        ck_assert_int_eq(pair.b.sink->dones.back().status, -FI_EBUSY);
      }
      const auto before = there.bytes;
      for (const Opened* each : {&there, &other})
        ck_assert_int_eq(access(pair, reads, {each->described, 0, size}, &iov, 1, 2), -FI_EBUSY);
      pair.b_to_a().optional().sharing->on_revoked();
      const size_t dones = pair.b.sink->dones.size();
      ck_assert_int_eq(access(pair, reads, {other.described, 0, size}, &iov, 1, 3), 0);
      expect_done(pair, dones, 3);
      ck_assert(there.bytes == before);
      ck_assert(other.bytes == local);
    }
  }
}

TEST(the_fast_path_to_memory_that_was_closed_costs_the_link, g_factories.size()) {
  for (const bool write : {false, true}) {
    Pair pair;
    make(pair, _i);
    if (skips_direct(pair)) return;
    Opened there(pair, 8);
    transport::DeviceAddress first;
    if (!has_fast_path(pair, there, first)) return;
    there.memory.reset();
    uint64_t local = 7;
    const size_t before = pair.b.sink->dones.size();
    ck_assert_int_eq(write ? pair.b_to_a().optional().fast->put(first, &local, 8, 5)
                           : pair.b_to_a().optional().fast->get(first, &local, 8, 5),
                     0);
    ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
    ck_assert_uint_eq(pair.b.sink->dones.size(), before + 1);
    ck_assert_uint_eq(pair.b.sink->dones.back().token, 5);
    // The operation ends with the status of the link, as nothing more exact is known.
    ck_assert_int_eq(pair.b.sink->dones.back().status, pair.b.sink->downs.front().status);
    ck_assert_uint_eq(pair.b.sink->downs.front().dones_before, before + 1);
    ck_assert(there.bytes == std::vector<std::byte>(8));
    ck_assert_uint_eq(local, 7);
  }
}

TEST(a_range_beyond_what_was_described_is_refused, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (skips_direct(pair)) return;
  Opened there(pair, 64);
  std::byte bytes[65];
  const iovec iov{bytes, 65};
  RemoteKey nonsense{};
  nonsense.size = 3;
  const transport::RemoteRange wrong[] = {{there.described, 0, 65},
                                          {there.described, 60, 5},
                                          {there.described, ~uint64_t{0}, 2},
                                          {there.described, 0, 0},
                                          {nonsense, 0, 1}};
  for (const auto& range : wrong) {
    ck_assert_int_eq(pair.b_to_a().get(range, &iov, 1, 0), -FI_EINVAL);
    ck_assert_int_eq(pair.b_to_a().put(range, &iov, 1, 0, true), -FI_EINVAL);
  }
}

}  // namespace

}  // namespace erdma::test

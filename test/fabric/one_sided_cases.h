#pragma once

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "fabric/one_sided_rig.h"

/// Cases of one-sided operations that hold on every path. The suites that include them choose the
/// path. Odd `_i`: from an endpoint to itself.
namespace erdma::test {

constexpr size_t kSizes[] = {0, 1, 8, 64, 65, 4096, 100'001, 3 << 20};

TEST_CASE(.name = "one-sided");

TEST(what_is_written_can_be_read_back, 2) {
  OneSidedPorts ports(_i & 1);
  const auto original = ports.memory;
  for (const size_t length : kSizes) {
    int write_context, read_context;
    std::vector<char> bytes(length);
    for (size_t i = 0; i < length; ++i) bytes[i] = char(i * 7 + length);
    std::copy(original.begin(), original.end(), ports.memory.begin());
    post(ports, [&] {
      return fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(0),
                      ports.region.key(), &write_context);
    });
    ports.expect(FI_RMA | FI_WRITE, &write_context);
    ck_assert(std::equal(bytes.begin(), bytes.end(), ports.memory.begin()));
    ck_assert(std::equal(original.begin() + long(length), original.end(),
                         ports.memory.begin() + long(length)));
    std::vector<char> back(length);
    post(ports, [&] {
      return fi_read(ports.a.ep, back.data(), length, nullptr, ports.address, ports.at(0),
                     ports.region.key(), &read_context);
    });
    ports.expect(FI_RMA | FI_READ, &read_context);
    ck_assert(back == bytes);
  }
}

TEST(messages_of_pieces_and_segments_carry_data, 2) {
  OneSidedPorts ports(_i & 1);
  for (const size_t unit : {size_t{4}, size_t{50'000}}) {
    std::vector<char> bytes = pattern(unit * 4);
    std::reverse(bytes.begin(), bytes.end());
    const iovec iov[] = {{&bytes[0], unit * 3}, {&bytes[unit * 3], unit}};
    const uint64_t key = ports.region.key();
    const fi_rma_iov remote[] = {{ports.at(700'000), unit, key},
                                 {ports.at(1), unit, key},
                                 {ports.at(400'000), unit, key},
                                 {ports.at(200'000), unit, key}};
    int context;
    const fi_msg_rma message{iov, nullptr, 2, ports.address, remote, 4, &context, 0x123456789abcu};
    post(ports, [&] {
      return fi_writemsg(ports.a.ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE);
    });
    fi_cq_tagged_entry there{};
    if (&ports.target == &ports.a) {
      there = ports.a.wait();
      ports.expect(FI_RMA | FI_WRITE, &context);
    } else {
      ports.expect(FI_RMA | FI_WRITE, &context);
      there = ports.b.wait(&ports.a);
    }
    ck_assert_uint_eq(there.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
    ck_assert_uint_eq(there.data, 0x123456789abcu);
    ck_assert_uint_eq(there.len, unit * 4);
    const size_t offsets[] = {700'000, 1, 400'000, 200'000};
    for (size_t i = 0; i < 4; ++i)
      ck_assert_mem_eq(&ports.memory[offsets[i]], &bytes[i * unit], unit);
    std::vector<char> back(unit * 4);
    const iovec into[] = {{&back[0], unit}, {&back[unit], unit}, {&back[unit * 2], unit * 2}};
    const fi_msg_rma fetch{into, nullptr, 3, ports.address, remote, 4, &context, 0};
    post(ports, [&] { return fi_readmsg(ports.a.ep, &fetch, FI_FENCE); });
    ports.expect(FI_RMA | FI_READ, &context);
    ck_assert(back == bytes);
  }
}

TEST(injected_writes_leave_no_entry_and_arrive_in_order, 2) {
  OneSidedPorts ports(_i & 1);
  for (uint64_t i = 1; i <= 300; ++i) {
    uint64_t value = i;
    post(ports, [&] {
      return fi_inject_write(ports.a.ep, &value, 8, ports.address, ports.at(8), ports.region.key());
    });
    value = 0;
  }
  std::vector<char> large(4096, 'l');
  post(ports, [&] {
    return fi_inject_writedata(ports.a.ep, large.data(), large.size(), 77, ports.address,
                               ports.at(8192), ports.region.key());
  });
  std::fill(large.begin(), large.end(), 'x');
  const fi_cq_tagged_entry there = ports.target.wait(&ports.a);
  ck_assert_uint_eq(there.data, 77);
  uint64_t last = 0;
  std::memcpy(&last, &ports.memory[8], 8);
  ck_assert_uint_eq(last, 300);
  ck_assert_int_eq(ports.memory[8192], 'l');
  ck_assert_int_eq(ports.memory[8192 + 4095], 'l');
  ck_assert_int_eq(fi_cq_read(ports.a.cq, nullptr, 0), -FI_EAGAIN);
}

TEST(access_beyond_or_without_a_region_is_an_error_here_and_nothing_there, 2) {
  OneSidedPorts ports(_i & 1);
  const auto original = ports.memory;
  Region second(&ports.target == &ports.a ? ports.root : ports.other, &ports.memory[64], 64,
                FI_REMOTE_READ);
  const uint64_t closed = second.key();
  struct {
    uint64_t address, key;
  } const wrong[] = {
      {ports.at(0), ports.region.key() + 1},
      {ports.at(0), 0},
      {ports.at(0), ~uint64_t{0}},
      {ports.at(ports.memory.size() - 7), ports.region.key()},
      {ports.at(0) - 1, ports.region.key()},
      {~uint64_t{0} - 3, ports.region.key()},
      {ports.at(64), closed},
  };
  for (const auto& w : wrong) {
    for (const size_t length : {size_t{8}, size_t{200'000}}) {
      std::vector<char> bytes(length, 'w');
      int context;
      post(ports, [&] {
        return fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address, w.address, w.key,
                        &context);
      });
      ports.expect_error(FI_RMA | FI_WRITE, &context);
      if (w.key == closed && length == 8) second.close();
      post(ports, [&] {
        return fi_read(ports.a.ep, bytes.data(), length, nullptr, ports.address, w.address, w.key,
                       &context);
      });
      ports.expect_error(FI_RMA | FI_READ, &context);
      ck_assert(bytes == std::vector<char>(length, 'w'));
    }
  }
  ck_assert(ports.memory == original);
}

TEST(counters_count_on_both_sides, 2) {
  OneSidedPorts ports(_i & 1);
  fi_cntr_attr attr{};
  fid_cntr* cntr[5];
  const auto open = [&](fid_cntr*& made, Root& root) {
    ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &made, nullptr), 0);
  };
  Root& target_root = &ports.target == &ports.a ? ports.root : ports.other;
  open(cntr[0], ports.root);
  open(cntr[1], ports.root);
  for (int i = 2; i < 5; ++i) open(cntr[i], target_root);
  ck_assert_int_eq(fi_ep_bind(ports.a.ep, &cntr[0]->fid, FI_READ), 0);
  ck_assert_int_eq(fi_ep_bind(ports.a.ep, &cntr[1]->fid, FI_WRITE), 0);
  ck_assert_int_eq(fi_ep_bind(ports.target.ep, &cntr[2]->fid, FI_REMOTE_READ), 0);
  ck_assert_int_eq(fi_ep_bind(ports.target.ep, &cntr[3]->fid, FI_REMOTE_WRITE), 0);
  ck_assert_int_eq(fi_mr_bind(ports.region.mr, &cntr[4]->fid, FI_REMOTE_WRITE), 0);
  std::vector<char> bytes(100'000);
  int context;
  for (const size_t length : {size_t{8}, bytes.size()}) {
    post(ports, [&] {
      return fi_read(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(0),
                     ports.region.key(), &context);
    });
    for (int i = 0; i < 2; ++i)
      post(ports, [&] {
        return fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(0),
                        ports.region.key(), &context);
      });
  }
  uint64_t one = 1, before;
  post(ports, [&] {
    return fi_fetch_atomic(ports.a.ep, &one, 1, nullptr, &before, nullptr, ports.address,
                           ports.at(0), ports.region.key(), FI_UINT64, FI_SUM, &context);
  });
  const uint64_t expected[] = {3, 4, 3, 4, 5};
  for (int i = 0; i < 5; ++i)
    while (fi_cntr_read(cntr[i]) < expected[i]) ports.b.progress(), ports.a.progress();
  for (int i = 0; i < 5; ++i) ck_assert_uint_eq(fi_cntr_read(cntr[i]), expected[i]);
  post(ports, [&] {
    return fi_write(ports.a.ep, bytes.data(), 8, nullptr, ports.address, ports.at(0), 1, &context);
  });
  while (fi_cntr_readerr(cntr[1]) < 1) ports.b.progress();
  ports.region.close();
  ck_assert_int_eq(fi_close(&cntr[4]->fid), 0);
  for (Port* port : {&ports.a, &ports.b}) {
    ck_assert_int_eq(fi_close(&port->ep->fid), 0);
    port->ep = nullptr;
  }
  for (int i = 0; i < 4; ++i) ck_assert_int_eq(fi_close(&cntr[i]->fid), 0);
}

TEST(closing_a_region_waits_for_a_large_write_and_later_ones_fail, 4) {
  OneSidedPorts ports(_i & 1);
  std::vector<char> bytes(2 << 20, 'w');
  int context;
  post(ports, [&] {
    return fi_write(ports.a.ep, bytes.data(), bytes.size(), nullptr, ports.address, ports.at(0),
                    ports.region.key(), &context);
  });
  // The write is in an arbitrary state: the target may or may not have begun.
  for (int i = 0; i < 200 * (_i / 2); ++i) ports.a.progress(), ports.b.progress();
  const uint64_t key = ports.region.key();
  std::atomic<bool> closed = false;
  std::thread driver([&] {
    while (&ports.target != &ports.a && !closed) ports.a.progress();
  });
  ports.region.close();
  closed = true;
  driver.join();
  const auto after = ports.memory;
  fi_cq_tagged_entry entry{};
  ssize_t rc;
  while ((rc = fi_cq_read(ports.a.cq, &entry, 1)) == -FI_EAGAIN) ports.b.progress();
  if (rc == -FI_EAVAIL) {
    ports.expect_error(FI_RMA | FI_WRITE, &context);
  } else {
    ck_assert(std::equal(bytes.begin(), bytes.end(), ports.memory.begin()));
  }
  ck_assert(ports.memory == after);
  post(ports, [&] {
    return fi_write(ports.a.ep, bytes.data(), 8, nullptr, ports.address, ports.at(0), key,
                    &context);
  });
  ports.expect_error(FI_RMA | FI_WRITE, &context);
}

TEST(atomics_do_their_sums_there, 2) {
  OneSidedPorts ports(_i & 1);
  auto* there = reinterpret_cast<uint64_t*>(ports.memory.data());
  for (size_t i = 0; i < 512; ++i) there[i] = i;
  uint64_t operands[512], fetched[512], compare[512];
  int context;
  for (size_t i = 0; i < 512; ++i) operands[i] = 1000, compare[i] = i % 2 ? i + 1000 : 1;
  const uint64_t key = ports.region.key();
  post(ports, [&] {
    return fi_atomic(ports.a.ep, operands, 512, nullptr, ports.address, ports.at(0), key, FI_UINT64,
                     FI_SUM, &context);
  });
  ports.expect(FI_ATOMIC | FI_WRITE, &context);
  post(ports, [&] {
    return fi_compare_atomic(ports.a.ep, operands, 512, nullptr, compare, nullptr, fetched, nullptr,
                             ports.address, ports.at(0), key, FI_UINT64, FI_CSWAP, &context);
  });
  ports.expect(FI_ATOMIC | FI_READ, &context);
  for (size_t i = 0; i < 512; ++i) {
    ck_assert_uint_eq(fetched[i], i + 1000);
    ck_assert_uint_eq(there[i], i % 2 ? 1000 : i + 1000);
  }
  post(ports, [&] {
    return fi_fetch_atomic(ports.a.ep, nullptr, 512, nullptr, fetched, nullptr, ports.address,
                           ports.at(0), key, FI_UINT64, FI_ATOMIC_READ, &context);
  });
  ports.expect(FI_ATOMIC | FI_READ, &context);
  ck_assert_mem_eq(fetched, there, sizeof(fetched));
  post(ports, [&] {
    return fi_fetch_atomic(ports.a.ep, operands, 1, nullptr, fetched, nullptr, ports.address,
                           ports.at(8), key + 1, FI_UINT64, FI_SUM, &context);
  });
  ports.expect_error(FI_ATOMIC | FI_READ, &context);
  post(ports, [&] {
    return fi_inject_atomic(ports.a.ep, operands, 2, ports.address, ports.at(0), key, FI_UINT64,
                            FI_ATOMIC_WRITE);
  });
  while (there[1] != 1000 || there[0] != 1000) ports.a.progress(), ports.b.progress();
}

TEST(atomic_messages_pair_lists_of_elements, 2) {
  OneSidedPorts ports(_i & 1);
  auto* there = reinterpret_cast<int32_t*>(ports.memory.data());
  for (int i = 0; i < 100; ++i) there[i] = i;
  const uint64_t key = ports.region.key();
  int32_t operands[6] = {1, 2, 3, 4, 5, 6}, fetched[6] = {};
  const fi_ioc from[] = {{&operands[0], 1}, {&operands[1], 5}};
  fi_ioc into[] = {{&fetched[0], 4}, {&fetched[4], 2}};
  const fi_rma_ioc remote[] = {{ports.at(40), 2, key}, {ports.at(200), 4, key}};
  int context;
  const fi_msg_atomic message{from, nullptr,  2,      ports.address, remote,
                              2,    FI_INT32, FI_SUM, &context,      0};
  post(ports, [&] { return fi_fetch_atomicmsg(ports.a.ep, &message, into, nullptr, 2, 0); });
  ports.expect(FI_ATOMIC | FI_READ, &context);
  const int32_t before[] = {10, 11, 50, 51, 52, 53};
  for (int i = 0; i < 6; ++i) {
    ck_assert_int_eq(fetched[i], before[i]);
    ck_assert_int_eq(there[before[i]], before[i] + operands[i]);
  }
  ck_assert_int_eq(there[12], 12);
  ck_assert_int_eq(there[54], 54);
}

}  // namespace erdma::test

// RMA within a host while the target does nothing: by CMA, from the second operation on.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "fabric/one_sided_rig.h"
#include "util/clock.h"

namespace {

using namespace erdma::test;

void with_cma() {
  setenv("FI_ERDMA_CMA", "on", 1);
}

constexpr size_t kLengths[] = {1, 8, 4000, 32768, 32769, 100'000, 1 << 20, (3 << 20) - 64};

/// Bytes that differ from those of the target.
std::vector<char> numbers(size_t length) {
  std::vector<char> bytes = pattern(length);
  for (char& byte : bytes) byte = char(byte ^ 0x55);
  return bytes;
}

/// Lets the initiator get a grant. Afterwards it does not need the target's CPU.
void introduce(OneSidedPorts& ports) {
  int context;
  char byte = 'i';
  post(ports, [&] {
    return fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, ports.at(0), ports.region.key(),
                    &context);
  });
  ports.expect(FI_RMA | FI_WRITE, &context);
}

TEST_CASE(.set_up = with_cma);

TEST(memory_is_accessed_although_its_owner_does_nothing) {
  OneSidedPorts ports;
  introduce(ports);
  for (const size_t length : kLengths) {
    int written, read;
    const auto bytes = numbers(length);
    std::vector<char> back(length);
    const iovec from[] = {{const_cast<char*>(bytes.data()), length / 3},
                          {const_cast<char*>(bytes.data()) + length / 3, length - length / 3}};
    ck_assert_int_eq(fi_writev(ports.a.ep, from, nullptr, 2, ports.address, ports.at(33),
                               ports.region.key(), &written),
                     0);
    ck_assert_ptr_eq(ports.a.wait().op_context, &written);
    ck_assert(std::equal(bytes.begin(), bytes.end(), ports.memory.begin() + 33));
    const iovec into[] = {{back.data(), length / 2},
                          {back.data() + length / 2, length - length / 2}};
    ck_assert_int_eq(fi_readv(ports.a.ep, into, nullptr, 2, ports.address, ports.at(33),
                              ports.region.key(), &read),
                     0);
    ck_assert_ptr_eq(ports.a.wait().op_context, &read);
    ck_assert(back == bytes);
  }
}

/// Writes until the initiator asks the target to execute operations, because the target polls.
void make_used_to(Port& a, Port& b, fi_addr_t address, uint64_t at, uint64_t key) {
  for (bool asked = false, known = false; !asked; known = true) {
    const uint64_t number = 0;
    ssize_t rc;
    while ((rc = fi_write(a.ep, &number, 8, nullptr, address, at, key, nullptr)) == -FI_EAGAIN)
      a.progress(), b.progress();
    ck_assert_int_eq(rc, 0);
    fi_cq_tagged_entry done{};
    const bool at_once = fi_cq_read(a.cq, &done, 1) == 1;
    asked = known && !at_once;
    if (!at_once) a.wait(&b);
    b.progress();
  }
}

TEST(small_operations_are_done_although_their_owner_stops) {
  OneSidedPorts ports;
  for (int round = 0; round < 10; ++round) {
    make_used_to(ports.a, ports.b, ports.address, ports.at(0), ports.region.key());
    uint64_t numbers[40], back = 0;
    const uint64_t key = ports.region.key();
    // The ring has no room for so many operations at once.
    for (uint64_t i = 0; i < std::size(numbers); ++i) {
      numbers[i] = i + 1000 * unsigned(round);
      ssize_t rc;
      while ((rc = fi_write(ports.a.ep, &numbers[i], 8, nullptr, ports.address, ports.at(64), key,
                            &numbers[i])) == -FI_EAGAIN)
        ports.a.progress();
      ck_assert_int_eq(rc, 0);
    }
    for (const uint64_t& number : numbers) ck_assert_ptr_eq(ports.a.wait().op_context, &number);
    ck_assert_mem_eq(&ports.memory[64], &numbers[std::size(numbers) - 1], 8);
    ck_assert_int_eq(
        fi_read(ports.a.ep, &back, 8, nullptr, ports.address, ports.at(64), key, &back), 0);
    ck_assert_ptr_eq(ports.a.wait().op_context, &back);
    ck_assert_mem_eq(&ports.memory[64], &back, 8);
    ports.memory[64] = ~ports.memory[64];
    const char kept = ports.memory[64];
    for (int i = 0; i < 100; ++i) ports.b.progress();  // finds operations that were executed
    ck_assert_int_eq(ports.memory[64], kept);
  }
}

/// A thread that sleeps until an operation is over makes no progress.
TEST(a_sleeper_learns_of_an_operation_whose_target_does_nothing) {
  Root root(one_sided_ask()), other(one_sided_ask());
  Port a(root, FI_WAIT_UNSPEC), b(other);
  std::vector<char> memory(64);
  Region region(other, memory.data(), memory.size());
  const fi_addr_t address = a.insert(b);
  for (uint64_t i = 1; i < 20; ++i) {
    make_used_to(a, b, address, uint64_t(memory.data()), region.key());
    int context;
    ck_assert_int_eq(
        fi_write(a.ep, &i, 8, nullptr, address, uint64_t(memory.data()), region.key(), &context),
        0);
    fi_cq_tagged_entry done{};
    ck_assert_int_eq(fi_cq_sread(a.cq, &done, 1, nullptr, -1), 1);
    ck_assert_ptr_eq(done.op_context, &context);
    ck_assert_mem_eq(memory.data(), &i, 8);
  }
}

/// One thread sleeps, another posts and then makes no progress either.
TEST(a_sleeper_learns_of_what_another_thread_posts) {
  Ask ask = one_sided_ask();
  ask.threading = FI_THREAD_SAFE;
  Root root(ask), other(one_sided_ask());
  Port a(root, FI_WAIT_UNSPEC), b(other);
  std::vector<char> memory(64);
  Region region(other, memory.data(), memory.size());
  const fi_addr_t address = a.insert(b);
  for (uint64_t i = 1; i < 20; ++i) {
    make_used_to(a, b, address, uint64_t(memory.data()), region.key());
    std::atomic<pid_t> sleeper{0};
    std::thread thread([&] {
      sleeper = gettid();
      fi_cq_tagged_entry done{};
      ck_assert_int_eq(fi_cq_sread(a.cq, &done, 1, nullptr, -1), 1);
    });
    while (sleeper == 0) continue;
    const std::string stat = "/proc/self/task/" + std::to_string(sleeper) + "/stat";
    for (std::string text; text.find(") S") == std::string::npos;)
      std::getline(std::ifstream(stat), text);
    ck_assert_int_eq(
        fi_write(a.ep, &i, 8, nullptr, address, uint64_t(memory.data()), region.key(), nullptr), 0);
    thread.join();
    ck_assert_mem_eq(memory.data(), &i, 8);
  }
}

/// Small operations change their path all the time, depending on whether the target polls. No
/// operation overtakes another, and no message overtakes earlier writes.
TEST(order_is_kept_whichever_way_operations_go) {
  constexpr uint64_t kLast = 20'000;
  OneSidedPorts ports;
  make_used_to(ports.a, ports.b, ports.address, ports.at(0), ports.region.key());
  const auto& seen = reinterpret_cast<const volatile uint64_t&>(ports.memory[64]);
  const_cast<volatile uint64_t&>(seen) = 0;
  std::thread target([&] {
    std::minstd_rand random(7);
    const erdma::util::SystemClock clock;
    uint64_t number = 0;
    const auto receive = [&] {
      ck_assert_int_eq(fi_trecv(ports.b.ep, &number, 8, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
    };
    for (receive(); number < kLast;) {
      for (auto polls = random() % 300; polls > 0; --polls) {
        fi_cq_tagged_entry entry{};
        if (fi_cq_read(ports.b.cq, &entry, 1) != 1) continue;
        ck_assert_uint_ge(seen, number);
        if (number == kLast) return;
        receive();
      }
      for (const uint64_t back = clock.now() + random() % 1'000'000; clock.now() < back;) continue;
    }
  });
  const uint64_t key = ports.region.key();
  const auto await = [&](unsigned operations) {
    for (; operations > 0; --operations) ports.a.wait();
  };
  const auto until_taken = [&](auto call) {
    ssize_t rc;
    while ((rc = call()) == -FI_EAGAIN) ports.a.progress();
    ck_assert_int_eq(rc, 0);
  };
  for (uint64_t i = 1; i <= kLast; ++i) {
    uint64_t back = 0;
    unsigned operations = 2;
    until_taken([&] {
      return fi_write(ports.a.ep, &i, 8, nullptr, ports.address, ports.at(64), key, nullptr);
    });
    until_taken([&] {
      return fi_read(ports.a.ep, &back, 8, nullptr, ports.address, ports.at(64), key, nullptr);
    });
    if (i % 5 == 0) {
      until_taken([&] { return fi_tsend(ports.a.ep, &i, 8, nullptr, ports.address, 1, nullptr); });
      ++operations;
    }
    await(operations);
    ck_assert_uint_eq(back, i);
  }
  target.join();
  ck_assert_uint_eq(seen, kLast);
}

TEST(many_long_operations_are_under_way_at_once) {
  constexpr size_t kEach = 200'000, kCount = 12;
  OneSidedPorts ports;
  introduce(ports);
  const auto bytes = numbers(kEach * kCount);
  std::vector<char> back(bytes.size());
  int contexts[2 * kCount];
  for (size_t i = 0; i < kCount; ++i)
    ck_assert_int_eq(fi_write(ports.a.ep, &bytes[i * kEach], kEach, nullptr, ports.address,
                              ports.at(i * kEach), ports.region.key(), &contexts[i]),
                     0);
  for (size_t i = 0; i < kCount; ++i) ports.a.wait();
  for (size_t i = 0; i < kCount; ++i)
    ck_assert_int_eq(fi_read(ports.a.ep, &back[i * kEach], kEach, nullptr, ports.address,
                             ports.at(i * kEach), ports.region.key(), &contexts[kCount + i]),
                     0);
  for (size_t i = 0; i < kCount; ++i) ports.a.wait();
  ck_assert(back == bytes);
}

TEST(a_message_finds_what_was_written_before_it) {
  OneSidedPorts ports;
  introduce(ports);
  const auto bytes = numbers(4096);
  char buffer = 0;
  ck_assert_int_eq(fi_trecv(ports.b.ep, &buffer, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr), 0);
  ck_assert_int_eq(fi_write(ports.a.ep, bytes.data(), 4096, nullptr, ports.address, ports.at(0),
                            ports.region.key(), nullptr),
                   0);
  ck_assert_int_eq(fi_tsend(ports.a.ep, bytes.data(), 1, nullptr, ports.address, 1, nullptr), 0);
  ports.b.wait();
  ck_assert(std::equal(bytes.begin(), bytes.end(), ports.memory.begin()));
}

// The initiator makes no progress meanwhile.
TEST(a_region_closes_although_its_user_does_not_answer, 2) {
  OneSidedPorts ports;
  const size_t length = _i ? 1 << 20 : 1;
  int context;
  std::vector<char> bytes(length, 'n');
  introduce(ports);
  const uint64_t key = ports.region.key();
  ports.region.close();
  const auto before = ports.memory;
  for (int i = 0; i < 3; ++i) {
    post(ports, [&] {
      return fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(0), key,
                      &context);
    });
    ports.expect_error(FI_RMA | FI_WRITE, &context);
    post(ports, [&] {
      return fi_read(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(0), key,
                     &context);
    });
    ports.expect_error(FI_RMA | FI_READ, &context);
  }
  ck_assert(ports.memory == before);
}

TEST(other_regions_stay_open_when_one_closes) {
  OneSidedPorts ports;
  introduce(ports);
  std::vector<char> more(4096, '-');
  int context;
  for (int i = 0; i < 20; ++i) {
    Region other(ports.other, more.data(), more.size());
    const char byte = char('a' + i);
    post(ports, [&] {
      return fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, uint64_t(more.data()),
                      other.key(), &context);
    });
    ports.expect(FI_RMA | FI_WRITE, &context);
    ck_assert_int_eq(more[0], byte);
  }
  for (int i = 0; i < 4; ++i) {  // a learns of the last revocation
    ports.a.progress();
    ports.b.progress();
  }
  const char byte = 'z';
  ck_assert_int_eq(fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, ports.at(7),
                            ports.region.key(), &context),
                   0);
  ck_assert_ptr_eq(ports.a.wait().op_context, &context);
  ck_assert_int_eq(ports.memory[7], 'z');
}

/// Regions that are closed meanwhile interrupt the write, and it completes nevertheless.
TEST(a_long_write_ends_while_other_regions_are_closed) {
  OneSidedPorts ports;
  introduce(ports);
  std::vector<char> large(size_t{128} << 20), from(large.size(), 'l'), more(4096);
  Region into(ports.other, large.data(), large.size());
  int context, other_context;
  const char byte = 'i';
  post(ports, [&] {
    return fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, uint64_t(large.data()),
                    into.key(), &context);
  });
  ports.expect(FI_RMA | FI_WRITE, &context);
  ck_assert_int_eq(fi_write(ports.a.ep, from.data(), from.size(), nullptr, ports.address,
                            uint64_t(large.data()), into.key(), &context),
                   0);
  bool over = false;
  int rounds = 0;
  for (; !over && rounds < 300; ++rounds) {
    Region other(ports.other, more.data(), more.size());
    ssize_t rc;
    while ((rc = fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, uint64_t(more.data()),
                          other.key(), &other_context)) == -FI_EAGAIN)
      ports.a.progress(), ports.b.progress();
    ck_assert_int_eq(rc, 0);
    for (bool small = false; !small;) {
      ports.b.progress();
      fi_cq_tagged_entry done{};
      if (fi_cq_read(ports.a.cq, &done, 1) != 1) continue;
      (done.op_context == &context ? over : small) = true;
    }
    for (int i = 0; i < 20; ++i) {
      ports.b.progress();
      fi_cq_tagged_entry done{};
      if (fi_cq_read(ports.a.cq, &done, 1) == 1) over = true;
    }
  }
  ck_assert(over);
}

/// Each operation that runs while its region is closed ends before fi_close() returns, or is
/// refused.
TEST(nothing_is_written_once_a_region_is_closed, 2) {
  const size_t length = _i ? 150'000 : 512;
  OneSidedPorts ports;
  std::vector<char> memory(length), bytes(length);
  std::atomic<uint64_t> key{0};
  std::atomic<bool> stop{false};
  std::thread initiator([&] {
    int context;
    for (unsigned char fill = 1; !stop; fill = (unsigned char)(fill % 250 + 1)) {
      const uint64_t now = key;
      if (!now) continue;
      std::fill(bytes.begin(), bytes.end(), char(fill));
      ssize_t rc;
      while ((rc = fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address,
                            uint64_t(memory.data()), now, &context)) == -FI_EAGAIN)
        ports.a.progress();
      if (rc) continue;
      fi_cq_tagged_entry done{};
      while ((rc = fi_cq_read(ports.a.cq, &done, 1)) == -FI_EAGAIN) continue;
      fi_cq_err_entry error{};
      if (rc == -FI_EAVAIL) fi_cq_readerr(ports.a.cq, &error, 0);
    }
  });
  for (int round = 0; round < 300; ++round) {
    Region region(ports.other, memory.data(), length);
    memory[0] = memory[length - 1] = 0;
    key = region.key();
    while (memory[length - 1] == 0) ports.b.progress();  // packets carry the first write
    const char seen = memory[0];
    if (round % 2)
      while (static_cast<volatile char&>(memory[0]) == seen) ports.b.progress();
    region.close();
    std::fill(memory.begin(), memory.end(), char(0));
    for (int i = 0; i < 50; ++i) ports.b.progress();
    ck_assert(std::all_of(memory.begin(), memory.end(), [](char byte) { return byte == 0; }));
  }
  stop = true;
  for (std::atomic<bool> over{false}; !over;) {
    std::thread waits([&] {
      initiator.join();
      over = true;
    });
    while (!over) ports.b.progress();
    waits.join();
  }
}

}  // namespace

// One-sided operations through a NIC: the simulated adapter, in both of its personalities.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "fabric/one_sided_cases.h"
#include "goes_to_children.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic() {
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
}
void without_registration() {
  on_nic();
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
}

SUITE(.run = on_simulated_devices);
SET_UPS("one-sided", on_nic, without_registration);

TEST_CASE(.set_up = {on_nic, without_registration});

TEST(a_known_region_is_accessed_without_the_targets_processor) {
  OneSidedPorts ports;
  int context;
  std::vector<char> bytes(100'000, 'n'), back(100'000);
  const uint64_t key = ports.region.key();
  for (int i = 0; i < 2; ++i) {
    post(ports, [&] {
      return fi_write(ports.a.ep, bytes.data(), 1, nullptr, ports.address, ports.at(0), key,
                      &context);
    });
    ports.expect(FI_RMA | FI_WRITE, &context);
  }
  for (const size_t length : {size_t{8}, size_t{4000}, bytes.size()}) {
    ck_assert_int_eq(fi_write(ports.a.ep, bytes.data(), length, nullptr, ports.address, ports.at(8),
                              key, &context),
                     0);
    ck_assert_ptr_eq(ports.a.wait().op_context, &context);
    ck_assert_int_eq(fi_read(ports.a.ep, back.data(), length, nullptr, ports.address, ports.at(8),
                             key, &context),
                     0);
    ck_assert_ptr_eq(ports.a.wait().op_context, &context);
    ck_assert(std::equal(back.begin(), back.begin() + long(length), bytes.begin()));
  }
}

// The initiator makes no progress meanwhile, so it can't answer.
TEST(a_region_closes_although_its_user_does_not_answer) {
  OneSidedPorts ports;
  int context;
  char byte = 'n';
  const uint64_t key = ports.region.key();
  for (int i = 0; i < 3; ++i) {
    post(ports, [&] {
      return fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, ports.at(0), key, &context);
    });
    ports.expect(FI_RMA | FI_WRITE, &context);
  }
  ports.region.close();
  ports.memory[0] = 'o';
  while (ports.a.progress(), fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, ports.at(0),
                                      key, &context) == -FI_EAGAIN) {
  }
  ports.expect_error(FI_RMA | FI_WRITE, &context);
  ck_assert_int_eq(ports.memory[0], 'o');
  exchange(ports.a, ports.b, ports.address, 100);  // the connection lives on
}

/// These are the first operations, so there is no connection yet. They arrive nevertheless.
TEST(short_operations_outlive_their_endpoint) {
  OneSidedPorts ports;
  std::vector<char> buffer(64, '-');
  const auto message = pattern(64);
  const uint64_t number = 77;
  ck_assert_int_eq(fi_trecv(ports.b.ep, buffer.data(), 64, nullptr, FI_ADDR_UNSPEC, 1, 0, nullptr),
                   0);
  ck_assert_int_eq(fi_write(ports.a.ep, &number, 8, nullptr, ports.address, ports.at(16),
                            ports.region.key(), nullptr),
                   0);
  ck_assert_int_eq(fi_tsend(ports.a.ep, message.data(), 64, nullptr, ports.address, 1, nullptr), 0);
  std::atomic<bool> closed{false};
  std::thread other([&] {
    while (!closed) ports.b.progress();
  });
  ck_assert_int_eq(fi_close(&ports.a.ep->fid), 0);
  ports.a.ep = nullptr;
  closed = true;
  other.join();
  ports.b.wait();
  ck_assert(buffer == message);
  ck_assert_mem_eq(ports.memory.data() + 16, &number, 8);
}

// --- a kernel without copy-on-fork: the adapter loses pages that a child gets

void without_copy_on_fork() {
  on_nic();
  setenv("SOFTERDMA_COPY_ON_FORK", "0", 1);
}

TEST_CASE(.set_up = without_copy_on_fork);

/// Forks a child that writes to memory which no device uses, and exits.
void fork_and_touch() {
  constexpr size_t kBytes = 1 << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(memory, 1, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    std::memset(memory, 2, kBytes);
    _exit(0);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  munmap(memory, kBytes);
}

/// Memory in whole pages, because a child loses other memory in the same page too. It is a separate
/// mapping, because each domain watches whole mappings.
struct PagesOf {
  static constexpr size_t kGuard = 1 << 16;
  explicit PagesOf(size_t length_)
      : length(length_),
        mapping(static_cast<char*>(
            mmap(nullptr, length + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        bytes(mapping + kGuard) {
    ck_assert_int_eq(mprotect(bytes, length, PROT_READ | PROT_WRITE), 0);
  }
  ~PagesOf() { munmap(mapping, length + 2 * kGuard); }
  /// Registered memory is kept from children, which is what this function tests.
  bool is_registered() const { return !goes_to_children(bytes + length / 2); }
  const size_t length;
  char* const mapping;
  char* const bytes;
};

/// Sends one message of `fill` bytes, which distinguish it from the last message.
void send_anew(OneSidedPorts& ports, PagesOf& from, PagesOf& to, char fill) {
  std::memset(from.bytes, fill, from.length);
  fi_context receive, send;
  ck_assert_int_eq(
      fi_trecv(ports.b.ep, to.bytes, to.length, nullptr, FI_ADDR_UNSPEC, 7, 0, &receive), 0);
  post(ports, [&] {
    return fi_tsend(ports.a.ep, from.bytes, from.length, nullptr, ports.address, 7, &send);
  });
  ck_assert_ptr_eq(ports.b.wait(&ports.a).op_context, &receive);
  ck_assert_ptr_eq(ports.a.wait(&ports.b).op_context, &send);
  ck_assert_int_eq(to.bytes[0], fill);
  ck_assert(!std::memcmp(to.bytes, to.bytes + 1, to.length - 1));
}

/// With the same buffers before and after the fork, long messages of the parent contain its new
/// data.
TEST(messages_after_a_fork_are_those_of_the_parent) {
  OneSidedPorts ports;
  PagesOf from(1 << 20), to(1 << 20);
  for (char round = 1; round < 6; ++round) {
    send_anew(ports, from, to, round);
    ck_assert(from.is_registered() && to.is_registered());
    fork_and_touch();
  }
}

TEST(regions_after_a_fork_are_those_of_the_parent) {
  OneSidedPorts ports;
  PagesOf from(100'000), back(100'000);
  const uint64_t key = ports.region.key();
  int context;
  for (char round = 1; round < 6; ++round) {
    std::memset(from.bytes, round, from.length);
    for (const size_t length : {size_t{8}, size_t{4000}, from.length}) {
      post(ports, [&] {
        return fi_write(ports.a.ep, from.bytes, length, nullptr, ports.address, ports.at(8), key,
                        &context);
      });
      ports.expect(FI_RMA | FI_WRITE, &context);
      ck_assert(!std::memcmp(ports.memory.data() + 8, from.bytes, length));
      ports.memory[9] = char(100 + round);
      post(ports, [&] {
        return fi_read(ports.a.ep, back.bytes, length, nullptr, ports.address, ports.at(8), key,
                       &context);
      });
      ports.expect(FI_RMA | FI_READ, &context);
      ck_assert_int_eq(back.bytes[1], 100 + round);
    }
    ck_assert(from.is_registered() && back.is_registered());
    fork_and_touch();
  }
}

/// A function of its own, so that later calls reuse these pages of the stack.
[[gnu::noinline]] void send_from_stack(OneSidedPorts& ports) {
  char bytes[1 << 20];
  std::memset(bytes, 's', sizeof(bytes));
  std::vector<char> to(sizeof(bytes));
  int send, receive;
  ck_assert_int_eq(
      fi_trecv(ports.b.ep, to.data(), to.size(), nullptr, FI_ADDR_UNSPEC, 7, 0, &receive), 0);
  post(ports, [&] {
    return fi_tsend(ports.a.ep, bytes, sizeof(bytes), nullptr, ports.address, 7, &send);
  });
  ck_assert_ptr_eq(ports.b.wait(&ports.a).op_context, &receive);
  ck_assert_ptr_eq(ports.a.wait(&ports.b).op_context, &send);
  ck_assert(!std::memcmp(to.data(), bytes, sizeof(bytes)));
  ck_assert(!goes_to_children(to.data() + to.size() / 2));  // memory off the stack is registered
}

/// A child without the pages of its stack would be killed at once.
TEST(children_live_after_a_long_message_from_the_stack) {
  OneSidedPorts ports;
  send_from_stack(ports);
  const pid_t child = fork();
  if (child == 0) {
    // Without LD_PRELOAD: the simulated adapter may need a sanitizer that this program lacks.
    char* const environment[] = {nullptr};
    execle("/bin/true", "true", nullptr, environment);
    _exit(127);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

}  // namespace

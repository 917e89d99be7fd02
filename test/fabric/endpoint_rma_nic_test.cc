// One-sided operations through a NIC: the simulated adapter, in both of its personalities.
#include <atomic>
#include <thread>

#include "fabric/one_sided_cases.h"
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

// Nobody moves the initiator meanwhile: it can't say that it is done.
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

/// The first of all, so that there is no connection yet: it gets there all the same.
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

}  // namespace

// What is told of RDMA devices, on the simulated adapter. Each test is a process of its own, and
// the adapter reads its variables when it is first used.
#include <cstdlib>
#include <string>
#include <vector>

#include "libcheck.h"
#include "transport/simulated_device.h"
#include "transport/verbs/device_list.h"

namespace erdma::transport::verbs {
namespace {

std::vector<DeviceDescription> devices_of(const char* variable) {
  setenv("SOFTERDMA_DEVICES", variable, 1);
  return list_devices();
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST(devices_come_by_name_whatever_their_order_and_state) {
  const auto list =
      devices_of("erdma_2,ip=127.0.0.4,state=down;erdma_0,ip=127.0.0.2;erdma_1,ip=127.0.0.3");
  ck_assert_uint_eq(list.size(), 3);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = "erdma_" + std::to_string(i);
    ck_assert_str_eq(list[i].name.c_str(), name.c_str());
    ck_assert_int_eq(list[i].active, i < 2);
    ck_assert_str_eq(list[i].state.c_str(), i < 2 ? "ACTIVE" : "DOWN");
    ck_assert_str_eq(list[i].why_unusable.c_str(), "");
  }
}

TEST(a_device_tells_its_maker_speed_bus_and_addresses) {
  const auto list = devices_of("erdma_0,ip=127.0.0.1");
  ck_assert_uint_eq(list.size(), 1);
  const DeviceDescription& device = list[0];
  ck_assert_uint_eq(device.vendor, 0x1ded);
  ck_assert_uint_eq(device.part, 0x107f);
  ck_assert(!device.firmware.empty());
  ck_assert_uint_eq(device.mtu, 1024);
  ck_assert_uint_gt(device.speed, 0);
  ck_assert(device.pci);
  ck_assert_uint_eq(device.node_guid.size(), 19);
  ck_assert_uint_ge(device.addresses.size(), 1);
  for (const util::SocketAddress& address : device.addresses) ck_assert_uint_eq(address.port(), 0);
}

TEST(the_personality_is_the_transport_of_the_device) {
  const auto list = devices_of("a,personality=standard;b,personality=compat");
  ck_assert_uint_eq(list.size(), 2);
  ck_assert(list[0].iwarp);
  ck_assert(!list[1].iwarp);
}

TEST(a_host_without_devices_has_an_empty_list) {
  ck_assert_uint_eq(devices_of("none").size(), 0);
}

}  // namespace

}  // namespace erdma::transport::verbs

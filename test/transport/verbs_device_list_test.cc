// Tests what the provider reports about RDMA devices, on the simulated adapter. Each test is a
// process of its own, and the adapter reads its variables at its first use.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
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

/// A folder as /sys/class/infiniband, which ends with it.
class KernelDevices {
 public:
  KernelDevices() { ck_assert_ptr_nonnull(mkdtemp(x_path)); }
  ~KernelDevices() { std::filesystem::remove_all(x_path); }
  void add(const std::string& name, bool for_programs, const char* file = "") {
    const std::filesystem::path device = path() + "/" + name + "/device";
    std::filesystem::create_directories(device);
    if (for_programs) std::filesystem::create_directory(device / "infiniband_verbs");
    if (*file) std::filesystem::create_directory(device / "infiniband_verbs" / file);
    std::ofstream(device / "vendor") << "0x1ded\n";
  }
  std::string path() const { return x_path; }

 private:
  char x_path[32] = "/tmp/erdma-devices.XXXXXX";
};

TEST(a_device_that_libibverbs_does_not_know_is_told_of) {
  KernelDevices kernel;
  kernel.add("erdma_0", true);
  kernel.add("erdma_1", true);
  kernel.add("erdma_2", false);
  kernel.add("erdma_3", true, "uverbs9999");
  std::vector<DeviceDescription> list = devices_of("erdma_1,ip=127.0.0.2");
  add_unlisted(list, kernel.path());
  ck_assert_uint_eq(list.size(), 4);
  for (const DeviceDescription& device : list) {
    ck_assert_uint_eq(device.vendor, 0x1ded);
    ck_assert_int_eq(device.active, device.name == "erdma_1");
    const char* const why = device.name == "erdma_0"   ? "libibverbs has no driver that fits it"
                            : device.name == "erdma_2" ? "load the module ib_uverbs"
                            : device.name == "erdma_3" ? "/dev/infiniband/uverbs9999 is missing"
                                                       : "";
    ck_assert_msg(device.why_unusable.find(why) != std::string::npos, "%s: %s", device.name.c_str(),
                  device.why_unusable.c_str());
    ck_assert_int_eq(device.why_unusable.empty(), device.name == "erdma_1");
  }
}

TEST(a_kernel_without_devices_adds_none) {
  std::vector<DeviceDescription> list;
  add_unlisted(list, KernelDevices().path());
  add_unlisted(list, "/nowhere");
  ck_assert_uint_eq(list.size(), 0);
}

/// The result of getifaddrs().
class Interfaces {
 public:
  void add(const char* name, const uint8_t (&mac)[6], unsigned flags = IFF_UP) {
    sockaddr_ll link{};
    link.sll_family = AF_PACKET;
    link.sll_halen = sizeof(mac);
    std::copy(mac, mac + sizeof(mac), link.sll_addr);
    add_entry(name, flags, link);
  }
  void give_address(const char* name, const char* ip) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (inet_pton(AF_INET, ip, &address.sin_addr) == 1) return add_entry(name, IFF_UP, address);
    sockaddr_in6 longer{};
    longer.sin6_family = AF_INET6;
    ck_assert_int_eq(inet_pton(AF_INET6, ip, &longer.sin6_addr), 1);
    add_entry(name, IFF_UP, longer);
  }
  const ifaddrs* list() const { return x_entries.empty() ? nullptr : &x_entries.front(); }

 private:
  template <typename Address>
  void add_entry(const char* name, unsigned flags, const Address& address) {
    x_addresses.emplace_back();
    std::memcpy(&x_addresses.back(), &address, sizeof(address));
    ifaddrs entry{};
    entry.ifa_name = const_cast<char*>(name);
    entry.ifa_flags = flags;
    entry.ifa_addr = reinterpret_cast<sockaddr*>(&x_addresses.back());
    x_entries.push_back(entry);
    if (x_entries.size() > 1) x_entries[x_entries.size() - 2].ifa_next = &x_entries.back();
  }

  std::deque<sockaddr_storage> x_addresses;
  std::deque<ifaddrs> x_entries;
};

constexpr uint8_t kMac[6] = {2, 0, 0, 0, 0, 1}, kOther[6] = {2, 0, 0, 0, 0, 2};

TEST(of_interfaces_with_one_mac_the_one_with_an_address_is_taken) {
  Interfaces bond;
  bond.add("other", kOther);
  bond.give_address("other", "10.0.0.2");
  bond.add("slave0", kMac);
  bond.give_address("slave0", "fe80::1");
  bond.add("slave1", kMac);
  bond.add("bond0", kMac);
  bond.give_address("bond0", "10.0.0.1");
  ck_assert(interface_with_mac(bond.list(), kMac) == "bond0");

  Interfaces vlan;
  vlan.add("down", kMac, 0);
  vlan.give_address("down", "10.0.0.3");
  vlan.add("eth0", kMac);
  vlan.give_address("eth0", "2001:db8::1");
  vlan.add("eth0.7", kMac);
  vlan.give_address("eth0.7", "10.7.0.1");
  ck_assert(interface_with_mac(vlan.list(), kMac) == "eth0");
}

TEST(without_an_address_an_interface_that_is_up_is_taken) {
  Interfaces none;
  ck_assert(interface_with_mac(none.list(), kMac) == "");
  none.add("eth0", kMac, 0);
  none.add("eth1", kOther);
  ck_assert(interface_with_mac(none.list(), kMac) == "eth0");
  none.add("eth2", kMac);
  ck_assert(interface_with_mac(none.list(), kMac) == "eth2");
}

}  // namespace

}  // namespace erdma::transport::verbs

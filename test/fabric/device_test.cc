#include "fabric/device.h"

#include <string>
#include <vector>

#include "fake/devices.h"
#include "libcheck.h"

using erdma::fabric::DeviceReport;
using erdma::fabric::preferred_address;
using erdma::fabric::survey_devices;
using namespace erdma::test;
using erdma::transport::verbs::DeviceDescription;

namespace {

void check_refused(const DeviceReport& report, const char* name, const char* reason) {
  ck_assert_str_eq(report.device.name.c_str(), name);
  ck_assert_str_eq(report.reason.c_str(), reason);
  ck_assert(!report.usable);
}

void check_usable(const DeviceReport& report, const char* name) {
  ck_assert_str_eq(report.device.name.c_str(), name);
  ck_assert_str_eq(report.reason.c_str(), "");
  ck_assert(report.usable);
}

TEST(a_host_without_devices_has_none_to_report) {
  ck_assert_uint_eq(survey_devices({}, {}).size(), 0);
}

TEST(an_active_erdma_port_is_usable) {
  const auto reports = survey_devices({make_nic("erdma_0", "10.0.0.1")}, {});
  ck_assert_uint_eq(reports.size(), 1);
  check_usable(reports[0], "erdma_0");
}

TEST(a_port_that_is_down_is_the_reason) {
  check_refused(survey_devices({make_nic("erdma_0", "10.0.0.1", false)}, {}).at(0), "erdma_0",
                "port 1 (eth1) is DOWN");
}

TEST(a_port_that_is_down_is_not_used_even_if_named) {
  check_refused(survey_devices({make_nic("erdma_0", "10.0.0.1", false)}, {"erdma_0"}).at(0),
                "erdma_0", "port 1 (eth1) is DOWN");
}

TEST(a_device_of_another_vendor_needs_to_be_named) {
  DeviceDescription other = make_nic("mlx5_0", "10.0.0.1");
  other.vendor = 0x15b3;
  check_refused(survey_devices({other}, {}).at(0), "mlx5_0",
                "vendor 0x15b3 is not eRDMA, and FI_ERDMA_DEVICE does not name it");
  check_usable(survey_devices({other}, {"mlx5_0"}).at(0), "mlx5_0");
}

TEST(a_device_left_out_of_the_list_says_so) {
  const auto reports = survey_devices(
      {make_nic("erdma_0", "10.0.0.1"), make_nic("erdma_1", "10.0.1.1")}, {"erdma_1"});
  ck_assert_uint_eq(reports.size(), 2);
  check_refused(reports[0], "erdma_0", "FI_ERDMA_DEVICE does not name it");
  check_usable(reports[1], "erdma_1");
}

TEST(a_named_device_that_is_absent_says_so_but_shm_is_none) {
  const auto reports = survey_devices({}, {"erdma_7", "shm"});
  ck_assert_uint_eq(reports.size(), 1);
  check_refused(reports[0], "erdma_7", "this host has no such device");
}

TEST(a_device_that_cannot_be_opened_says_why) {
  DeviceDescription nic = make_nic("erdma_0", "10.0.0.1");
  nic.why_unusable = "it cannot be opened: Operation not permitted";
  check_refused(survey_devices({nic}, {}).at(0), "erdma_0", nic.why_unusable.c_str());
}

TEST(a_device_without_an_address_cannot_be_named_by_peers) {
  DeviceDescription nic = make_nic("erdma_0", nullptr);
  check_refused(survey_devices({nic}, {}).at(0), "erdma_0",
                "eth1 has no IP address in this network namespace");
  nic.netdev.clear();
  check_refused(survey_devices({nic}, {}).at(0), "erdma_0",
                "its network device has no IP address in this network namespace");
}

TEST(a_device_of_unknown_kind_is_reported_not_trusted) {
  DeviceDescription odd;
  odd.name = "odd_0";
  check_refused(survey_devices({odd}, {}).at(0), "odd_0",
                "vendor unknown is not eRDMA, and FI_ERDMA_DEVICE does not name it");
  check_refused(survey_devices({odd}, {"odd_0"}).at(0), "odd_0", "port 1 is in an unknown state");
}

struct AddressCase {
  std::vector<const char*> addresses;
  sa_family_t family;
  const char* expected;
};

const AddressCase kAddresses[] = {
    {{"10.0.0.1"}, AF_UNSPEC, "10.0.0.1"},
    {{"10.0.0.1", "10.0.0.2"}, AF_INET, "10.0.0.1"},
    {{"fd00::1", "10.0.0.1"}, AF_UNSPEC, "10.0.0.1"},
    {{"10.0.0.1", "fd00::1"}, AF_INET6, "fd00::1"},
    {{"169.254.1.1", "10.0.0.1"}, AF_INET, "10.0.0.1"},
    {{"169.254.1.1", "fd00::1"}, AF_UNSPEC, "fd00::1"},
    {{"fe80::1", "fd00::1"}, AF_INET6, "fd00::1"},
    {{"169.254.1.1"}, AF_UNSPEC, "169.254.1.1"},
    {{"127.0.0.1", "10.0.0.1"}, AF_INET, "10.0.0.1"},
    {{"127.0.0.1", "fe80::1"}, AF_UNSPEC, "fe80::1"},
    {{"127.0.0.1"}, AF_INET, "127.0.0.1"},
    {{"10.0.0.1"}, AF_INET6, "unset"},
    {{}, AF_UNSPEC, "unset"},
};

TEST(the_address_that_others_can_use_is_preferred, std::size(kAddresses)) {
  const AddressCase& c = kAddresses[_i];
  std::vector<erdma::util::SocketAddress> addresses;
  for (const char* text : c.addresses) addresses.push_back(host_address(text));
  const auto chosen = preferred_address(addresses, c.family);
  const std::string text = chosen.set() ? chosen.host_string() : "unset";
  ck_assert_str_eq(text.c_str(), c.expected);
}

}  // namespace

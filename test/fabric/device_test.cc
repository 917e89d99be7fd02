#include "fabric/device.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <check.h>

using erdma::fabric::DeviceReport;
using erdma::fabric::survey_devices;

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A tree like /sys/class/infiniband, removed with the object.
class Tree {
 public:
  Tree() {
    char name[] = "/tmp/device_test.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    x_root = name;
  }
  ~Tree() { fs::remove_all(x_root); }

  std::string root() const { return x_root.string(); }
  void add(const std::string& device, const char* vendor, const char* state,
           const char* netdev = nullptr) {
    write(device + "/device/vendor", vendor);
    add_port(device, "1", state, netdev);
  }
  void add_port(const std::string& device, const std::string& port, const char* state,
                const char* netdev = nullptr) {
    const std::string folder = device + "/ports/" + port;
    write(folder + "/state", state);
    if (netdev) write(folder + "/gid_attrs/ndevs/0", netdev);
  }

 private:
  void write(const std::string& path, const char* text) {
    fs::create_directories((x_root / path).parent_path());
    std::ofstream(x_root / path) << text << '\n';
  }

  fs::path x_root;
};

void check_report(const DeviceReport& report, const char* name, const char* reason) {
  ck_assert_str_eq(report.name.c_str(), name);
  ck_assert_str_eq(report.reason.c_str(), reason);
  ck_assert(!report.usable);
}

START_TEST(a_host_without_infiniband_class_has_no_devices) {
  ck_assert_uint_eq(survey_devices("/nonexistent/infiniband", {}).size(), 0);
}
END_TEST

START_TEST(an_active_erdma_port_lacks_only_a_transport) {
  Tree tree;
  tree.add("erdma_0", "0x1ded", "4: ACTIVE", "eth1");
  const auto reports = survey_devices(tree.root(), {});
  ck_assert_uint_eq(reports.size(), 1);
  check_report(reports[0], "erdma_0",
               "port 1 (eth1) is ACTIVE, but the NIC transport is not part of this version");
}
END_TEST

START_TEST(a_port_that_is_down_is_the_reason) {
  Tree tree;
  tree.add("erdma_0", "0x1ded", "1: DOWN");
  check_report(survey_devices(tree.root(), {}).at(0), "erdma_0", "port 1 is DOWN");
}
END_TEST

START_TEST(an_active_port_counts_even_behind_one_that_is_down) {
  Tree tree;
  tree.add("erdma_0", "0x1ded", "1: DOWN");
  tree.add_port("erdma_0", "2", "4: ACTIVE");
  check_report(survey_devices(tree.root(), {}).at(0), "erdma_0",
               "port 2 is ACTIVE, but the NIC transport is not part of this version");
}
END_TEST

START_TEST(a_device_of_another_vendor_needs_to_be_named) {
  Tree tree;
  tree.add("mlx5_0", "0x15b3", "4: ACTIVE");
  check_report(survey_devices(tree.root(), {}).at(0), "mlx5_0",
               "vendor 0x15b3 is not eRDMA, and FI_ERDMA_DEVICE does not name it");
  check_report(survey_devices(tree.root(), {"mlx5_0"}).at(0), "mlx5_0",
               "port 1 is ACTIVE, but the NIC transport is not part of this version");
}
END_TEST

START_TEST(a_device_left_out_of_the_list_says_so) {
  Tree tree;
  tree.add("erdma_0", "0x1ded", "4: ACTIVE");
  tree.add("erdma_1", "0x1ded", "4: ACTIVE");
  const auto reports = survey_devices(tree.root(), {"erdma_1"});
  ck_assert_uint_eq(reports.size(), 2);
  check_report(reports[0], "erdma_0", "FI_ERDMA_DEVICE does not name it");
  ck_assert_str_eq(reports[1].name.c_str(), "erdma_1");
}
END_TEST

START_TEST(a_named_device_that_is_absent_says_so_but_shm_is_none) {
  const auto reports = survey_devices("/nonexistent/infiniband", {"erdma_7", "shm"});
  ck_assert_uint_eq(reports.size(), 1);
  check_report(reports[0], "erdma_7", "this host has no such device");
}
END_TEST

START_TEST(a_device_without_attributes_is_reported_not_trusted) {
  Tree tree;
  fs::create_directories(fs::path(tree.root()) / "odd_0");
  check_report(survey_devices(tree.root(), {}).at(0), "odd_0",
               "vendor unknown is not eRDMA, and FI_ERDMA_DEVICE does not name it");
  check_report(survey_devices(tree.root(), {"odd_0"}).at(0), "odd_0", "it has no port");
}
END_TEST

START_TEST(devices_are_listed_in_order_of_name) {
  Tree tree;
  for (const char* name : {"erdma_2", "erdma_0", "erdma_1"}) tree.add(name, "0x1ded", "1: DOWN");
  const auto reports = survey_devices(tree.root(), {});
  ck_assert_uint_eq(reports.size(), 3);
  for (size_t i = 0; i < 3; ++i) ck_assert(reports[i].name == "erdma_" + std::to_string(i));
}
END_TEST

Suite* make_suite() {
  Suite* suite = suite_create("device");
  TCase* tcase = tcase_create("device");
  tcase_add_test(tcase, a_host_without_infiniband_class_has_no_devices);
  tcase_add_test(tcase, an_active_erdma_port_lacks_only_a_transport);
  tcase_add_test(tcase, a_port_that_is_down_is_the_reason);
  tcase_add_test(tcase, an_active_port_counts_even_behind_one_that_is_down);
  tcase_add_test(tcase, a_device_of_another_vendor_needs_to_be_named);
  tcase_add_test(tcase, a_device_left_out_of_the_list_says_so);
  tcase_add_test(tcase, a_named_device_that_is_absent_says_so_but_shm_is_none);
  tcase_add_test(tcase, a_device_without_attributes_is_reported_not_trusted);
  tcase_add_test(tcase, devices_are_listed_in_order_of_name);
  suite_add_tcase(suite, tcase);
  return suite;
}

}  // namespace

int main() {
  SRunner* runner = srunner_create(make_suite());
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}

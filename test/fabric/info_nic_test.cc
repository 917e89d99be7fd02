// fi_getinfo(3) on hosts with NICs.
#include <stdlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "fabric/info_query.h"
#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "fake/devices.h"

using erdma::fabric::Host;
using erdma::fabric::InfoQuery;
using erdma::transport::verbs::DeviceDescription;
using namespace erdma::test;

namespace {

using Devices = std::vector<DeviceDescription>;

struct Answer {
  int status;
  InfoPtr list;

  std::string names() const {
    std::string text;
    for (const fi_info* info = list.get(); info; info = info->next)
      text += (text.empty() ? "" : " ") + std::string(info->domain_attr->name);
    return text;
  }
};

struct Where {
  const char* node = nullptr;
  const char* service = nullptr;
  uint64_t flags = 0;
};

Answer ask(const Devices& devices, const fi_info* hints = nullptr, const Where& where = {}) {
  Host host;
  host.settings = erdma::fabric::read_settings(&g_provider);
  host.devices = [&] { return devices; };
  fi_info* list = nullptr;
  const InfoQuery query{kVersion, where.node, where.service, where.flags, hints};
  const int status = erdma::fabric::find_infos(query, host, &list);
  return {status, InfoPtr(list)};
}

/// Replaces set_up(): the NICs may be used.
void any_nic() {
  unsetenv("FI_ERDMA_DEVICE");
}

const Devices kTwo = {make_nic("erdma_0", "10.0.0.1"), make_nic("erdma_1", "10.0.1.1")};

SUITE(.once = define);

TEST_CASE(.set_up = set_up);

TEST(each_active_nic_is_one_info) {
  any_nic();
  const Answer answer = ask(kTwo);
  ck_assert_int_eq(answer.status, 0);
  check_text(answer.names(), "erdma_0 erdma_1");
  const fi_info& first = *answer.list;
  check_text(source_of(first).to_string(), "10.0.0.1:0");
  check_text(source_of(*first.next).to_string(), "10.0.1.1:0");
  ck_assert_int_eq(first.ep_attr->type, FI_EP_RDM);
  ck_assert_str_eq(first.fabric_attr->name, first.next->fabric_attr->name);
  ck_assert_uint_eq(first.addr_format, FI_SOCKADDR_IN);
  ck_assert_uint_eq(first.domain_attr->auth_key_size, 0);
  check_text(only_log_line(), "");
}

TEST(one_that_is_down_is_left_out_and_the_log_says_why) {
  any_nic();
  const Answer answer = ask({kTwo[0], make_nic("erdma_1", "10.0.1.1", false)});
  check_text(answer.names(), "erdma_0");
  ck_assert_int_eq(g_log.at(0).level, FI_LOG_INFO);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "erdma_1 is not used: port 1 (eth1) is DOWN"), "%s", line.c_str());
}

TEST(the_nic_is_described) {
  any_nic();
  const Answer answer = ask(kTwo);
  const fid_nic& nic = *answer.list->nic;
  ck_assert_str_eq(nic.device_attr->name, "erdma_0");
  ck_assert_str_eq(nic.device_attr->vendor_id, "0x1ded");
  ck_assert_str_eq(nic.device_attr->device_id, "0x107f");
  ck_assert_str_eq(nic.device_attr->driver, "erdma");
  ck_assert_str_eq(nic.device_attr->firmware, "0.2.0");
  ck_assert_ptr_nonnull(nic.device_attr->device_version);
  ck_assert_int_eq(nic.bus_attr->bus_type, FI_BUS_PCI);
  ck_assert_int_eq(nic.bus_attr->attr.pci.bus_id, 0x1f);
  ck_assert_int_eq(nic.bus_attr->attr.pci.device_id, 3);
  ck_assert_str_eq(nic.link_attr->address, "10.0.0.1");
  ck_assert_uint_eq(nic.link_attr->mtu, 1024);
  ck_assert_uint_eq(nic.link_attr->speed, 100'000'000'000);
  ck_assert_int_eq(nic.link_attr->state, FI_LINK_UP);
  const std::string text = fi_tostr(answer.list.get(), FI_TYPE_INFO);
  ck_assert_msg(contains(text, "PCI 0000:1f:03.0"), "%s", text.c_str());
  const InfoPtr copy(fi_dupinfo(answer.list.get()));
  ck_assert_str_eq(copy->nic->device_attr->name, "erdma_0");
}

TEST(a_nic_without_a_bus_says_so) {
  any_nic();
  DeviceDescription virtual_nic = make_nic("siw0", "10.0.0.1");
  virtual_nic.pci = false;
  virtual_nic.driver = virtual_nic.firmware = "";
  const Answer answer = ask({virtual_nic});
  ck_assert_int_eq(answer.list->nic->bus_attr->bus_type, FI_BUS_UNKNOWN);
  ck_assert_str_eq(answer.list->nic->device_attr->driver, "unknown");
}

// Choice of the NIC.

TEST(a_domain_name_selects_its_nic) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->domain_attr->name = strdup("erdma_1");
  check_text(ask(kTwo, hints.get()).names(), "erdma_1");
}

TEST(an_unknown_domain_name_is_no_data_with_a_reason) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->domain_attr->name = strdup("erdma_9");
  ck_assert_int_eq(ask(kTwo, hints.get()).status, -FI_ENODATA);
  ck_assert(contains(only_log_line(), "erdma_9"));
}

/// The only line that a user of FI_PROVIDER=erdma sees.
std::string refusal(const Devices& devices, const fi_info* hints, const Where& where = {}) {
  g_log_level = FI_LOG_WARN;
  setenv("FI_PROVIDER", "erdma", 1);
  ck_assert_int_eq(ask(devices, hints, where).status, -FI_ENODATA);
  return only_log_line();
}

TEST(a_domain_name_of_a_nic_that_is_not_used_is_no_data_with_the_reason) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->domain_attr->name = strdup("erdma_1");
  const std::string line = refusal({kTwo[0], make_nic("erdma_1", "10.0.1.1", false)}, hints.get());
  ck_assert_msg(contains(line, "erdma_1"), "%s", line.c_str());
  ck_assert_msg(contains(line, "port 1 (eth1) is DOWN"), "%s", line.c_str());
}

TEST(a_family_that_no_nic_has_is_no_data_with_its_name, 2) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->addr_format = _i ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  const std::string line = refusal({make_nic("erdma_0", _i ? "fd00::1" : "10.0.0.1")}, hints.get());
  ck_assert_msg(contains(line, _i ? "IPv4" : "IPv6"), "%s", line.c_str());
  ck_assert_msg(contains(line, "every NIC"), "%s", line.c_str());
}

/// The family of the node, which only another NIC than the named one has.
TEST(a_family_that_the_named_nic_lacks_is_no_data_with_both_names) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->domain_attr->name = strdup("erdma_0");
  const std::string line = refusal({kTwo[0], make_nic("erdma_1", "fd00::1")}, hints.get(),
                                   {"fd00::2", "7000", FI_NUMERICHOST});
  ck_assert_msg(contains(line, "IPv6"), "%s", line.c_str());
  ck_assert_msg(contains(line, "erdma_0"), "%s", line.c_str());
}

TEST(a_source_node_selects_the_nic_with_that_address) {
  any_nic();
  const Answer answer = ask(kTwo, nullptr, {"10.0.1.1", "7000", FI_SOURCE});
  check_text(answer.names(), "erdma_1");
  check_text(source_of(*answer.list).to_string(), "10.0.1.1:7000");
}

TEST(a_source_in_the_hints_selects_the_nic_with_that_address) {
  any_nic();
  const Answer first = ask(kTwo);
  const Answer again = ask(kTwo, first.list->next);
  check_text(again.names(), "erdma_1");
}

TEST(a_source_of_no_nic_is_no_data) {
  any_nic();
  ck_assert_int_eq(ask(kTwo, nullptr, {"127.0.0.1", nullptr, FI_SOURCE}).status, -FI_ENODATA);
  ck_assert(contains(only_log_line(), "127.0.0.1"));
}

TEST(a_service_alone_is_the_port_on_every_nic) {
  any_nic();
  const Answer answer = ask(kTwo, nullptr, {nullptr, "7000", FI_SOURCE});
  check_text(answer.names(), "erdma_0 erdma_1");
  check_text(source_of(*answer.list->next).to_string(), "10.0.1.1:7000");
}

TEST(a_service_alone_leaves_the_family_to_each_nic) {
  any_nic();
  const Devices devices = {kTwo[0], make_nic("erdma_1", "fd00::1")};
  const Answer answer = ask(devices, nullptr, {nullptr, "7000", FI_SOURCE});
  check_text(answer.names(), "erdma_0 erdma_1");
  check_text(source_of(*answer.list).to_string(), "10.0.0.1:7000");
  check_text(source_of(*answer.list->next).to_string(), "[fd00::1]:7000");
}

TEST(a_destination_is_in_each_info) {
  any_nic();
  const Answer answer = ask(kTwo, nullptr, {"10.9.9.9", "7000", FI_NUMERICHOST});
  ck_assert_ptr_nonnull(answer.list.get());
  for (const fi_info* info = answer.list.get(); info; info = info->next) {
    check_text(destination_of(*info).to_string(), "10.9.9.9:7000");
    ck_assert_int_eq(source_of(*info).port(), 0);
  }
}

/// The kernel sends from the same address to an address of this host.
TEST(the_nic_on_the_route_comes_first) {
  any_nic();
  const Devices devices = {kTwo[0], make_nic("erdma_1", "127.0.0.1")};
  check_text(ask(devices, nullptr, {"127.0.0.1", "7000", 0}).names(), "erdma_1 erdma_0");
}

TEST(a_family_selects_the_nics_that_have_it) {
  any_nic();
  InfoPtr hints = make_hints();
  hints->addr_format = FI_SOCKADDR_IN6;
  const Answer answer = ask({kTwo[0], make_nic("erdma_1", "fd00::1")}, hints.get());
  check_text(answer.names(), "erdma_1");
  ck_assert_uint_eq(answer.list->addr_format, FI_SOCKADDR_IN6);
}

TEST(a_device_variable_selects_by_name_whatever_the_vendor) {
  setenv("FI_ERDMA_DEVICE", "siw0", 1);
  Devices devices = {kTwo[0], make_nic("siw0", "10.0.2.1")};
  devices[1].vendor = 0;
  check_text(ask(devices).names(), "siw0");
}

// Hosts without a usable NIC.

TEST(without_a_usable_nic_single_host_operation_names_each_reason) {
  any_nic();
  setenv("FI_PROVIDER", "erdma", 1);
  const Answer answer = ask({make_nic("erdma_0", "10.0.0.1", false), make_nic("erdma_1", nullptr)});
  check_text(answer.names(), "shm");
  ck_assert_int_eq(g_log.at(0).level, FI_LOG_WARN);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "erdma_0: port 1 (eth1) is DOWN; erdma_1: eth1 has no IP"), "%s",
                line.c_str());
}

/// Whether the provider is asked for by name or not, a named NIC is not replaced by shared memory.
TEST(a_named_device_that_is_absent_is_no_data_and_a_line_tells_which_there_are, 2) {
  if (_i) setenv("FI_PROVIDER", "erdma", 1);
  setenv("FI_ERDMA_DEVICE", "erdma_7", 1);
  const Devices devices = {kTwo[0], make_nic("erdma_1", "10.0.1.1", false),
                           make_nic("erdma_2", nullptr)};
  const Answer answer = ask(devices);
  ck_assert_int_eq(answer.status, -FI_ENODATA);
  ck_assert_ptr_null(answer.list.get());
  ck_assert_int_eq(g_log.at(0).level, FI_LOG_WARN);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "erdma_7: this host has no such device"), "%s", line.c_str());
  ck_assert_msg(contains(line,
                         "erdma_0 (ACTIVE), erdma_1 (port 1 (eth1) is DOWN), erdma_2 (eth1 "
                         "has no IP address in this network namespace)"),
                "%s", line.c_str());
  ck_assert_msg(contains(line, "FI_ERDMA_DEVICE=shm"), "%s", line.c_str());
}

TEST(a_named_device_on_a_host_without_any_is_no_data) {
  setenv("FI_PROVIDER", "erdma", 1);
  setenv("FI_ERDMA_DEVICE", "erdma_0,erdma_1", 1);
  ck_assert_int_eq(ask({}).status, -FI_ENODATA);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "erdma_0: this host has no such device; erdma_1: "), "%s",
                line.c_str());
  ck_assert_msg(contains(line, "no RDMA device at all"), "%s", line.c_str());
}

TEST(a_named_device_that_is_down_is_no_data_with_its_state) {
  setenv("FI_PROVIDER", "erdma", 1);
  setenv("FI_ERDMA_DEVICE", "erdma_0", 1);
  ck_assert_int_eq(ask({make_nic("erdma_0", "10.0.0.1", false)}).status, -FI_ENODATA);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "erdma_0: port 1 (eth1) is DOWN"), "%s", line.c_str());
  ck_assert_msg(contains(line, "ip link set eth1 up"), "%s", line.c_str());
}

TEST(a_named_device_that_is_absent_is_told_even_if_another_serves) {
  setenv("FI_ERDMA_DEVICE", "erdma_0,erdma_7", 1);
  check_text(ask(kTwo).names(), "erdma_0");
  ck_assert_int_eq(g_log.at(0).level, FI_LOG_WARN);
  ck_assert_msg(contains(g_log[0].text, "erdma_7: this host has no such device"), "%s",
                g_log[0].text.c_str());
}

TEST(a_fault_of_a_device_is_told_once_per_process) {
  setenv("FI_ERDMA_DEVICE", "erdma_7", 1);
  ask({});
  ck_assert(only_log_line() != "");
  ask({});
  check_text(only_log_line(), "");
}

// Lines that a user sees if no variable of the log is set.

TEST(nothing_is_seen_of_a_host_whose_nics_serve) {
  const CapturedStderr error_output;
  g_log_level = -1;
  any_nic();
  setenv("FI_PROVIDER", "erdma", 1);
  check_text(ask({kTwo[0], make_nic("erdma_1", "10.0.1.1", false)}).names(), "erdma_0");
  check_text(error_output.only_write(), "");
}

TEST(nothing_is_seen_where_nobody_named_provider_or_device) {
  const CapturedStderr error_output;
  g_log_level = -1;
  any_nic();
  ck_assert_int_eq(ask({}).status, -FI_ENODATA);
  InfoPtr hints = make_hints();
  hints->ep_attr->type = FI_EP_MSG;
  ck_assert_int_eq(ask(kTwo, hints.get()).status, -FI_ENODATA);
  check_text(error_output.only_write(), "");
}

TEST(a_named_device_that_is_absent_is_seen) {
  const CapturedStderr error_output;
  g_log_level = -1;
  setenv("FI_ERDMA_DEVICE", "erdma_7", 1);
  ask(kTwo);
  ask(kTwo);
  const std::string line = error_output.only_write();
  ck_assert_msg(contains(line, "erdma_7: this host has no such device"), "%s", line.c_str());
}

TEST(shm_behind_a_device_is_the_fallback_without_a_warning) {
  setenv("FI_ERDMA_DEVICE", "erdma_0,shm", 1);
  check_text(ask({kTwo[0]}).names(), "erdma_0");
  check_text(ask({make_nic("erdma_0", "10.0.0.1", false)}).names(), "shm");
  check_text(only_log_line(), "");
}

TEST(shm_alone_does_not_even_look_at_devices) {
  setenv("FI_ERDMA_DEVICE", "shm", 1);
  Host host;
  host.settings = erdma::fabric::read_settings(&g_provider);
  host.devices = []() -> Devices { ck_abort_msg("looked"); };
  fi_info* info = nullptr;
  ck_assert_int_eq(erdma::fabric::find_infos({kVersion, nullptr, nullptr, 0, nullptr}, host, &info),
                   0);
  const InfoPtr owner(info);
  ck_assert_str_eq(info->domain_attr->name, "shm");
}

TEST(shared_memory_switched_off_leaves_nothing_without_a_nic) {
  setenv("FI_ERDMA_DEVICE", "shm", 1);
  setenv("FI_ERDMA_SHM", "off", 1);
  ck_assert_int_eq(ask({}).status, -FI_ENODATA);
  ck_assert(contains(only_log_line(), "FI_ERDMA_SHM=off"));
}

TEST(shared_memory_both_chosen_and_switched_off_is_a_contradiction) {
  setenv("FI_ERDMA_DEVICE", "shm", 1);
  setenv("FI_ERDMA_SHM", "off", 1);
  const std::string line = refusal(kTwo, nullptr);
  ck_assert_msg(contains(line, "FI_ERDMA_DEVICE=shm"), "%s", line.c_str());
  ck_assert_msg(contains(line, "FI_ERDMA_SHM=off"), "%s", line.c_str());
  ck_assert_msg(!contains(line, "no RDMA device"), "%s", line.c_str());
}

// Keys.

InfoPtr hints_with_key(size_t size) {
  InfoPtr hints = make_hints();
  hints->ep_attr->auth_key = static_cast<uint8_t*>(calloc(1, size));
  hints->ep_attr->auth_key_size = size;
  return hints;
}

TEST(a_key_is_returned_for_a_nic) {
  any_nic();
  InfoPtr hints = hints_with_key(16);
  hints->ep_attr->auth_key[3] = 7;
  const Answer answer = ask(kTwo, hints.get());
  ck_assert_int_eq(answer.status, 0);
  ck_assert_uint_eq(answer.list->ep_attr->auth_key_size, 16);
  ck_assert_int_eq(answer.list->ep_attr->auth_key[3], 7);
  ck_assert_ptr_ne(answer.list->ep_attr->auth_key, hints->ep_attr->auth_key);
  ck_assert_ptr_null(answer.list->domain_attr->auth_key);
  ck_assert_int_eq(erdma::fabric::check_info(kVersion, *answer.list), 0);
}

TEST(a_key_that_is_too_long_is_no_data) {
  any_nic();
  ck_assert_int_eq(ask(kTwo, hints_with_key(256).get()).status, 0);
  ck_assert_int_eq(ask(kTwo, hints_with_key(257).get()).status, -FI_ENODATA);
  ck_assert(contains(only_log_line(), "ep_attr->auth_key_size"));
}

TEST(within_a_host_no_key_is_checked_so_none_is_taken) {
  ck_assert_int_eq(ask({}, hints_with_key(16).get()).status, -FI_ENODATA);
  ck_assert(contains(only_log_line(), "auth_key"));
}

}  // namespace

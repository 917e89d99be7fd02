// fi_getinfo(3) with hints that name an open fabric or domain.
#include <iterator>
#include <memory>

#include "fabric/env.h"
#include "fabric/info.h"
#include "fabric/info_offer.h"
#include "fabric/rig.h"
#include "fake/captured_log.h"
#include "fake/devices.h"
#include "quiet_fork.h"

using erdma::fabric::Host;
using erdma::fabric::InfoPtr;
using namespace erdma::test;

namespace {

TEST_CASE(.set_up = on_shm);

/// Hints for an endpoint on this domain, in the mode of Ask.
InfoPtr hints_for(fid_domain* domain) {
  InfoPtr hints(fi_allocinfo());
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->domain = domain;
  return hints;
}

int query(const fi_info& hints, InfoPtr& result, uint32_t version = Ask{}.version) {
  fi_info* found = nullptr;
  const int rc = provider()->getinfo(version, nullptr, nullptr, 0, &hints, &found);
  result.reset(found);
  return rc;
}

void check_no_data(const fi_info& hints, const char* reason) {
  g_log.clear();
  InfoPtr info;
  ck_assert_int_eq(query(hints, info), -FI_ENODATA);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, reason), "%s", line.c_str());
}

TEST(the_answer_names_the_objects_of_the_hints) {
  Root root, other;
  const InfoPtr hints = hints_for(root.domain);
  InfoPtr info;
  ck_assert_int_eq(query(*hints, info), 0);
  ck_assert_ptr_eq(info->domain_attr->domain, root.domain);
  ck_assert_ptr_eq(info->fabric_attr->fabric, root.fabric);
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, info.get(), &ep, nullptr), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  hints->domain_attr->domain = nullptr;
  hints->fabric_attr->fabric = other.fabric;
  ck_assert_int_eq(query(*hints, info), 0);
  ck_assert_ptr_eq(info->domain_attr->domain, other.domain);
  ck_assert_ptr_eq(info->fabric_attr->fabric, other.fabric);
}

void check_named(const fi_info& hints, fid_fabric* fabric, fid_domain* domain) {
  InfoPtr info;
  ck_assert_int_eq(query(hints, info), 0);
  ck_assert_ptr_eq(info->fabric_attr->fabric, fabric);
  ck_assert_ptr_eq(info->domain_attr->domain, domain);
}

/// fi_fabric(3), fi_domain(3): the answer references the first opened instances.
TEST(without_hints_of_objects_the_answer_names_the_oldest_that_are_open) {
  const InfoPtr hints = hints_for(nullptr);
  check_named(*hints, nullptr, nullptr);
  {
    Root root;
    check_named(*hints, root.fabric, root.domain);
    Root other;
    check_named(*hints, root.fabric, root.domain);
    fid_domain* second = nullptr;
    ck_assert_int_eq(fi_domain(root.fabric, root.info, &second, nullptr), 0);
    check_named(*hints, root.fabric, root.domain);
    ck_assert_int_eq(fi_close(&root.domain->fid), 0);
    check_named(*hints, root.fabric, second);
    root.domain = second;
    hints->fabric_attr->fabric = other.fabric;
    check_named(*hints, other.fabric, other.domain);
    hints->fabric_attr->fabric = nullptr;
  }
  check_named(*hints, nullptr, nullptr);
}

TEST(the_answer_names_no_domain_that_was_opened_for_less) {
  Root root;
  const InfoPtr hints = hints_for(nullptr);
  hints->domain_attr->threading = FI_THREAD_SAFE;
  check_named(*hints, root.fabric, nullptr);
  Ask ask;
  ask.threading = FI_THREAD_SAFE;
  const InfoPtr safe(get_info(ask));
  fid_domain* second = nullptr;
  ck_assert_int_eq(fi_domain(root.fabric, safe.get(), &second, nullptr), 0);
  check_named(*hints, root.fabric, second);
  ck_assert_int_eq(fi_close(&second->fid), 0);
}

/// What the parent opened is of no use to the child.
TEST(the_answer_in_a_forked_child_names_no_object_of_the_parent) {
  Root root;
  ck_assert(holds_in_child([&] {
    const InfoPtr hints = hints_for(nullptr);
    InfoPtr info;
    const auto names = [&](const fid_fabric* fabric) {
      return query(*hints, info) == 0 && info->fabric_attr->fabric == fabric &&
             !info->domain_attr->domain;
    };
    if (!names(nullptr)) return false;
    fid_fabric* fabric = nullptr;
    if (provider()->fabric(root.info->fabric_attr, &fabric, nullptr) != 0) return false;
    if (!names(fabric) || fi_close(&root.domain->fid) != 0) return false;
    if (fi_close(&root.fabric->fid) != 0 || !names(fabric)) return false;
    return fi_close(&fabric->fid) == 0 && names(nullptr);
  }));
}

/// The application may have closed an object that an earlier answer named.
TEST(a_closed_object_is_no_data) {
  const InfoPtr hints = hints_for(nullptr);
  fid_fabric* closed = nullptr;
  {
    Root root;
    hints->domain_attr->domain = root.domain;
    closed = root.fabric;
  }
  check_no_data(*hints, "domain_attr->domain, which is no open object");
  hints->domain_attr->domain = nullptr;
  hints->fabric_attr->fabric = closed;
  check_no_data(*hints, "fabric_attr->fabric, which is no open object");
}

/// The domain has another address than the one that fi_getinfo would choose.
TEST(the_source_is_the_address_of_the_domain) {
  fi_info* found = nullptr;
  ck_assert_int_eq(
      provider()->getinfo(Ask{}.version, "127.0.0.1", nullptr, FI_SOURCE, nullptr, &found), 0);
  Root root(found);
  const InfoPtr hints = hints_for(root.domain);
  hints->domain_attr->threading = FI_THREAD_SAFE;
  InfoPtr info;
  ck_assert_int_eq(query(*hints, info), 0);
  ck_assert_uint_eq(info->src_addrlen, sizeof(sockaddr_in));
  ck_assert_mem_eq(info->src_addr, root.info->src_addr, sizeof(sockaddr_in));
}

TEST(objects_of_another_provider_are_no_data) {
  fi_ops ops{};
  fid_domain domain{};
  domain.fid = {FI_CLASS_DOMAIN, nullptr, &ops};
  fid_fabric fabric{};
  fabric.fid = {FI_CLASS_FABRIC, nullptr, &ops};
  const InfoPtr hints = hints_for(&domain);
  check_no_data(*hints, "domain_attr->domain, which is no open object of this provider");
  hints->fabric_attr->fabric = &fabric;
  check_no_data(*hints, "fabric_attr->fabric, which is no open object of this provider");
}

TEST(a_domain_of_another_fabric_is_no_data) {
  Root root, other;
  const InfoPtr hints = hints_for(root.domain);
  hints->fabric_attr->fabric = other.fabric;
  check_no_data(*hints, "not a domain of fabric_attr->fabric");
}

struct Lack {
  const char* reason;
  void (*ask)(fi_info& hints);
};

/// What a domain that was opened as Root does is not opened for.
const Lack kLacks[] = {
    {"lacks FI_MR_PROV_KEY",
     [](fi_info& h) {
       h.caps = FI_MSG | FI_RMA;
       h.domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
     }},
    {"lacks a lock", [](fi_info& h) { h.domain_attr->threading = FI_THREAD_SAFE; }},
    {"lacks FI_PROGRESS_AUTO", [](fi_info& h) { h.domain_attr->data_progress = FI_PROGRESS_AUTO; }},
    {"lacks the address", [](fi_info& h) { h.addr_format = FI_SOCKADDR_IN6; }},
};

TEST(a_domain_that_was_opened_for_less_is_no_data, std::size(kLacks)) {
  Ask ask;
  ask.caps = FI_MSG;
  ask.addr_format = FI_SOCKADDR_IN;
  Root root(ask);
  const InfoPtr hints = hints_for(root.domain);
  hints->caps = FI_MSG;
  kLacks[_i].ask(*hints);
  check_no_data(*hints, kLacks[_i].reason);
}

/// The infos of other NICs are left out.
TEST(a_domain_on_another_device_is_no_data) {
  Root root;
  unsetenv("FI_ERDMA_DEVICE");
  Host host;
  host.settings = erdma::fabric::read_settings();
  host.devices = [] { return std::vector{make_nic("erdma_0", "10.0.0.1")}; };
  const InfoPtr hints = hints_for(root.domain);
  g_log.clear();
  fi_info* found = nullptr;
  ck_assert_int_eq(
      erdma::fabric::find_infos({Ask{}.version, nullptr, nullptr, 0, hints.get()}, host, &found),
      -FI_ENODATA);
  ck_assert_ptr_null(found);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "NIC has the domain name (any)"), "%s", line.c_str());
}

}  // namespace

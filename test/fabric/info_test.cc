#include "fabric/info.h"

#include <stdlib.h>

#include <cstring>
#include <string>

#include "fabric/info_query.h"
#include "fabric/info_refusal.h"
#include "fake/captured_log.h"

using erdma::fabric::InfoPtr;
using namespace erdma::test;

namespace {

// The hints of well-known applications, and the parts of the answer that each relies on.

struct Client {
  const char* name;
  uint32_t version;
  void (*ask)(fi_info& hints);
  bool (*served)(const fi_info& info);
};

void ask_ompi_4(fi_info& hints) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = FI_TAGGED | kComm | FI_DIRECTED_RECV;
  hints.tx_attr->msg_order = FI_ORDER_SAS;
  hints.rx_attr->msg_order = FI_ORDER_SAS;
  hints.tx_attr->op_flags = FI_COMPLETION;
  hints.rx_attr->op_flags = FI_COMPLETION;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->av_type = FI_AV_MAP;
  hints.domain_attr->cq_data_size = 4;
}

void ask_ompi_main(fi_info& hints) {
  ask_ompi_4(hints);
  hints.caps |= FI_MSG;
  hints.domain_attr->threading = FI_THREAD_SAFE;
}

void ask_mpich(fi_info& hints) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints.caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV | FI_DIRECTED_RECV;
  hints.tx_attr->msg_order = FI_ORDER_SAS;
  hints.rx_attr->msg_order = FI_ORDER_SAS;
  hints.tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  hints.rx_attr->op_flags = FI_COMPLETION;
  hints.ep_attr->type = FI_EP_RDM;
  hints.ep_attr->mem_tag_format = 0x6000'0000'0000'0000;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->av_type = FI_AV_TABLE;
  hints.domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
}

void ask_oneccl(fi_info& hints) {
  hints.mode = FI_CONTEXT;
  hints.caps = FI_TAGGED;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->av_type = FI_AV_TABLE;
}

void ask_nccl_sendrecv(fi_info& hints) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = kComm | FI_TAGGED | FI_MSG;
  hints.tx_attr->msg_order = FI_ORDER_SAS;
  hints.rx_attr->msg_order = FI_ORDER_SAS;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->threading = FI_THREAD_SAFE;
  hints.domain_attr->mr_key_size = 2;
  hints.domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
}

void ask_mercury(fi_info& hints) {
  hints.mode = FI_ASYNC_IOV | FI_CONTEXT;
  hints.caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE;
  hints.addr_format = FI_SOCKADDR_IN;
  hints.tx_attr->op_flags = FI_INJECT_COMPLETE;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->threading = FI_THREAD_SAFE;
  hints.domain_attr->av_type = FI_AV_MAP;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints.domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
}

/// Sandia OpenSHMEM as far as messages go: no rx_attr, mode 0, API 1.5.
void ask_sos(fi_info& hints) {
  free(hints.rx_attr);
  hints.rx_attr = nullptr;
  hints.caps = FI_MSG;
  hints.tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints.tx_attr->inject_size = 16;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->mr_key_size = 1;
  hints.domain_attr->data_progress = FI_PROGRESS_AUTO;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->av_type = FI_AV_TABLE;
  hints.domain_attr->resource_mgmt = FI_RM_ENABLED;
}

void ask_fabtests(fi_info& hints) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = FI_MSG;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_RAW;
}

bool tags_have_all_bits(const fi_info& info) {
  return info.ep_attr->mem_tag_format >> 63;
}

const Client kClients[] = {
    {"Open MPI 4.1 mtl", FI_VERSION(1, 5), ask_ompi_4,
     [](const fi_info& i) {
       return tags_have_all_bits(i) && i.domain_attr->threading == FI_THREAD_DOMAIN &&
              i.domain_attr->av_type == FI_AV_MAP && (i.caps & FI_DIRECTED_RECV) &&
              i.domain_attr->max_ep_tx_ctx == 1 && i.tx_attr->op_flags == FI_COMPLETION;
     }},
    {"Open MPI main mtl", FI_VERSION(1, 9), ask_ompi_main,
     [](const fi_info& i) {
       return i.domain_attr->threading == FI_THREAD_SAFE && (i.caps & FI_MSG) &&
              !(i.domain_attr->mr_mode & FI_MR_HMEM) && i.domain_attr->cq_data_size >= 4;
     }},
    {"Open MPI main mtl, API 1.18", FI_VERSION(1, 18), ask_ompi_main, tags_have_all_bits},
    {"MPICH", FI_VERSION(2, 0), ask_mpich,
     [](const fi_info& i) {
       return i.domain_attr->threading == FI_THREAD_DOMAIN && i.domain_attr->cq_data_size >= 4 &&
              i.domain_attr->data_progress == FI_PROGRESS_MANUAL && (i.caps & FI_MULTI_RECV) &&
              i.ep_attr->max_msg_size >= 16384 && i.domain_attr->av_type == FI_AV_TABLE &&
              i.tx_attr->op_flags == (FI_COMPLETION | FI_DELIVERY_COMPLETE);
     }},
    {"oneCCL", FI_VERSION(1, 10), ask_oneccl,
     [](const fi_info& i) {
       return tags_have_all_bits(i) && i.nic->link_attr && i.nic->bus_attr &&
              i.domain_attr->max_ep_tx_ctx == 1;
     }},
    {"NCCL plugin SENDRECV", FI_VERSION(1, 6), ask_nccl_sendrecv,
     [](const fi_info& i) {
       return i.domain_attr->mr_mode == 0 && (i.caps & kComm) == kComm &&
              strlen(i.nic->device_attr->name) > 0 && i.nic->link_attr->speed > 0;
     }},
    {"NCCL plugin SENDRECV, API 1.20", FI_VERSION(1, 20), ask_nccl_sendrecv,
     [](const fi_info& i) { return (i.caps & FI_HMEM) == 0; }},
    {"Mercury", FI_VERSION(1, 13), ask_mercury,
     [](const fi_info& i) { return (i.caps & FI_SOURCE) && i.addr_format == FI_SOCKADDR_IN; }},
    {"Sandia OpenSHMEM", FI_VERSION(1, 5), ask_sos,
     [](const fi_info& i) {
       return i.tx_attr->inject_size >= 16 && i.rx_attr &&
              i.domain_attr->data_progress == FI_PROGRESS_AUTO && i.domain_attr->mr_mode == 0;
     }},
    {"fabtests", FI_VERSION(1, 9), ask_fabtests,
     [](const fi_info& i) {
       return !(i.caps & (FI_TAGGED | FI_DIRECTED_RECV)) && i.tx_attr->caps == (FI_MSG | FI_SEND) &&
              (i.rx_attr->caps & ~(FI_MSG | FI_RECV | FI_MULTI_RECV)) == 0;
     }},
};

SUITE(.once = define);

TEST_CASE(.set_up = set_up);

TEST(a_client_gets_what_it_asks, std::size(kClients)) {
  const Client& client = kClients[_i];
  InfoPtr hints = make_hints();
  client.ask(*hints);
  InfoPtr info;
  ck_assert_msg(query(client.version, hints.get(), info) == 0, "%s: %s", client.name,
                only_log_line().c_str());
  ck_assert_msg(client.served(*info), "%s", client.name);
  ck_assert_ptr_null(info->next);
  ck_assert_ptr_null(info->fabric_attr->prov_name);
  ck_assert_uint_eq(info->mode, 0);
  ck_assert_uint_eq(info->caps & hints->caps, hints->caps);
  ck_assert_int_eq(info->domain_attr->mr_mode & ~hints->domain_attr->mr_mode, 0);
  ck_assert_ptr_nonnull(info->src_addr);
  check_text(only_log_line(), "");
}

TEST(the_answer_is_accepted_as_hints_and_by_fi_domain, std::size(kClients)) {
  const Client& client = kClients[_i];
  InfoPtr hints = make_hints();
  client.ask(*hints);
  InfoPtr first, second;
  ck_assert_int_eq(query(client.version, hints.get(), first), 0);
  ck_assert_int_eq(query(client.version, first.get(), second), 0);
  ck_assert_uint_eq(second->caps, first->caps);
  ck_assert_int_eq(erdma::fabric::check_info(client.version, *first), 0);
}

TEST(without_hints_everything_is_offered_and_nothing_is_switched_on) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  // An older application may use the bits of capabilities that came with API 2.0 for other
  // purposes.
  constexpr uint64_t kNewer = erdma::fabric::kTaggedMultiRecv | erdma::fabric::kTaggedDirectedRecv;
  ck_assert_uint_eq(info->caps, erdma::fabric::kCaps & ~kNewer);
  InfoPtr newer;
  ck_assert_int_eq(query(FI_VERSION(2, 0), nullptr, newer), 0);
  ck_assert_uint_eq(newer->caps, erdma::fabric::kCaps);
  ck_assert_int_eq(info->ep_attr->type, FI_EP_RDM);
  ck_assert_int_eq(info->domain_attr->mr_mode, erdma::fabric::kMrMode);
  ck_assert_uint_eq(info->tx_attr->op_flags, 0);
  ck_assert_uint_eq(info->rx_attr->op_flags, 0);
  ck_assert_int_eq(info->domain_attr->control_progress, FI_PROGRESS_MANUAL);
  ck_assert_str_eq(info->fabric_attr->name, erdma::fabric::kFabricName);
  ck_assert_str_eq(info->domain_attr->name, erdma::fabric::kShmDomainName);
  ck_assert_uint_eq(info->domain_attr->caps, kComm | FI_AV_USER_ID);
  ck_assert_ptr_null(info->dest_addr);
}

// Whether there is an answer on a host without a usable NIC.

struct NameCase {
  const char* filter;
  const char* prov_name;
  bool asked;
};

const NameCase kNames[] = {
    {nullptr, nullptr, false},        {"erdma", nullptr, true},
    {"tcp,erdma", nullptr, true},     {"ERDMA", nullptr, true},
    {"^erdma", nullptr, false},       {"^tcp,erdma", nullptr, false},
    {"erdmax", nullptr, false},       {"", nullptr, false},
    {"tcp", nullptr, false},          {"tcp", "erdma", true},
    {nullptr, "erdma;ofi_rxm", true}, {nullptr, "erdma,shm", true},
    {nullptr, "tcp;ofi_rxm", false},
};

TEST(the_provider_is_asked_for_by_its_whole_name, std::size(kNames)) {
  const NameCase& c = kNames[_i];
  ck_assert_msg(erdma::fabric::asked_by_name(c.filter, c.prov_name) == c.asked, "%s %s",
                c.filter ? c.filter : "-", c.prov_name ? c.prov_name : "-");
}

TEST(without_a_nic_an_unnamed_provider_stays_away_without_a_warning) {
  unsetenv("FI_ERDMA_DEVICE");
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), -FI_ENODATA);
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_INFO);
}

TEST(without_a_nic_a_named_provider_warns_once_and_serves_this_host) {
  unsetenv("FI_ERDMA_DEVICE");
  setenv("FI_PROVIDER", "erdma", 1);
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_WARN);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "FI_ERDMA_DEVICE=shm"), "%s", line.c_str());
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  check_text(only_log_line(), "");
}

TEST(a_provider_named_in_the_hints_serves_this_host) {
  unsetenv("FI_ERDMA_DEVICE");
  InfoPtr hints = make_hints();
  hints->fabric_attr->prov_name = strdup("erdma");
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_str_eq(info->domain_attr->name, "shm");
}

TEST(the_version_is_that_of_the_package) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  const std::string version = std::to_string(FI_MAJOR(info->fabric_attr->prov_version)) + "." +
                              std::to_string(FI_MINOR(info->fabric_attr->prov_version)) + ".";
  ck_assert_msg(std::string(PACKAGE_VERSION).starts_with(version), "%s", version.c_str());
}

// Memory.

TEST(a_duplicate_outlives_its_original) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "127.0.0.1", "5001"), 0);
  const InfoPtr copy(fi_dupinfo(info.get()));
  ck_assert_ptr_nonnull(copy.get());
  ck_assert_ptr_ne(copy->nic, info->nic);
  const std::string address = info->nic->link_attr->address;
  info.reset();
  ck_assert_str_eq(copy->nic->device_attr->name, "shm");
  ck_assert_str_eq(copy->nic->link_attr->address, address.c_str());
  ck_assert_int_eq(copy->nic->link_attr->state, FI_LINK_UP);
  ck_assert_int_eq(copy->nic->bus_attr->bus_type, FI_BUS_UNKNOWN);
}

TEST(libfabric_can_print_it) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  const std::string text = fi_tostr(info.get(), FI_TYPE_INFO);
  ck_assert_msg(contains(text, "network_type: shared memory"), "%s", text.c_str());
}

}  // namespace

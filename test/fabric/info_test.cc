#include "fabric/info.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "fabric/info_query.h"
#include "fabric/info_refusal.h"
#include "fake/captured_log.h"
#include "fi_erdma/clients.h"
#include "quiet_fork.h"
#include "stopped_at_page.h"
#include "util/process_epoch.h"

using erdma::fabric::InfoPtr;
using namespace erdma::test;

namespace {

// The hints of well-known applications, and the parts of the answer that each relies on.

using fi_erdma::Attempt;
using fi_erdma::Client;

void ask_mercury(fi_info& hints, const fi_info&) {
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
constexpr Attempt kMercury[] = {{FI_VERSION(1, 13), ask_mercury}};

void ask_fabtests(fi_info& hints, const fi_info&) {
  hints.mode = FI_CONTEXT | FI_CONTEXT2;
  hints.caps = FI_MSG;
  hints.ep_attr->type = FI_EP_RDM;
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_RAW;
}
constexpr Attempt kFabtests[] = {{FI_VERSION(1, 9), ask_fabtests}};

bool tags_have_all_bits(const fi_info& info) {
  return info.ep_attr->mem_tag_format >> 63;
}
/// Operations between endpoints of FI_RMA and FI_ATOMIC that end when the target has the data.
bool windows_work(const fi_info& info) {
  return info.domain_attr->mr_mode == erdma::fabric::kMrMode &&
         (info.caps & FI_REMOTE_WRITE && info.caps & FI_REMOTE_READ) &&
         info.tx_attr->op_flags == FI_DELIVERY_COMPLETE;
}

struct ClientCase {
  Client client;
  size_t attempt;  ///< the one that is answered on a host without a GPU
  bool (*served)(const fi_info& info);
};

const ClientCase kClientCases[] = {
    {{"openmpi", "4.1 mtl/ofi", fi_erdma::hints::kMtl4},
     0,
     [](const fi_info& i) {
       return tags_have_all_bits(i) && i.domain_attr->threading == FI_THREAD_DOMAIN &&
              i.domain_attr->av_type == FI_AV_MAP && (i.caps & FI_DIRECTED_RECV) &&
              i.domain_attr->max_ep_tx_ctx == 1 && i.tx_attr->op_flags == FI_COMPLETION;
     }},
    {{"openmpi", "4.1 btl/ofi", fi_erdma::hints::kBtl4}, 0, windows_work},
    {{"openmpi", "5.0 mtl/ofi", fi_erdma::hints::kMtl5},
     2,
     [](const fi_info& i) {
       return tags_have_all_bits(i) && (i.caps & FI_MSG) && !(i.caps & FI_HMEM) &&
              !(i.domain_attr->mr_mode & FI_MR_HMEM) && i.domain_attr->cq_data_size >= 4;
     }},
    {{"openmpi", "5.0 btl/ofi", fi_erdma::hints::kBtl5}, 2, windows_work},
    {{"mpich", "5.0", fi_erdma::hints::kMpich},
     2,
     [](const fi_info& i) {
       // Without these bits MPICH's windows use keys of its own, and offsets.
       return i.domain_attr->mr_mode == erdma::fabric::kMrMode &&
              i.domain_attr->threading == FI_THREAD_DOMAIN && i.domain_attr->cq_data_size >= 4 &&
              i.domain_attr->data_progress == FI_PROGRESS_MANUAL && (i.caps & FI_MULTI_RECV) &&
              (i.caps & FI_RMA && i.caps & FI_ATOMIC) && i.ep_attr->max_msg_size >= 16384 &&
              i.domain_attr->av_type == FI_AV_TABLE &&
              i.tx_attr->op_flags == (FI_COMPLETION | FI_DELIVERY_COMPLETE);
     }},
    {{"oneccl", "2021.14", fi_erdma::hints::kOneccl},
     0,
     [](const fi_info& i) {
       return tags_have_all_bits(i) && i.nic->link_attr && i.nic->bus_attr &&
              i.domain_attr->max_ep_tx_ctx == 1;
     }},
    {{"nccl", "SENDRECV", fi_erdma::hints::kNcclSendrecv},
     3,
     [](const fi_info& i) {
       return i.domain_attr->mr_mode == 0 && (i.caps & kComm) == kComm && !(i.caps & FI_HMEM) &&
              strlen(i.nic->device_attr->name) > 0 && i.nic->link_attr->speed > 0;
     }},
    {{"mercury", "", kMercury},
     0,
     [](const fi_info& i) { return (i.caps & FI_SOURCE) && i.addr_format == FI_SOCKADDR_IN; }},
    {{"shmem", "1.5.3", fi_erdma::hints::kShmem},
     0,
     [](const fi_info& i) {
       return windows_work(i) && i.tx_attr->inject_size >= 16 && i.rx_attr &&
              (i.caps & FI_RMA_EVENT) && i.domain_attr->data_progress == FI_PROGRESS_AUTO;
     }},
    {{"fabtests", "", kFabtests},
     0,
     [](const fi_info& i) {
       return !(i.caps & (FI_TAGGED | FI_DIRECTED_RECV)) && i.tx_attr->caps == (FI_MSG | FI_SEND) &&
              (i.rx_attr->caps & ~(FI_MSG | FI_RECV | FI_MULTI_RECV)) == 0;
     }},
};

uint32_t api_of(const Attempt& attempt) {
  return attempt.api ? attempt.api : fi_version();
}

/// The hints of an attempt of a client on a host without a GPU.
InfoPtr hints_of(const Attempt& attempt) {
  setenv("FI_ERDMA_CUDA", "off", 1);
  InfoPtr hints = make_hints(), offer;
  ck_assert_int_eq(query(0, nullptr, offer), 0);
  attempt.ask(*hints, *offer);
  return hints;
}

SUITE(.once = define);

TEST_CASE(.set_up = set_up);

TEST(a_client_gets_what_it_asks, std::size(kClientCases)) {
  const auto& [client, at, served] = kClientCases[_i];
  const Attempt& attempt = client.attempts[at];
  const InfoPtr hints = hints_of(attempt);
  InfoPtr info;
  ck_assert_msg(query(api_of(attempt), hints.get(), info) == 0, "%s: %s", client.name,
                only_log_line().c_str());
  ck_assert_msg(served(*info), "%s %s", client.name, client.part);
  ck_assert_ptr_null(info->next);
  ck_assert_ptr_null(info->fabric_attr->prov_name);
  ck_assert_uint_eq(info->mode, 0);
  ck_assert_uint_eq(info->caps & hints->caps, hints->caps);
  ck_assert_int_eq(info->domain_attr->mr_mode & ~hints->domain_attr->mr_mode, 0);
  ck_assert_ptr_nonnull(info->src_addr);
  check_text(only_log_line(), "");
}

TEST(attempts_for_gpu_memory_and_offset_addresses_are_refused, std::size(kClientCases)) {
  for (size_t i = 0; i < kClientCases[_i].attempt; ++i) {
    const Attempt& attempt = kClientCases[_i].client.attempts[i];
    InfoPtr info;
    ck_assert_int_eq(query(api_of(attempt), hints_of(attempt).get(), info), -FI_ENODATA);
    const std::string line = only_log_line();
    ck_assert_msg(contains(line, "FI_HMEM") || contains(line, "mr_mode"), "%s", line.c_str());
  }
}

TEST(the_answer_is_accepted_as_hints_and_by_fi_domain, std::size(kClientCases)) {
  const Attempt& attempt = kClientCases[_i].client.attempts[kClientCases[_i].attempt];
  const InfoPtr hints = hints_of(attempt);
  InfoPtr first, second;
  ck_assert_int_eq(query(api_of(attempt), hints.get(), first), 0);
  ck_assert_int_eq(query(api_of(attempt), first.get(), second), 0);
  ck_assert_uint_eq(second->caps, first->caps);
  ck_assert_int_eq(erdma::fabric::check_info(api_of(attempt), *first), 0);
}

TEST(a_caller_that_names_no_api_gets_the_bits_of_mr_mode) {
  InfoPtr info, again;
  ck_assert_int_eq(query(0, nullptr, info), 0);
  ck_assert_int_eq(info->domain_attr->mr_mode, erdma::fabric::kMrMode);
  ck_assert_int_eq(query(0, info.get(), again), 0);
  ck_assert_int_eq(again->domain_attr->mr_mode, erdma::fabric::kMrMode);
  ck_assert_int_eq(erdma::fabric::check_info(0, *info), 0);
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

/// A thread of the parent is in the middle of fi_getinfo(3) while the parent forks.
TEST(a_forked_child_waits_for_no_refusal_of_its_parent) {
  setenv("FI_PROVIDER", "erdma", 1);
  erdma::util::register_fork_handler();
  g_log_level = -1;
  const std::string reason(size_t{1} << 20, 'x');  // has pages of its own
  const uintptr_t in_page = reinterpret_cast<uintptr_t>(reason.data());
  const uintptr_t page = in_page / size_t(getpagesize()) * size_t(getpagesize());
  bool offered = false;
  {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the start of a page
    const StoppedAtPage refusal(reinterpret_cast<void*>(page), [&] {
      const erdma::fabric::GetinfoCall call(0);
      erdma::fabric::keep_back(reason);
    });
    offered = holds_in_child([] {
      const erdma::fabric::GetinfoCall call(0);
      call.offers();
      return true;
    });
  }
  ck_assert(offered);
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

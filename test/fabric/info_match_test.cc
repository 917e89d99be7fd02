#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/info_offer.h"
#include "fabric/info_query.h"
#include "fabric/info_refusal.h"
#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "quiet_fork.h"

using erdma::fabric::InfoPtr;
using erdma::fabric::kMrBasic;
using erdma::fabric::kMrScalable;
using erdma::fabric::tell_kept_back;
using namespace erdma::test;

namespace {

// Features that this version does not offer.

struct Refusal {
  const char* attribute;
  void (*ask)(fi_info& hints);
};

const Refusal kRefusals[] = {
    {"ep_attr->type", [](fi_info& h) { h.ep_attr->type = FI_EP_MSG; }},
    {"ep_attr->type", [](fi_info& h) { h.ep_attr->type = FI_EP_DGRAM; }},
    {"caps", [](fi_info& h) { h.caps = FI_MSG | FI_COLLECTIVE; }},
    {"caps", [](fi_info& h) { h.caps = FI_COLLECTIVE; }},
    {"caps", [](fi_info& h) { h.caps = FI_COLLECTIVE | FI_HMEM; }},
    {"caps", [](fi_info& h) { h.caps = FI_RMA_PMEM; }},
    {"caps", [](fi_info& h) { h.caps = FI_MSG | FI_PEER; }},
    {"caps", [](fi_info& h) { h.caps = FI_NAMED_RX_CTX; }},
    {"addr_format", [](fi_info& h) { h.addr_format = FI_SOCKADDR_IB; }},
    {"addr_format", [](fi_info& h) { h.addr_format = FI_ADDR_STR; }},
    {"fabric_attr->name", [](fi_info& h) { h.fabric_attr->name = strdup("192.0.2.0/24"); }},
    {"fabric_attr->prov_name", [](fi_info& h) { h.fabric_attr->prov_name = strdup("tcp"); }},
    {"fabric_attr->prov_version",
     [](fi_info& h) { h.fabric_attr->prov_version = FI_VERSION(99, 0); }},
    {"domain_attr->name", [](fi_info& h) { h.domain_attr->name = strdup("invalid_domain"); }},
    {"domain_attr->cq_data_size", [](fi_info& h) { h.domain_attr->cq_data_size = 9; }},
    {"domain_attr->caps", [](fi_info& h) { h.domain_attr->caps = FI_SHARED_AV; }},
    {"domain_attr->caps", [](fi_info& h) { h.domain_attr->caps = FI_PEER; }},
    {"domain_attr->mr_iov_limit", [](fi_info& h) { h.domain_attr->mr_iov_limit = 5; }},
    {"domain_attr->cntr_cnt", [](fi_info& h) { h.domain_attr->cntr_cnt = SIZE_MAX; }},
    {"domain_attr->max_err_data", [](fi_info& h) { h.domain_attr->max_err_data = 1; }},
    {"domain_attr->mr_cnt", [](fi_info& h) { h.domain_attr->mr_cnt = SIZE_MAX; }},
    {"domain_attr->auth_key_size", [](fi_info& h) { h.domain_attr->auth_key_size = 8; }},
    {"domain_attr->mr_mode", [](fi_info& h) { h.domain_attr->mr_mode = kMrBasic | FI_MR_LOCAL; }},
    {"domain_attr->mr_mode", [](fi_info& h) { h.domain_attr->mr_mode = kMrBasic | kMrScalable; }},
    {"domain_attr->mr_mode", [](fi_info& h) { h.caps = FI_MSG | FI_RMA; }},
    {"domain_attr->mr_mode", [](fi_info& h) { h.caps = FI_ATOMIC | FI_REMOTE_READ; }},
    {"domain_attr->mr_mode",
     [](fi_info& h) {
       h.caps = FI_RMA;
       h.domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_LOCAL;
     }},
    {"domain_attr->mr_mode",
     [](fi_info& h) {
       h.caps = FI_RMA;
       h.domain_attr->mr_mode = kMrScalable;
     }},
    {"ep_attr->protocol", [](fi_info& h) { h.ep_attr->protocol = FI_PROTO_EFA; }},
    {"ep_attr->protocol_version", [](fi_info& h) { h.ep_attr->protocol_version = 2; }},
    {"ep_attr->max_msg_size", [](fi_info& h) { h.ep_attr->max_msg_size = SIZE_MAX; }},
    {"ep_attr->max_order_raw_size", [](fi_info& h) { h.ep_attr->max_order_raw_size = 65; }},
    {"ep_attr->max_order_war_size", [](fi_info& h) { h.ep_attr->max_order_war_size = 65; }},
    {"ep_attr->max_order_waw_size", [](fi_info& h) { h.ep_attr->max_order_waw_size = 65; }},
    {"ep_attr->tx_ctx_cnt", [](fi_info& h) { h.ep_attr->tx_ctx_cnt = 2; }},
    {"ep_attr->tx_ctx_cnt", [](fi_info& h) { h.ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT; }},
    {"ep_attr->rx_ctx_cnt", [](fi_info& h) { h.ep_attr->rx_ctx_cnt = 2; }},
    {"tx_attr->caps", [](fi_info& h) { h.tx_attr->caps = FI_COLLECTIVE; }},
    {"tx_attr->op_flags", [](fi_info& h) { h.tx_attr->op_flags = FI_COMMIT_COMPLETE; }},
    {"tx_attr->msg_order", [](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_SAW; }},
    {"tx_attr->comp_order", [](fi_info& h) { h.tx_attr->comp_order = 1; }},
    {"tx_attr->inject_size", [](fi_info& h) { h.tx_attr->inject_size = 4097; }},
    {"tx_attr->size", [](fi_info& h) { h.tx_attr->size = 1025; }},
    {"tx_attr->iov_limit", [](fi_info& h) { h.tx_attr->iov_limit = 5; }},
    {"tx_attr->rma_iov_limit", [](fi_info& h) { h.tx_attr->rma_iov_limit = 5; }},
    {"rx_attr->caps", [](fi_info& h) { h.rx_attr->caps = FI_RMA_PMEM; }},
    {"rx_attr->op_flags", [](fi_info& h) { h.rx_attr->op_flags = FI_DELIVERY_COMPLETE; }},
    {"rx_attr->msg_order", [](fi_info& h) { h.rx_attr->msg_order = FI_ORDER_WAS; }},
    {"rx_attr->comp_order", [](fi_info& h) { h.rx_attr->comp_order = 1; }},
    {"rx_attr->iov_limit", [](fi_info& h) { h.rx_attr->iov_limit = 5; }},
};

SUITE(.once = [] {
  setenv("FI_ERDMA_CUDA", "off", 1);  // the result must not depend on a GPU
  define();
});

TEST_CASE(.set_up = set_up);

TEST(what_cannot_be_had_is_no_data_with_one_line_that_names_it, std::size(kRefusals)) {
  const Refusal& refusal = kRefusals[_i];
  InfoPtr hints = make_hints();
  refusal.ask(*hints);
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
  ck_assert_ptr_null(info.get());
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_INFO);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, (std::string("hints ask ") + refusal.attribute + " ").c_str()),
                "%s: %s", refusal.attribute, line.c_str());
}

/// FI_PROVIDER excludes all other providers.
TEST(who_asked_for_this_provider_alone_sees_the_attribute_once, std::size(kRefusals)) {
  const CapturedStderr error_output;
  g_log_level = -1;
  setenv("FI_PROVIDER", "erdma", 1);
  const Refusal& refusal = kRefusals[_i];
  InfoPtr hints = make_hints();
  refusal.ask(*hints);
  InfoPtr info;
  for (int i = 0; i < 4; ++i) ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
  const std::string line = error_output.only_write();
  ck_assert_msg(
      contains(line, (std::string("refused: hints ask ") + refusal.attribute + " ").c_str()),
      "%s: %s", refusal.attribute, line.c_str());
}

/// Asks for too much, in one of three ways.
void ask_in_vain(int way) {
  InfoPtr hints = make_hints(), info;
  if (way == 0) hints->domain_attr->mr_mode = FI_MR_ENDPOINT, hints->caps = FI_RMA;
  if (way == 1) hints->tx_attr->inject_size = 1 << 20;
  if (way == 2) hints->ep_attr->type = FI_EP_MSG;
  ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
}
void ask_with_success(bool with_hints = true, uint64_t flags = 0) {
  InfoPtr hints = make_hints(), info;
  ck_assert_int_eq(
      query(kVersion, with_hints ? hints.get() : nullptr, info, nullptr, nullptr, flags), 0);
}

/// Log lines go to standard error, and no other provider answers.
struct AskedAlone {
  AskedAlone() {
    g_log_level = -1;
    setenv("FI_PROVIDER", "erdma", 1);
  }
  const CapturedStderr error_output;
};

/// MPICH 5.0.1 does this: it asks for regions that peers address by offsets, twice, and then for
/// those that are offered.
TEST(a_client_that_asks_for_another_mode_and_gets_it_sees_no_refusal) {
  const AskedAlone alone;
  ask_with_success(false);
  ask_in_vain(0);
  ask_in_vain(0);
  ask_with_success();
  ask_in_vain(0);
  tell_kept_back();
  check_text(alone.error_output.only_write(), "");
}

TEST(a_client_that_gets_nothing_sees_the_refusal_when_it_ends, 3) {
  const AskedAlone alone;
  ask_in_vain(0);
  // An answer without hints, or to a layer of libfabric, is no use of the provider.
  if (_i == 1) ask_with_success(false);
  if (_i == 2) ask_with_success(true, 1ull << 59);
  ask_in_vain(0);
  check_text(alone.error_output.only_write(), "");
  tell_kept_back();
  ck_assert(contains(alone.error_output.only_write(), "refused: hints ask domain_attr->mr_mode "));
  tell_kept_back();
  check_text(alone.error_output.only_write(), "");
}

TEST(what_no_client_asks_for_on_trial_is_told_at_once, 4) {
  const AskedAlone alone;
  if (_i & 2) ask_with_success();
  ask_in_vain(1 + _i % 2);
  ck_assert(contains(alone.error_output.only_write(), "refused: hints ask "));
}

/// fi_endpoint and fi_domain have no second try.
TEST(what_is_refused_outside_of_fi_getinfo_is_told_at_once) {
  const AskedAlone alone;
  ask_with_success();
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  info->caps |= FI_RMA;
  info->domain_attr->mr_mode = FI_MR_ENDPOINT;
  ck_assert_int_eq(erdma::fabric::check_info(kVersion, *info), -FI_EINVAL);
  ck_assert(contains(alone.error_output.only_write(), "refused: hints ask domain_attr->mr_mode "));
}

TEST(a_second_reason_is_told_at_once_with_the_first) {
  const AskedAlone alone;
  ask_in_vain(0);
  ask_in_vain(2);
  const std::vector<std::string> lines = alone.error_output.writes();
  ck_assert_uint_eq(lines.size(), 2);
  ck_assert(contains(lines[0], "refused: hints ask domain_attr->mr_mode "));
  ck_assert(contains(lines[1], "refused: hints ask ep_attr->type "));
  tell_kept_back();
  check_text(alone.error_output.only_write(), "");
}

TEST(a_forked_child_does_not_tell_what_its_parent_was_refused) {
  const AskedAlone alone;
  ask_in_vain(0);
  const pid_t child = quiet_fork();
  if (child == 0) {
    tell_kept_back();
    _exit(0);
  }
  int status = 0;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_text(alone.error_output.only_write(), "");
}

TEST(who_wants_to_see_everything_sees_refusals_at_once) {
  const AskedAlone alone;
  erdma::util::set_notice_level(erdma::util::NoticeLevel::info);
  ask_in_vain(0);
  ck_assert(contains(alone.error_output.only_write(), "refused: hints ask domain_attr->mr_mode "));
}

/// Open MPI 5 asks for FI_HMEM on every host, and then again without it.
TEST(device_memory_where_there_is_none_is_refused_unseen) {
  const CapturedStderr error_output;
  setenv("FI_PROVIDER", "erdma", 1);
  InfoPtr hints = make_hints();
  hints->caps = FI_TAGGED | FI_HMEM;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
  check_text(error_output.only_write(), "");
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_INFO);
  ck_assert(contains(only_log_line(), "hints ask caps FI_HMEM"));
}

TEST(where_others_may_answer_a_refusal_is_not_seen, 4) {
  constexpr const char* kFilters[] = {"erdma,tcp", "erdma;ofi_rxd", "^erdma", "^tcp"};
  const CapturedStderr error_output;
  g_log_level = FI_LOG_WARN;
  setenv("FI_PROVIDER", kFilters[_i], 1);
  InfoPtr hints = make_hints();
  hints->ep_attr->type = FI_EP_MSG;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
  check_text(error_output.only_write(), "");
  check_text(only_log_line(), "");
}

/// ofi_rxm asks for message endpoints when the application asks for no endpoint in particular.
TEST(a_refusal_of_a_layer_of_libfabric_is_not_seen) {
  const CapturedStderr error_output;
  g_log_level = FI_LOG_WARN;
  setenv("FI_PROVIDER", "erdma", 1);
  InfoPtr hints = make_hints();
  hints->ep_attr->type = FI_EP_MSG;
  InfoPtr info;
  for (const uint64_t flag : {1ull << 59, 1ull << 58})
    ck_assert_int_eq(query(kVersion, hints.get(), info, nullptr, nullptr, flag), -FI_ENODATA);
  check_text(error_output.only_write(), "");
  check_text(only_log_line(), "");
  ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
  ck_assert(contains(only_log_line(), "ep_attr->type"));
}

TEST(message_endpoints_are_refused_to_utility_providers_too) {
  InfoPtr hints = make_hints();
  hints->ep_attr->type = FI_EP_MSG;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info, nullptr, nullptr, 1ull << 59), -FI_ENODATA);
}

TEST(the_peer_flag_is_refused) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, nullptr, nullptr, FI_PEER), -FI_ENODATA);
  ck_assert(contains(only_log_line(), "FI_PEER"));
}

// Details of the answer.

TEST(every_known_model_is_echoed) {
  for (const fi_threading threading : {FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN,
                                       FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT}) {
    InfoPtr hints = make_hints();
    hints->domain_attr->threading = threading;
    InfoPtr info;
    ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
    ck_assert_int_eq(info->domain_attr->threading, threading);
  }
  for (const fi_progress progress : {FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL}) {
    InfoPtr hints = make_hints();
    hints->domain_attr->control_progress = progress;
    hints->domain_attr->data_progress = progress;
    InfoPtr info;
    ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
    ck_assert_int_eq(info->domain_attr->control_progress, progress);
    ck_assert_int_eq(info->domain_attr->data_progress, progress);
  }
}

constexpr int kMode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED;

struct MrCase {
  uint32_t version;
  int asked;
  int answer;
  uint64_t caps = FI_MSG;
};

const MrCase kMrCases[] = {
    {0, 0, 0},
    {0, 0, kMode, FI_RMA},
    {0, kMrBasic, kMrBasic, FI_RMA},
    {0, kMode, kMode, FI_RMA},
    {FI_VERSION(1, 0), 0, kMrBasic},
    {FI_VERSION(1, 4), kMrBasic, kMrBasic},
    {FI_VERSION(1, 4), kMrScalable, kMrScalable},
    {FI_VERSION(1, 5), 0, 0},
    {FI_VERSION(1, 5), kMrBasic, kMrBasic},
    {FI_VERSION(1, 17), kMrScalable, kMrScalable},
    {FI_VERSION(1, 17), FI_MR_LOCAL | kMode, 0},
    {FI_VERSION(1, 18), FI_MR_HMEM | FI_MR_ALLOCATED, 0},
    {FI_VERSION(1, 4), 0, kMrBasic, FI_RMA},
    {FI_VERSION(1, 5), kMrBasic, kMrBasic, FI_RMA},
    {FI_VERSION(1, 5), kMode, kMode, FI_RMA},
    {FI_VERSION(1, 5), FI_MR_LOCAL | FI_MR_ENDPOINT | kMode, kMode, FI_ATOMIC},
    {FI_VERSION(1, 5), 0, 0, FI_RMA | FI_READ},
    {FI_VERSION(1, 5), kMode, 0, FI_ATOMIC | FI_WRITE},
    {FI_VERSION(1, 5), kMode, kMode, 0},
};

TEST(mr_mode_asks_something_only_of_targets_of_one_sided_operations, std::size(kMrCases)) {
  const MrCase& c = kMrCases[_i];
  InfoPtr hints = make_hints();
  hints->caps = c.caps;
  hints->domain_attr->mr_mode = c.asked;
  InfoPtr info;
  ck_assert_int_eq(query(c.version, hints.get(), info), 0);
  ck_assert_int_eq(info->domain_attr->mr_mode, c.answer);
}

TEST(who_asks_for_nothing_gets_one_sided_operations_if_the_mode_permits) {
  for (const int mode : {0, kMrScalable, FI_MR_LOCAL | FI_MR_VIRT_ADDR, kMode}) {
    InfoPtr hints = make_hints();
    hints->domain_attr->mr_mode = mode;
    InfoPtr info;
    ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
    ck_assert_int_eq((info->caps & FI_RMA) != 0, mode == kMode);
    ck_assert_int_eq((info->caps & FI_ATOMIC) != 0, mode == kMode);
    ck_assert_int_eq((info->caps & FI_REMOTE_WRITE) != 0, mode == kMode);
  }
}

struct CapsCase {
  uint64_t asked;
  uint64_t answer;
  uint64_t tx;
  uint64_t rx;
};

/// The domain has kComm, too: without these flags fi_domain(3) says that it reaches nobody.
const CapsCase kCapsCases[] = {
    {FI_MSG, FI_MSG | FI_SEND | FI_RECV | FI_MULTI_RECV | kComm, FI_MSG | FI_SEND,
     FI_MSG | FI_RECV | FI_MULTI_RECV},
    {FI_TAGGED | FI_SEND, FI_TAGGED | FI_SEND | FI_MULTI_RECV | kComm, FI_TAGGED | FI_SEND,
     FI_TAGGED | FI_MULTI_RECV},
    {FI_RMA | FI_REMOTE_WRITE, FI_RMA | FI_REMOTE_WRITE | FI_MULTI_RECV | kComm, FI_RMA,
     FI_RMA | FI_REMOTE_WRITE | FI_MULTI_RECV},
    {FI_RMA | FI_ATOMIC,
     FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV |
         kComm,
     FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE,
     FI_RMA | FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV},
    {FI_TAGGED | FI_SOURCE | kComm,
     FI_TAGGED | FI_SOURCE | kComm | FI_SEND | FI_RECV | FI_MULTI_RECV, FI_TAGGED | FI_SEND,
     FI_TAGGED | FI_RECV | FI_SOURCE | FI_MULTI_RECV},
    {FI_MSG | FI_FENCE | FI_LOCAL_COMM,
     FI_MSG | FI_FENCE | FI_SEND | FI_RECV | FI_MULTI_RECV | FI_LOCAL_COMM,
     FI_MSG | FI_FENCE | FI_SEND, FI_MSG | FI_RECV | FI_MULTI_RECV},
};

TEST(capabilities_are_those_asked_with_directions_and_what_is_free, std::size(kCapsCases)) {
  const CapsCase& c = kCapsCases[_i];
  InfoPtr hints = make_hints();
  hints->caps = c.asked;
  hints->domain_attr->mr_mode = kMode;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_uint_eq(info->caps, c.answer);
  ck_assert_uint_eq(info->tx_attr->caps, c.tx);
  ck_assert_uint_eq(info->rx_attr->caps, c.rx);
  ck_assert_uint_eq(info->domain_attr->caps, c.answer & kComm);
}

TEST(sizes_follow_the_settings_and_smaller_hints) {
  setenv("FI_ERDMA_TX_SIZE", "256", 1);
  InfoPtr hints = make_hints();
  hints->rx_attr->size = 8;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_uint_eq(info->tx_attr->size, 256);
  ck_assert_uint_eq(info->rx_attr->size, 8);
}

/// Posted receives never run out.
TEST(a_receive_queue_of_any_size_is_granted) {
  for (const size_t size : {size_t{1025}, size_t{65537}, SIZE_MAX}) {
    InfoPtr hints = make_hints();
    hints->rx_attr->size = size;
    InfoPtr info;
    ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
    ck_assert_uint_eq(info->rx_attr->size, size);
    ck_assert_int_eq(erdma::fabric::check_info(kVersion, *info), 0);
  }
}

TEST(a_shared_receive_context_is_granted_to_who_asks) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  ck_assert_uint_eq(info->ep_attr->rx_ctx_cnt, 1);
  ck_assert_uint_ge(info->domain_attr->max_ep_srx_ctx, 2);
  ck_assert_uint_eq(info->domain_attr->max_ep_stx_ctx, 0);
  const InfoPtr hints(fi_allocinfo());
  hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_uint_eq(info->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
  ck_assert_int_eq(erdma::fabric::check_info(kVersion, *info), 0);
}

TEST(an_info_with_fewer_capabilities_passes_and_one_with_more_does_not) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  info->caps = FI_TAGGED | FI_RECV;
  info->tx_attr->caps = 0;
  ck_assert_int_eq(erdma::fabric::check_info(kVersion, *info), 0);
  info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  ck_assert_int_eq(erdma::fabric::check_info(kVersion, *info), -FI_EINVAL);
}

}  // namespace

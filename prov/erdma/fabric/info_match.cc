
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>

#include <rdma/fi_errno.h>

#include "fabric/info_offer.h"
#include "fabric/info_refusal.h"

namespace erdma::fabric {
namespace {

constexpr uint32_t kSockaddrIp = 17;  ///< FI_SOCKADDR_IP of 2.x headers

int refuse(const char* attribute, const std::string& asked, const std::string& offered) {
  if (refusal_matters()) tell_kept_back();
  ERDMA_REFUSE("hints ask %s %s, offered is %s", attribute, asked.c_str(), offered.c_str());
  return -FI_ENODATA;
}

/// Some clients ask for one mode and then for another (fi_mr(3)).
int refuse_mode(const std::string& asked, const std::string& offered) {
  constexpr char kAttribute[] = "domain_attr->mr_mode";
  if (keep_back(std::string("hints ask ") + kAttribute + " " + asked + ", offered is " + offered))
    return -FI_ENODATA;
  return refuse(kAttribute, asked, offered);
}

/// Copies the result of fi_tostr(3), which is in a buffer that the next call overwrites.
template <typename Number>
std::string text(Number value, fi_type type) {
  return fi_tostr(&value, type);
}

/// The largest number, or with `type` the allowed bits, of an attribute.
struct Limit {
  const char* attribute;
  uint64_t asked;
  uint64_t offered;
  std::optional<fi_type> type = std::nullopt;
};

int check_limits(std::initializer_list<Limit> limits) {
  for (const auto& [attribute, asked, offered, type] : limits) {
    const uint64_t missing = asked & ~offered;
    if (type ? missing == 0 : asked <= offered) continue;
    return type ? refuse(attribute, text(missing, *type), text(offered, *type))
                : refuse(attribute, std::to_string(asked), std::to_string(offered));
  }
  return 0;
}

/// Open MPI 5 asks for FI_HMEM on every host, and then again without it. So a missing GPU is not
/// logged as a refusal.
int check_caps(uint64_t offered, uint64_t asked) {
  if ((asked & ~offered) != FI_HMEM) return check_limits({{"caps", asked, offered, FI_TYPE_CAPS}});
  ERDMA_INFO(CORE, "hints ask caps FI_HMEM, and CUDA is not in use here\n");
  return -FI_ENODATA;
}

int check_ep_type(const fi_ep_attr& offer, const fi_ep_attr& hints) {
  if (hints.type == FI_EP_UNSPEC || hints.type == offer.type) return 0;
  return refuse("ep_attr->type", text(uint32_t{hints.type}, FI_TYPE_EP_TYPE), "FI_EP_RDM");
}

int check_addr_format(uint32_t asked) {
  if (asked <= FI_SOCKADDR_IN6 || asked == kSockaddrIp) return 0;
  return refuse("addr_format", text(asked, FI_TYPE_ADDR_FORMAT), "FI_SOCKADDR_IN or _IN6");
}

int check_fabric(const fi_fabric_attr& offer, const fi_fabric_attr& hints) {
  if (hints.prov_name && !strcasestr(hints.prov_name, kProviderName))
    return refuse("fabric_attr->prov_name", hints.prov_name, kProviderName);
  if (hints.name && strcmp(hints.name, offer.name) != 0)
    return refuse("fabric_attr->name", hints.name, offer.name);
  return check_limits({{"fabric_attr->prov_version", hints.prov_version, offer.prov_version}});
}

/// Targets of one-sided operations need the bits of kMrMode, and FI_HMEM needs FI_MR_HMEM.
int check_mr_mode(uint32_t version, int asked, uint64_t caps) {
  const bool pure = asked == kMrBasic || asked == kMrScalable;
  const bool valid = FI_VERSION_LT(version, kMrModeBits) && version != kNoVersion
                         ? asked == 0 || pure
                         : pure || !(asked & (kMrBasic | kMrScalable));
  const auto asked_text = [&] { return text(static_cast<uint32_t>(asked), FI_TYPE_MR_MODE); };
  if (!valid)
    return refuse_mode(asked_text(), "a set of bits, FI_MR_BASIC alone or FI_MR_SCALABLE alone");
  const bool names_memory = FI_VERSION_GE(version, FI_VERSION(1, 9)) && asked & FI_MR_HMEM && !pure;
  if (caps & FI_HMEM && !names_memory)
    return refuse_mode(asked_text(), "FI_MR_HMEM for FI_HMEM, as of API 1.9");
  if (!is_target(caps) || mode_permits_target(version, asked)) return 0;
  return refuse_mode(
      asked_text(),
      "FI_MR_VIRT_ADDR, FI_MR_ALLOCATED and FI_MR_PROV_KEY for a target of FI_RMA or "
      "FI_ATOMIC");
}

int check_auth_key(const char* attribute, const uint8_t* key, size_t size, size_t most) {
  if (!size && !key) return 0;
  if (size > most || !size != !key)
    return refuse(attribute, std::to_string(size), std::to_string(most) + " at most");
  return 0;
}

/// Attributes of which every value that libfabric defines is offered.
int check_models(const fi_domain_attr& hints) {
  return check_limits({
      {"domain_attr->threading", size_t(hints.threading), FI_THREAD_ENDPOINT},
      {"domain_attr->control_progress", size_t(hints.control_progress), FI_PROGRESS_MANUAL + 1},
      {"domain_attr->data_progress", size_t(hints.data_progress), FI_PROGRESS_MANUAL + 1},
      {"domain_attr->resource_mgmt", size_t(hints.resource_mgmt), FI_RM_ENABLED},
      {"domain_attr->av_type", size_t(hints.av_type), FI_AV_TABLE},
  });
}

/// Members that fi_domain_attr has since API 1.20.
int check_newer_domain(uint32_t version, const fi_domain_attr& hints) {
#ifdef FI_AV_AUTH_KEY
  if (FI_VERSION_GE(version, FI_VERSION(1, 20)))
    return check_limits({{"domain_attr->max_ep_auth_key", hints.max_ep_auth_key, 0}});
#endif
  (void)version, (void)hints;
  return 0;
}

int check_domain(const fi_domain_attr& offer, uint32_t version, const fi_domain_attr& hints,
                 uint64_t caps) {
  if (int rc = check_models(hints)) return rc;
  if (int rc =
          check_limits({{"domain_attr->cq_data_size", hints.cq_data_size, offer.cq_data_size}}))
    return rc;
  if (int rc = check_mr_mode(version, hints.mr_mode, caps)) return rc;
  if (FI_VERSION_LT(version, kMrModeBits)) return 0;

  if (int rc = check_limits({{"domain_attr->cntr_cnt", hints.cntr_cnt, offer.cntr_cnt},
                             {"domain_attr->mr_iov_limit", hints.mr_iov_limit, offer.mr_iov_limit},
                             {"domain_attr->max_err_data", hints.max_err_data, offer.max_err_data},
                             {"domain_attr->mr_cnt", hints.mr_cnt, offer.mr_cnt},
                             {"domain_attr->caps", hints.caps, offer.caps, FI_TYPE_CAPS}}))
    return rc;
  if (int rc = check_auth_key("domain_attr->auth_key_size", hints.auth_key, hints.auth_key_size,
                              offer.auth_key_size))
    return rc;
  return check_newer_domain(version, hints);
}

int check_endpoint(const fi_ep_attr& offer, uint32_t version, const fi_ep_attr& hints) {
  if (hints.protocol != FI_PROTO_UNSPEC && hints.protocol != offer.protocol)
    return refuse("ep_attr->protocol", text(hints.protocol, FI_TYPE_PROTOCOL),
                  text(offer.protocol, FI_TYPE_PROTOCOL));
  // FI_SHARED_CONTEXT is SIZE_MAX, so the limit of tx_ctx_cnt refuses it: shared transmit contexts
  // are not offered.
  const size_t rx_contexts = hints.rx_ctx_cnt == FI_SHARED_CONTEXT ? 1 : hints.rx_ctx_cnt;
  if (int rc = check_limits(
          {{"ep_attr->protocol_version", hints.protocol_version, offer.protocol_version},
           {"ep_attr->max_msg_size", hints.max_msg_size, offer.max_msg_size},
           {"ep_attr->max_order_raw_size", hints.max_order_raw_size, offer.max_order_raw_size},
           {"ep_attr->max_order_war_size", hints.max_order_war_size, offer.max_order_war_size},
           {"ep_attr->max_order_waw_size", hints.max_order_waw_size, offer.max_order_waw_size},
           {"ep_attr->tx_ctx_cnt", hints.tx_ctx_cnt, offer.tx_ctx_cnt},
           {"ep_attr->rx_ctx_cnt", rx_contexts, offer.rx_ctx_cnt}}))
    return rc;
  if (FI_VERSION_LT(version, kMrModeBits)) return 0;  // before API 1.5 there were no keys
  return check_auth_key("ep_attr->auth_key_size", hints.auth_key, hints.auth_key_size,
                        offer.auth_key_size);
}

// Capabilities of the other direction are ignored, since old applications set them on both.

/// Any size is granted, since posted receives never run out.
int check_rx(const fi_rx_attr& offer, const fi_rx_attr& hints) {
  const uint64_t caps = hints.caps & ~(kTxCaps | kDomainCaps);
  return check_limits(
      {{"rx_attr->caps", caps, offer.caps, FI_TYPE_CAPS},
       {"rx_attr->op_flags", hints.op_flags, offer.op_flags, FI_TYPE_OP_FLAGS},
       {"rx_attr->msg_order", hints.msg_order, offer.msg_order, FI_TYPE_MSG_ORDER},
       {"rx_attr->comp_order", hints.comp_order, offer.comp_order, FI_TYPE_MSG_ORDER},
       {"rx_attr->iov_limit", hints.iov_limit, offer.iov_limit}});
}

int check_tx(const fi_tx_attr& offer, const fi_tx_attr& hints) {
  const uint64_t caps = hints.caps & ~(kRxCaps | kDomainCaps);
  return check_limits(
      {{"tx_attr->caps", caps, offer.caps, FI_TYPE_CAPS},
       {"tx_attr->op_flags", hints.op_flags, offer.op_flags, FI_TYPE_OP_FLAGS},
       {"tx_attr->msg_order", hints.msg_order, offer.msg_order, FI_TYPE_MSG_ORDER},
       {"tx_attr->comp_order", hints.comp_order, offer.comp_order, FI_TYPE_MSG_ORDER},
       {"tx_attr->inject_size", hints.inject_size, offer.inject_size},
       {"tx_attr->size", hints.size, offer.size},
       {"tx_attr->iov_limit", hints.iov_limit, offer.iov_limit},
       {"tx_attr->rma_iov_limit", hints.rma_iov_limit, offer.rma_iov_limit}});
}

}  // namespace

// The checks are in the order of libfabric's own providers, so that users see the same first
// reason.
int check_hints(const fi_info& offer, uint32_t version, const fi_info& hints) {
  if (hints.ep_attr)
    if (int rc = check_ep_type(*offer.ep_attr, *hints.ep_attr)) return rc;
  if (int rc = check_caps(offer.caps, hints.caps)) return rc;
  if (int rc = check_addr_format(hints.addr_format)) return rc;
  if (hints.fabric_attr)
    if (int rc = check_fabric(*offer.fabric_attr, *hints.fabric_attr)) return rc;
  if (hints.domain_attr)
    if (int rc = check_domain(*offer.domain_attr, version, *hints.domain_attr, hints.caps))
      return rc;
  if (hints.ep_attr)
    if (int rc = check_endpoint(*offer.ep_attr, version, *hints.ep_attr)) return rc;
  if (hints.rx_attr)
    if (int rc = check_rx(*offer.rx_attr, *hints.rx_attr)) return rc;
  return hints.tx_attr ? check_tx(*offer.tx_attr, *hints.tx_attr) : 0;
}

}  // namespace erdma::fabric

#include <cstdlib>
#include <cstring>
#include <new>

#include "fabric/info_offer.h"

namespace erdma::fabric {
namespace {

/// Capabilities that cost nothing, which every application gets.
constexpr uint64_t kFreeCaps = FI_MULTI_RECV;
template <typename T>
void replace_if_asked(T& offered, T asked) {
  if (asked) offered = asked;
}

/// Adds what is meant if nothing is said: messages without a direction mean both, one-sided
/// operations all four, and a reach is local and remote.
uint64_t with_implied(uint64_t caps) {
  constexpr uint64_t kReach = FI_LOCAL_COMM | FI_REMOTE_COMM;
  constexpr uint64_t kMessages = FI_SEND | FI_RECV;
  constexpr uint64_t kAccesses = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((caps & (FI_MSG | FI_TAGGED)) && !(caps & kMessages)) caps |= kMessages;
  if ((caps & kOneSidedCaps) && !(caps & kAccesses)) caps |= kAccesses;
  if (!(caps & kReach)) caps |= kReach;
  return caps;
}

/// The capabilities of an answer, for info, tx, rx and domain alike: `asked` or, if it is 0,
/// `inherited`, as far as they are offered.
uint64_t answer_caps(uint64_t offered, uint64_t asked, uint64_t inherited) {
  return (with_implied(asked ? asked : inherited) | kFreeCaps) & offered;
}

/// The capabilities of an application that asks for none in particular. If its mr_mode permits no
/// targets, it gets messages only. An application of API 1.x gets no capability of API 2.
uint64_t unasked_caps(uint64_t offered, uint32_t version, const fi_info* hints) {
  if (FI_VERSION_LT(version, FI_VERSION(2, 0)))
    offered &= ~(kTaggedMultiRecv | kTaggedDirectedRecv);
  constexpr uint64_t kOneSided = kOneSidedCaps | kTargetCaps | FI_READ | FI_WRITE;
  const bool told = hints && hints->domain_attr;
  if (!told || mode_permits_target(version, hints->domain_attr->mr_mode)) return offered;
  return offered & ~kOneSided;
}

void apply_domain(fi_domain_attr& domain, uint32_t version, const fi_domain_attr* hints,
                  uint64_t caps) {
  const int asked = hints ? hints->mr_mode : 0;
  // An application with FI_READ may read from its own memory, to flush what a NIC wrote to a GPU.
  // That needs provider keys, if its mr_mode permits them.
  const bool flushes = caps & FI_HMEM && caps & FI_READ && mode_permits_target(version, asked);
  domain.mr_mode &= (is_target(caps) || flushes ? kMrMode : 0) | FI_MR_HMEM;
  if (asked == kMrBasic || asked == kMrScalable) {
    domain.mr_mode = asked;
  } else if (FI_VERSION_LT(version, kMrModeBits) && version != kNoVersion) {
    domain.mr_mode = kMrBasic;  // keys are the provider's
  }
  domain.caps = answer_caps(domain.caps, hints ? hints->caps : 0, caps);
  if (!hints) return;
  replace_if_asked(domain.threading, hints->threading);
  replace_if_asked(domain.control_progress, hints->control_progress);
  replace_if_asked(domain.data_progress, hints->data_progress);
  replace_if_asked(domain.av_type, hints->av_type);
}

/// Copies a key: fi_freeinfo frees the keys of the answer.
void apply_key(uint8_t*& key, size_t& size, const uint8_t* asked, size_t asked_size) {
  key = nullptr;
  size = 0;
  if (!asked || !asked_size) return;
  key = static_cast<uint8_t*>(std::malloc(asked_size));
  if (!key) throw std::bad_alloc();
  std::memcpy(key, asked, asked_size);
  size = asked_size;
}

void apply_keys(fi_info& info, uint32_t version, const fi_info* hints) {
  const bool known = hints && FI_VERSION_GE(version, FI_VERSION(1, 5));
  const fi_domain_attr* domain = known ? hints->domain_attr : nullptr;
  const fi_ep_attr* ep = known ? hints->ep_attr : nullptr;
  apply_key(info.domain_attr->auth_key, info.domain_attr->auth_key_size,
            domain ? domain->auth_key : nullptr, domain ? domain->auth_key_size : 0);
  apply_key(info.ep_attr->auth_key, info.ep_attr->auth_key_size, ep ? ep->auth_key : nullptr,
            ep ? ep->auth_key_size : 0);
}

void apply_rx(fi_rx_attr& rx, const fi_rx_attr* hints, uint64_t caps) {
  rx.caps = answer_caps(rx.caps, hints ? hints->caps : 0, caps);
  // These flags become the defaults of every operation, so only those are set that were asked for.
  rx.op_flags = hints ? hints->op_flags : 0;
  if (!hints) return;
  replace_if_asked(rx.size, hints->size);
  replace_if_asked(rx.iov_limit, hints->iov_limit);
}

void apply_tx(fi_tx_attr& tx, const fi_tx_attr* hints, uint64_t caps) {
  tx.caps = answer_caps(tx.caps, hints ? hints->caps : 0, caps);
  tx.op_flags = hints ? hints->op_flags : 0;
  if (!hints) return;
  replace_if_asked(tx.inject_size, hints->inject_size);
  replace_if_asked(tx.size, hints->size);
  replace_if_asked(tx.iov_limit, hints->iov_limit);
  replace_if_asked(tx.rma_iov_limit, hints->rma_iov_limit);
}

}  // namespace

void apply_hints(fi_info& info, uint32_t version, const fi_info* hints) {
  info.caps =
      answer_caps(info.caps, hints ? hints->caps : 0, unasked_caps(info.caps, version, hints));
  if (hints) info.handle = hints->handle;
  if (hints && hints->ep_attr && hints->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT)
    info.ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  apply_keys(info, version, hints);
  apply_domain(*info.domain_attr, version, hints ? hints->domain_attr : nullptr, info.caps);
  apply_rx(*info.rx_attr, hints ? hints->rx_attr : nullptr, info.caps);
  apply_tx(*info.tx_attr, hints ? hints->tx_attr : nullptr, info.caps);
}

}  // namespace erdma::fabric

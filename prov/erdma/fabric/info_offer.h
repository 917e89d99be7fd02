#pragma once

#include <cstdint>
#include <memory>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "fabric/env.h"
#include "transport/verbs/device_list.h"
#include "util/socket_address.h"

namespace erdma::fabric {

inline constexpr uint32_t kProviderVersion =
    FI_VERSION(ERDMA_MAJOR, ERDMA_MINOR);  // of configure.ac
inline constexpr char kProviderName[] = "erdma";
/// The one fabric: every endpoint of every device can be named in it.
inline constexpr char kFabricName[] = "erdma";
inline constexpr char kShmDomainName[] = "shm";

/// FI_MR_BASIC, FI_MR_SCALABLE: mr_mode before API 1.5. By value, as the names are deprecated.
inline constexpr int kMrBasic = 1;
inline constexpr int kMrScalable = 2;

/// Of tagged receives only, in libfabric 2; 0 where its headers are older.
#ifdef FI_TAGGED_MULTI_RECV
inline constexpr uint64_t kTaggedMultiRecv = FI_TAGGED_MULTI_RECV;
inline constexpr uint64_t kTaggedDirectedRecv = FI_TAGGED_DIRECTED_RECV;
#else
inline constexpr uint64_t kTaggedMultiRecv = 0;
inline constexpr uint64_t kTaggedDirectedRecv = 0;
#endif

inline constexpr uint64_t kOneSidedCaps = FI_RMA | FI_ATOMIC;
inline constexpr uint64_t kTargetCaps = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT;
inline constexpr uint64_t kTxCaps =
    FI_MSG | FI_TAGGED | FI_SEND | kOneSidedCaps | FI_READ | FI_WRITE | FI_TRIGGER;
inline constexpr uint64_t kRxCaps = FI_MSG | FI_TAGGED | FI_RECV | FI_DIRECTED_RECV |
                                    FI_MULTI_RECV | FI_SOURCE | FI_TRIGGER | kOneSidedCaps |
                                    kTargetCaps | kTaggedMultiRecv | kTaggedDirectedRecv;
inline constexpr uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_AV_USER_ID;
inline constexpr uint64_t kCaps = kTxCaps | kRxCaps | kDomainCaps;

/// What a target of one-sided operations asks of the application.
inline constexpr int kMrMode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Do these capabilities make an endpoint a target of one-sided operations?
constexpr bool is_target(uint64_t caps) noexcept {
  if (!(caps & kOneSidedCaps)) return false;
  return (caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)) || !(caps & (FI_READ | FI_WRITE));
}
/// Can an application that offers `mr_mode` have one?
constexpr bool mode_permits_target(uint32_t version, int mr_mode) noexcept {
  if (mr_mode == kMrBasic) return true;
  if (FI_VERSION_LT(version, FI_VERSION(1, 5))) return mr_mode == 0;
  return mr_mode != kMrScalable && (mr_mode & kMrMode) == kMrMode;
}

/// A fin tells that the message is placed in a buffer of the application, so it is matched too.
inline constexpr uint64_t kTxOpFlags = FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE |
                                       FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                                       FI_MATCH_COMPLETE;
inline constexpr uint64_t kRxOpFlags = FI_COMPLETION | FI_MULTI_RECV;

struct InfoDeleter {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using InfoPtr = std::unique_ptr<fi_info, InfoDeleter>;

/// Everything that a domain can do, without addresses, device and domain name. The limits that
/// hints are checked against, and what is returned where a hint says nothing.
/// FI_HMEM is in it if `asked` and there is a CUDA driver; then atomics are not.
InfoPtr make_offer(const Settings& settings, uint64_t asked);

/// Does `offer` satisfy `hints` of an application written for API `version`? 0 or -FI_ENODATA,
/// after one log line that names the first attribute asked in vain.
int check_hints(const fi_info& offer, uint32_t version, const fi_info& hints);

/// Turns the offer into the answer: what the hints ask replaces what could have been had.
/// `hints`, which may be null, passed check_hints().
void apply_hints(fi_info& info, uint32_t version, const fi_info* hints);

/// Name the domain and its device, seen under `address`.
void describe_shm_device(fi_info& info, const util::SocketAddress& address);
void describe_nic(fi_info& info, const transport::verbs::DeviceDescription& device,
                  const util::SocketAddress& address);

/// strdup() for a member that fi_freeinfo frees.
char* duplicate(const char* text);

}  // namespace erdma::fabric

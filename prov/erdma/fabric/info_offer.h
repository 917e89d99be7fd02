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
    FI_VERSION(ERDMA_MAJOR, ERDMA_MINOR);  // from configure.ac
inline constexpr char kProviderName[] = "erdma";
/// The only fabric: its addresses name every endpoint of every device.
inline constexpr char kFabricName[] = "erdma";
inline constexpr char kShmDomainName[] = "shm";

/// FI_MR_BASIC and FI_MR_SCALABLE: mr_mode before API 1.5. Numbers, since the names are deprecated.
inline constexpr int kMrBasic = 1;
inline constexpr int kMrScalable = 2;

/// Capabilities of libfabric 2 for tagged receives; 0 if the headers are older.
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
    FI_MSG | FI_TAGGED | FI_SEND | kOneSidedCaps | FI_READ | FI_WRITE | FI_TRIGGER | FI_FENCE;
inline constexpr uint64_t kRxCaps = FI_MSG | FI_TAGGED | FI_RECV | FI_DIRECTED_RECV |
                                    FI_MULTI_RECV | FI_SOURCE | FI_TRIGGER | kOneSidedCaps |
                                    kTargetCaps | kTaggedMultiRecv | kTaggedDirectedRecv;
inline constexpr uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_AV_USER_ID;
inline constexpr uint64_t kCaps = kTxCaps | kRxCaps | kDomainCaps;

/// The mr_mode that a target of one-sided operations requires.
inline constexpr int kMrMode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// True if an endpoint with these capabilities is a target of one-sided operations.
constexpr bool is_target(uint64_t caps) noexcept {
  if (!(caps & kOneSidedCaps)) return false;
  return (caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)) || !(caps & (FI_READ | FI_WRITE));
}
/// Version 0.0, which names no API. MPICH uses it in a call without hints, and copies the answer
/// into hints of a newer API, where it does not understand kMrBasic.
inline constexpr uint32_t kNoVersion = FI_VERSION(0, 0);
inline constexpr uint32_t kMrModeBits =
    FI_VERSION(1, 5);  ///< API since which mr_mode is a set of bits
/// True if an application with this valid `mr_mode` can have a target.
constexpr bool mode_permits_target(uint32_t version, int mr_mode) noexcept {
  if (mr_mode == kMrBasic || (FI_VERSION_LT(version, kMrModeBits) && mr_mode == 0)) return true;
  return mr_mode != kMrScalable && (mr_mode & kMrMode) == kMrMode;
}

/// FI_MATCH_COMPLETE is FI_DELIVERY_COMPLETE here: a `fin` packet says that the message has been
/// matched and is in the application's buffer.
inline constexpr uint64_t kTxOpFlags = FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE |
                                       FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |
                                       FI_MATCH_COMPLETE;
/// fi_msg(3): with FI_TRANSMIT_COMPLETE a receive may complete before its bytes are visible
/// everywhere. No receive makes use of that.
inline constexpr uint64_t kRxOpFlags = FI_COMPLETION | FI_MULTI_RECV | FI_TRANSMIT_COMPLETE;

struct InfoDeleter {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using InfoPtr = std::unique_ptr<fi_info, InfoDeleter>;

/// Everything that a domain offers, without addresses, device and domain name: the limits that
/// hints are checked against, and the default where a hint says nothing. `asked`: the capabilities
/// of the hints. FI_HMEM is offered if it is among them and there is a CUDA driver; then atomics
/// are not.
InfoPtr make_offer(const Settings& settings, uint64_t asked);

/// Checks that `offer` satisfies `hints` of an application written for API `version`. Returns 0, or
/// -FI_ENODATA after one log line that names the first attribute that can't be satisfied.
int check_hints(const fi_info& offer, uint32_t version, const fi_info& hints);

/// Turns the offer into the answer: values of the hints replace those of the offer. `hints` may be
/// null; otherwise they have passed check_hints().
void apply_hints(fi_info& info, uint32_t version, const fi_info* hints);

/// Both set the domain name and describe the device, whose address is `address`.
void describe_shm_device(fi_info& info, const util::SocketAddress& address);
void describe_nic(fi_info& info, const transport::verbs::DeviceDescription& device,
                  const util::SocketAddress& address);

/// strdup() for a member that fi_freeinfo frees.
char* duplicate(const char* text);

}  // namespace erdma::fabric

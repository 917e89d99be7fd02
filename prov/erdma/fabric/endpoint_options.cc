#include "fabric/endpoint_options.h"

#include <rdma/fi_errno.h>

#include "fabric/endpoint_ops.h"
#include "fabric/info_offer.h"
#include "hmem/cuda.h"
#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// Option numbers are ABI; the headers of 1.17 end before some that a newer libfabric passes on.
enum Option : int {
  kMinMultiRecv = 0,
  kHmemP2p = 8,
  kCudaApiPermitted = 10,
  kSharedMemoryPermitted = 11,
  kMaxMsgSize = 12,
  kMaxTaggedSize = 13,
  kInjectMsgSize = 16,
  kInjectTaggedSize = 17,
};
constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;

static_assert(int(FI_OPT_MIN_MULTI_RECV) == kMinMultiRecv);
static_assert(int(FI_OPT_FI_HMEM_P2P) == kHmemP2p);

}  // namespace

EndpointOptions::EndpointOptions(Domain& domain, const fi_info& info)
    : x_domain(domain),
      x_caps(info.caps),
      x_tx_flags(info.tx_attr ? info.tx_attr->op_flags : 0),
      x_rx_flags(info.rx_attr ? info.rx_attr->op_flags : 0),
      x_wants_shared(info.ep_attr && info.ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT),
      x_shared_memory(domain.settings().shm != Switch::off),
      x_min_multi_recv(kDefaultMinMultiRecv),
      x_devices(domain.cuda_for(info.caps)) {}

void EndpointOptions::enable(protocol::Engine& engine, bool selective_send,
                             bool selective_receive) noexcept {
  x_engine = &engine;
  x_selective_send = selective_send;
  x_selective_receive = selective_receive;
  engine.set_min_multi_recv(x_min_multi_recv);
  compute_defaults();
}

void EndpointOptions::compute_defaults() noexcept {
  x_send_defaults = {x_tx_flags, x_selective_send};
  x_receive_defaults = {x_caps, x_rx_flags, x_selective_receive};
}

int EndpointOptions::get_option(int name, void* value, size_t* length) noexcept {
  switch (name) {
    case kMinMultiRecv:
      return give_option(x_min_multi_recv, value, length);
    case kMaxMsgSize:
    case kMaxTaggedSize:
      return give_option(kMaxMessageBytes, value, length);
    case kInjectMsgSize:
    case kInjectTaggedSize:
      return give_option(kInjectBytes, value, length);
    case kSharedMemoryPermitted:
      return give_option(x_shared_memory, value, length);
    case kCudaApiPermitted:
      return give_option(x_cuda_permitted, value, length);
    default:
      return -FI_ENOPROTOOPT;
  }
}

int EndpointOptions::set_option(int name, const void* value, size_t length) {
  size_t size = 0;
  bool permitted = false;
  switch (name) {
    case kMinMultiRecv:
      return take_option(value, length, size) ? set_min_multi_recv(size) : -FI_EINVAL;
    case kMaxMsgSize:
    case kMaxTaggedSize:
      if (!take_option(value, length, size)) return -FI_EINVAL;
      return size <= kMaxMessageBytes ? 0 : -FI_EINVAL;
    case kInjectMsgSize:
    case kInjectTaggedSize:
      if (!take_option(value, length, size)) return -FI_EINVAL;
      return size <= kInjectBytes ? 0 : -FI_EINVAL;
    case kSharedMemoryPermitted:
      if (!take_option(value, length, permitted)) return -FI_EINVAL;
      return permit_shared_memory(permitted);
    case kCudaApiPermitted:
      if (!take_option(value, length, permitted)) return -FI_EINVAL;
      return permit_cuda(permitted);
    default:
      return -FI_ENOPROTOOPT;
  }
}

/// Without a NIC shared memory is all there is. FI_ERDMA_SHM=off is not overruled.
int EndpointOptions::permit_shared_memory(bool permitted) noexcept {
  if (permitted == x_shared_memory) return 0;
  if (!x_domain.transports().has_nic() || x_domain.settings().shm == Switch::off)
    return -FI_EOPNOTSUPP;
  if (x_engine) return -FI_EOPBADSTATE;
  x_shared_memory = permitted;
  return 0;
}

/// Clients take a promise for GPU memory that the NIC reaches: it is not given without a proof.
int EndpointOptions::permit_cuda(bool permitted) {
  if (permitted == x_cuda_permitted) return 0;
  hmem::Cuda* const cuda = x_domain.cuda_for(x_caps);
  hmem::DeviceMemory* devices = cuda;
  if (!permitted && (x_wants_shared || x_shared)) {
    ERDMA_WARN(EP_CTRL,
               "an endpoint with a shared receive context must be permitted to call CUDA\n");
    return -FI_EOPNOTSUPP;
  }
  if (!permitted) {
    auto without = x_domain.transports().memory_without_cuda(cuda);
    if (!without) return without.error();
    devices = *without;
  }
  if (x_engine) return -FI_EOPBADSTATE;
  x_devices = devices;
  x_cuda_permitted = permitted;
  return 0;
}

int EndpointOptions::set_min_multi_recv(size_t bytes) noexcept {
  util::Guard guard(x_domain.lock());
  x_min_multi_recv = bytes;
  if (x_engine) x_engine->set_min_multi_recv(bytes);
  return 0;
}

/// The flags word names one direction, by FI_TRANSMIT or FI_RECV, besides the operation flags.
int EndpointOptions::op_flags(uint64_t* flags, bool set) noexcept {
  const uint64_t direction = *flags & kDirections;
  if (direction != FI_TRANSMIT && direction != FI_RECV) return -FI_EINVAL;
  uint64_t& ours = direction == FI_TRANSMIT ? x_tx_flags : x_rx_flags;
  if (!set) {
    *flags = ours;
    return 0;
  }
  const uint64_t wanted = *flags & ~kDirections;
  if (wanted & ~(direction == FI_TRANSMIT ? kTxOpFlags : kRxOpFlags)) return -FI_EBADFLAGS;
  util::Guard guard(x_domain.lock());
  ours = wanted;
  compute_defaults();
  return 0;
}

/// The flags name one direction or both; the other keeps those of the endpoint.
int EndpointOptions::alias_flags(uint64_t wanted, uint64_t& transmit,
                                 uint64_t& receive) const noexcept {
  const uint64_t flags = wanted & ~kDirections;
  const bool transmits = wanted & FI_TRANSMIT, receives = wanted & FI_RECV;
  const uint64_t trigger = x_caps & FI_TRIGGER;
  if (flags && !transmits && !receives) return -FI_EINVAL;
  if (transmits && (flags & ~(kTxOpFlags | trigger))) return -FI_EBADFLAGS;
  if (receives && (flags & ~(kRxOpFlags | trigger))) return -FI_EBADFLAGS;
  transmit = transmits ? flags : x_tx_flags;
  receive = receives ? flags : x_rx_flags;
  return 0;
}

}  // namespace erdma::fabric

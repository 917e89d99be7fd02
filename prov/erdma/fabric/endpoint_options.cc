#include "fabric/endpoint_options.h"

#include <rdma/fi_errno.h>

#include "fabric/endpoint_ops.h"
#include "fabric/info_offer.h"
#include "hmem/cuda.h"
#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// Option numbers are part of the ABI. The headers of libfabric 1.17 lack some that a newer
/// libfabric passes to the provider.
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

int exchange_op_flags(uint64_t& word, bool set, uint64_t more, uint64_t& transmit,
                      uint64_t& receive) noexcept {
  const uint64_t direction = word & kDirections, flags = word & ~kDirections;
  if (direction != FI_TRANSMIT && direction != FI_RECV) return -FI_EINVAL;
  uint64_t& ours = direction == FI_TRANSMIT ? transmit : receive;
  const uint64_t known = (direction == FI_TRANSMIT ? kTxOpFlags : kRxOpFlags) | more;
  if (set && flags & ~known) return -FI_EBADFLAGS;
  if (set)
    ours = flags;
  else
    word = ours;
  return 0;
}

EndpointOptions::EndpointOptions(Domain& domain, const fi_info& info)
    : x_domain(domain),
      x_caps(info.caps),
      x_rx_caps(info.rx_attr ? info.rx_attr->caps : 0),
      x_tx_flags(info.tx_attr ? info.tx_attr->op_flags : 0),
      x_rx_flags(info.rx_attr ? info.rx_attr->op_flags : 0),
      x_wants_shared(info.ep_attr && info.ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT),
      x_shared_memory(domain.settings().shm != Switch::off),
      x_min_multi_recv(kDefaultMinMultiRecv),
      x_max_msg(kMaxMessageBytes),
      x_max_tagged(kMaxMessageBytes),
      x_inject_msg(kInjectBytes),
      x_inject_tagged(kInjectBytes),
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
  x_send_defaults.store({x_tx_flags, x_selective_send}, std::memory_order_relaxed);
  x_receive_defaults.store({x_caps | x_rx_caps, x_rx_flags, x_selective_receive},
                           std::memory_order_relaxed);
}

/// Null: the option is not a size.
size_t* EndpointOptions::size_option(int name) noexcept {
  switch (name) {
    case kMinMultiRecv:
      return &x_min_multi_recv;
    case kMaxMsgSize:
      return &x_max_msg;
    case kMaxTaggedSize:
      return &x_max_tagged;
    case kInjectMsgSize:
      return &x_inject_msg;
    case kInjectTaggedSize:
      return &x_inject_tagged;
    default:
      return nullptr;
  }
}

int EndpointOptions::get_option(int name, void* value, size_t* length) noexcept {
  const util::Guard guard(x_domain.lock());
  if (const size_t* const size = size_option(name)) return give_option(*size, value, length);
  switch (name) {
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
  if (size_option(name))
    return take_option(value, length, size) ? set_size(name, size) : -FI_EINVAL;
  if (name != kSharedMemoryPermitted && name != kCudaApiPermitted) return -FI_ENOPROTOOPT;
  bool permitted = false;
  if (!take_option(value, length, permitted)) return -FI_EINVAL;
  return name == kCudaApiPermitted ? permit_cuda(permitted) : permit_shared_memory(permitted);
}

/// A size of messages is what the application announces: sends are not compared with it, because
/// the endpoint can send more.
int EndpointOptions::set_size(int name, size_t bytes) noexcept {
  const bool inject = name == kInjectMsgSize || name == kInjectTaggedSize;
  if (name != kMinMultiRecv && bytes > (inject ? kInjectBytes : kMaxMessageBytes))
    return -FI_EINVAL;
  const util::Guard guard(x_domain.lock());
  *size_option(name) = bytes;
  if (name == kMinMultiRecv && x_engine) x_engine->set_min_multi_recv(bytes);
  return 0;
}

/// -FI_EOPNOTSUPP: without a NIC there is no other way to local peers, or FI_ERDMA_SHM=off, which
/// the application can't override.
int EndpointOptions::permit_shared_memory(bool permitted) noexcept {
  const util::Guard guard(x_domain.lock());
  if (permitted == x_shared_memory) return 0;
  if (!x_domain.transports().has_nic() || x_domain.settings().shm == Switch::off)
    return -FI_EOPNOTSUPP;
  if (x_engine) return -FI_EOPBADSTATE;
  x_shared_memory = permitted;
  return 0;
}

/// Applications take success as a promise that GPU memory works without calls to CUDA, so the first
/// call tests it.
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
  const util::Guard guard(x_domain.lock());
  if (x_engine) return -FI_EOPBADSTATE;
  x_devices = devices;
  x_cuda_permitted = permitted;
  return 0;
}

int EndpointOptions::op_flags(uint64_t* flags, bool set) noexcept {
  const util::Guard guard(x_domain.lock());
  const int rc = exchange_op_flags(*flags, set, 0, x_tx_flags, x_rx_flags);
  if (rc == 0 && set) compute_defaults();
  return rc;
}

/// `wanted` holds FI_TRANSMIT, FI_RECV or both. A direction that it does not hold keeps the flags
/// of the endpoint.
int EndpointOptions::alias_flags(uint64_t wanted, uint64_t& transmit,
                                 uint64_t& receive) const noexcept {
  const util::Guard guard(x_domain.lock());
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

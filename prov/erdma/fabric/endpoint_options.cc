// Names, options and control of an endpoint: fi_cm(3), fi_endpoint(3).
#include <algorithm>
#include <cstring>

#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "fabric/fid_ops.h"
#include "fabric/info_offer.h"
#include "hmem/cuda.h"
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
static_assert(int(FI_OPT_MIN_MULTI_RECV) == kMinMultiRecv);
static_assert(int(FI_OPT_FI_HMEM_P2P) == kHmemP2p);

template <typename T>
int give(const T& value, void* out, size_t* length) noexcept {
  if (*length < sizeof(T)) {
    *length = sizeof(T);
    return -FI_ETOOSMALL;
  }
  std::memcpy(out, &value, sizeof(T));
  *length = sizeof(T);
  return 0;
}

template <typename T>
bool take(const void* value, size_t length, T& out) noexcept {
  if (length != sizeof(T)) return false;
  std::memcpy(&out, value, sizeof(T));
  return true;
}

}  // namespace

int Endpoint::get_option(int name, void* value, size_t* length) noexcept {
  switch (name) {
    case kMinMultiRecv:
      return give(x_min_multi_recv, value, length);
    case kMaxMsgSize:
    case kMaxTaggedSize:
      return give(x_max_msg_size, value, length);
    case kInjectMsgSize:
    case kInjectTaggedSize:
      return give(x_inject_size, value, length);
    case kSharedMemoryPermitted:
      return give(x_shared_memory, value, length);
    case kCudaApiPermitted:
      return give(x_cuda_permitted, value, length);
    default:
      return -FI_ENOPROTOOPT;
  }
}

int Endpoint::set_option(int name, const void* value, size_t length) {
  size_t size = 0;
  bool permitted = false;
  switch (name) {
    case kMinMultiRecv:
      return take(value, length, size) ? set_min_multi_recv(size) : -FI_EINVAL;
    case kMaxMsgSize:
    case kMaxTaggedSize:
      if (!take(value, length, size)) return -FI_EINVAL;
      return size <= x_max_msg_size ? 0 : -FI_EINVAL;
    case kInjectMsgSize:
    case kInjectTaggedSize:
      if (!take(value, length, size)) return -FI_EINVAL;
      return size <= x_inject_size ? 0 : -FI_EINVAL;
    case kSharedMemoryPermitted:
      if (!take(value, length, permitted)) return -FI_EINVAL;
      return permit_shared_memory(permitted);
    case kCudaApiPermitted:
      if (!take(value, length, permitted)) return -FI_EINVAL;
      return permit_cuda(permitted);
    default:
      return -FI_ENOPROTOOPT;
  }
}

/// Without a NIC shared memory is all there is. FI_ERDMA_SHM=off is not overruled.
int Endpoint::permit_shared_memory(bool permitted) noexcept {
  if (permitted == x_shared_memory) return 0;
  if (!x_domain.has_nic() || x_domain.settings().shm == Switch::off) return -FI_EOPNOTSUPP;
  if (x_engine) return -FI_EOPBADSTATE;
  x_shared_memory = permitted;
  return 0;
}

/// Clients take a promise for GPU memory that the NIC reaches: it is not given without a proof.
int Endpoint::permit_cuda(bool permitted) {
  if (permitted == x_cuda_permitted) return 0;
  hmem::DeviceMemory* devices = x_domain.cuda_for(x_caps);
  if (!permitted && (x_wants_shared || x_shared)) {
    ERDMA_WARN(EP_CTRL, "an endpoint with a shared receive context can't do without CUDA\n");
    return -FI_EOPNOTSUPP;
  }
  if (!permitted) {
    auto without = x_domain.memory_without_cuda(x_caps);
    if (!without) return without.error();
    devices = *without;
  }
  if (x_engine) return -FI_EOPBADSTATE;
  x_devices = devices;
  x_cuda_permitted = permitted;
  return 0;
}

int Endpoint::set_min_multi_recv(size_t bytes) noexcept {
  util::Guard guard(x_domain.lock());
  x_min_multi_recv = bytes;
  if (x_engine) x_engine->set_min_multi_recv(bytes);
  return 0;
}

int Endpoint::get_name(void* address, size_t* length) noexcept {
  if (!x_engine) return -FI_EOPBADSTATE;
  const util::SocketAddress& name = x_transports.name;
  const size_t room = *length;
  *length = name.size();
  if (address) std::memcpy(address, name.data(), std::min(room, name.size()));
  return !address || room < name.size() ? -FI_ETOOSMALL : 0;
}

int Endpoint::set_name(const void* address, size_t length) noexcept {
  return x_engine ? -FI_EOPBADSTATE : take_port(address, length);
}

/// The port of an address that is this host's, or of a wildcard.
int Endpoint::take_port(const void* address, size_t length) noexcept {
  const auto name = util::SocketAddress::from_sockaddr(address, length);
  if (!name.set() || name.family() != x_domain.own_address().family()) return -FI_EINVAL;
  if (!name.wildcard() && !x_domain.names_us(name)) return -FI_EADDRNOTAVAIL;
  x_name.set_port(name.port());
  return 0;
}

int Endpoint::control(int command, void* argument) {
  switch (command) {
    case FI_ENABLE:
      return enable();
    case FI_GETOPSFLAG:
    case FI_SETOPSFLAG:
      return argument ? op_flags(static_cast<uint64_t*>(argument), command == FI_SETOPSFLAG)
                      : -FI_EINVAL;
    case FI_ALIAS:
      return argument ? open_alias(*static_cast<struct fi_alias*>(argument)) : -FI_EINVAL;
    default:
      return -FI_ENOSYS;
  }
}

/// The flags word names one direction, by FI_TRANSMIT or FI_RECV, besides the operation flags.
int Endpoint::op_flags(uint64_t* flags, bool set) noexcept {
  constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;
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

ssize_t Endpoint::room(bool transmit) const noexcept {
  if (!x_engine) return -FI_EOPBADSTATE;
  return transmit ? x_domain.settings().tx_size : x_domain.settings().rx_size;
}

}  // namespace erdma::fabric

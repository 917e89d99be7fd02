#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <rdma/fabric.h>

#include "fabric/domain.h"
#include "fabric/op_defaults.h"

namespace erdma::protocol {
class Engine;
}

namespace erdma::fabric {

/// Returns the value of an option for fi_getopt(3): 0, or -FI_ETOOSMALL. `length`: bytes of `out`,
/// then of the value.
template <typename T>
int give_option(const T& value, void* out, size_t* length) noexcept {
  const bool fits = *length >= sizeof(T);
  *length = sizeof(T);
  if (fits) std::memcpy(out, &value, sizeof(T));
  return fits ? 0 : -FI_ETOOSMALL;
}
/// Takes the value of an option of fi_setopt(3). False: `length` is not the size of a T.
template <typename T>
bool take_option(const void* value, size_t length, T& out) noexcept {
  if (length != sizeof(T)) return false;
  std::memcpy(&out, value, sizeof(T));
  return true;
}

/// FI_GETOPSFLAG, or FI_SETOPSFLAG if `set`, on the default flags of the two directions. `word`
/// names one of them, and FI_SETOPSFLAG also its new flags. `more`: flags beyond those of an
/// endpoint.
int exchange_op_flags(uint64_t& word, bool set, uint64_t more, uint64_t& transmit,
                      uint64_t& receive) noexcept;

/// The options of an endpoint, from its fi_info, fi_setopt(3) and FI_SETOPSFLAG, and the default
/// flags that follow from them.
class EndpointOptions {
 public:
  EndpointOptions(Domain& domain, const fi_info& info);

  // Entry points read these without the domain lock, while another thread may set flags.
  SendDefaults send_defaults() const noexcept {
    return x_send_defaults.load(std::memory_order_relaxed);
  }
  ReceiveDefaults receive_defaults() const noexcept {
    return x_receive_defaults.load(std::memory_order_relaxed);
  }
  uint64_t caps() const noexcept { return x_caps; }
  bool triggers() const noexcept { return x_caps & FI_TRIGGER; }
  /// Null without FI_HMEM.
  hmem::DeviceMemory* devices() const noexcept { return x_devices; }
  bool shared_memory() const noexcept { return x_shared_memory && x_cuda_permitted; }
  bool wants_shared_receives() const noexcept { return x_wants_shared; }

  /// fi_ep_bind(3) of a shared receive context.
  void receives_are_shared() noexcept { x_shared = true; }
  /// fi_enable(3), with the domain lock held. Afterwards options that the transports depend on
  /// can't change.
  void enable(protocol::Engine& engine, bool selective_send, bool selective_receive) noexcept;

  // fi_getopt(3), fi_setopt(3).
  int get_option(int name, void* value, size_t* length) noexcept;
  int set_option(int name, const void* value, size_t length);
  /// FI_GETOPSFLAG, FI_SETOPSFLAG.
  int op_flags(uint64_t* flags, bool set) noexcept;
  /// fi_ep_alias(3): the default flags of an alias that is opened with the flags `wanted`.
  int alias_flags(uint64_t wanted, uint64_t& transmit, uint64_t& receive) const noexcept;

 private:
  size_t* size_option(int name) noexcept;
  int set_size(int name, size_t bytes) noexcept;
  int permit_shared_memory(bool permitted) noexcept;
  int permit_cuda(bool permitted);
  void compute_defaults() noexcept;

  std::atomic<SendDefaults> x_send_defaults{SendDefaults()};
  std::atomic<ReceiveDefaults> x_receive_defaults{ReceiveDefaults()};
  Domain& x_domain;
  protocol::Engine* x_engine = nullptr;  ///< null until enabled
  const uint64_t x_caps;
  const uint64_t x_rx_caps;  ///< of rx_attr, which may name a capability that is not in x_caps
  uint64_t x_tx_flags;
  uint64_t x_rx_flags;
  bool x_selective_send = false;
  bool x_selective_receive = false;
  const bool x_wants_shared;     ///< a shared receive context must be bound before fi_enable
  bool x_shared = false;         ///< a shared receive context is bound
  bool x_shared_memory;          ///< FI_OPT_SHARED_MEMORY_PERMITTED and FI_ERDMA_SHM
  bool x_cuda_permitted = true;  ///< FI_OPT_CUDA_API_PERMITTED
  size_t x_min_multi_recv;
  /// What the application announces to send at most. Nothing depends on it.
  size_t x_max_msg, x_max_tagged, x_inject_msg, x_inject_tagged;
  hmem::DeviceMemory* x_devices;
};

}  // namespace erdma::fabric

#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>

#include "fabric/endpoint_ops.h"
#include "fabric/op_defaults.h"

namespace erdma::fabric {

class Endpoint;

/// An alias of an endpoint, with its own default flags: fi_ep_alias(3). The endpoint executes all
/// calls, and cannot be closed before its aliases.
class EndpointAlias final : public FidObject<EndpointAlias, fid_ep> {
 public:
  EndpointAlias(Endpoint& of, uint64_t transmit, uint64_t receive) noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;

  Endpoint& endpoint() noexcept { return x_endpoint; }
  /// Called when the endpoint is enabled: installs the data entry points.
  void enable(CallsOn on) noexcept;

  // Entry points read these without the domain lock, while another thread may set flags.
  SendDefaults send_defaults() const noexcept {
    return x_send_defaults.load(std::memory_order_relaxed);
  }
  ReceiveDefaults receive_defaults() const noexcept {
    return x_receive_defaults.load(std::memory_order_relaxed);
  }
  bool sends_on_trigger() const noexcept {
    return x_transmit.load(std::memory_order_relaxed) & FI_TRIGGER;
  }
  bool receives_on_trigger() const noexcept {
    return x_receive.load(std::memory_order_relaxed) & FI_TRIGGER;
  }

 private:
  void compute_defaults() noexcept;

  Endpoint& x_endpoint;
  std::atomic<uint64_t> x_transmit;
  std::atomic<uint64_t> x_receive;
  std::atomic<SendDefaults> x_send_defaults{SendDefaults()};
  std::atomic<ReceiveDefaults> x_receive_defaults{ReceiveDefaults()};
};

/// The aliases of one endpoint. open() and closed() take the domain lock.
class EndpointAliases {
 public:
  int open(Endpoint& of, const struct fi_alias& wanted);
  void closed(Endpoint& of, EndpointAlias& alias) noexcept;
  /// fi_enable(3) of the endpoint, with the domain lock held.
  void enable(const CallsOn& on) noexcept;
  bool empty() const noexcept { return x_aliases.empty(); }

 private:
  std::vector<EndpointAlias*> x_aliases;
  CallsOn x_calls{};
  bool x_enabled = false;
};

/// The endpoint behind a fid: itself, or that of an alias; null if `ep` is something else.
Endpoint* endpoint_behind(fid_ep* ep) noexcept;

}  // namespace erdma::fabric

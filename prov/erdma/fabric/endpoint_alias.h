#pragma once

#include <cstdint>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>

#include "fabric/endpoint.h"

namespace erdma::fabric {

/// Another name of an endpoint, with default flags of its own: fi_ep_alias(3). Owns nothing else;
/// everything is done by the endpoint, which can't be closed before it.
class EndpointAlias final : public fid_ep {
 public:
  static EndpointAlias& from(fid_ep* ep) noexcept { return static_cast<EndpointAlias&>(*ep); }
  static EndpointAlias& from(fid_t f) noexcept { return from(reinterpret_cast<fid_ep*>(f)); }

  EndpointAlias(Endpoint& of, uint64_t transmit, uint64_t receive) noexcept;

  fid_ep* real() noexcept { return &x_endpoint; }
  Endpoint& endpoint() noexcept { return x_endpoint; }
  uint64_t transmit_flags() const noexcept { return x_transmit; }
  uint64_t receive_flags() const noexcept { return x_receive; }
  int close() noexcept;

 private:
  Endpoint& x_endpoint;
  const uint64_t x_transmit;
  const uint64_t x_receive;
};

/// The endpoint that this is, or is an alias of; null if it is something else.
Endpoint* endpoint_behind(fid_ep* ep) noexcept;

}  // namespace erdma::fabric

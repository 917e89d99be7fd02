#include "fabric/endpoint_alias.h"

#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/endpoint.h"
#include "fabric/info_offer.h"

namespace erdma::fabric {

EndpointAlias::EndpointAlias(Endpoint& of, uint64_t transmit, uint64_t receive) noexcept
    : fid_ep{}, x_endpoint(of), x_transmit(transmit), x_receive(receive) {
  fid.fclass = FI_CLASS_EP;
  fid.context = of.fid.context;
  fid.ops = &g_fid_ops<EndpointAlias>;
  ops = &g_alias_ops;
  cm = &g_alias_cm_ops;
  refuse_calls(*this);
}

int EndpointAlias::close() noexcept {
  x_endpoint.alias_closed(*this);
  delete this;
  return 0;
}

void EndpointAlias::enable(CallsOn on) noexcept {
  x_send_defaults = {x_transmit, x_endpoint.send_defaults().selective};
  x_receive_defaults = x_endpoint.receive_defaults().with(x_receive);
  on.alias = true;
  install_calls(*this, on);
}

Endpoint* endpoint_behind(fid_ep* ep) noexcept {
  if (ep->fid.ops == &g_fid_ops<Endpoint>) return &Endpoint::from(ep);
  return ep->fid.ops == &g_fid_ops<EndpointAlias> ? &EndpointAlias::from(ep).endpoint() : nullptr;
}

/// The flags name one direction or both; the other keeps those of the endpoint.
int Endpoint::open_alias(const struct fi_alias& wanted) {
  constexpr uint64_t kDirections = FI_TRANSMIT | FI_RECV;
  if (!wanted.fid) return -FI_EINVAL;
  const uint64_t flags = wanted.flags & ~kDirections;
  const bool transmits = wanted.flags & FI_TRANSMIT, receives = wanted.flags & FI_RECV;
  const uint64_t trigger = x_caps & FI_TRIGGER;
  if (flags && !transmits && !receives) return -FI_EINVAL;
  if (transmits && (flags & ~(kTxOpFlags | trigger))) return -FI_EBADFLAGS;
  if (receives && (flags & ~(kRxOpFlags | trigger))) return -FI_EBADFLAGS;
  auto made = std::make_unique<EndpointAlias>(*this, transmits ? flags : x_tx_flags,
                                              receives ? flags : x_rx_flags);
  const util::Guard guard(x_domain.lock());
  x_aliases.push_back(made.get());
  if (x_engine) made->enable(calls());
  *wanted.fid = &made.release()->fid;
  return 0;
}

void Endpoint::alias_closed(EndpointAlias& alias) noexcept {
  const util::Guard guard(x_domain.lock());
  std::erase(x_aliases, &alias);
}

}  // namespace erdma::fabric

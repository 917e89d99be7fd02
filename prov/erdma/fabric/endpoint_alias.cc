#include "fabric/endpoint_alias.h"

#include <memory>

#include <rdma/fi_errno.h>

#include "fabric/endpoint.h"

namespace erdma::fabric {

EndpointAlias::EndpointAlias(Endpoint& of, uint64_t transmit, uint64_t receive) noexcept
    : FidObject(FI_CLASS_EP, of.fid.context),
      x_endpoint(of),
      x_transmit(transmit),
      x_receive(receive) {
  ops = &g_alias_ops;
  cm = &g_alias_cm_ops;
  refuse_calls(*this, !of.options().devices());
}

/// An alias has only its default flags to itself (fi_ep_alias in fi_endpoint(3)).
int EndpointAlias::control(int command, void* argument) noexcept {
  if (command != FI_GETOPSFLAG && command != FI_SETOPSFLAG) return -FI_ENOSYS;
  if (!argument) return -FI_EINVAL;
  const bool set = command == FI_SETOPSFLAG;
  const util::Guard guard(x_endpoint.domain().lock());
  uint64_t transmit = x_transmit.load(std::memory_order_relaxed);
  uint64_t receive = x_receive.load(std::memory_order_relaxed);
  const int rc = exchange_op_flags(*static_cast<uint64_t*>(argument), set,
                                   x_endpoint.options().caps() & FI_TRIGGER, transmit, receive);
  if (rc || !set) return rc;
  x_transmit.store(transmit, std::memory_order_relaxed);
  x_receive.store(receive, std::memory_order_relaxed);
  compute_defaults();
  return 0;
}

int EndpointAlias::close() noexcept {
  x_endpoint.aliases().closed(x_endpoint, *this);
  delete this;
  return 0;
}

void EndpointAlias::compute_defaults() noexcept {
  const bool selective = x_endpoint.send_defaults().selective;
  constexpr auto relaxed = std::memory_order_relaxed;
  x_send_defaults.store({x_transmit.load(relaxed), selective}, relaxed);
  x_receive_defaults.store(x_endpoint.receive_defaults().with(x_receive.load(relaxed)), relaxed);
}

void EndpointAlias::enable(CallsOn on) noexcept {
  compute_defaults();
  on.alias = true;
  install_calls(*this, on);
}

Endpoint* endpoint_behind(fid_ep* ep) noexcept {
  if (ep->fid.ops == &g_fid_ops<Endpoint>) return &Endpoint::from(ep);
  return ep->fid.ops == &g_fid_ops<EndpointAlias> ? &EndpointAlias::from(ep).endpoint() : nullptr;
}

int EndpointAliases::open(Endpoint& of, const struct fi_alias& wanted) {
  uint64_t transmit = 0, receive = 0;
  if (const int refused = of.domain().check_owned()) return refused;
  if (!wanted.fid) return -FI_EINVAL;
  if (const int bad = of.options().alias_flags(wanted.flags, transmit, receive)) return bad;
  auto made = std::make_unique<EndpointAlias>(of, transmit, receive);
  const util::Guard guard(of.domain().lock());
  x_aliases.push_back(made.get());
  if (x_enabled) made->enable(x_calls);
  *wanted.fid = &made.release()->fid;
  return 0;
}

void EndpointAliases::closed(Endpoint& of, EndpointAlias& alias) noexcept {
  const util::Guard guard(of.domain().lock());
  std::erase(x_aliases, &alias);
}

void EndpointAliases::enable(const CallsOn& on) noexcept {
  x_calls = on;
  x_enabled = true;
  for (EndpointAlias* alias : x_aliases) alias->enable(on);
}

}  // namespace erdma::fabric

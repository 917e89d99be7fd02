// Entry points of endpoints, their aliases and shared receive contexts, except those for data.
#include "fabric/endpoint_ops.h"

#include <type_traits>

#include "fabric/endpoint.h"
#include "fabric/endpoint_alias.h"
#include "fabric/shared_receive.h"

namespace erdma::fabric {
namespace {

Endpoint& doer(Endpoint& ep) noexcept {
  return ep;
}
Endpoint& doer(EndpointAlias& alias) noexcept {
  return alias.endpoint();
}
SharedReceive& doer(SharedReceive& srx) noexcept {
  return srx;
}

EndpointOptions& options(Endpoint& ep) noexcept {
  return ep.options();
}
SharedReceive& options(SharedReceive& srx) noexcept {
  return srx;
}

template <typename T>
ssize_t cancel(fid_t fid, void* context) noexcept {
  return doer(T::from(fid)).cancel(context);
}

template <typename T>
int getopt(fid_t fid, int level, int name, void* value, size_t* length) noexcept {
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  if (!value || !length) return -FI_EINVAL;
  return options(doer(T::from(fid))).get_option(name, value, length);
}

template <typename T>
int setopt(fid_t fid, int level, int name, const void* value, size_t length) noexcept {
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  if (!value) return -FI_EINVAL;
  return abi_call([&] { return options(doer(T::from(fid))).set_option(name, value, length); });
}

/// The number of posted receives is not limited.
template <typename T, bool kTransmit>
ssize_t size_left(fid_ep* fid) noexcept {
  Endpoint& ep = doer(T::from(fid));
  if (!ep.driver().engine()) return -FI_EOPBADSTATE;
  return ep.driver().post([&](const protocol::Engine& engine) {
    return int(kTransmit ? engine.room_for_sends() : ep.domain().settings().rx_size);
  });
}

template <typename T>
int getname(fid_t fid, void* address, size_t* length) noexcept {
  return length ? doer(T::from(fid)).get_name(address, length) : -FI_EINVAL;
}

int setname(fid_t fid, void* address, size_t length) noexcept {
  return address ? Endpoint::from(fid).set_name(address, length) : -FI_EINVAL;
}

template <typename T>
constexpr fi_ops_ep ep_ops() noexcept {
  fi_ops_ep ops = refusing<fi_ops_ep>();
  ops.cancel = cancel<T>;
  ops.getopt = getopt<T>;
  ops.setopt = setopt<T>;
  if constexpr (!std::is_same_v<T, SharedReceive>) {
    ops.rx_size_left = size_left<T, false>;
    ops.tx_size_left = size_left<T, true>;
  }
  return ops;
}

}  // namespace

fi_ops_ep g_endpoint_ops = ep_ops<Endpoint>();
fi_ops_ep g_alias_ops = ep_ops<EndpointAlias>();
fi_ops_ep g_shared_receive_ops = ep_ops<SharedReceive>();

template <typename T>
constexpr fi_ops_cm cm_ops() noexcept {
  fi_ops_cm ops = refusing<fi_ops_cm>();
  ops.getname = getname<T>;
  if constexpr (std::is_same_v<T, Endpoint>) ops.setname = setname;
  return ops;
}

fi_ops_cm g_endpoint_cm_ops = cm_ops<Endpoint>();
fi_ops_cm g_alias_cm_ops = cm_ops<EndpointAlias>();

void refuse_calls(fid_ep& ep, bool atomics) noexcept {
  ep.msg = &g_refusing_ops<fi_ops_msg, -FI_EOPBADSTATE>;
  ep.tagged = &g_refusing_ops<fi_ops_tagged, -FI_EOPBADSTATE>;
  ep.rma = &g_refusing_ops<fi_ops_rma, -FI_EOPBADSTATE>;
  ep.atomic = atomics ? &g_atomic_ops_disabled : &g_refusing_ops<fi_ops_atomic>;
  ep.collective = &g_refusing_ops<fi_ops_collective>;
}

void install_calls(fid_ep& ep, const CallsOn& on) noexcept {
  ep.msg = message_ops(on);
  ep.tagged = tagged_ops(on);
  ep.rma = rma_ops(on);
  ep.atomic = atomic_ops(on);
}

}  // namespace erdma::fabric

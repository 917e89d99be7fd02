// Messages and RMA from and to memory that may be a GPU's: what the engine has to know before it
// copies. Bytes that a link takes or brings are the business of the transport (transport/staging).
#include <rdma/fi_errno.h>

#include "fabric/endpoint_args.h"
#include "hmem/device_memory.h"

namespace erdma::fabric {

/// Injected memory is the application's again on return, so it is copied here.
ssize_t AnyMemory::send(Endpoint& ep, const protocol::SendArgs& args) noexcept {
  if (!args.inject || !ep.options().devices()->any_device(args.iov, args.count))
    return HostMemory::send(ep, args);
  if (args.length > kInjectBytes) return -FI_EMSGSIZE;
  std::byte copy[kInjectBytes];
  if (const int rc = ep.options().devices()->gather(copy, args.iov, args.count, 0, args.length))
    return rc;
  const iovec host{copy, args.length};
  protocol::SendArgs staged = args;
  staged.iov = &host;
  staged.count = 1;
  return HostMemory::send(ep, staged);
}

ssize_t AnyMemory::one_sided(Endpoint& ep, protocol::OneSidedArgs args) noexcept {
  protocol::SendArgs& local = args.local;
  args.device = ep.options().devices()->any_device(local.iov, local.count);
  if (!args.device || !local.inject) return HostMemory::one_sided(ep, args);
  if (local.length > kInjectBytes) return -FI_EMSGSIZE;
  std::byte copy[kInjectBytes];
  if (const int rc = ep.options().devices()->gather(copy, local.iov, local.count, 0, local.length))
    return rc;
  const iovec host{copy, local.length};
  local.iov = &host;
  local.count = 1;
  args.device = false;
  return HostMemory::one_sided(ep, args);
}

ssize_t AnyMemory::receive(Endpoint& ep, protocol::ReceiveArgs args) noexcept {
  args.device = ep.options().devices()->any_device(args.iov, args.count);
  return HostMemory::receive(ep, args);
}

ssize_t AnyMemory::probe(Endpoint& ep, protocol::ReceiveArgs args, protocol::Probe kind) noexcept {
  args.device = ep.options().devices()->any_device(args.iov, args.count);
  return HostMemory::probe(ep, args, kind);
}

}  // namespace erdma::fabric

// Messages and RMA whose buffers may be GPU memory. These functions tell the engine which buffers
// are, and copy injected ones. Copies for the links are made by the transport (transport/staging).
#include <rdma/fi_errno.h>

#include "fabric/endpoint_args.h"
#include "hmem/device_memory.h"

namespace erdma::fabric {

namespace {

/// The application may reuse injected memory as soon as the call returns, so it is copied here.
struct InjectedCopy {
  int take(hmem::DeviceMemory& devices, protocol::SendArgs& args) noexcept {
    if (args.length > kInjectBytes) return -FI_EMSGSIZE;
    if (const int rc = devices.gather(bytes, args.iov, args.count, 0, args.length)) return rc;
    host = {bytes, args.length};
    args.iov = &host;
    args.count = 1;
    return 0;
  }

  std::byte bytes[kInjectBytes];
  iovec host;
};

}  // namespace

ssize_t AnyMemory::send(Endpoint& ep, const protocol::SendArgs& args) noexcept {
  hmem::DeviceMemory& devices = *ep.options().devices();
  if (!args.inject || !devices.any_device(args.iov, args.count)) return HostMemory::send(ep, args);
  InjectedCopy copy;
  protocol::SendArgs staged = args;
  if (const int rc = copy.take(devices, staged)) return refused(ep, rc);
  return HostMemory::send(ep, staged);
}

ssize_t AnyMemory::one_sided(Endpoint& ep, protocol::OneSidedArgs args) noexcept {
  hmem::DeviceMemory& devices = *ep.options().devices();
  args.device = devices.any_device(args.local.iov, args.local.count);
  if (!args.device || !args.local.inject) return HostMemory::one_sided(ep, args);
  InjectedCopy copy;
  if (const int rc = copy.take(devices, args.local)) return refused(ep, rc);
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

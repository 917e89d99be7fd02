// Messages and RMA from and to memory that may be a GPU's: what the engine has to know before it
// copies. Bytes that a link takes or brings are the business of the transport (transport/staging).
#include <rdma/fi_errno.h>

#include "fabric/endpoint.h"
#include "fabric/endpoint_ops.h"
#include "hmem/device_memory.h"

namespace erdma::fabric {

/// Injected memory is the application's again on return, so it is copied here.
ssize_t Endpoint::send_any(const protocol::SendArgs& args) noexcept {
  if (!args.inject || !x_devices->any_device(args.iov, args.count)) return send(args);
  if (args.length > x_inject_size) return -FI_EMSGSIZE;
  std::byte copy[kInjectBytes];
  if (const int rc = x_devices->gather(copy, args.iov, args.count, 0, args.length)) return rc;
  const iovec host{copy, args.length};
  protocol::SendArgs staged = args;
  staged.iov = &host;
  staged.count = 1;
  return send(staged);
}

ssize_t Endpoint::one_sided_any(protocol::OneSidedArgs args) noexcept {
  protocol::SendArgs& local = args.local;
  args.device = x_devices->any_device(local.iov, local.count);
  if (!args.device || !local.inject) return one_sided(args);
  if (local.length > x_inject_size) return -FI_EMSGSIZE;
  std::byte copy[kInjectBytes];
  if (const int rc = x_devices->gather(copy, local.iov, local.count, 0, local.length)) return rc;
  const iovec host{copy, local.length};
  local.iov = &host;
  local.count = 1;
  args.device = false;
  return one_sided(args);
}

ssize_t Endpoint::receive_any(protocol::ReceiveArgs args) noexcept {
  args.device = x_devices->any_device(args.iov, args.count);
  return receive(args);
}

ssize_t Endpoint::probe_any(protocol::ReceiveArgs args, protocol::Probe kind) noexcept {
  args.device = x_devices->any_device(args.iov, args.count);
  return probe(args, kind);
}

}  // namespace erdma::fabric

#pragma once

#include <cstdint>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "fabric/endpoint_driver.h"
#include "fabric/op_defaults.h"
#include "protocol/shared_receives.h"
#include "util/process_epoch.h"

namespace erdma::fabric {

/// One shared receive context: fi_srx_context(3). Has no queue of its own: a receive completes
/// where the endpoint does that its message came to, and what no message belongs to at one of the
/// bound endpoints. Takes the domain lock. Invariant: outlives its endpoints; close is -FI_EBUSY
/// until then.
class SharedReceive final : public FidObject<SharedReceive, fid_ep>,
                            private protocol::CompletionSink {
 public:
  SharedReceive(Domain& domain, const fi_rx_attr* attr, void* context);

  // Data path, as of an Endpoint. How the queues are bound where it completes is not known yet (see
  // CompletionPort::unasked): as if with FI_SELECTIVE_COMPLETION.
  const ReceiveDefaults& receive_defaults() const noexcept { return x_defaults; }
  ssize_t receive(protocol::ReceiveArgs args) noexcept;
  ssize_t probe(protocol::ReceiveArgs args, protocol::Probe kind) noexcept;
  ssize_t cancel(void* context) noexcept;

  int get_option(int name, void* value, size_t* length) noexcept;
  int set_option(int name, const void* value, size_t length) noexcept;
  int control(int command, void* argument) noexcept;
  int close() noexcept;

  // For endpoints.
  bool takes(const Domain& domain) const noexcept { return &domain == &x_domain; }
  hmem::Cuda* cuda() const noexcept { return x_cuda; }
  void bound() noexcept { ++x_bound; }
  void unbound() noexcept { --x_bound; }
  /// From fi_enable, with the domain lock held. -FI_EINVAL: the others have another AV.
  int add(EndpointDriver& endpoint, const AddressVector& av);
  void remove(EndpointDriver& endpoint) noexcept { std::erase(x_endpoints, &endpoint); }
  protocol::SharedReceives& receives() noexcept { return x_receives; }

 private:
  // CompletionSink, of what no message belongs to. There is an endpoint.
  protocol::CompletionEntry& succeed(bool report) noexcept override;
  void fail(const protocol::ErrorCompletion& completion) noexcept override;

  bool owned() const noexcept { return x_epoch == util::process_epoch(); }
  void keep_armed() noexcept;

  Domain& x_domain;
  const uint32_t x_epoch = util::process_epoch();
  const ReceiveDefaults x_defaults;
  hmem::Cuda* const x_cuda;  ///< null without FI_HMEM
  protocol::SharedReceives x_receives;
  std::vector<EndpointDriver*> x_endpoints;  ///< enabled ones
  const AddressVector* x_av = nullptr;
  unsigned x_bound = 0;
  size_t x_min_multi_recv;
};

/// fi_srx_context(3).
int open_shared_receive(fid_domain* domain, fi_rx_attr* attr, fid_ep** srx, void* context) noexcept;

}  // namespace erdma::fabric
